//go:build linux && cgo

package profilecmd

import (
	"cmp"
	"context"
	"encoding/csv"
	"fmt"
	"io"
	"math"
	"math/bits"
	"slices"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/muster-serve/muster/api/picture"
	"github.com/muster-serve/muster/cmd/muster/internal/terminal"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/profiles"
	"github.com/muster-serve/muster/runtime"
)

const (
	// maxRuns is how many runs of a batch size follow each other in a round, at most.
	maxRuns = 50
	// sampleTurns is how many turns of the other measurements they take: there are fewer of them,
	// and their tail counts.
	sampleTurns = 10
)

// sampleSizes returns the batch sizes of a model's samples, four to an octave: a simulation takes a
// size between two of them for the larger one. They are the same on all machines, since files of
// several fit together only then.
func sampleSizes(largest int) []int {
	var list []int
	for b := 1; b < largest; b += max(1, 1<<bits.Len(uint(b))/8) {
		list = append(list, b)
	}
	return append(list, largest)
}

// samples are the runs of one model, in ms.
type samples struct {
	model   string
	batches []int
	runs    [][]float64 // by batch
}

// measureSamples measures the models' runs on the lane that an agent of this machine has by
// default: all of the cores, or the GPU.
func (o *options) measureSamples(ctx context.Context, names []string, out,
	messages io.Writer) error {
	x, err := runtime.OpenONNX(runtime.Config{
		LibraryPath: o.library, Provider: runtime.ExecutionProvider(o.provider), GPU: o.gpu,
		Cores:   o.cores,
		Kernels: true,
	})
	if err != nil {
		return err
	}
	processor := fmt.Sprintf("%s, %d cores", cmp.Or(cpuModel(), "CPU"), o.cores)
	instanceType := profiles.InstanceType(o.instanceType)
	if instanceType == "" {
		instanceType = profiles.Local(cpuModel(), o.cores)
	}
	if card := x.GPU(); card != nil {
		processor = card.Name
		if o.instanceType == "" {
			instanceType = profiles.Local(card.Name, 1)
		}
	} else if reason := x.Info().Fallback; reason != "" {
		fmt.Fprintf(messages, "no CUDA, measuring the CPU: %s\n", reason)
	}
	var subjects []*subject
	defer func() {
		for _, s := range subjects {
			_ = s.model.Close() // nothing of it is needed any more
		}
	}()
	for _, name := range names {
		v, err := models.ReadNewest(o.modelDir, name)
		if err != nil {
			return err
		}
		s, err := newSubject(ctx, x, v, sampleSizes(v.Config.LargestBatchSize))
		if err != nil {
			return err
		}
		subjects = append(subjects, s)
	}
	byName(subjects)
	before, err := readUsage()
	if err != nil {
		return err
	}
	all, err := sampleRuns(ctx, subjects, o.rounds, sampleTurns*o.least,
		terminal.NewPercentage(messages, "measure"))
	if err != nil {
		return err
	}
	after, err := readUsage()
	if err != nil {
		return err
	}
	stolen, others := after.shareSince(before)
	if err := write(o.samples, func(w io.Writer) error {
		return writeSamples(w, instanceType, all)
	}); err != nil {
		return err
	}
	if err := write(o.picture, func(w io.Writer) error {
		return picture.Page(1, drawSamples(processor, all)).Write(w, o.format)
	}); err != nil {
		return err
	}
	fmt.Fprintf(out,
		"%s as %s\nmeanwhile the hypervisor took %.1f %% of the cores' time, and other "+
			"processes %.1f %%\n\n", terminal.Plain(processor),
		terminal.Plain(string(instanceType)),
		100*stolen, 100*others)
	if err := printSamples(out, all); err != nil {
		return err
	}
	fmt.Fprintf(out,
		"\nwritten to %s and %s; to simulate with them:\n  muster sim --samples %[1]s "+
			"--model %[3]s --qos-ms %[4]g --pool %[5]s=2 --find-throughput\n", o.samples, o.picture,
		subjects[0].version.Model,
		float64(subjects[0].version.Config.QoSTarget)/float64(time.Millisecond), instanceType)
	return nil
}

// sampleRuns measures runs round by round, in each round all models and batch sizes in turn: after
// a run that does not count, runs for least, 3 at least and maxRuns at most.
func sampleRuns(ctx context.Context, subjects []*subject, rounds int, least time.Duration,
	progress func(done, total int64)) ([]samples, error) {
	all := make([]samples, len(subjects))
	var done, total int64
	for i, s := range subjects {
		all[i] = samples{s.version.Model, s.batches, make([][]float64, len(s.batches))}
		total += int64(rounds * len(s.batches))
	}
	for range rounds {
		for i, s := range subjects {
			for b, batch := range s.batches {
				began := time.Now()
				for n := 0; n <= 3 || n <= maxRuns && time.Since(began) < least; n++ {
					start := time.Now()
					err := s.run(ctx, b, len(all[i].runs[b])+n)
					if took := time.Since(start); n > 0 {
						all[i].runs[b] = append(all[i].runs[b], toMs(took))
					}
					if err != nil {
						return nil, fmt.Errorf("run %s with batch size %d: %w", s.version, batch,
							err)
					}
				}
				done++
				progress(done, total)
			}
		}
	}
	return all, nil
}

func toMs(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// writeSamples writes them as [profiles.ReadSamples] reads them.
func writeSamples(w io.Writer, instanceType profiles.InstanceType, all []samples) error {
	rows := csv.NewWriter(w) // which buffers, and keeps its first error
	_ = rows.Write(profiles.SamplesHeader())
	for _, s := range all {
		for i, batch := range s.batches {
			for _, took := range s.runs[i] {
				_ = rows.Write([]string{s.model, string(instanceType), strconv.Itoa(batch),
					strconv.FormatFloat(took, 'f', 4, 64)})
			}
		}
	}
	rows.Flush()
	return rows.Error()
}

func (s *samples) quantileOf(batch int, q float64) float64 {
	return quantile(slices.Sorted(slices.Values(s.runs[batch])), q)
}

// printSamples writes the samples for people: those of each octave's first batch size and the
// largest.
func printSamples(out io.Writer, all []samples) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "model\tbatch size\tp50 ms\tp99 ms\titems/s\truns\t")
	for _, s := range all {
		for i, batch := range s.batches {
			if bits.OnesCount(uint(batch)) > 1 && i < len(s.batches)-1 {
				continue
			}
			p50 := s.quantileOf(i, .5)
			fmt.Fprintf(w, "%s\t%d\t%.4g\t%.4g\t%.0f\t%d\t\n", terminal.Plain(s.model), batch, p50,
				s.quantileOf(i, .99), 1e3*float64(batch)/p50, len(s.runs[i]))
		}
	}
	return w.Flush()
}

// drawSamples draws medians by batch size, and the 99th percentiles above them.
func drawSamples(processor string, all []samples) *picture.Panel {
	p := picture.New("Time of a run on "+processor+"; dots: its 99th percentile", "batch size",
		"median, ms")
	p.Width = 480
	p.X.Log, p.Y.Log = true, true
	p.Add(picture.Grid{Vertical: true})
	least, most, largest := math.Inf(1), 0., 1
	for i, s := range all {
		median := &picture.Curve{LineStyle: picture.LineOf(i)}
		tail := newDots(i)
		for b, batch := range s.batches {
			p50, p99 := s.quantileOf(b, .5), s.quantileOf(b, .99)
			median.Values = append(median.Values, picture.Point{X: float64(batch), Y: p50})
			tail.Values = append(tail.Values, picture.Point{X: float64(batch), Y: p99})
			least, most, largest = min(least, p50), max(most, p99), max(largest, batch)
		}
		p.Add(median, tail)
		p.Legend(s.model, median, tail)
	}
	p.X.Min, p.X.Max = 1, 1.2*float64(largest)
	p.Y.Min, p.Y.Max = floor10(least), 1.5*most
	return p
}
