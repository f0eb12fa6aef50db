//go:build linux && cgo

package profilecmd

import (
	"bytes"
	"context"
	"errors"
	"image/png"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/muster-serve/muster/agent/worker"
	"github.com/muster-serve/muster/api/querytrace"
	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/models/zoo"
	"github.com/muster-serve/muster/profiles"
	"github.com/muster-serve/muster/profiles/sharing"
	"github.com/muster-serve/muster/profiles/workload"
	"github.com/muster-serve/muster/runtime"
	"github.com/muster-serve/muster/runtime/isolate"
	"github.com/muster-serve/muster/runtime/runtimetest"
)

// TestProfile measures two small models and reads what was written. It says nothing about times.
func TestProfile(t *testing.T) {
	if testing.Short() {
		t.Skip("it measures for seconds")
	}
	library := runtimetest.Library(t)
	top, err := isolate.Read()
	if err != nil {
		t.Fatal(err)
	}
	if len(top.CPUs) < 2 {
		t.Skip("needs two processors")
	}
	ctx, dir := context.Background(), t.TempDir()
	repository := smallModels(t, "ncf", "wnd")
	out := filepath.Join(dir, "s.json")
	var printed, messages bytes.Buffer
	o := options{
		modelDir: repository, library: library, out: out, cores: 2, rounds: 3, pairs: true,
		least: time.Millisecond, patience: time.Second,
	}
	if err := o.run(ctx, []string{"wnd", "ncf"}, &printed, &messages); err != nil {
		t.Fatal(err)
	}
	text, err := os.Open(out)
	if err != nil {
		t.Fatal(err)
	}
	defer text.Close()
	f, err := sharing.Read(out, text)
	if err != nil {
		t.Fatal(err)
	}
	if f.Cores != 2 || f.Machine.Cores != 2 || f.Machine.CPU == "" || !(f.Bandwidth > 0) {
		t.Errorf("got %+v", f.Machine)
	}
	for _, model := range []string{"ncf", "wnd"} {
		v, err := models.ReadNewest(repository, model)
		if err != nil {
			t.Fatal(err)
		}
		sum, err := worker.Checksum(ctx, v)
		if err != nil {
			t.Fatal(err)
		}
		if err := f.Check(model, 1, sum, 2); err != nil {
			t.Error(err)
		}
		if q := f.QPS[model]; len(q) != 3 || q[0][0] != 0 || !(q[1][0] > 0) || !(q[2][0] > 0) {
			t.Errorf("%s: queries/s %v", model, q)
		}
		// 1, 8, 32 and 64, with one and two workers
		if l := f.Latencies[model]; len(l) != 8 || l[3].BatchSize != 64 || !(l[3].P50 > 0) {
			t.Errorf("%s: latencies %+v", model, l)
		}
		for _, other := range []string{"ncf", "wnd"} {
			if s := f.Slowdown[model][other]; !(s > 0) ||
				!strings.Contains(printed.String(), model) {
				t.Errorf("%s beside %s: %v", model, other, s)
			}
		}
	}
	drawn, err := os.Open(filepath.Join(dir, "s.png"))
	if err != nil {
		t.Fatal(err)
	}
	defer drawn.Close()
	if image, err := png.Decode(drawn); err != nil || image.Bounds().Dx() < 1000 {
		t.Errorf("the picture: %v", err)
	}
	for _, want := range []string{"queries/s", "slowdown beside", "the hypervisor took", out} {
		if !strings.Contains(printed.String(), want) {
			t.Errorf("no %q in:\n%s", want, printed.String())
		}
	}
}

// smallModels makes small models of the zoo, for batch sizes up to 64, and returns their
// repository.
func smallModels(t *testing.T, names ...string) string {
	repository := t.TempDir()
	for _, model := range names {
		if _, err := zoo.Generate(t.Context(), repository, model,
			zoo.Options{Scale: zoo.Small}); err != nil {
			t.Fatal(err)
		}
		small := []byte("largest_batch_size: 64\nqos_target_ms: 100\n")
		if err := os.WriteFile(filepath.Join(repository, model, "model.yaml"), small,
			0o644); err != nil {
			t.Fatal(err)
		}
	}
	return repository
}

// TestSamples measures runs of two models; what is written can be simulated with.
func TestSamples(t *testing.T) {
	o := options{
		modelDir: smallModels(t, "ncf", "wnd"), library: runtimetest.Library(t), provider: "cpu",
		samples: filepath.Join(t.TempDir(), "s.csv"), rounds: 3, least: time.Microsecond,
		instanceType: "x.large",
	}
	var printed, messages bytes.Buffer
	if err := o.run(t.Context(), []string{"wnd", "ncf"}, &printed, &messages); err != nil {
		t.Fatal(err)
	}
	found, err := profiles.OpenSamples(o.samples)
	if err != nil {
		t.Fatal(err)
	}
	for _, model := range []string{"ncf", "wnd"} {
		series, err := found.Series(model, "x.large")
		if err != nil {
			t.Fatal(err)
		}
		if b := series.BatchSizes(); !slices.Equal(b, sampleSizes(64)) {
			t.Errorf("%s: batch sizes %v", model, b)
		}
		for _, batch := range series.BatchSizes() {
			if n := len(series.At(batch)); n != 9 { // in each round 3, and one that does not count
				t.Errorf("%s: %d runs of batch size %d", model, n, batch)
			}
		}
	}
	for _, want := range []string{"as x.large\n", "p99 ms", "the hypervisor took",
		"muster sim --samples " + o.samples + " --model ncf --qos-ms 100 --pool x.large=2"} {
		if !strings.Contains(printed.String(), want) {
			t.Errorf("no %q in:\n%s", want, printed.String())
		}
	}
	drawn, err := os.Open(strings.TrimSuffix(o.samples, "csv") + "png")
	if err != nil {
		t.Fatal(err)
	}
	defer drawn.Close()
	if image, err := png.Decode(drawn); err != nil || image.Bounds().Dx() < 500 {
		t.Errorf("the picture: %v", err)
	}
}

// TestRecorded runs recorded queries; users and values that say nothing make work no better.
func TestRecorded(t *testing.T) {
	repository := smallModels(t, "ncf")
	v, err := models.ReadNewest(repository, "ncf")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "q.jsonl")
	var text bytes.Buffer
	w := querytrace.NewWriter(&text)
	r := rand.New(rand.NewPCG(1, 0))
	for i := range 60 {
		q := querytrace.TracedQuery{Model: "ncf", Rows: 1 + i%64, Users: 1}
		if q.Inputs, err = runtime.RandomInputs(r, v, q.Rows); err != nil {
			t.Fatal(err)
		}
		slices.Reverse(q.Inputs)
		if err := w.Write(q); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(file, text.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	o := options{modelDir: repository, library: runtimetest.Library(t), provider: "cpu", rounds: 3,
		from: file}
	var printed, messages bytes.Buffer
	if err := o.run(t.Context(), []string{"ncf"}, &printed, &messages); err != nil {
		t.Fatal(err)
	}
	if got := strings.Fields(strings.Split(printed.String(), "\n")[1]); len(got) != 9 ||
		got[0] != "ncf" || got[1] != "60" || got[2] != got[4] || got[8] != "rows" {
		t.Errorf("printed %s", &printed)
	}
	err = o.run(t.Context(), []string{"wnd"}, &printed, &messages)
	if err == nil || !strings.Contains(err.Error(), `no queries for model "wnd"`) {
		t.Errorf("another model: %v", err)
	}
}

// TestBadSamples: the other measurements' flags are refused, and so is what is not there.
func TestBadSamples(t *testing.T) {
	for want, args := range map[string][]string{
		"none of the others can be; [pairs samples] were all set": {"--pairs"},
		"[samples workers] were all set":                          {"--workers", "1"},
		`provider "tpu": want cpu, cuda or auto`:                  {"--provider", "tpu"},
		"nowhere/x.png cannot be written":                         {"--picture", "nowhere/x.png"},
	} {
		cmd := NewCommand()
		cmd.SetArgs(append(args, "ncf", "--samples", filepath.Join(t.TempDir(), "s.csv"),
			"--model-dir", t.TempDir(), "--onnxruntime-lib", runtimetest.Library(t)))
		cmd.SetOut(io.Discard)
		cmd.SetErr(io.Discard)
		if err := cmd.Execute(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	if got := sampleSizes(33); !slices.Equal(got, []int{1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20,
		24,
		28, 32, 33}) {
		t.Errorf("up to 33: %v", got)
	}
	s := samples{runs: [][]float64{{4, 1, 3, 2}}}
	if s.quantileOf(0, .5) != 2 || s.quantileOf(0, .99) != 4 || s.quantileOf(0, 0) != 1 {
		t.Errorf("of 1 to 4: %v, %v, %v", s.quantileOf(0, .5), s.quantileOf(0, .99),
			s.quantileOf(0, 0))
	}
}

func TestBadOptions(t *testing.T) {
	top := &isolate.Topology{CPUs: []isolate.CPU{{Number: 0}, {Number: 1, Core: 1}}}
	limited := &isolate.Topology{CPUs: top.CPUs, Quota: 1.5}
	for want, c := range map[string]struct {
		options
		top   *isolate.Topology
		names []string
	}{
		"--cores is 3, want 1 to 2: this process may use processors 0-1": {
			options{cores: 3}, top, nil,
		},
		"the cgroup's limit is the time of 1.5": {options{}, limited, nil},
		"--pairs needs 2 cores":                 {options{cores: 1, pairs: true}, top, nil},
		"--rounds is 2":                         {options{rounds: 2}, top, nil},
		"--workers has 3, want":                 {options{counts: []int{1, 3}}, top, nil},
		"--workers has 1, want":                 {options{counts: []int{1, 1}}, top, nil},
		`model "a" is given twice`:              {options{}, top, []string{"a", "a"}},
		"--picture: x.gif has the ending":       {options{picture: "x.gif"}, top, nil},
		"nowhere/x.json cannot be written":      {options{out: "nowhere/x.json"}, top, nil},
	} {
		if c.rounds == 0 {
			c.rounds = 10
		}
		if err := c.check(c.names, c.top); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

// TestBesideMeasured: runs during which the neighbours had no core do not count, where there are
// enough others.
func TestBesideMeasured(t *testing.T) {
	var all []sample
	for i := range 30 {
		one := sample{cpu: 10, beside: .95}
		if i%3 == 0 {
			one = sample{cpu: 5, beside: .1}
		}
		all = append(all, one)
	}
	if got := countedCPUTimes(all); len(got) != 20 || slices.Contains(got, 5) {
		t.Errorf("got %v", got)
	}
	for i := range all {
		all[i].beside = float64(i) / 100 // none ran all the time
	}
	if got := countedCPUTimes(all); len(got) != 10 {
		t.Errorf("got %d runs, want the third during which the neighbours ran most", len(got))
	}
}

// TestRatio: slowdowns are those of queries of the trace; single long runs do not move them, nor do
// rounds in which one of the phases had its processors for a part of the time only.
func TestRatio(t *testing.T) {
	sizes := workload.Trace()
	batches := []int{1, 1000}
	phase := func(together bool) (rounds [][][]sample) {
		for n := range 21 {
			drift := 1 + float64(n)/10 // as a machine that becomes busier
			x := func(ms, slower float64) []sample {
				one := sample{cpu: time.Duration(ms * drift * float64(time.Millisecond)), beside: 1}
				if together {
					one.cpu = time.Duration(float64(one.cpu) * slower)
					if n == 7 {
						one.cpu *= 20
					}
				} else if n%4 == 0 { // as in single runs alone, on a busy machine
					one.cpu, one.beside = 2*one.cpu, .3
				}
				return []sample{one}
			}
			rounds = append(rounds, [][]sample{x(1, 3), x(100, 1.2)})
		}
		return rounds
	}
	r, err := slowdownRatio(sizes, batches, phase(false), phase(true))
	want := expectedValue(sizes, batches, []float64{3, 120}) / expectedValue(sizes, batches,
		[]float64{1, 100})
	if math.Abs(r-want) > 1e-6 || err > .001 {
		t.Errorf("got %v +- %v, want %v", r, err, want)
	}
	if _, err := slowdownRatio(sizes, batches, phase(false)[:2], phase(true)[:2]); err < .9 {
		t.Errorf("two rounds: error %v, want 1, about", err)
	}
	if got := interpolateAt([]int{1, 10, 20}, []float64{1, 10, 40}, 15); got != 25 {
		t.Errorf("between 10 and 20: got %v, want 25", got)
	}
	if got := interpolateAt([]int{1, 10, 20}, []float64{1, 10, 40}, 30); got != 70 {
		t.Errorf("beyond the last: got %v, want 70", got)
	}
}

func TestUsage(t *testing.T) {
	read := func(line string) usage {
		u, err := parseUsage(line + "\ncpu0 1 2 3\n")
		if err != nil {
			t.Fatal(err)
		}
		return u
	}
	before, after := read("cpu  10 0 0 90 0 0 0 0 0 0"), read("cpu  60 0 20 100 0 0 0 20 0 0")
	after.own = 50
	stolen, others := after.shareSince(before)
	if stolen != .2 || others != .2 { // of 100: 20 stolen, 90 busy of which 50 are its own
		t.Errorf("got %v and %v", stolen, others)
	}
	if _, err := parseUsage("intr 5"); err == nil {
		t.Error("no times: got no error")
	}
}

func TestCounts(t *testing.T) {
	for cores, want := range map[int][]int{
		1: {1}, 2: {1, 2}, 4: {1, 2, 3, 4}, 16: {1, 2, 3, 4, 6, 9, 13, 16},
	} {
		if got := countsUpTo(cores); !slices.Equal(got, want) {
			t.Errorf("%d cores: got %v, want %v", cores, got, want)
		}
	}
	by := map[int]float64{2: 20, 4: 30}
	for w, want := range []float64{0, 10, 20, 25, 30} {
		if got := interpolate([]int{2, 4}, by, w); got != want {
			t.Errorf("%d workers: got %v, want %v", w, got, want)
		}
	}
	if got := batchesUpTo(64); !slices.Equal(got, []int{1, 8, 32, 64}) {
		t.Errorf("got %v", got)
	}
}

// TestWorkersOn: workers have physical cores of their own as long as there are enough.
func TestWorkersOn(t *testing.T) {
	top := &isolate.Topology{CPUs: []isolate.CPU{
		{Number: 0, Core: 0}, {Number: 2, Core: 0}, {Number: 1, Core: 1}, {Number: 3, Core: 1},
	}}
	if got := workersOn(top, 3); !slices.Equal(got, []int{0, 1, 2}) {
		t.Errorf("got %v", got)
	}
}

// brief is a model whose runs take no time worth naming.
type brief struct{}

func (brief) Run(context.Context, []tensor.Tensor) (*runtime.Result, error) {
	return &runtime.Result{}, nil
}

func (brief) Close() error { return nil }

// TestAloneCounts: a run alone, too, counts only if the neighbour's processor was the neighbour's:
// otherwise another process ran there, and "alone" would be beside that. Here both workers are on
// one processor, so one of them never had it.
func TestAloneCounts(t *testing.T) {
	top, err := isolate.Read()
	if err != nil {
		t.Fatal(err)
	}
	s := &subject{model: brief{}, batches: []int{1}, inputs: [][][]tensor.Tensor{{nil}}}
	cpu := top.CPUs[0].Number
	all, err := newWorkers(s, []int{cpu, cpu}, 1,
		func(worker, _, _ int) bool { return worker == 0 })
	if err != nil {
		t.Fatal(err)
	}
	if err := measurePhases(context.Background(), all, 1, 1, 0, &watch{}); err != nil {
		t.Fatal(err)
	}
	samples := all[0].rounds[0][0][0]
	if len(samples) == 0 {
		t.Fatal("nothing ran")
	}
	for _, one := range samples {
		if one.beside > .6 {
			t.Errorf("a run counts with %.2f of the processor each", one.beside)
		}
	}
}

// TestPhasesInterleave: a batch size runs in all phases before the next one does, forwards and
// backwards in turn, so that alone and beside are compared under the same conditions.
func TestPhasesInterleave(t *testing.T) {
	top, err := isolate.Read()
	if err != nil {
		t.Fatal(err)
	}
	var phases []int
	s := &subject{
		model: brief{}, batches: []int{1, 2}, inputs: [][][]tensor.Tensor{{nil}, {nil}},
	}
	all, err := newWorkers(s, []int{top.CPUs[0].Number}, 2, func(_, phase, _ int) bool {
		phases = append(phases, phase)
		return true
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := measurePhases(context.Background(), all, 3, 2, 0, &watch{}); err != nil {
		t.Fatal(err)
	}
	if want := []int{0, 1, 2, 2, 1, 0, 2, 1, 0, 0, 1, 2}; !slices.Equal(phases, want) {
		t.Errorf("phases %v, want %v", phases, want)
	}
	for phase, rounds := range all[0].rounds {
		for round, batches := range rounds {
			for batch, samples := range batches {
				if len(samples) == 0 {
					t.Errorf("phase %d, round %d, batch size %d: no run", phase, round, batch)
				}
			}
		}
	}
}

// failing is a model that cannot run.
type failing struct{ brief }

func (failing) Run(context.Context, []tensor.Tensor) (*runtime.Result, error) {
	return nil, errors.New("broken")
}

// TestMeasureEnds: a run that fails, and the end of the context, end all workers, also one that is
// off.
func TestMeasureEnds(t *testing.T) {
	top, err := isolate.Read()
	if err != nil {
		t.Fatal(err)
	}
	one := func(m runtime.Model) []*pinnedWorker {
		s := &subject{
			version: &models.Version{Model: "m", Number: 1}, model: m, batches: []int{1},
			inputs: [][][]tensor.Tensor{{nil}},
		}
		cpu := top.CPUs[0].Number
		all, err := newWorkers(s, []int{cpu, cpu}, 1, func(w, _, _ int) bool { return w == 0 })
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	if err := measurePhases(context.Background(), one(failing{}), 1, 3, 0, &watch{}); err == nil ||
		!strings.Contains(err.Error(), "broken") {
		t.Errorf("got %v, want that it is broken", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := measurePhases(ctx, one(brief{}), 1, 1_000_000, 0, &watch{}); !errors.Is(err,
		context.Canceled) {
		t.Errorf("got %v, want that ctx ended", err)
	}
}
