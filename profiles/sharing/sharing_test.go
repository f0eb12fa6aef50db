package sharing

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func good() *File {
	return &File{
		Machine: Machine{CPU: "some", Cores: 2, Processors: "0-1"}, Cores: 2, Bandwidth: 20,
		BandwidthBy: "copying", Low: []string{"rm2"},
		QPS:           map[string][][]float64{"rm2": {{0}, {10}, {17}}, "wnd": {{0}, {50}, {99}}},
		HalfBandwidth: map[string]float64{"rm2": 8, "wnd": 1},
		Slowdown: map[string]map[string]float64{
			"rm2": {"rm2": 1.2, "wnd": 1.05}, "wnd": {"rm2": 1.1, "wnd": 1.02},
		},
		Models: map[string]MeasuredModel{
			"rm2": {Version: 1, Checksum: "0123456789"}, "wnd": {
				Version: 3, Checksum: "abcdef0123",
			},
		},
		Latencies: map[string][]Latency{"rm2": {{Workers: 1, BatchSize: 1, P50: 1, Samples: 9}}},
	}
}

func TestFile(t *testing.T) {
	var b bytes.Buffer
	if err := good().Write(&b); err != nil {
		t.Fatal(err)
	}
	text := b.String()
	got, err := Read("f.json", &b)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(good(), got); diff != "" {
		t.Error(diff)
	}
	for _, c := range []struct{ old, new, want string }{
		{`"cores": 2,`, `"cores": 3,`, "f.json: qps."},
		{`"rm2": 1.1`, `"rm2": 0`, "slowdown.wnd.rm2 is 0, want a number > 0"},
		{"   50\n", "   -50\n", "qps.wnd[1] is [-50], want 1 numbers >= 0"},
		{`"version": 3`, `"version": "x"`, "f.json: models.version is a text, want a whole number"},
		{`"ways"`, `"way"`, `unknown field "way"`},
		{`{
 "machine"`, ``, "f.json: line 1: not JSON: invalid character"},
	} {
		other := strings.ReplaceAll(text, c.old, c.new)
		if other == text {
			t.Fatalf("%q is not in the file:\n%s", c.old, text)
		}
		if _, err := Read("f.json", strings.NewReader(other)); err == nil ||
			!strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", c.new, err, c.want)
		}
	}
}

func TestCheck(t *testing.T) {
	f := good()
	if err := f.Check("wnd", 3, "abcdef0123", 2); err != nil {
		t.Error(err)
	}
	if err := f.Check("wnd", 3, "abcdef0123", 0); err != nil {
		t.Error(err)
	}
	for _, c := range []struct {
		model    string
		version  int64
		checksum string
		cores    int
		stale    bool
		want     string
	}{
		{"wnd", 4, "abcdef0123", 2, true,
			`model "wnd" was measured as version 3, and it is version 4`},
		{"wnd", 3, "ffffffffff", 2, true, "other files (checksum abcdef01, now ffffffff)"},
		{"wnd", 3, "abcdef0123", 8, false, "a machine with 2 cores (some), and this one has 8"},
		{"ncf", 1, "", 2, false, `model "ncf" was not measured: run ` + "`muster profile ncf`"},
	} {
		err := f.Check(c.model, c.version, c.checksum, c.cores)
		if err == nil || !strings.Contains(err.Error(), c.want) ||
			errors.As(err, new(*StaleError)) != c.stale {
			t.Errorf("got %v, want %q", err, c.want)
		}
	}
}
