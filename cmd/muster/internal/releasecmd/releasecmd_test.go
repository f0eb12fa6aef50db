package releasecmd

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/models/store"
)

func TestParseShare(t *testing.T) {
	for text, want := range map[string]float64{"": 0, "5%": .05, "0.25": .25, "0.5%": .005} {
		if got, err := ParseShare(text); err != nil || got != want {
			t.Errorf("%q: got %v, %v, want %v", text, got, err, want)
		}
	}
	for _, bad := range []string{"0", "100%", "1", "-5%", "NaN", "x", "%", "5 %", "1e400"} {
		if got, err := ParseShare(bad); err == nil {
			t.Errorf("%q: got %v, want an error", bad, got)
		}
	}
}

func TestPrint(t *testing.T) {
	r := &control.Release{Model: "ncf", Current: 3, Canary: 4, Share: .05, Tolerance: .05}
	resp := &control.ReleaseResponse{Releases: []*control.ReleaseState{{
		Release: r, State: "on trial", Verdict: "it is no worse", AgeNs: 61e9,
		Current: &control.VersionCounts{
			Queries: 950, Late: 1, Runs: 900, Slow: 9, P50Ns: 2e6, P99Ns: 3e6,
		},
		Canary:  &control.VersionCounts{Queries: 50, Late: 2, Failed: 3, P50Ns: 4e6},
		Answers: &control.AnswersCompared{Compared: 40, Wrong: 1, Sum: .4, Most: .3},
	}, {Release: &control.Release{Model: "wnd", Current: 1}, State: "released"}}}
	for _, tt := range []struct {
		print func(*strings.Builder) error
		want  []string
	}{
		{func(b *strings.Builder) error { return printReleases(b, resp) }, []string{
			"ncf    3        4       5%     on trial  it is no worse",
			"wnd    1        -       -      released",
		}},
		{func(b *strings.Builder) error { return printComparison(b, resp) }, []string{
			"ncf: version 4 beside 3 with 5% of the queries, on trial for 1m1s", "2 ms", "10% [",
			"40 answers were compared: 1 are wrong, by more than 0.05 (2.5% [", "0.01 in the mean",
			"wnd: version 1 answers all queries",
		}},
		{func(b *strings.Builder) error { return printReleases(b, &control.ReleaseResponse{}) },
			[]string{"nothing was released"}},
	} {
		var b strings.Builder
		if err := tt.print(&b); err != nil {
			t.Error(err)
		}
		for _, want := range tt.want {
			if !strings.Contains(b.String(), want) {
				t.Errorf("got\n%swant %q", &b, want)
			}
		}
	}
}

// TestUnknownModelInStore: a mistyped model is told from one of which nothing was released.
func TestUnknownModelInStore(t *testing.T) {
	dir := t.TempDir()
	s := store.New(store.Directory(dir), "the store")
	folder := filepath.Join(t.TempDir(), "ncf")
	if err := os.MkdirAll(filepath.Join(folder, "1"), 0o755); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(folder, "1", "model.onnx")
	if err := os.WriteFile(file, []byte("no model"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Push(t.Context(), folder, 1, store.PushOptions{}); err != nil {
		t.Fatal(err)
	}
	for model, want := range map[string]string{
		"ncf": `no version of "ncf" was released in the store`,
		"nfc": `model "nfc" in the store, it has: ncf`,
	} {
		_, err := inStore{s}.Release(t.Context(), &control.ReleaseRequest{Model: model})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", model, err, want)
		}
	}
}
