//go:build linux && cgo

package profilecmd

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/muster-serve/muster/leader/match"
	"github.com/muster-serve/muster/profiles"
	"github.com/muster-serve/muster/profiles/sharing"
	"github.com/muster-serve/muster/profiles/workload"
	"github.com/muster-serve/muster/runtime/isolate"
	"github.com/muster-serve/muster/sim"
)

// A profiler measures subjects on the processors of this machine.
type profiler struct {
	cpus     []int // of the workers, in the order in which they are used
	counts   []int // of workers to measure, in order
	rounds   int
	least    time.Duration // of a turn
	watch    *watch
	subjects []*subject
	// again loads a subject's model once more. The caller closes it.
	again func(context.Context, *subject) (*subject, error)
	file  *sharing.File
	// progress is called with the parts that are done, of so many.
	progress func(done, of int64)
	done, of int64
	sizes    *workload.BatchSizes
}

// maxRepeats is how often a result that is not sure is measured on.
const maxRepeats = 2

// measureAll measures everything into p.file.
func (p *profiler) measureAll(ctx context.Context, pairs bool) error {
	n := int64(len(p.subjects))
	p.of = n + 1
	if pairs {
		p.of += n * (n + 1) / 2
	}
	p.file.QPS, p.file.HalfBandwidth = map[string][][]float64{}, map[string]float64{}
	p.file.Models = map[string]sharing.MeasuredModel{}
	p.file.Latencies = map[string][]sharing.Latency{}
	p.file.Low = []string{}
	before, err := readUsage()
	if err != nil {
		return err
	}
	if p.file.Bandwidth, err = measureBandwidth(ctx, p.cpus); err != nil {
		return err
	}
	p.file.BandwidthBy = "copying memory on all cores"
	p.step()
	for _, s := range p.subjects {
		if err := p.measureScaling(ctx, s); err != nil {
			return err
		}
		p.step()
	}
	if pairs {
		p.file.Slowdown = map[string]map[string]float64{}
		p.file.SlowdownError = map[string]map[string]float64{}
		for _, s := range p.subjects {
			p.file.Slowdown[s.version.Model] = map[string]float64{}
			p.file.SlowdownError[s.version.Model] = map[string]float64{}
		}
		for i, a := range p.subjects {
			for _, b := range p.subjects[i:] {
				if err := p.measurePair(ctx, a, b); err != nil {
					return err
				}
				p.step()
			}
		}
	}
	after, err := readUsage()
	if err != nil {
		return err
	}
	p.file.Steal, p.file.Others = after.shareSince(before)
	p.file.WaitedS = roundTo(p.watch.waited.Seconds(), 1)
	if p.watch.apart > 0 {
		p.file.Apart = roundTo(float64(p.watch.apart)/float64(p.watch.steps), 4)
		p.file.Unsure = append(p.file.Unsure,
			fmt.Sprintf("the processors shared no cache in %.0f %% of "+
				"all that was measured, though the machine says that they do", 100*p.file.Apart))
	}
	return nil
}

func (p *profiler) step() {
	p.done++
	p.progress(p.done, p.of)
}

// newWorkers returns a worker of a subject on each of some processors, which runs so many of its
// batch sizes.
func newWorkers(s *subject, cpus []int, batches int,
	on func(worker, phase, round int) bool) ([]*pinnedWorker,
	error) {
	var all []*pinnedWorker
	for i, cpu := range cpus {
		pin, err := isolate.NewPin([]int{cpu})
		if err != nil {
			return nil, err
		}
		all = append(all, &pinnedWorker{
			subject: s, batches: batches, pin: pin, cpu: cpu,
			on: func(phase, round int) bool { return on(i, phase, round) },
		})
	}
	return all, nil
}

// measureScaling measures a model's latencies with each count of workers, and what they serve.
func (p *profiler) measureScaling(ctx context.Context, s *subject) error {
	name := s.version.Model
	most := slices.Max(p.counts)
	// Each round begins with another processor: they may not be equally fast.
	all, err := newWorkers(s, p.cpus[:most], len(s.batches), func(worker, phase, round int) bool {
		return (worker+round)%most < p.counts[phase]
	})
	if err != nil {
		return err
	}
	var unsure []string
	for range maxRepeats {
		if err := measurePhases(ctx, all, len(p.counts), p.rounds, p.least, p.watch); err != nil {
			return err
		}
		p.file.Latencies[name], unsure = p.latenciesOf(s, all)
		if len(unsure) == 0 {
			break
		}
	}
	p.file.Unsure = append(p.file.Unsure, unsure...)
	c := &s.version.Config
	p.file.Models[name] = sharing.MeasuredModel{
		Version: s.version.Number, Checksum: s.checksum,
		QoSTargetMS: float64(c.QoSTarget) / 1e6, QoSPercentile: c.QoSPercentile,
		LargestBatchSize: p.largestBatch(s),
	}
	return p.computeServed(ctx, s)
}

// latenciesOf returns a model's latencies, by counts of workers and batch sizes, and which are
// not sure.
func (p *profiler) latenciesOf(s *subject, all []*pinnedWorker) (list []sharing.Latency,
	unsure []string) {
	for phase, count := range p.counts {
		for batch, size := range s.batches {
			var samples []sample
			for _, w := range all {
				for _, round := range w.rounds[phase] {
					samples = append(samples, round[batch]...)
				}
			}
			times := countedCPUTimes(samples)
			l := sharing.Latency{
				Workers: count, BatchSize: size, Samples: len(times),
				Error: roundTo(medianError(times), 4),
			}
			slices.Sort(times)
			ms := func(q float64) float64 {
				return roundTo(float64(quantile(times, q))/float64(time.Millisecond), 6)
			}
			l.P50, l.P90, l.P99 = ms(.5), ms(.9), ms(.99)
			list = append(list, l)
			if l.Error > sure {
				unsure = append(unsure, fmt.Sprintf("%s, %d workers, batch size %d: %.0f %%",
					s.version.Model, count, size, 100*l.Error))
			}
		}
	}
	return list, unsure
}

// computeServed computes the queries/s and the bandwidth of a model by its latencies.
func (p *profiler) computeServed(ctx context.Context, s *subject) error {
	name := s.version.Model
	sizes, err := p.sizes.AtMost(p.largestBatch(s))
	if err != nil {
		return err
	}
	by := map[int]float64{} // queries/s by count of workers
	half := max(1, p.file.Cores/2)
	for _, count := range p.counts {
		if by[count], err = p.findThroughput(ctx, s, sizes, count); err != nil {
			return err
		}
	}
	rows := make([][]float64, p.file.Cores+1)
	for w := range rows {
		rows[w] = []float64{roundTo(interpolate(p.counts, by, w), 2)}
	}
	p.file.QPS[name] = rows
	least, most := p.medianTimes(s, p.counts[0]), p.medianTimes(s, p.counts[len(p.counts)-1])
	if expectedValue(sizes, s.batches, least) < lowScalability*expectedValue(sizes, s.batches,
		most) {
		p.file.Low = append(p.file.Low, name)
	}
	p.file.HalfBandwidth[name] = roundTo(rowBytes(s)*sizes.Mean()*rows[half][0]/1e9, 3)
	return nil
}

// lowScalability is the part of its speed that a worker has left beside others of its model on all
// cores below which the model counts as one of low worker scalability.
const lowScalability = .8

// medianTimes returns a model's times by batch size, in ms.
func (p *profiler) medianTimes(s *subject, workers int) (y []float64) {
	for _, l := range p.file.Latencies[s.version.Model] {
		if l.Workers == workers {
			y = append(y, l.P50)
		}
	}
	return y
}

// largestBatch is the largest batch size with which queries of a model come to one worker: the
// largest that it serves within half of the target, so that it may wait as long. Larger ones are
// split.
func (p *profiler) largestBatch(s *subject) int {
	largest := min(s.version.Config.LargestBatchSize, p.sizes.Largest())
	half := float64(s.version.Config.QoSTarget) / float64(time.Millisecond) / 2
	y := p.medianTimes(s, p.counts[0])
	for b := largest; b > 1; b-- {
		if interpolateAt(s.batches, y, b) <= half {
			return b
		}
	}
	return 1
}

// rowBytes is how many bytes of its tables a row of a query reads; 0 for a model whose model.yaml
// names no tables.
func rowBytes(s *subject) float64 {
	bytes := 0.0
	for _, t := range s.version.Config.Tables {
		bytes += float64(t.Lookups * t.Dim * 4)
	}
	return bytes
}

// interpolate is the value at w of a curve through (0, 0) and some points, linear between them.
func interpolate(counts []int, by map[int]float64, w int) float64 {
	low, value := 0, 0.0
	for _, c := range counts {
		if w <= c {
			return value + (by[c]-value)*float64(w-low)/float64(c-low)
		}
		low, value = c, by[c]
	}
	return value
}

// findThroughput is the most queries/s that so many workers serve within the model's QoS target, by
// simulation with queries of the production trace.
func (p *profiler) findThroughput(ctx context.Context, s *subject, sizes *workload.BatchSizes,
	count int) (float64, error) {
	const typ = "worker"
	c := &s.version.Config
	var knots []profiles.Knot
	for _, l := range p.file.Latencies[s.version.Model] {
		if l.Workers != count {
			continue
		}
		ms := func(x float64) time.Duration { return time.Duration(x * float64(time.Millisecond)) }
		knots = append(knots, profiles.Knot{
			// The tail of so few samples is what else ran on the machine. The simulated one comes
			// of the batch sizes and of waiting.
			BatchSize: l.BatchSize, Mean: ms(l.P50), P50: ms(l.P50), P90: ms(l.P50), P99: ms(l.P50),
			Error: l.Error,
		})
	}
	table, err := profiles.NewTable(profiles.Key{
		Model: s.version.Model, InstanceType: typ, Provider: "cpu",
	}, profiles.Learned, "measured", knots)
	if err != nil {
		return 0, err
	}
	if table.Mean(1) > c.QoSTarget {
		return 0, nil // none of its queries
	}
	m := sim.Model{
		Name: s.version.Model, QoSTarget: c.QoSTarget, QoSShare: min(c.QoSPercentile/100, .9999),
		BatchSizes: sizes, Latencies: map[string]match.Latencies{typ: table},
	}
	pool := sim.Pool{{Type: typ, Count: count}}
	limit, err := sim.FluidLimit([]sim.Model{m}, pool)
	if err != nil {
		return 0, err
	}
	// Enough that those within the target at the end do not count.
	within := 20 * c.QoSTarget.Seconds() * limit.Rate
	if within > maxQueries {
		return limit.Rate, nil // waiting hardly matters
	}
	found, err := sim.FindThroughput(ctx, &sim.Config{
		Models: []sim.Model{m}, Pool: pool, Queries: max(fewestQueries, int(within)), Seed: 1,
	}, simSeeds, nil)
	if err != nil {
		return 0, fmt.Errorf("simulate %d workers of %s: %w", count, s.version.Model, err)
	}
	return found.Rate, nil
}

// How many queries a simulation has.
const fewestQueries, maxQueries = 5000, 200_000

// simSeeds is over how many runs a throughput is averaged.
const simSeeds = 3

// maxPairs is how often a pair is measured on until it is precise.
const maxPairs = 4

// measurePair measures how much longer a model's queries take beside the other's, each on half of
// the cores. A model beside itself is beside a copy with tables of its own, as any other model has
// them. On the same tables both go through the same rows at about the same time, and each finds in
// the cache what the other has fetched: two workers of rm2 were .75 times as slow as one.
func (p *profiler) measurePair(ctx context.Context, a, b *subject) error {
	if a == b {
		var err error
		if b, err = p.again(ctx, a); err != nil {
			return err
		}
		defer b.model.Close()
	}
	half := len(p.cpus) / 2
	const first, second, both = 0, 1, 2
	ofA, err := newWorkers(a, p.cpus[:half], p.countNeeded(a), func(_, phase, _ int) bool {
		return phase != second
	})
	if err != nil {
		return err
	}
	ofB, err := newWorkers(b, p.cpus[half:2*half], p.countNeeded(b), func(_, phase, _ int) bool {
		return phase != first
	})
	if err != nil {
		return err
	}
	set := func(of, beside *subject, r, err float64) {
		p.file.Slowdown[of.version.Model][beside.version.Model] = roundTo(r, 4)
		p.file.SlowdownError[of.version.Model][beside.version.Model] = roundTo(err, 4)
	}
	for try := 1; ; try++ {
		if err := measurePhases(ctx, slices.Concat(ofA, ofB), 3, p.rounds, p.least,
			p.watch); err != nil {
			return err
		}
		r, errA := p.slowdownOf(ofA, first, both)
		q, errB := p.slowdownOf(ofB, second, both)
		if a.version == b.version {
			r, errA = math.Sqrt(r*q), math.Hypot(errA, errB)/2
			q, errB = r, errA
		}
		set(a, b, r, errA)
		set(b, a, q, errB)
		if err := max(errA, errB); err <= precise || try == maxPairs {
			if err > sure {
				p.file.Unsure = append(p.file.Unsure, fmt.Sprintf("%s beside %s: %.0f %%",
					a.version.Model, b.version.Model, 100*err))
			}
			return nil
		}
	}
}

// slowdownOf is how much longer the workers' queries took in one phase than in another.
func (p *profiler) slowdownOf(of []*pinnedWorker, alone, together int) (r, err float64) {
	s := of[0].subject
	sizes, e := p.sizes.AtMost(p.largestBatch(s))
	if e != nil {
		return 0, 1
	}
	var before, after [][][]sample
	for _, w := range of {
		before, after = append(before, w.rounds[alone]...), append(after, w.rounds[together]...)
	}
	return slowdownRatio(sizes, s.batches[:of[0].batches], before, after)
}

// countNeeded is how many of a model's batch sizes say how long its queries take: all up to the
// first that is as large as the largest query.
func (p *profiler) countNeeded(s *subject) int {
	largest := p.largestBatch(s)
	for i, b := range s.batches {
		if b >= largest {
			return i + 1
		}
	}
	return len(s.batches)
}

// roundTo rounds to some digits after the point, so that files can be read and compared.
func roundTo(x float64, digits int) float64 {
	f := math.Pow10(digits)
	return math.Round(x*f) / f
}

// batchesUpTo returns the batch sizes that are measured of a model.
func batchesUpTo(largest int) []int {
	var list []int
	for _, b := range []int{1, 8, 32, 64, 128, 256, 512} {
		if b < largest {
			list = append(list, b)
		}
	}
	return append(list, min(largest, 1000))
}

// countsUpTo returns the counts of workers that are measured: all of a small machine, and fewer and
// fewer of a large one.
func countsUpTo(cores int) []int {
	var list []int
	for n := 1; n < cores; {
		list = append(list, n)
		if n < 4 {
			n++
		} else {
			n += n / 2
		}
	}
	return append(list, cores)
}

// cpuModel is the processor's name.
func cpuModel() string {
	text, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(text)) {
		if name, value, ok := strings.Cut(line, ":"); ok &&
			strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// byName sorts subjects, so that the same models give the same file in any order.
func byName(subjects []*subject) {
	slices.SortFunc(subjects, func(a, b *subject) int {
		return cmp.Compare(a.version.Model, b.version.Model)
	})
}
