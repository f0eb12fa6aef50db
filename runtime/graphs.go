//go:build linux && cgo

package runtime

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	goruntime "runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	ort "github.com/yalue/onnxruntime_go"
	"golang.org/x/sync/errgroup"

	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/models/onnx"
	"github.com/muster-serve/muster/runtime/internal/cuda"
	"github.com/muster-serve/muster/runtime/internal/ortapi"
	"github.com/muster-serve/muster/runtime/kernels"
)

const (
	// maxStaged bounds the bytes of a model's inputs and outputs for its largest graph. Chosen: 16
	// thousand numbers for each of 1,000 rows; the memory is locked, so the system cannot use it
	// otherwise.
	maxStaged = 64 << 20
	// smallCopy is how many bytes one thread copies as soon as several would. More are copied in
	// chunks, by several threads, and each chunk of an input goes to the card while the next ones
	// are copied. Chosen: a thread copies so many in some 25 us, several times what it takes to
	// wake another.
	smallCopy = 256 << 10
	// maxCopiers is how many threads copy. Chosen: a few threads fill the memory's bandwidth, more
	// would wait for it.
	maxCopiers = 8
)

// A graphs runs a model on the card. For some batch sizes it has a CUDA graph, in which the copies
// to and from the card and all kernels of the model are one call. A query takes the graph of the
// next larger size; the rows that it does not have are those of an earlier query, and what comes of
// them is left unread. ONNX Runtime itself starts each kernel by a call of its own, for which the
// card waits.
//
// Large inputs are copied to the card before the graph runs: see smallCopy.
//
// Runs follow one another: they share memory, and the session's scratch memory is the graphs' too.
// So nothing else may run on the session, or shrink its memory.
type graphs struct {
	s       *session
	stream  *cuda.Stream
	in, out []*cuda.Buffer // by input and output, for the largest size

	mu     sync.Mutex
	sizes  []sizedGraph // ascending
	chunks []chunk      // scratch
}

type sizedGraph struct {
	rows  int
	graph *cuda.Graph
	took  time.Duration // the shortest of some runs
}

// A chunk is bytes to be copied. Those of an input then go to the card: they are at a place in its
// buffer.
type chunk struct {
	to, from []byte
	send     *cuda.Buffer // nil: nothing is sent
	at       int
}

// graphSizes returns the batch sizes that have a graph, ascending: powers of two and the middles
// between them, so that at most a third of the rows are idle.
func graphSizes(largest int) (sizes []int) {
	for n := 1; n < largest; n *= 2 {
		sizes = append(sizes, n)
		if middle := n + n/2; n > 2 && middle < largest {
			sizes = append(sizes, middle)
		}
	}
	return append(sizes, largest)
}

// whyNoGraphs returns why queries of a version cannot run as graphs; "" if they can.
func (s *session) whyNoGraphs(v *models.Version) string {
	if !v.Config.RowsIndependent || v.Config.InferredIndependence || v.Batchless {
		return "its configuration does not say rows_independent"
	}
	for _, in := range v.Inputs {
		if in.ModelShape != nil {
			return fmt.Sprintf("input %q is reshaped", in.Name)
		}
		if in.DataType.Size() == 0 || slices.Contains(in.Shape[1:], onnx.Dynamic) {
			return fmt.Sprintf("input %q has no fixed size", in.Name)
		}
	}
	for _, out := range s.outputs {
		if out.input >= 0 {
			return fmt.Sprintf("output %q is an input", out.Name)
		}
		if out.rowElements <= 0 {
			return fmt.Sprintf("output %q has no fixed size", out.Name)
		}
	}
	return ""
}

// withGraphs creates the session and its graphs if the version can have them, and logs why not.
// Then s has neither. An error is one after which no session can be.
func (o *ONNX) withGraphs(ctx context.Context, s *session, v *models.Version, common sharedTensors,
	inputs, outputs []string) error {
	why := s.whyNoGraphs(v)
	if why == "" {
		err := o.loadGraphs(ctx, s, v, common, inputs, outputs)
		var device *DeviceError
		if err == nil || ctx.Err() != nil || errors.As(deviceError(err), &device) && device.Dead {
			return err
		}
		why = trim(err).Error()
	}
	o.log.Info("the model runs without CUDA graphs", "model", s.name, "reason", why)
	return nil
}

// loadGraphs creates the session and its graphs. After an error s has neither.
func (o *ONNX) loadGraphs(ctx context.Context, s *session, v *models.Version, common sharedTensors,
	inputs, outputs []string) (err error) {
	if err := cuda.Open(); err != nil {
		return err
	}
	start := time.Now()
	g := &graphs{s: s}
	defer func() {
		if err != nil {
			err = errors.Join(err, g.close())
		}
	}()
	if g.stream, err = cuda.NewStream(); err != nil {
		return err
	}
	s.ort, err = o.plainSession(v, s.threads, common, inputs, outputs, map[string]string{
		// Otherwise ONNX Runtime frees memory of the machine that a graph copies from. It makes no
		// graph: see RunOnCard.
		"enable_cuda_graph":       "1",
		"has_user_compute_stream": "1",
		"user_compute_stream":     strconv.FormatUint(uint64(uintptr(g.stream.Handle())), 10),
	})
	if err != nil {
		return err
	}
	row := 0
	for i := range s.inputs {
		row += s.inputRow(i)
	}
	for i := range s.outputs {
		row += s.outputRow(i)
	}
	sizes := graphSizes(max(1, min(v.Config.LargestBatchSize, maxStaged/row)))
	if err := g.allocateBuffers(sizes[len(sizes)-1]); err != nil {
		return err
	}
	// ONNX Runtime has handles for each thread, which it makes in that thread's first run.
	goruntime.LockOSThread()
	defer goruntime.UnlockOSThread()
	random := rand.New(rand.NewPCG(uint64(v.Number), 0)) // any fixed seed
	for _, rows := range slices.Backward(sizes) {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := g.add(random, v, rows, inputs, outputs); err != nil {
			return fmt.Errorf("graph of batch size %d: %w", rows, err)
		}
	}
	slices.Reverse(g.sizes)
	if err := g.dropSlow(); err != nil {
		return err
	}
	s.graphs = g
	o.log.Info("the model runs as CUDA graphs", "model", s.name, "graphs", len(g.sizes),
		"largest_batch_size",
		g.largestBatch(), "took_ms", float64(time.Since(start).Microseconds())/1e3)
	return nil
}

// largestBatch is the batch size of the largest graph.
func (g *graphs) largestBatch() int { return g.sizes[len(g.sizes)-1].rows }

// dropSlow drops the graphs that take longer than a larger one: cuBLAS has slow kernels for some
// sizes.
func (g *graphs) dropSlow() error {
	var errs []error
	var kept []sizedGraph
	for _, size := range slices.Backward(g.sizes) {
		if n := len(kept); n > 0 && size.took >= kept[n-1].took {
			errs = append(errs, size.graph.Free())
			continue
		}
		kept = append(kept, size)
	}
	slices.Reverse(kept)
	g.sizes = kept
	return errors.Join(errs...)
}

// inGraph reports whether the graph of a batch size copies the inputs to the card.
func (g *graphs) inGraph(rows int) bool {
	size := 0
	for i := range g.s.inputs {
		size += rows * g.s.inputRow(i)
	}
	return size <= smallCopy
}

// withTablesOffCard creates a session whose tables stay in the machine's memory, where package
// kernels looks up their rows; the rest of the model runs on the card. It returns nil if failure,
// of the model as a whole, is not for want of the card's memory, or if the model has no tables that
// can stay behind.
func (o *ONNX) withTablesOffCard(v *models.Version, signature *onnx.Signature, t threads,
	common sharedTensors, inputs, outputs []string, failure error) *ort.DynamicAdvancedSession {
	var device *DeviceError
	if o.card == nil || !errors.As(deviceError(failure), &device) || !device.Memory {
		return nil
	}
	k, err := kernels.Rewrite(v.Path, signature, t.count)
	s := o.withKernels(k, err, v, t, common, inputs, outputs)
	if s != nil {
		o.log.Warn("the tables stay in the machine's memory: the card has no room for them",
			"model", v.String())
	}
	return s
}

// inputRow and outputRow return the bytes of a row.
func (s *session) inputRow(i int) int {
	n := s.inputs[i].DataType.Size()
	for _, d := range s.inputs[i].Shape[1:] {
		n *= int(d)
	}
	return n
}

func (s *session) outputRow(i int) int {
	return s.outputs[i].rowElements * s.outputs[i].DataType.Size()
}

// allocateBuffers allocates the buffers, for rows rows.
func (g *graphs) allocateBuffers(rows int) error {
	for i := range g.s.inputs {
		b, err := cuda.NewBuffer(max(1, rows*g.s.inputRow(i)))
		if err != nil {
			return err
		}
		g.in = append(g.in, b)
	}
	for i := range g.s.outputs {
		b, err := cuda.NewBuffer(rows * g.s.outputRow(i))
		if err != nil {
			return err
		}
		g.out = append(g.out, b)
	}
	return nil
}

// add makes the graph of a batch size, and compares what it answers with what ONNX Runtime does.
func (g *graphs) add(random *rand.Rand, v *models.Version, rows int, inputs,
	outputs []string) error {
	values, err := RandomInputs(random, v, rows)
	if err != nil {
		return err
	}
	for i, in := range values {
		copy(g.in[i].Host, in.Data)
	}
	in, out, err := g.tensorsOf(rows)
	defer func() {
		for _, t := range slices.Concat(in, out) {
			t.Destroy()
		}
	}()
	if err != nil {
		return err
	}
	send := func() error {
		var errs []error
		for i, b := range g.in {
			errs = append(errs, g.stream.ToDevice(b, 0, rows*g.s.inputRow(i)))
		}
		return errors.Join(errs...)
	}
	work := func() error {
		if g.inGraph(rows) {
			if err := send(); err != nil {
				return err
			}
		}
		if err := ortapi.RunOnCard(g.s.ort, inputs, in, outputs, out); err != nil {
			return err
		}
		var errs []error
		for i, b := range g.out {
			errs = append(errs, g.stream.ToHost(b, rows*g.s.outputRow(i)))
		}
		return errors.Join(errs...)
	}
	// The outputs' memory is reused uncleared. fill gives it other contents before each of the two
	// runs that are compared: what a run does not write differs, and the model then runs without
	// graphs.
	fill := func(with byte) error {
		var errs []error
		for i, b := range g.out {
			n := rows * g.s.outputRow(i)
			for at := range n {
				b.Host[at] = with
			}
			errs = append(errs, g.stream.ToDevice(b, 0, n))
		}
		return errors.Join(errs...)
	}
	// The first run also has ONNX Runtime allocate what a graph must not.
	if err := errors.Join(fill(0), send(), work(), g.stream.Wait()); err != nil {
		return err
	}
	want := make([][]byte, len(g.out))
	for i, b := range g.out {
		want[i] = bytes.Clone(b.Host[:rows*g.s.outputRow(i)])
	}
	// 0x7b7b7b7b is a number, 1.3e36, and far from zero in all types.
	if err := errors.Join(fill(0x7b), g.stream.Wait()); err != nil {
		return err
	}
	graph, err := g.stream.Capture(work)
	if err != nil {
		return err
	}
	took := time.Duration(math.MaxInt64)
	for range 3 {
		start := time.Now()
		if err := graph.Run(g.stream); err != nil {
			return errors.Join(err, graph.Free())
		}
		took = min(took, time.Since(start))
	}
	g.sizes = append(g.sizes, sizedGraph{rows, graph, took})
	for i, b := range g.out {
		if p := g.s.outputs[i]; !isEqualOutput(p.DataType, b.Host[:len(want[i])], want[i]) {
			return fmt.Errorf("output %q is not as without it", p.Name)
		}
	}
	return nil
}

// tensorsOf returns the inputs and outputs of a batch size on the card.
func (g *graphs) tensorsOf(rows int) (in, out []*ortapi.CardTensor, err error) {
	tensorOf := func(p models.TensorSpec, b *cuda.Buffer, row int) (*ortapi.CardTensor, error) {
		shape := slices.Clone(p.Shape)
		shape[0] = int64(rows)
		return ortapi.NewCardTensor(b.Device(), rows*row, shape, elementTypes[p.DataType])
	}
	for i, p := range g.s.inputs {
		t, err := tensorOf(p, g.in[i], g.s.inputRow(i))
		if err != nil {
			return in, out, err
		}
		in = append(in, t)
	}
	for i, p := range g.s.outputs {
		t, err := tensorOf(p.TensorSpec, g.out[i], g.s.outputRow(i))
		if err != nil {
			return in, out, err
		}
		out = append(out, t)
	}
	return in, out, nil
}

// isEqualOutput reports whether an output is as it is wanted; of a type other than FP32, exactly.
func isEqualOutput(t tensor.DataType, got, want []byte) bool {
	if t != tensor.FP32 {
		return bytes.Equal(got, want)
	}
	return tensor.Agree(tensor.Tensor{DataType: t, Data: got}, tensor.Tensor{DataType: t, Data: want},
		tensor.Card)
}

// executeQueries runs queries as one, of batch rows in all, in pieces if these are more than the
// largest graph's, and fills r's outputs. The end of ctx takes effect between two pieces.
func (g *graphs) executeQueries(ctx context.Context, r *run, queries [][]tensor.Tensor,
	batch int) error {
	for row := 0; row < batch; {
		if err := ctx.Err(); err != nil {
			return err
		}
		rows := balancedSize(batch-row, g.largestBatch())
		if err := g.runPiece(r, queries, row, rows); err != nil {
			return runError(err, g.s.from.card)
		}
		row += rows
	}
	return nil
}

// runPiece runs the rows [row, row+rows).
func (g *graphs) runPiece(r *run, queries [][]tensor.Tensor, row, rows int) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	at, _ := slices.BinarySearchFunc(g.sizes, rows, func(s sizedGraph, rows int) int {
		return s.rows - rows
	})
	size := g.sizes[at]
	if err := g.stageRows(queries, row, rows, !g.inGraph(size.rows)); err != nil {
		return err
	}
	if err := size.graph.Run(g.stream); err != nil {
		return err
	}
	g.chunks = g.chunks[:0]
	for i, b := range g.out {
		n := g.s.outputRow(i)
		to := r.outputs[i].Data[row*n : (row+rows)*n]
		for at := 0; at < len(to); at += smallCopy {
			end := min(at+smallCopy, len(to))
			g.chunks = append(g.chunks, chunk{to: to[at:end], from: b.Host[at:end]})
		}
	}
	return g.copyChunks()
}

// stageRows copies the rows [row, row+rows) of the queries' inputs, one query behind the other, to
// where the card reads them, and sends them to the card if the graph does not.
func (g *graphs) stageRows(queries [][]tensor.Tensor, row, rows int, send bool) error {
	g.chunks = g.chunks[:0]
	for i, b := range g.in {
		width := g.s.inputRow(i)
		at, skip, left := 0, row*width, rows*width
		for _, q := range queries {
			data := q[i].Data
			if skip >= len(data) {
				skip -= len(data)
				continue
			}
			data = data[skip:min(len(data), skip+left)]
			skip, left = 0, left-len(data)
			for len(data) > 0 {
				n := min(len(data), smallCopy)
				c := chunk{to: b.Host[at:], from: data[:n], at: at}
				if send {
					c.send = b
				}
				g.chunks = append(g.chunks, c)
				data, at = data[n:], at+n
			}
		}
	}
	return g.copyChunks()
}

// copyChunks copies the chunks, in several threads if that is worth it, and sends the chunks of
// inputs to the card.
func (g *graphs) copyChunks() error {
	size := 0
	for _, c := range g.chunks {
		size += len(c.from)
	}
	workers := 1
	if size > smallCopy {
		workers = min(len(g.chunks), g.s.threads.count, maxCopiers)
	}
	var next atomic.Int32
	work := func() error {
		for {
			k := int(next.Add(1)) - 1
			if k >= len(g.chunks) {
				return nil
			}
			c := g.chunks[k]
			copy(c.to, c.from)
			if c.send == nil {
				continue
			}
			if err := g.stream.ToDevice(c.send, c.at, len(c.from)); err != nil {
				return err
			}
		}
	}
	var group errgroup.Group
	for range workers - 1 {
		group.Go(work)
	}
	err := errors.Join(work(), group.Wait())
	clear(g.chunks) // they keep the queries' memory alive
	return err
}

// close frees the graphs and their session. No run may be in progress.
func (g *graphs) close() error {
	var errs []error
	for _, size := range g.sizes {
		errs = append(errs, size.graph.Free())
	}
	if g.s.ort != nil {
		errs = append(errs, g.s.ort.Destroy())
		g.s.ort = nil
	}
	for _, b := range slices.Concat(g.in, g.out) {
		errs = append(errs, b.Free())
	}
	if g.stream != nil {
		errs = append(errs, g.stream.Free())
	}
	return errors.Join(errs...)
}
