//go:build linux

package main

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/muster-serve/muster/api/querytrace"
)

// TestCapture: what an agent has kept of clients' queries is gathered, sent again and simulated.
func TestCapture(t *testing.T) {
	dir, kept := smallNCF(t), filepath.Join(t.TempDir(), "kept")
	settings := filepath.Join(dir, "ncf", "model.yaml")
	before, err := os.ReadFile(settings)
	if err != nil {
		t.Fatal(err)
	}
	write(t, settings, "requires: 3\ncapture: {share: 1}\n"+string(before))
	p := startAgent(t, dir, "--executor", "emulated", "--profile", "shipped", "--instance-type",
		"r5n.large", "--capture", kept)
	const sent = 30
	for i := range sent {
		body := fmt.Sprintf(`{"parameters":{"timeout":60000000},`+
			`"inputs":[{"name":"ids","datatype":"INT64","shape":[%d,4],"data":[1%s]}]}`,
			1+i%3, strings.Repeat(",2", 4*(1+i%3)-1))
		resp, err := http.Post("http://"+p.http+"/v2/models/ncf/infer", "application/json",
			strings.NewReader(body))
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Fatal(resp, err)
		}
		resp.Body.Close()
	}
	if err := p.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := p.Wait(); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "queries.jsonl.zst")
	out, _, err := execute(t, "capture", kept, file, "--model", "ncf", "--last", "1h")
	if err != nil || !strings.Contains(out, "30 queries") {
		t.Fatalf("gathered %q, %v", out, err)
	}
	plain, _, err := execute(t, "capture", "file://"+kept, "-")
	if err != nil || strings.Count(plain, "\n") != sent {
		t.Errorf("%d lines, %v, want %d", strings.Count(plain, "\n"), err, sent)
	}
	for args, want := range map[string]string{
		kept + " " + file + " --model wnd":            `no queries of "wnd", but 30 of other models`,
		kept + "/no " + file:                          "no such file",
		t.TempDir() + " " + file:                      "no captured queries",
		"oci://host/models " + file:                   "is a registry",
		kept + " " + file + " --model ncf --last -1s": "last: -1s",
		kept + " " + kept + "/no/queries.jsonl":       "no such file",
	} {
		if _, _, err := execute(t, append([]string{"capture"}, strings.Fields(args)...)...); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("capture %s: %v, want %q", args, err, want)
		}
	}
	other := startAgent(t, smallNCF(t), "--executor", "emulated", "--profile", "shipped",
		"--instance-type", "r5n.large")
	log := filepath.Join(t.TempDir(), "log.jsonl")
	if out, errs, err := execute(t, "bench", "--server", other.grpc, "--from", file, "--log", log); err != nil {
		t.Fatal(out, errs, err)
	}
	answered, rows := 0, 0
	err = querytrace.ReadFile(log, func(q querytrace.TracedQuery) error {
		if rows += q.Rows; q.Outcome == "ok" {
			answered++
		}
		return nil
	})
	if err != nil || answered != sent || rows != sent*2 {
		t.Errorf("%d of the captured queries were answered again, with %d rows, %v; want %d and %d",
			answered, rows, err, sent, 2*sent)
	}
	out, errs, err := execute(t, "sim", "--from", file, "--model", "ncf", "--pool", "r5n.large=2", "--json")
	if err != nil || !strings.Contains(out, `"queries": 30`) {
		t.Errorf("simulated %s, %s, %v, want 30 queries", out, errs, err)
	}
}
