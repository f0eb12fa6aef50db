package releasecmd

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"aead.dev/minisign"
	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/models/store"
	"github.com/muster-serve/muster/models/store/releases"
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
		Canary:  &control.VersionCounts{Queries: 50, Late: 2, Failed: 5, P50Ns: 4e6},
		Answers: &control.AnswersCompared{Compared: 40, Wrong: 1, Sum: .4, Most: .3},
	}, {Release: &control.Release{Model: "wnd", Current: 1}, State: "released"}, {
		Release: &control.Release{
			Model: "din", Current: 1, Canary: 2, Share: .1, Tolerance: math.Inf(1),
		}, State: "on trial",
	}}}
	for _, tt := range []struct {
		print func(*strings.Builder) error
		want  []string
	}{
		{func(b *strings.Builder) error { return printReleases(b, resp) }, []string{
			"ncf    3        4       5%     on trial  it is no worse",
			"wnd    1        -       -      released",
		}},
		{func(b *strings.Builder) error { return printComparison(b, resp) }, []string{
			"ncf: version 4 beside 3 with 5% of the queries, on trial for 1m1s", "2 ms", "5: 10% [",
			"40 answers were compared: 1 are wrong, by more than 0.05 (2.5% [", "0.01 in the mean",
			"wnd: version 1 answers all queries", "answers are not compared",
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

// TestMaxDifference: what promote asks for is what an agent of before takes it for, too.
func TestMaxDifference(t *testing.T) {
	ptr := func(v float64) *float64 { return &v }
	for _, tt := range []struct {
		args       []string
		tolerance  float64 // which is all that an older agent knows
		difference *float64
		says       string
	}{
		{nil, math.Inf(1), nil, ""},
		{[]string{"--max-difference", "0.1"}, .1, ptr(.1), ""},
		{[]string{"--max-difference", "0"}, math.SmallestNonzeroFloat64, ptr(0), ""},
		{[]string{"--tolerance", "0"}, 0, nil, ""},
		{[]string{"--tolerance", "0.1"}, .1, nil, ""},
		{[]string{"--max-difference", "-1"}, 0, nil, "--max-difference -1, want"},
		{[]string{"--max-difference", "NaN"}, 0, nil, "--max-difference NaN, want"},
		{[]string{"--max-difference", "Inf"}, 0, nil, "--max-difference +Inf, want"},
		{[]string{"--max-difference", "0", "--tolerance", "0"}, 0, nil, "want one of them"},
	} {
		dir := t.TempDir()
		s := store.New(store.Directory(dir), "the store")
		push(t, s, 1, 2)
		err := promoted(t, append([]string{"ncf", "2", "--share", "5%", "--store", "file://" + dir},
			tt.args...))
		if tt.says != "" {
			if err == nil || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("%v: got %v, want %q", tt.args, err, tt.says)
			}
			continue
		}
		if err != nil {
			t.Fatalf("%v: %v", tt.args, err)
		}
		r, _, err := releases.Newest(t.Context(), s, "ncf")
		if err != nil {
			t.Fatal(err)
		}
		want := tt.tolerance
		if want == 0 {
			want = control.DefaultTolerance
		}
		if r.GetTolerance() != want || (r.MaxDifference == nil) != (tt.difference == nil) ||
			r.GetMaxDifference() != value(tt.difference) {
			t.Errorf("%v: the store has %v, want tolerance %v", tt.args, r, want)
		}
	}
	err := promoted(t, []string{"ncf", "2", "--max-difference", "0", "--store", "file:///none"})
	if err == nil || !strings.Contains(err.Error(), "they need --share") {
		t.Errorf("without a share: got %v", err)
	}
}

func value(v *float64) float64 {
	if v == nil {
		return 0
	}
	return *v
}

// promoted runs promote.
func promoted(t *testing.T, args []string) error {
	t.Helper()
	cmd := newPromote(func(*cobra.Command) (func() (*grpc.ClientConn, error), func(error) error) {
		return nil, nil
	})
	cmd.SetArgs(args)
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetOut(new(strings.Builder))
	return cmd.ExecuteContext(context.Background())
}

// push pushes versions of ncf to a store.
func push(t *testing.T, s *store.Store, versions ...int) {
	t.Helper()
	folder := filepath.Join(t.TempDir(), "ncf")
	for _, v := range versions {
		dir := filepath.Join(folder, fmt.Sprint(v))
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "model.onnx"), fmt.Append(nil, "no model ", v),
			0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Push(t.Context(), folder, int64(v), store.PushOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

// TestUnknownModelInStore: a mistyped model is told from one of which nothing was released.
func TestUnknownModelInStore(t *testing.T) {
	dir := t.TempDir()
	s := store.New(store.Directory(dir), "the store")
	push(t, s, 1)
	for model, want := range map[string]string{
		"ncf": `no version of "ncf" was released in the store`,
		"nfc": `model "nfc" in the store, it has: ncf`,
	} {
		_, err := inStore{s: s}.Release(t.Context(), &control.ReleaseRequest{Model: model})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", model, err, want)
		}
	}
}

// TestSign: a release of before is written once more, signed, and once only; what others wrote
// without the key is no ground on which something is signed.
func TestSign(t *testing.T) {
	dir := t.TempDir()
	s := store.New(store.Directory(dir), "the store")
	folder := filepath.Join(t.TempDir(), "ncf")
	for _, version := range []int64{1, 2} {
		file := filepath.Join(folder, fmt.Sprint(version), "model.onnx")
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte("no model"), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Push(t.Context(), folder, version, store.PushOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	public, private, err := minisign.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	signs := inStore{s: s, fleet: "prod", signer: &store.Signer{
		Key: store.Keys{public},
		Sign: func(d []byte) ([]byte, error) {
			return minisign.Sign(private, d), nil
		},
	}}
	trust := releases.Trust{Keys: store.Keys{public}, Fleet: "prod"}
	newest := func(when string, number uint64, current int64) {
		t.Helper()
		r, _, err := releases.NewestValid(t.Context(), s, "ncf", trust)
		if err != nil || r.GetNumber() != number || r.GetCurrent() != current {
			t.Errorf("%s: got %v, %v, want number %d of version %d", when, r, err, number, current)
		}
	}
	promote := func(k inStore, version int64, share float64) error {
		_, err := k.SetRelease(t.Context(), &control.SetReleaseRequest{
			Model: "ncf", Version: version, Share: share,
		})
		return err
	}
	if err := promote(inStore{s: s}, 1, 0); err != nil {
		t.Fatal(err)
	}
	if err := promote(signs, 2, .1); err == nil || !strings.Contains(err.Error(),
		"muster models release ncf --store URL --sign KEY") {
		t.Errorf("a canary beside a version that nobody has signed for: got %v", err)
	}
	for range 2 {
		if _, err := signs.sign(t.Context(), "ncf"); err != nil {
			t.Error(err)
		}
		newest("signed", 2, 1)
	}
	if err := promote(signs, 2, .1); err != nil {
		t.Error(err)
	}
	newest("a canary", 3, 1)
	if err := promote(inStore{s: s}, 1, 0); err != nil {
		t.Fatal(err)
	}
	newest("another has written", 3, 1)
	if err := promote(signs, 2, 0); err != nil {
		t.Error(err)
	}
	newest("promoted", 5, 2)
	signs.above = 100
	if err := promote(signs, 1, 0); err != nil {
		t.Error(err)
	}
	newest("above what a fleet knows", 101, 1)
	signs.above = 1 << 30
	if err := promote(signs, 2, 0); err == nil || !strings.Contains(err.Error(), "pass it over") {
		t.Errorf("far above: got %v", err)
	}
}
