package main

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/muster-serve/muster/reproduce/figures"
)

// TestRun: a figure is three files and its text, and what cannot be made is refused with what can.
func TestRun(t *testing.T) {
	out := filepath.Join(t.TempDir(), "new")
	for args, want := range map[string]string{
		"":                               "name figures, all or list",
		"kairos-fig99":                   "kairos-fig16",
		"kairos-fig5 list":               `"list" is unknown`,
		"kairos-fig5 --seeds 0":          "0 and 20000, want",
		"chart --seeds 0":                "0 and 20000, want",
		"kairos-fig5 --sedes 1":          "unknown flag",
		"kairos-fig5 --data " + t.Name(): "samples.csv",
	} {
		err := run(t.Context(), append(strings.Fields(args), "--out", out), io.Discard, io.Discard)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want an error with %q", args, err, want)
		}
		if usage := !strings.Contains(args, "--data"); errors.Is(err, errUsage) != usage {
			t.Errorf("%s: %v is a wrong argument: %v", args, err, !usage)
		}
	}
	var stdout bytes.Buffer
	if err := run(t.Context(), []string{"list"}, &stdout, io.Discard); err != nil ||
		len(strings.Fields(stdout.String())) != len(figures.Names()) {
		t.Errorf("list: %v, %s", err, &stdout)
	}
	stdout.Reset()
	if err := run(t.Context(), []string{"kairos-fig5", "--out", out}, &stdout,
		io.Discard); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(stdout.String(), "published/kairos/samples.csv.gz") {
		t.Errorf("does not say where the latencies come from: %s", &stdout)
	}
	files, err := os.ReadDir(out)
	if err != nil || len(files) != 3 {
		t.Errorf("files %v, %v; want csv, png and txt", files, err)
	}
}
