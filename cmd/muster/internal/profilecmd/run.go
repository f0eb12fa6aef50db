//go:build linux && cgo

package profilecmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/muster-serve/muster/agent/worker"
	"github.com/muster-serve/muster/api/files"
	"github.com/muster-serve/muster/api/picture"
	"github.com/muster-serve/muster/cmd/muster/internal/misuse"
	"github.com/muster-serve/muster/cmd/muster/internal/terminal"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/profiles/sharing"
	"github.com/muster-serve/muster/profiles/workload"
	"github.com/muster-serve/muster/runtime"
	"github.com/muster-serve/muster/runtime/isolate"
)

func (o *options) run(ctx context.Context, names []string, out, messages io.Writer) error {
	top, err := isolate.Read()
	if err != nil {
		return err
	}
	if err := o.check(names, top); err != nil {
		return misuse.Wrap(err)
	}
	if o.from != "" {
		return o.measureRecorded(ctx, names, out, messages)
	}
	if o.samples != "" {
		return o.measureSamples(ctx, names, out, messages)
	}
	p := &profiler{
		counts: o.counts, rounds: o.rounds, sizes: workload.Trace(), least: o.least,
		watch:    newWatch(top, o.patience),
		progress: terminal.NewPercentage(messages, "measure"),
	}
	if len(p.counts) == 0 {
		p.counts = countsUpTo(o.cores)
	}
	p.cpus = workersOn(top, o.cores)
	used := slices.Sorted(slices.Values(p.cpus))
	p.file = &sharing.File{
		Note: "measured by muster profile: threads' processor time, queries/s by simulation",
		Machine: sharing.Machine{
			CPU: cpuModel(), Cores: o.cores, Processors: isolate.FormatCPUs(used),
		},
		Cores: o.cores,
	}
	executor, err := runtime.OpenONNX(runtime.Config{
		LibraryPath: o.library, Provider: runtime.CPU, Cores: 1, Kernels: true,
	})
	if err != nil {
		return err
	}
	defer func() {
		for _, s := range p.subjects {
			_ = s.model.Close() // nothing of it is needed any more
		}
	}()
	for _, name := range names {
		v, err := models.ReadNewest(o.modelDir, name)
		if err != nil {
			return err
		}
		sum, err := worker.Checksum(ctx, v)
		if err != nil {
			return err
		}
		s, err := newSubject(ctx, executor, v, batchesUpTo(v.Config.LargestBatchSize))
		if err != nil {
			return err
		}
		s.checksum = sum
		p.subjects = append(p.subjects, s)
	}
	p.again = func(ctx context.Context, s *subject) (*subject, error) {
		return newSubject(ctx, executor, s.version, s.batches)
	}
	byName(p.subjects)
	if err := p.measureAll(ctx, o.pairs); err != nil {
		return err
	}
	if err := write(o.out, p.file.Write); err != nil {
		return err
	}
	if err := write(o.picture, func(w io.Writer) error {
		return drawChart(p.file).Write(w, o.format)
	}); err != nil {
		return err
	}
	if err := print(out, p.file); err != nil {
		return err
	}
	fmt.Fprintf(out, "\nwritten to %s and %s\n", o.out, o.picture)
	return nil
}

// check reports all faults of the options, and fills in defaults.
func (o *options) check(names []string, top *isolate.Topology) error {
	var errs []error
	fault := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	for i, name := range names {
		if slices.Contains(names[:i], name) {
			fault("model %q is given twice", name)
		}
	}
	if o.cores == 0 {
		o.cores = len(top.CPUs)
	}
	if o.cores < 1 || o.cores > len(top.CPUs) {
		fault("--cores is %d, want 1 to %d: this process may use %s", o.cores, len(top.CPUs), top)
	}
	if top.Quota > 0 && float64(o.cores) > top.Quota {
		fault("--cores is %d, and the cgroup's limit is the time of %g", o.cores, top.Quota)
	}
	if o.pairs && o.cores == 1 {
		fault("--pairs needs 2 cores, and there is 1")
	}
	if o.rounds < 3 || o.rounds > 100_000 {
		fault("--rounds is %d, want 3 to 100000", o.rounds)
	}
	slices.Sort(o.counts)
	for i, n := range o.counts {
		if n < 1 || n > o.cores || i > 0 && n == o.counts[i-1] {
			fault("--workers has %d, want different counts from 1 to %d", n, o.cores)
		}
	}
	if len(o.counts) > 0 && len(errs) == 0 && o.counts[len(o.counts)-1] != o.cores {
		o.counts = append(o.counts, o.cores) // the file says what all cores do
	}
	file := cmp.Or(o.samples, o.out)
	if o.picture == "" {
		o.picture = strings.TrimSuffix(file, filepath.Ext(file)) + ".png"
	}
	var err error
	if o.format, err = picture.Format(o.picture); err != nil {
		fault("--picture: %w", err)
	}
	// Before an hour of measurements, not after it.
	for _, path := range []string{file, o.picture} {
		if info, err := os.Stat(filepath.Dir(path)); err != nil {
			fault("%s cannot be written: %w", path, err)
		} else if !info.IsDir() {
			fault("%s cannot be written: %s is no directory", path, filepath.Dir(path))
		}
	}
	return errors.Join(errs...)
}

// workersOn returns the processors of one-core workers, the threads of a physical core last: a
// worker has a core of its own as long as there are enough.
func workersOn(top *isolate.Topology, cores int) []int {
	var first, others []int
	for i, c := range top.CPUs {
		if i > 0 && c.Core == top.CPUs[i-1].Core && c.Package == top.CPUs[i-1].Package {
			others = append(others, c.Number)
		} else {
			first = append(first, c.Number)
		}
	}
	return append(first, others...)[:cores]
}

// write replaces a file by what with writes, as a whole.
func write(path string, with func(io.Writer) error) error {
	if err := files.ReplaceBy(path, 0o644, with); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// print writes the measurements for people.
func print(out io.Writer, f *sharing.File) error {
	fmt.Fprintf(out, "%s, %d cores (%s); memory %.1f GB/s by %s\n", terminal.Plain(f.Machine.CPU),
		f.Cores, f.Machine.Processors, f.Bandwidth, f.BandwidthBy)
	fmt.Fprintf(
		out, "meanwhile the hypervisor took %.1f %% of the cores' time, and other processes "+
			"%.1f %%\n", 100*f.Steal, 100*f.Others)
	if f.WaitedS > 0 {
		fmt.Fprintf(out, "waited %.1f s until processors shared a cache, as the machine says\n",
			f.WaitedS)
	}
	fmt.Fprintln(out)
	names := modelsOf(f)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(w, "queries/s\t")
	for n := 1; n <= f.Cores; n++ {
		fmt.Fprintf(w, "%d\t", n)
	}
	fmt.Fprint(w, "workers\tGB/s of half\t\n")
	for _, name := range names {
		fmt.Fprintf(w, "%s\t", terminal.Plain(name))
		for n := 1; n <= f.Cores; n++ {
			fmt.Fprintf(w, "%.1f\t", f.QPS[name][n][0])
		}
		low := ""
		if slices.Contains(f.Low, name) {
			low = "low"
		}
		fmt.Fprintf(w, "%s\t%.2f\t\n", low, f.HalfBandwidth[name])
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if f.Slowdown != nil {
		fmt.Fprintln(out)
		w = tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
		fmt.Fprint(w, "slowdown beside\t")
		for _, b := range names {
			fmt.Fprintf(w, "%s\t", terminal.Plain(b))
		}
		fmt.Fprintln(w)
		for _, a := range names {
			fmt.Fprintf(w, "%s\t", terminal.Plain(a))
			for _, b := range names {
				fmt.Fprintf(w, "%.3f ±%.3f\t", f.Slowdown[a][b],
					f.Slowdown[a][b]*f.SlowdownError[a][b])
			}
			fmt.Fprintln(w)
		}
		if err := w.Flush(); err != nil {
			return err
		}
	}
	if len(f.Unsure) > 0 {
		fmt.Fprintf(out, "\nunsure, with %d times the rounds:\n", maxRepeats)
		for _, u := range f.Unsure {
			fmt.Fprintf(out, "  %s\n", terminal.Plain(u))
		}
	}
	return nil
}

func modelsOf(f *sharing.File) (names []string) {
	for name := range f.QPS {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
