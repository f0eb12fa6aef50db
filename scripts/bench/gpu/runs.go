package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"github.com/muster-serve/muster/api/picture"
	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/runtime"
	"github.com/muster-serve/muster/scripts/test/harness"
)

// sizes are the batch sizes of runs.
var sizes = []int{1, 4, 16, 64, 256, 1000}

// A runResult is the runs of a model at a batch size; times are medians in us.
type runResult struct {
	Model  string  `json:"model"`
	Batch  int     `json:"batch_size"`
	Card   float64 `json:"card_us"`
	P99    float64 `json:"card_p99_us"`
	CPU    float64 `json:"cpu_us"`
	Python float64 `json:"python_cuda_us,omitempty"`
	// Four is queries/s of four threads of Python.
	Four float64 `json:"python_cuda_4_threads_qps,omitempty"`
	// Apart is how far the card's answers are from the CPU's, as a share of the largest value.
	Apart float64 `json:"apart"`
}

// measureRuns measures runs in this process by batch size, on the card and on the CPU with all
// cores, in turns with those in Python.
func (r *run) measureRuns(ctx context.Context) error {
	cfg := runtime.Config{LibraryPath: r.library, Provider: runtime.CUDA}
	card, err := runtime.OpenONNX(cfg)
	if err != nil {
		return err
	}
	cfg.Provider, cfg.Kernels = runtime.CPU, true
	cpu, err := runtime.OpenONNX(cfg)
	if err != nil {
		return err
	}
	bare, err := r.startBare(ctx)
	if err != nil {
		return err
	}
	defer bare.stop()
	var all []runResult
	fmt.Printf("%s, ONNX Runtime %s; medians of %d rounds, us\n", card.GPU(), card.Info().Version,
		r.rounds)
	fmt.Println("model batch     card  (p99)      CPU   Python  P/card  CPU/card   apart")
	for _, name := range names {
		v, err := models.ReadVersion(r.modelsPath(), name, 1)
		if err != nil {
			return err
		}
		of, err := r.runsOf(ctx, v, card, cpu, bare)
		if err != nil {
			return err
		}
		all = append(all, of...)
	}
	r.results["runs"] = all
	return r.draw(all)
}

func (r *run) runsOf(ctx context.Context, v *models.Version, card, cpu *runtime.ONNX,
	bare *bare) (all []runResult, err error) {
	on := make([]runtime.Model, 2)
	for i, x := range []*runtime.ONNX{card, cpu} {
		if on[i], err = x.Load(ctx, v); err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, on[i].Close()) }()
	}
	random := rand.New(rand.NewPCG(1, 2))
	for _, batch := range sizes {
		inputs, err := runtime.RandomInputs(random, v, batch)
		if err != nil {
			return nil, err
		}
		query, err := r.writeQuery(v.Model, batch, inputs)
		if err != nil {
			return nil, err
		}
		m := runResult{Model: v.Model, Batch: batch}
		if m.Apart, err = apart(ctx, on[0], on[1], inputs); err != nil {
			return nil, err
		}
		times := make([][]float64, 3)
		for range r.rounds {
			for i, model := range on {
				took, err := loop(ctx, model, inputs, r.time)
				if err != nil {
					return nil, err
				}
				times[i] = append(times[i], took...)
			}
			took, _, err := bare.runQuery(query, 1, r.time)
			if err != nil {
				return nil, err
			}
			times[2] = append(times[2], took...)
		}
		if _, m.Four, err = bare.runQuery(query, 4, 2*r.time); err != nil {
			return nil, err
		}
		m.Card, m.P99 = harness.Quantile(times[0], .5), harness.Quantile(times[0], .99)
		m.CPU, m.Python = harness.Quantile(times[1], .5), harness.Quantile(times[2], .5)
		all = append(all, m)
		fmt.Printf("%-5s %5d %8.0f %6.0f %8.0f %8.0f  %6.2f  %8.2f  %.1e\n", m.Model, batch, m.Card,
			m.P99, m.CPU, m.Python, m.Python/m.Card, m.CPU/m.Card, m.Apart)
	}
	return all, nil
}

// loop runs a query again and again, and returns the times in us.
func loop(ctx context.Context, m runtime.Model, inputs []tensor.Tensor, d time.Duration) (
	us []float64, err error) {
	for end := time.Now().Add(d); ; {
		start := time.Now()
		result, err := m.Run(ctx, inputs)
		if err != nil {
			return nil, err
		}
		result.Release()
		now := time.Now()
		us = append(us, float64(now.Sub(start).Nanoseconds())/1e3)
		if now.After(end) {
			return us, nil
		}
	}
}

// apart is the largest difference of two models' outputs, as a share of the largest value.
func apart(ctx context.Context, a, b runtime.Model, inputs []tensor.Tensor) (float64, error) {
	x, err := a.Run(ctx, inputs)
	if err != nil {
		return 0, err
	}
	defer x.Release()
	y, err := b.Run(ctx, inputs)
	if err != nil {
		return 0, err
	}
	defer y.Release()
	most := 0.
	for i, out := range x.Outputs {
		difference, largest := 0., 0.
		for at := 0; at < len(out.Data); at += 4 {
			p := math.Float32frombits(binary.LittleEndian.Uint32(out.Data[at:]))
			q := math.Float32frombits(binary.LittleEndian.Uint32(y.Outputs[i].Data[at:]))
			difference = max(difference, math.Abs(float64(p-q)))
			largest = max(largest, math.Abs(float64(q)))
		}
		most = max(most, difference/largest)
	}
	return most, nil
}

// writeQuery writes a query as scripts/bench/peers/servers/models.py reads it.
func (r *run) writeQuery(model string, batch int, inputs []tensor.Tensor) (string, error) {
	path := filepath.Join(r.dir, model+"-"+strconv.Itoa(batch)+".bin")
	body := make([]byte, 8)
	copy(body, model)
	for _, in := range inputs {
		body = append(body, in.Data...)
	}
	return path, os.WriteFile(path, body, 0o644)
}

// A bare is bare.py; nil if there is no Python.
type bare struct {
	process *exec.Cmd
	to      io.WriteCloser
	from    *bufio.Reader
}

func (r *run) startBare(ctx context.Context) (*bare, error) {
	if r.python == "" {
		return nil, nil
	}
	repository, err := filepath.Abs(r.modelsPath())
	if err != nil {
		return nil, err
	}
	b := &bare{process: exec.CommandContext(ctx, r.python, "scripts/bench/gpu/bare.py")}
	b.process.Env = append(os.Environ(), "REPOSITORY="+repository, "THREADS=1", "SPINNING=0",
		"PROVIDER=CUDAExecutionProvider",
		"PYTHONPATH=scripts/bench/peers/servers:"+os.Getenv("PYTHONPATH"))
	b.process.Stderr = os.Stderr
	b.process.SysProcAttr = harness.ChildAttributes()
	if b.to, err = b.process.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := b.process.StdoutPipe()
	if err != nil {
		return nil, err
	}
	b.from = bufio.NewReaderSize(out, 1<<20)
	return b, b.process.Start()
}

// runQuery has a number of threads run a query for some time. It returns a thread's times in us,
// and queries/s of all.
func (b *bare) runQuery(query string, threads int, d time.Duration) (us []float64, qps float64,
	err error) {
	if b == nil {
		return nil, 0, nil
	}
	if _, err := fmt.Fprintf(b.to, "%s %d %g\n", query, threads, d.Seconds()); err != nil {
		return nil, 0, err
	}
	line, err := b.from.ReadBytes('\n')
	if err != nil {
		return nil, 0, fmt.Errorf("bare.py ended: %w", err)
	}
	var answer struct {
		US  []float64
		QPS float64
	}
	err = json.Unmarshal(line, &answer)
	return answer.US, answer.QPS, err
}

func (b *bare) stop() {
	if b != nil {
		_ = b.to.Close()
		_ = b.process.Wait()
	}
}

// draw draws the times by batch size, a panel a model.
func (r *run) draw(all []runResult) error {
	var panels []*picture.Panel
	for _, name := range names {
		p := picture.New(name, "batch size", "median of a run, ms")
		p.Width = 260
		p.X.Log, p.Y.Log = true, true
		p.Add(picture.Grid{Vertical: true})
		least, most := math.Inf(1), 0.
		for i, series := range []struct {
			name string
			of   func(m runResult) float64
		}{
			{"Muster, GPU", func(m runResult) float64 { return m.Card }},
			{"ONNX Runtime in Python, GPU", func(m runResult) float64 { return m.Python }},
			{"Muster, CPU", func(m runResult) float64 { return m.CPU }},
		} {
			c := &picture.Curve{LineStyle: picture.LineOf(i), Mark: picture.MarkOf(i)}
			for _, m := range all {
				if y := series.of(m) / 1e3; m.Model == name && y > 0 {
					c.Values = append(c.Values, picture.Point{X: float64(m.Batch), Y: y})
					least, most = min(least, y), max(most, y)
				}
			}
			if len(c.Values) > 0 {
				p.Add(c)
				p.Legend(series.name, c)
			}
		}
		p.X.Min, p.X.Max, p.Y.Min, p.Y.Max = 1, 1200, least/2, 2*most
		panels = append(panels, p)
	}
	f, err := os.Create(filepath.Join(r.dir, "latencies.png"))
	if err != nil {
		return err
	}
	return errors.Join(picture.Page(3, panels...).Write(f, "png"), f.Close())
}
