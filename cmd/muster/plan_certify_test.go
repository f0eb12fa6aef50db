package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// writeTrace writes a record of queries of rm2, one each gap ms.
func writeTrace(t *testing.T, queries int, gap float64) string {
	path := filepath.Join(t.TempDir(), "queries.jsonl")
	var b strings.Builder
	for i := range queries {
		fmt.Fprintf(&b, `{"at_ms": %v, "model": "rm2", "rows": %d}`+"\n", float64(i)*gap, 10+i%90)
	}
	if err := os.WriteFile(path, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestPlanCertify: a fleet is certified on a record that it serves, and the command fails for one
// that it does not serve.
func TestPlanCertify(t *testing.T) {
	certify := func(path string) (r certificateReport, err error) {
		out, _, err := execute(t, "plan", "certify", "--from", path, "--pool", "r5n.large=1", "--json")
		if e := json.Unmarshal([]byte(out), &r); e != nil {
			t.Fatal(e, out)
		}
		return r, err
	}
	r, err := certify(writeTrace(t, 600, 100))
	if err != nil || !r.Holds || r.Models[0].InTime.Share != 1 || r.Models[0].InTime.Low < .99 ||
		r.Price != .149 || r.BoundPrice == nil || *r.BoundPrice > r.Price || r.Queries != 600 {
		t.Errorf("at 10/s: %+v, %v, want a certificate", r, err)
	}
	r, err = certify(writeTrace(t, 600, 5))
	if !errors.Is(err, errNotCertified) || r.Holds || r.Models[0].InTime.High > .9 ||
		r.BoundPrice == nil || *r.BoundPrice <= r.Price {
		t.Errorf("at 200/s: %+v, %v, want none, and a bound above the price", r, err)
	}
	out, _, err := execute(t, "plan", "certify", "--from", writeTrace(t, 600, 100), "--pool",
		"r5n.large=1")
	if err != nil || !strings.Contains(out, "\nCertified: r5n.large=1 keeps 99 %") {
		t.Errorf("%v: %s", err, out)
	}
}

func TestPlanCertifyBadInput(t *testing.T) {
	path := writeTrace(t, 10, 100)
	for args, want := range map[string]string{
		"":                          "from: give --from FILE",
		"--from " + path:            "pool: give --pool",
		"--from nothere --pool a=1": "nothere",
		"--from " + path + " --pool r5n.large=1 --target 100":  "target: 100 %",
		"--from " + path + " --pool r5n.large=1 --model wnd":   `no queries for model "wnd"`,
		"--from " + path + " --pool m7i.unknown=1":             "m7i.unknown",
		"--from " + path + " --pool r5n.large=1 --policy best": "best",
	} {
		out, _, err := execute(t, append([]string{"plan", "certify"}, strings.Fields(args)...)...)
		if err == nil || errors.Is(err, errNotCertified) || !strings.Contains(err.Error(), want) {
			t.Errorf("plan certify %s: error %v, want one with %q", args, err, want)
		}
		if out != "" {
			t.Errorf("plan certify %s: printed %q", args, out)
		}
	}
}
