package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"sync"
	"time"

	"github.com/muster-serve/muster/api/inference"
	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/client"
	"github.com/muster-serve/muster/client/bench"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/profiles/workload"
	"github.com/muster-serve/muster/runtime"
	"github.com/muster-serve/muster/scripts/test/harness"
)

// The real models, in the order they are shown.
var realModels = []string{"ncf", "wnd"}

// sizes are the batch sizes of every load.
var sizes = workload.Trace()

// A subject is a real model, with what was measured of it.
type subject struct {
	name     string
	version  *models.Version
	metadata *inference.ModelMetadataResponse // for making queries
	alone    runtime.Model                    // ONNX Runtime, without Muster

	onnx, muster []time.Duration // latencies of the same queries, one at a time
}

var errAgentExited = errors.New("the agent ended by itself")

// showModels is the first part: it compares an agent that serves the real models with ONNX Runtime
// alone. It returns the agent, which has ended.
func (d *demo) showModels(ctx context.Context) (a *harness.Node, err error) {
	// Half of the cores are left to client and server, which share this machine with the models.
	cpus := goruntime.GOMAXPROCS(0)
	cores := max(1, cpus/2)
	d.printLine(
		"1  Two models, ncf and wnd, on an agent of this machine, with %d of its %d CPUs for the "+
			"models", cores, cpus)
	dir := filepath.Join(d.dir, "models")
	if err := d.generateModels(ctx, dir, realModels...); err != nil {
		return nil, err
	}
	executor, err := runtime.OpenONNX(runtime.Config{Provider: runtime.CPU, Cores: cores})
	if err != nil {
		return nil, err
	}
	subjects := make([]*subject, len(realModels))
	largest := make([]time.Duration, len(realModels))
	for i, name := range realModels {
		s, err := loadSubject(ctx, executor, dir, name)
		if err != nil {
			return nil, err
		}
		defer s.alone.Close()
		subjects[i] = s
		if largest[i], err = d.measureLargest(ctx, s); err != nil {
			return nil, err
		}
	}
	target := chooseTarget(largest)
	d.printLine("   At the largest batch size, %[3]d, ONNX Runtime alone takes %[1]s ms for ncf and "+
		"%[2]s ms for wnd.\n"+
		"   So the QoS target on this machine is 99 %% of the queries within %[4]g ms: %[5]d "+
		"times "+
		"the sum", figures(milliseconds(largest[0])), figures(milliseconds(largest[1])),
		sizes.Largest(), milliseconds(target), targetFactor)
	for _, s := range subjects {
		if err := setTarget(dir, s.name, target); err != nil {
			return nil, err
		}
	}

	// Add removes the state of an earlier run, whose learned latencies may not be today's.
	f := &harness.Fleet{
		Muster: d.muster, Dir: d.dir, DefaultPorts: true, Models: realModels, Args: []string{
			"--cores", fmt.Sprint(cores),
		},
	}
	if a, err = f.Add(ctx, ""); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, a.Stop()) }()
	// If the agent dies, the error says so, and not what failed because of that.
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		<-a.Exited()
		cancel(errAgentExited)
	}()
	err = d.serve(ctx, f, subjects)
	if errors.Is(context.Cause(ctx), errAgentExited) {
		err = nil // Stop says why
	}
	return a, err
}

// serve compares the agent with ONNX Runtime alone, and then puts a load on it.
func (d *demo) serve(ctx context.Context, f *harness.Fleet, subjects []*subject) error {
	c, err := client.New(f.Addresses(), client.WithTimeout(patience))
	if err != nil {
		return err
	}
	defer c.Close()
	if err := f.WaitComplete(ctx); err != nil {
		return err
	}
	means := make([]time.Duration, len(subjects))
	for i, s := range subjects {
		if err := d.compareWithORT(ctx, c, s); err != nil {
			return err
		}
		means[i] = mean(s.muster)
	}
	d.lookAround()
	d.printLine(
		"   Asked one query at a time, the agent answers %.0f queries/s of ncf, or %.0f of wnd. "+
			"The "+
			"answers\n   are those of ONNX Runtime",
		1/means[0].Seconds(), 1/means[1].Seconds())
	loads, rate := chooseLoad(subjects, means)
	shares := map[string]float64{loads[0].Model: loads[0].Share, loads[1].Model: loads[1].Share}
	d.printLine(
		"   Now %.0f s of a load that takes half of its time: %.0f queries/s of ncf and %.0f of "+
			"wnd",
		d.load.Seconds(), loads[0].Share, loads[1].Share)
	sampled := &sampledServer{Server: c}
	report, err := d.sendLoad(ctx, sampled, true, rate, d.load, shares)
	if err != nil {
		return err
	}
	for i, s := range subjects {
		m := report.Models[i]
		d.printLine("   %s: %s of %d queries within %g ms", s.name, percent(m.QoSSatisfaction),
			m.Queries,
			m.QoSTargetMS)
		d.rows = append(d.rows, timesRow(s.name, "ONNX Runtime alone, in a loop", s.onnx),
			timesRow(s.name, "Muster, one at a time", s.muster))
		d.addResult(m, "Muster, both models under load", s.name)
	}
	d.lookAround()
	return verify(ctx, subjects, sampled)
}

// loadSubject loads a model of the directory into ONNX Runtime.
func loadSubject(ctx context.Context, executor *runtime.ONNX, dir, name string) (*subject, error) {
	v, err := models.ReadVersion(dir, name, 1)
	if err != nil {
		return nil, err
	}
	s := &subject{name: name, version: v, metadata: &inference.ModelMetadataResponse{Name: name}}
	bounds := map[string][]int64{}
	for _, in := range v.Inputs {
		s.metadata.Inputs = append(s.metadata.Inputs,
			&inference.ModelMetadataResponse_TensorMetadata{
				Name: in.Name, Datatype: string(in.DataType), Shape: in.Shape,
			})
		if len(in.IDBounds) > 0 {
			bounds[in.Name] = in.IDBounds
		}
	}
	s.metadata.Properties = oip.Properties{IDBounds: bounds}.Map()
	s.alone, err = executor.Load(ctx, v)
	return s, err
}

// makeQuery makes a query of random values; the same seed makes the same query.
func (s *subject) makeQuery(batchSize int, seed uint64) (*oip.Request, error) {
	q, _, err := bench.RandomQuery(s.metadata, batchSize, seed)
	return q, err
}

// minRuns is how often each query is measured at least, however long that takes.
const minRuns = 10

// measureLargest is the p90 of ONNX Runtime's latency, alone, at the largest batch size.
func (d *demo) measureLargest(ctx context.Context, s *subject) (time.Duration, error) {
	defer d.showActivity("measuring %s at its largest batch size", s.name)()
	q, err := s.makeQuery(sizes.Largest(), 1)
	if err != nil {
		return 0, err
	}
	var times []time.Duration
	// The first runs are slower, and are left out below: their memory is cold.
	for begin := time.Now(); len(times) < 2*minRuns || time.Since(begin) < d.measure/3; {
		result, err := s.alone.Run(ctx, q.Inputs)
		if err != nil {
			return 0, err
		}
		result.Release()
		times = append(times, result.Execution)
	}
	times = times[minRuns:]
	slices.Sort(times)
	return quantile(times, 0.9), nil
}

const (
	// targetFactor leaves a query time to wait for others. With a load that takes half of the
	// lane's time, fewer than one query in a thousand takes half of the target. The other half is
	// for whatever else the machine does.
	targetFactor = 4
	// minTarget is the shortest target, because machines often stop a process for tens of
	// milliseconds.
	minTarget = 50 * time.Millisecond
)

// chooseTarget is the QoS target for models whose largest queries take that long, in whole tens of
// ms. All models have the same, since a query may have to wait for a query of another model.
func chooseTarget(largest []time.Duration) time.Duration {
	var sum time.Duration
	for _, t := range largest {
		sum += t
	}
	const step = 10 * time.Millisecond
	return max(minTarget, (targetFactor*sum+step-1)/step*step)
}

// chooseLoad is a load that takes half of the lane's time, the same time for each model. It returns
// the rate of each model, as its share, and the rate of all, in queries/s.
func chooseLoad(subjects []*subject, means []time.Duration) (loads []workload.Load, rate float64) {
	for i, s := range subjects {
		qps := 0.5 / float64(len(subjects)) / means[i].Seconds()
		loads = append(loads, workload.Load{Model: s.name, Share: qps, BatchSizes: sizes})
		rate += qps
	}
	return loads, rate
}

// setTarget writes a QoS target into a model's configuration.
func setTarget(dir, model string, target time.Duration) error {
	path := filepath.Join(dir, model, models.ConfigFile)
	c, err := models.ReadConfig(path)
	if err != nil {
		return err
	}
	c.QoSTarget, c.Deadline = target, patience
	text, err := c.YAML()
	if err != nil {
		return err
	}
	return os.WriteFile(path, text, 0o644)
}

// compareWithORT sends the same queries to ONNX Runtime alone and to Muster, one at a time: ten to
// the one, then the same ten to the other, and so on. It checks that the answers agree.
func (d *demo) compareWithORT(ctx context.Context, c *client.Client, s *subject) error {
	defer d.showActivity("measuring %s, alone and in Muster", s.name)()
	const atOnce = 10
	random := rand.New(rand.NewPCG(1, 0))
	for begin := time.Now(); len(s.onnx) < minRuns || time.Since(begin) < d.measure; {
		var queries []*oip.Request
		var answers [][]tensor.Tensor
		for range atOnce {
			q, err := s.makeQuery(sizes.Draw(random), random.Uint64())
			if err != nil {
				return err
			}
			queries = append(queries, q)
		}
		for _, q := range queries {
			start := time.Now()
			result, err := s.alone.Run(ctx, q.Inputs)
			if err != nil {
				return err
			}
			s.onnx = append(s.onnx, time.Since(start))
			answers = append(answers, clone(result.Outputs))
			result.Release()
		}
		for i, q := range queries {
			start := time.Now()
			answer, err := c.Infer(ctx, q)
			if err != nil {
				return err
			}
			s.muster = append(s.muster, time.Since(start))
			if err := sameAnswer(answers[i], answer.Outputs); err != nil {
				return fmt.Errorf("wrong answer of %s: %w", s.name, err)
			}
			answer.Release()
		}
	}
	return ctx.Err()
}

// verify checks that answers given under load agree with those of ONNX Runtime alone.
func verify(ctx context.Context, subjects []*subject, sampled *sampledServer) error {
	for _, x := range sampled.samples {
		i := slices.IndexFunc(subjects, func(s *subject) bool { return s.name == x.query.Model })
		result, err := subjects[i].alone.Run(ctx, x.query.Inputs)
		if err != nil {
			return err
		}
		if err := sameAnswer(result.Outputs, x.answer); err != nil {
			return fmt.Errorf("wrong answer of %s under load: %w", x.query.Model, err)
		}
		result.Release()
	}
	return nil
}

// sameAnswer reports how an answer differs from the one that is wanted. Numbers may differ a
// little, because floats are not always summed in the same order.
func sameAnswer(want, got []tensor.Tensor) error {
	if len(got) != len(want) {
		return fmt.Errorf("%d outputs, want %d", len(got), len(want))
	}
	for i := range want {
		if !slices.Equal(got[i].Shape, want[i].Shape) {
			return fmt.Errorf("output %s has shape %v, want %v", want[i].Name, got[i].Shape,
				want[i].Shape)
		}
		wanted, err := tensor.Values[float32](want[i])
		if err != nil {
			return err
		}
		values, err := tensor.Values[float32](got[i])
		if err != nil {
			return err
		}
		for j, x := range wanted {
			// A negated comparison, because NaN must differ from everything.
			if diff := math.Abs(float64(values[j] -
				x)); !(diff <= 1e-3*max(1, math.Abs(float64(x)))) {
				return fmt.Errorf("output %s, element %d is %v, want %v", want[i].Name, j,
					values[j], x)
			}
		}
	}
	return nil
}

// clone copies tensors, whose own memory is released after the call.
func clone(tensors []tensor.Tensor) []tensor.Tensor {
	tensors = slices.Clone(tensors)
	for i := range tensors {
		tensors[i].Shape, tensors[i].Data = slices.Clone(tensors[i].Shape), slices.Clone(
			tensors[i].Data)
	}
	return tensors
}

// A sampledServer keeps one answer in sampleEvery, with its query.
type sampledServer struct {
	bench.Server

	mu      sync.Mutex
	answers int
	samples []sample
}

type sample struct {
	query  *oip.Request
	answer []tensor.Tensor
}

const sampleEvery = 20

func (s *sampledServer) Infer(ctx context.Context, req *oip.Request) (*oip.Response, error) {
	resp, err := s.Server.Infer(ctx, req)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.answers++; s.answers%sampleEvery == 0 {
		s.samples = append(s.samples, sample{req, clone(resp.Outputs)})
	}
	return resp, nil
}
