// Command gpu measures Muster on this machine's GPU: beside its CPU, beside ONNX Runtime's CUDA
// provider in Python, with and without merging, when memory runs out, and in a fleet with agents on
// the CPU beside the simulation of that fleet.
//
//	make build onnxruntime CUDA=1
//	go run ./scripts/bench/gpu --python PYTHON        some four minutes
//	go run ./scripts/bench/gpu --only runs,merging
//
// PYTHON needs onnxruntime-gpu; without it the columns of ONNX Runtime alone are missing. It prints
// tables, and writes results.json, latencies.png and profiles of the card to build/gpu. All traffic
// stays on loopback.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/muster-serve/muster/models/zoo"
)

// A run is one run of the command.
type run struct {
	muster, library, python, dir string
	rounds                       int
	time                         time.Duration // of each measurement
	only                         []string
	results                      map[string]any // by part
}

// names are the models, those of the papers.
var names = []string{"ncf", "rm2", "wnd", "mtwnd", "dien"}

// A part is something to measure.
type part struct {
	name string
	do   func(r *run, ctx context.Context) error
}

var parts = []part{
	{"runs", (*run).measureRuns},
	{"serving", (*run).measureServing},
	{"merging", (*run).measureMerging},
	{"memory", (*run).testMemory},
	{"loading", (*run).testLoading},
	{"variants", (*run).measureVariants},
	{"profile", (*run).profileModels},
	{"fleet", (*run).testFleet},
}

func main() {
	goruntime.LockOSThread() // the kernel stops agents when the thread that started them ends
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	r := &run{results: map[string]any{}}
	root := &cobra.Command{
		Use: "gpu", Short: "Measure Muster on this machine's GPU",
		Args: cobra.NoArgs, SilenceErrors: true, SilenceUsage: true,
		RunE: func(cmd *cobra.Command, _ []string) error { return r.measureAll(cmd.Context()) },
	}
	flags := root.Flags()
	flags.StringVar(&r.muster, "muster", "bin/muster", "the binary of Muster")
	flags.StringVar(&r.library, "onnxruntime-lib", "",
		"ONNX Runtime's CUDA build (default: what make onnxruntime CUDA=1 makes)")
	flags.StringVar(&r.python, "python", "", "a Python with onnxruntime-gpu")
	flags.StringVar(&r.dir, "dir", "build/gpu", "directory for models, results and logs")
	flags.StringSliceVar(&r.only, "only", nil, "only some parts: runs, serving, merging, memory, "+
		"loading, variants, profile, fleet")
	flags.IntVar(&r.rounds, "rounds", 5, "rounds of each measurement")
	flags.DurationVar(&r.time, "time", 100*time.Millisecond, "time of each measurement in a round")
	if err := root.ExecuteContext(ctx); err != nil {
		fmt.Fprintf(os.Stderr, "gpu: %v\n", err)
		os.Exit(1)
	}
}

// measureAll makes the models and measures the parts. What one finds is kept if another one fails.
func (r *run) measureAll(ctx context.Context) (err error) {
	if r.library == "" {
		found, _ := filepath.Glob("build/onnxruntime-cuda/linux-amd64/libonnxruntime.so.*")
		if len(found) == 0 {
			return errors.New("no CUDA build: run `make onnxruntime CUDA=1`, or name one with " +
				"--onnxruntime-lib")
		}
		r.library = found[0]
	}
	for _, model := range names {
		if _, err := zoo.Generate(ctx, r.modelsPath(), model, zoo.Options{}); err != nil {
			return err
		}
	}
	for _, p := range parts {
		if len(r.only) == 0 || slices.Contains(r.only, p.name) {
			fmt.Printf("\n== %s\n", p.name)
			if failed := p.do(r, ctx); failed != nil {
				fmt.Printf("%s: %v\n", p.name, failed)
				err = errors.Join(err, fmt.Errorf("%s: %w", p.name, failed))
			}
		}
	}
	text, failed := json.MarshalIndent(r.results, "", "\t")
	if failed == nil {
		failed = os.WriteFile(filepath.Join(r.dir, "results.json"), text, 0o644)
	}
	return errors.Join(err, failed)
}

func (r *run) modelsPath() string { return filepath.Join(r.dir, "models") }
