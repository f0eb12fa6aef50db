package runtime

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	ort "github.com/yalue/onnxruntime_go"

	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/models/onnx"
)

// pieceTime is about how long a piece of a large batch runs. Between pieces a
// run can be cancelled.
const pieceTime = 10 * time.Millisecond

// firstPiece is how many rows the first piece has while nothing is known of a
// model's speed.
const firstPiece = 16

// alignment of output buffers, in bytes: a cache line, and what the widest
// vector instructions like.
const alignment = 64

// largestTensor bounds the bytes of a tensor that is made here, so that a model or a
// shape out of its mind is an error and not the end of the process.
const largestTensor = 2 << 30

var elementTypes = map[tensor.DataType]ort.TensorElementDataType{
	tensor.Bool:   ort.TensorElementDataTypeBool,
	tensor.Uint8:  ort.TensorElementDataTypeUint8,
	tensor.Uint16: ort.TensorElementDataTypeUint16,
	tensor.Uint32: ort.TensorElementDataTypeUint32,
	tensor.Uint64: ort.TensorElementDataTypeUint64,
	tensor.Int8:   ort.TensorElementDataTypeInt8,
	tensor.Int16:  ort.TensorElementDataTypeInt16,
	tensor.Int32:  ort.TensorElementDataTypeInt32,
	tensor.Int64:  ort.TensorElementDataTypeInt64,
	tensor.FP16:   ort.TensorElementDataTypeFloat16,
	tensor.BF16:   ort.TensorElementDataTypeBFloat16,
	tensor.FP32:   ort.TensorElementDataTypeFloat,
	tensor.FP64:   ort.TensorElementDataTypeDouble,
	tensor.Bytes:  ort.TensorElementDataTypeString,
}

// A session is a model version loaded into ONNX Runtime, shared by all lanes.
type session struct {
	name    string // "model/version", for errors
	inputs  []models.Port
	outputs []port
	// pieces says that a large batch may be cut: rows are independent, on the
	// CPU, and all outputs' shapes are known beforehand.
	pieces bool
	runs   sync.Pool // of *run
	// allocate leaves all outputs to ONNX Runtime: set once a model has turned out
	// to give other shapes than its signature and the batch size say.
	allocate atomic.Bool

	mu    sync.Mutex
	speed line // of single calls, guarded by mu

	// closing is held shared by runs, because the binding does not guard against
	// freeing a session in use.
	closing sync.RWMutex
	ort     *ort.DynamicAdvancedSession // nil once closed
	// release is called when the session maps its files no more; nil once it was.
	release func()
}

// A port is an output with what can be said of its size beforehand.
type port struct {
	models.Port
	// rowElements is the product of all dimensions but the first; -1 where a
	// query decides it, so that ONNX Runtime has to allocate the output.
	rowElements int
}

// Load creates the session of a version, which all lanes share, and brings its files into memory,
// in pieces with pauses so that what is being served is not disturbed. External data is copied,
// unless Config.MapData says otherwise. ONNX Runtime's threads inherit the priority
// of the calling thread.
func (o *ONNX) Load(ctx context.Context, v *models.Version) (Model, error) {
	// ONNX Runtime would find the same faults, but not say as clearly which
	// file is missing, cut short or outside of the folder.
	signature, err := onnx.ReadSignature(v.Path)
	if err != nil {
		return nil, err
	}
	s, err := o.loadWithData(ctx, v, signature.Data)
	if err != nil {
		return nil, fmt.Errorf("load %s: %w", v.Path, err)
	}
	return s, nil
}

// loadWithData creates the session and brings its data into memory.
func (o *ONNX) loadWithData(ctx context.Context, v *models.Version, data []onnx.DataFile) (*session,
	error) {
	dir := filepath.Dir(v.Path)
	files, err := realPaths(dir, data)
	if err != nil {
		return nil, err
	}
	if err := readFolder(ctx, dir); err != nil {
		return nil, err
	}
	alone, release := useFiles(files)
	s, err := o.load(ctx, v)
	if err != nil {
		release()
		return nil, err
	}
	s.release = release
	if err := o.bring(ctx, s, files, alone); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// bring has the session's data in memory: its own, or where that is not wanted or cannot be, the
// files' pages.
func (o *ONNX) bring(ctx context.Context, s *session, files map[string]bool, alone bool) error {
	all, err := mappings(files)
	if err != nil {
		return err
	}
	why := ""
	var size int64
	for _, m := range all {
		size += int64(m.to - m.from)
	}
	available := availableMemory()
	switch {
	case o.mapData || size == 0:
	case !alone:
		why = "another load has mapped the same files"
	case available >= 0 && size > available-available/10:
		why = fmt.Sprintf("it has %d bytes, and %d are available", size, available)
	default:
		if err := detach(ctx, all); err != nil {
			return err
		}
		s.release()
		s.release = nil
		return nil
	}
	if why != "" {
		o.log.Warn(
			"data stays mapped from its files, do not write to them: cutting one short would end "+
				"the agent",
			"model", s.name, "reason", why)
	}
	return populate(ctx, all)
}

func (o *ONNX) load(ctx context.Context, v *models.Version) (*session, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s := &session{name: v.String(), inputs: v.Inputs}
	s.pieces = v.Config.RowsIndependent && o.info.Provider == CPU
	var inputs, outputs []string
	for _, in := range v.Inputs {
		inputs = append(inputs, in.Name)
		if _, ok := elementTypes[in.DataType]; !ok {
			return nil, fmt.Errorf("input %q has unknown data type %q", in.Name, in.DataType)
		}
		if in.DataType == tensor.Bytes {
			s.pieces = false
		}
	}
	for _, out := range v.Outputs {
		outputs = append(outputs, out.Name)
		p := port{out, rowElements(out)}
		if p.rowElements < 0 {
			s.pieces = false
			if out.DataType == tensor.FP16 || out.DataType == tensor.BF16 {
				return nil, fmt.Errorf(
					"output %q of type %s has shape %v: for this type only the batch size may be "+
						"dynamic", out.Name, out.DataType, out.Shape)
			}
		}
		s.outputs = append(s.outputs, p)
	}
	if len(inputs) == 0 || len(outputs) == 0 {
		return nil, fmt.Errorf("has %d inputs and %d outputs: want at least one of each",
			len(inputs), len(outputs))
	}
	opts, err := o.sessionOptions()
	if err != nil {
		return nil, fmt.Errorf("set session options: %w", err)
	}
	defer opts.Destroy()
	s.ort, err = ort.NewDynamicAdvancedSession(v.Path, inputs, outputs, opts)
	if err != nil {
		return nil, trim(err)
	}
	s.runs.New = func() any { return newRun(s) }
	return s, nil
}

// rowElements is port.rowElements of an output.
func rowElements(out models.Port) int {
	if out.DataType == tensor.Bytes || len(out.Shape) == 0 || out.Shape[0] != models.Dynamic {
		return -1
	}
	n, err := tensor.Elements(out.Shape[1:])
	if err != nil {
		return -1
	}
	return n
}

func (o *ONNX) sessionOptions() (*ort.SessionOptions, error) {
	opts, err := ort.NewSessionOptions()
	if err != nil {
		return nil, err
	}
	err = errors.Join(
		opts.SetIntraOpNumThreads(max(1, o.info.Threads)),
		opts.SetInterOpNumThreads(1),
		opts.AddSessionConfigEntry("session.use_env_allocators", "1"), // see shareArena
		// Spinning threads take the cores from whoever has work.
		opts.AddSessionConfigEntry("session.intra_op.allow_spinning", "0"),
		opts.AddSessionConfigEntry("session.inter_op.allow_spinning", "0"),
	)
	if o.info.Provider == CUDA {
		err = errors.Join(err, addCUDA(opts))
	}
	if err != nil {
		opts.Destroy()
		return nil, err
	}
	return opts, nil
}

// Close waits for runs in progress and frees the session.
func (s *session) Close() error {
	s.closing.Lock()
	defer s.closing.Unlock()
	if s.ort == nil {
		return nil
	}
	err := s.ort.Destroy()
	s.ort = nil
	giveBack()
	if s.release != nil {
		s.release()
		s.release = nil
	}
	return err
}

// Run executes one query. A batch of independent rows runs in pieces of about
// 10 ms on the CPU, between which ctx is looked at; any other run is ended
// through ONNX Runtime, which takes effect between two nodes of the graph.
// Input data that is not aligned for its type is copied.
func (s *session) Run(ctx context.Context, inputs []tensor.Tensor) (*Result, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	batch, err := checkInputs(s.inputs, inputs)
	if err != nil {
		return nil, fmt.Errorf("run %s: %w", s.name, err)
	}
	s.closing.RLock()
	defer s.closing.RUnlock()
	if s.ort == nil {
		return nil, ErrClosed
	}
	r := s.runs.Get().(*run)
	start := time.Now()
	if err := r.execute(ctx, inputs, batch); err != nil {
		r.recycle()
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, fmt.Errorf("run %s: %w", s.name, err)
	}
	return &Result{Outputs: r.outputs, Execution: time.Since(start), release: r.recycle}, nil
}

// checkInputs makes sure that the inputs' data is as long as their shapes say,
// so that nothing beyond it will be read, and returns the batch size.
func checkInputs(ports []models.Port, inputs []tensor.Tensor) (batch int, err error) {
	if len(inputs) != len(ports) {
		return 0, fmt.Errorf("got %d inputs, want %d", len(inputs), len(ports))
	}
	for i, in := range inputs {
		want := ports[i]
		if in.DataType != want.DataType {
			return 0, fmt.Errorf("input %q is %s, want %s", want.Name, in.DataType, want.DataType)
		}
		if len(in.Shape) == 0 {
			return 0, fmt.Errorf("input %q has no dimensions", want.Name)
		}
		n, err := tensor.Elements(in.Shape)
		if err != nil {
			return 0, fmt.Errorf("input %q: %w", want.Name, err)
		}
		if size := in.DataType.Size(); size > 0 && (len(in.Data)%size != 0 ||
			len(in.Data)/size != n) {
			return 0, fmt.Errorf("input %q has %d bytes, want shape %v of %s", want.Name,
				len(in.Data), in.Shape, in.DataType)
		}
		if i == 0 {
			batch = int(in.Shape[0])
		} else if int(in.Shape[0]) != batch {
			return 0, fmt.Errorf("input %q has batch size %d, input %q has %d", want.Name,
				in.Shape[0], ports[0].Name, batch)
		}
	}
	return batch, nil
}

// A run holds what a query needs while it runs and until its outputs are
// released, reused from query to query.
type run struct {
	s       *session
	outputs []tensor.Tensor
	shapes  [][]int64 // of the outputs
	block   []byte    // the outputs' data, where their shapes are known
	copies  [][]byte  // of misaligned inputs, by input
	in, out []ort.Value
	shape   []int64 // scratch
	pinner  goruntime.Pinner
}

func newRun(s *session) *run {
	r := &run{
		s:       s,
		outputs: make([]tensor.Tensor, len(s.outputs)),
		shapes:  make([][]int64, len(s.outputs)),
		copies:  make([][]byte, len(s.inputs)),
		in:      make([]ort.Value, len(s.inputs)),
		out:     make([]ort.Value, len(s.outputs)),
	}
	for i, out := range s.outputs {
		r.shapes[i] = append([]int64(nil), out.Shape...)
	}
	return r
}

func (r *run) recycle() {
	clear(r.outputs)
	r.s.runs.Put(r)
}

func (r *run) execute(ctx context.Context, inputs []tensor.Tensor, batch int) error {
	s := r.s
	if err := r.prepareOutputs(batch); err != nil {
		return err
	}
	if !s.pieces {
		err := r.callCancellable(ctx, inputs, batch)
		if err != nil && strings.Contains(err.Error(), "pre-allocated output") {
			s.allocate.Store(true)
			err = r.callCancellable(ctx, inputs, batch)
		}
		return err
	}
	for row := 0; row < batch; {
		if err := ctx.Err(); err != nil {
			return err
		}
		s.mu.Lock()
		most := s.speed.within(pieceTime)
		s.mu.Unlock()
		if most == 0 {
			most = firstPiece
		}
		rows := batch - row
		if rows > most+most/4 { // a quarter more beats another piece
			rows = balanced(rows, most)
		}
		start := time.Now()
		if err := r.call(inputs, batch, row, rows, nil); err != nil {
			return err
		}
		took := time.Since(start)
		s.mu.Lock()
		s.speed.observe(rows, took)
		s.mu.Unlock()
		row += rows
	}
	return nil
}

// balanced is the size of the first of as few as possible pieces of about equal size, none
// above most.
func balanced(rows, most int) int {
	pieces := (rows + most - 1) / most
	return (rows + pieces - 1) / pieces
}

// prepareOutputs lays out the outputs whose shapes are known.
func (r *run) prepareOutputs(batch int) error {
	size := 0
	for _, out := range r.s.outputs {
		if out.rowElements <= 0 {
			continue
		}
		if batch > largestTensor/out.DataType.Size()/out.rowElements {
			return fmt.Errorf(
				"output %q of batch size %d and shape %v would take more than %d bytes", out.Name,
				batch, out.Shape, largestTensor)
		}
		size += roundUp(batch * out.rowElements * out.DataType.Size())
	}
	if len(r.block) < size {
		block := make([]byte, size+alignment)
		offset := int(-uintptr(unsafe.Pointer(&block[0])) % alignment)
		r.block = block[offset : offset+size]
	}
	block := r.block
	for i, out := range r.s.outputs {
		r.outputs[i] = tensor.Tensor{Name: out.Name, DataType: out.DataType}
		if out.rowElements >= 0 {
			size := batch * out.rowElements * out.DataType.Size()
			r.shapes[i][0] = int64(batch)
			r.outputs[i].Shape = r.shapes[i]
			r.outputs[i].Data = block[:size:size]
			block = block[roundUp(size):]
		}
	}
	return nil
}

func roundUp(n int) int { return (n + alignment - 1) &^ (alignment - 1) }

// callCancellable runs the whole batch in one call that ends when ctx does.
func (r *run) callCancellable(ctx context.Context, inputs []tensor.Tensor, batch int) error {
	if ctx.Done() == nil {
		return r.call(inputs, batch, 0, batch, nil)
	}
	opts, err := ort.NewRunOptions()
	if err != nil {
		return err
	}
	defer opts.Destroy()
	terminated := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(terminated)
		opts.Terminate()
	})
	err = r.call(inputs, batch, 0, batch, opts)
	if !stop() {
		<-terminated // before opts is freed
	}
	return err
}

// call runs rows [row, row+rows) of a batch.
func (r *run) call(inputs []tensor.Tensor, batch, row, rows int, opts *ort.RunOptions) (err error) {
	defer func() {
		destroy(r.in)
		destroy(r.out)
		r.pinner.Unpin() // only now does nobody but Go know the memory
	}()
	for i, in := range inputs {
		if in.DataType == tensor.Bytes {
			r.in[i], err = newStrings(in)
		} else {
			stride := len(in.Data) / max(batch, 1)
			r.in[i], err = r.newValue(in.DataType, in.Shape[1:], rows,
				r.aligned(i, in.DataType, in.Data[row*stride:(row+rows)*stride]))
		}
		if err != nil {
			return fmt.Errorf("input %q: %w", in.Name, err)
		}
	}
	allocate := r.s.allocate.Load()
	for i, out := range r.s.outputs {
		if out.rowElements < 0 || allocate {
			continue
		}
		stride := out.rowElements * out.DataType.Size()
		r.out[i], err = r.newValue(out.DataType, out.Shape[1:], rows,
			r.outputs[i].Data[row*stride:(row+rows)*stride])
		if err != nil {
			return fmt.Errorf("output %q: %w", out.Name, err)
		}
	}
	if err := r.s.ort.RunWithOptions(r.in, r.out, opts); err != nil {
		return trim(err)
	}
	for i, out := range r.s.outputs {
		if out.rowElements >= 0 && !allocate {
			continue
		}
		if err := take(r.out[i], &r.outputs[i]); err != nil {
			return fmt.Errorf("output %q: %w", out.Name, err)
		}
	}
	return nil
}

// newValue wraps data, which it pins, without a copy.
func (r *run) newValue(t tensor.DataType, rowShape []int64, rows int, data []byte) (ort.Value,
	error) {
	r.shape = append(append(r.shape[:0], int64(rows)), rowShape...)
	if len(data) == 0 {
		data = empty[:] // the binding wants a byte to point to
	}
	r.pinner.Pin(&data[0])
	v, err := ort.NewCustomDataTensor(r.shape, data, elementTypes[t])
	if err != nil {
		return nil, err // not v: a nil pointer in an interface is not nil
	}
	return v, nil
}

var empty [8]byte

// aligned returns data itself or, where it is not aligned for its type, a copy:
// compiled kernels may rely on the alignment.
func (r *run) aligned(input int, t tensor.DataType, data []byte) []byte {
	if len(data) == 0 || uintptr(unsafe.Pointer(&data[0]))%uintptr(t.Size()) == 0 {
		return data
	}
	if cap(r.copies[input]) < len(data) {
		r.copies[input] = make([]byte, len(data)+7) // of this size, Go aligns to 8
	}
	c := r.copies[input][:len(data)]
	copy(c, data)
	return c
}

// destroy frees values and forgets them.
func destroy(values []ort.Value) {
	for i, v := range values {
		if v != nil {
			v.Destroy()
			values[i] = nil
		}
	}
}

// trim takes the binding's words off an error of ONNX Runtime.
func trim(err error) error {
	text := strings.TrimPrefix(err.Error(), "Error running network: ")
	return errors.New(strings.TrimPrefix(text, "Error creating C session from file: "))
}
