//go:build linux && cgo

package runtime

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"regexp"
	goruntime "runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	ort "github.com/yalue/onnxruntime_go"

	"github.com/muster-serve/muster/api/roles"
	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/models/onnx"
	"github.com/muster-serve/muster/runtime/internal/ortapi"
	"github.com/muster-serve/muster/runtime/kernels"
	"github.com/muster-serve/muster/runtime/lane"
)

// pieceTime is about how long one piece of a large batch runs. A run can be cancelled between
// pieces. Chosen: within most QoS targets, and many times what a call of ONNX Runtime costs.
const pieceTime = 10 * time.Millisecond

// firstPiece is the number of rows of a model's first piece, when its speed is not known yet.
const firstPiece = 16

// alignment of output buffers, in bytes: a cache line and the widest vector register.
const alignment = 64

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

// A session is a model version loaded into ONNX Runtime, shared by all lanes of as many cores.
type session struct {
	name    string // "model/version", for errors
	from    *ONNX
	version *models.Version
	stamps  stamps // of the files when the version was loaded; nil for a further session of it
	threads threads
	inputs  []models.TensorSpec
	// defaults are the values of inputs that a query leaves out, by input; nil: there are none.
	defaults []tensor.Tensor
	outputs  []port
	sizes    []int // bytes of an element, by output
	// batchless is whether a query has shapes of its own, without a batch size: models.Version has
	// it.
	batchless bool
	// users is in which forms the graph takes users, of a version with roles.
	users userForm
	// pieces is whether a large batch may run in pieces: rows are independent, the provider is the
	// CPU, and the shapes of all outputs are known before the run.
	pieces bool
	runs   sync.Pool // of *run
	// allocate is whether ONNX Runtime allocates all outputs. It is set when a run gave other
	// shapes than the signature and the batch size predict.
	allocate atomic.Bool

	mu    sync.Mutex
	speed lane.Line // of single calls, guarded by mu

	// Runs hold closing for reading and Close for writing, because the binding does not prevent
	// that a session in use is freed.
	closing sync.RWMutex
	ort     *ort.DynamicAdvancedSession // nil once closed
	// memory is the external data as the session keeps it in memory, common what it has of another
	// session's. mapped holds the files if memory is still mapped from them, else nil.
	memory []mappedFile
	common sharedTensors
	mapped map[string]bool
	// graphs is what runs the queries on the card; nil: ort does.
	graphs *graphs
	// thread is what calls ort on a card; nil: whoever has a query. For each thread that calls it
	// ort has handles of CUDA's libraries, which take some 100 MB of the card.
	thread *thread
	// cut is of a model whose users' part runs once for each user; nil: there is none.
	cut *userCut
	// single is the same version with sessions of one thread, for [Lanes] to run several queries at
	// a time; nil: none.
	single *session
}

// A port is an output and the size of one of its rows.
type port struct {
	models.TensorSpec
	// rowElements is the product of all dimensions but the first; of all dimensions, if there is no
	// batch. It is -1 if it depends on the query; ONNX Runtime then allocates the output.
	rowElements int
	// input is the index of the graph input that has the output's name, or -1. ONNX Runtime takes
	// such an output for the input itself: it neither writes to memory for it nor needs any. A run
	// copies the input instead.
	input int
}

// isPreallocated reports whether a run gives ONNX Runtime memory for the output, which r.block
// holds; allocate is the session's. The binding has no memory for strings.
func (p *port) isPreallocated(allocate bool) bool {
	if p.input >= 0 {
		return p.DataType != tensor.Bytes
	}
	return p.rowElements >= 0 && !allocate
}

// Load creates the session of a version, which all lanes share, and reads its files into memory; of
// an ensemble, those of its steps. It reads in pieces with pauses, to disturb the models that serve
// as little as it can. External data is copied to memory of this process, unless Config.MapData is
// set.
func (o *ONNX) Load(ctx context.Context, v *models.Version) (Model, error) {
	if len(v.Steps) > 0 {
		return loadEnsemble(ctx, o, v)
	}
	signature, stamps, err := readStamped(v.Path)
	if err != nil {
		return nil, err
	}
	s, err := o.loadWithData(ctx, v, signature, threads{count: max(1, o.info.Threads)}, nil)
	if err != nil {
		return nil, fmt.Errorf("load %s: %w", v.Path, err)
	}
	s.stamps = stamps
	s.tryForms(ctx)
	if o.divide && s.threads.count > 1 {
		s.single, err = o.loadWithData(ctx, v, signature, threads{count: 1}, s)
	}
	if err == nil {
		err = stamps.check("while it was being loaded")
	}
	if err != nil {
		return nil, fmt.Errorf("load %s: %w", v.Path, errors.Join(err, s.Close()))
	}
	return s, nil
}

// threadCount implements [threadCounter].
func (s *session) threadCount() int { return s.threads.count }

// onOneCore implements [divisible].
func (s *session) onOneCore() Model {
	if s.single == nil {
		return nil
	}
	return s.single
}

// withThreads implements [resizable]. The new session has external data in common with s, and must
// be closed before s.
func (s *session) withThreads(ctx context.Context, t threads) (Model, error) {
	fail := func(err error) (Model, error) {
		return nil, fmt.Errorf("load %s for %d threads: %w", s.version.Path, t.count, err)
	}
	const since = "since the version was loaded, which serves as the files were then"
	if err := s.stamps.check(since); err != nil {
		return fail(err)
	}
	signature, err := onnx.ReadSignature(s.version.Path)
	if err != nil {
		return fail(err)
	}
	other, err := s.from.loadWithData(ctx, s.version, signature, t, s)
	if err != nil {
		return fail(err)
	}
	if err := s.stamps.check(since); err != nil {
		return fail(errors.Join(err, other.Close()))
	}
	return other, nil
}

// suitsThreads implements [resizable]. One thread is the caller's, wherever that runs.
func (s *session) suitsThreads(t threads) bool {
	return s.threads.count == t.count && (t.count == 1 || slices.Equal(s.threads.cpus, t.cpus))
}

// loadWithData creates the session and loads the model's files of external data. It takes what it
// can of the memory of like, a session of the same version, which may be nil.
func (o *ONNX) loadWithData(ctx context.Context, v *models.Version, signature *onnx.Signature,
	t threads, like *session) (*session, error) {
	dir := filepath.Dir(v.Path)
	files, err := realPaths(dir, signature.Data)
	if err != nil {
		return nil, err
	}
	var common sharedTensors
	if like != nil {
		common, err = like.shareWith(v.Path)
	} else {
		err = readFolder(ctx, dir)
	}
	if err != nil {
		return nil, err
	}
	var free uint64 // on the GPU
	if o.card != nil {
		free, _ = o.card.Free() // only for an error
	}
	if t.count > 1 {
		if t.started, err = ortapi.NewThreads(); err != nil {
			return nil, errors.Join(err, common.Close())
		}
	}
	fail := func(err error) (*session, error) {
		t.started.Close()
		return nil, errors.Join(err, common.Close())
	}
	unlock, err := lockFiles(ctx, files)
	if err != nil {
		return fail(err)
	}
	defer unlock()
	before, err := readMappings(files)
	if err != nil {
		return fail(err)
	}
	endGuard := func() error { return nil }
	if len(before) == 0 { // zeros would be wrong answers of a session that maps them
		endGuard = guardFiles(files)
	}
	s, err := o.load(ctx, v, signature, t, common)
	if err != nil {
		if o.card != nil {
			err = loadError(err, o.card, free)
		}
		return fail(errors.Join(endGuard(), err))
	}
	s.common = common
	if like != nil {
		s.users = like.users
	}
	err = o.loadSession(ctx, s, files, before)
	if err = errors.Join(endGuard(), err); err != nil {
		s.mapped = nil // this function holds the files
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// loadSession loads the external data that the session has mapped from the files; before is what
// was mapped of them before it was made. It replaces the mapped files by private copies. If that is
// not wanted (MapData) or not possible, it populates the mappings and logs the reason.
func (o *ONNX) loadSession(ctx context.Context, s *session, files map[string]bool,
	before []mappedFile) error {
	all, err := readMappings(files)
	if err != nil {
		return err
	}
	s.memory = subtractMappings(all, before)
	var size int64
	for _, m := range s.memory {
		size += int64(m.to - m.from)
	}
	if !o.mapData {
		available := availableMemory()
		if available < 0 || size <= available-available/10 {
			return detachFiles(ctx, s.memory)
		}
		o.log.Warn(
			"the data stays mapped from its files; do not write to them: truncating one would kill "+
				"the agent",
			"model", s.name,
			"reason", fmt.Sprintf("it has %d bytes, and %d are available", size, available))
	}
	if err := populatePages(ctx, s.memory); err != nil {
		return err
	}
	s.mapped = files
	return nil
}

// load creates the session of a version, which uses the tensors in common. It reads no other
// external data that stays in memory.
func (o *ONNX) load(ctx context.Context, v *models.Version, signature *onnx.Signature,
	t threads, common sharedTensors) (*session, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s := &session{
		name: v.String(), inputs: v.Inputs, batchless: v.Batchless, from: o, version: v, threads: t,
	}
	s.pieces = v.Config.RowsIndependent && o.info.Provider == CPU
	var inputs, outputs []string
	for _, in := range v.Inputs {
		inputs = append(inputs, in.Name)
		if _, ok := elementTypes[in.DataType]; !ok {
			return nil, fmt.Errorf("input %q has unknown data type %q", in.Name, in.DataType)
		}
		if in.DataType == tensor.Bytes || !in.HasRows() && in.Role != roles.User || in.Optional {
			s.pieces = false
		}
	}
	for _, out := range v.Outputs {
		outputs = append(outputs, out.Name)
		p := port{out, rowElements(out, v.Batchless), slices.Index(inputs, out.Name)}
		if out.Varies || out.ModelShape != nil || v.Roles != nil && out.Role != roles.Row {
			p.rowElements = -1
		}
		if p.rowElements < 0 && p.input < 0 {
			s.pieces = false
		}
		s.outputs = append(s.outputs, p)
		s.sizes = append(s.sizes, out.DataType.Size())
	}
	if err := s.readDefaults(); err != nil {
		return nil, err
	}
	if len(inputs) == 0 || len(outputs) == 0 {
		return nil, fmt.Errorf("has %d inputs and %d outputs: want at least one of each",
			len(inputs), len(outputs))
	}
	var err error
	var cut *onnx.Graph
	if cut, s.cut = o.cutUsers(v, common != nil); cut != nil {
		inputs = append(inputs, onnx.RowToUser)
		s.ort, err = o.cutSession(v, cut, t, common, inputs, outputs)
	} else {
		s.pieces = s.pieces && (v.Roles == nil || !v.Roles.HasUsers())
		s.ort, err = o.wholeSession(ctx, s, v, signature, common, inputs, outputs)
	}
	if err != nil {
		return nil, err
	}
	if o.info.Provider == CUDA && s.graphs == nil {
		s.thread = newThread()
	}
	s.runs.New = func() any { return newRun(s) }
	return s, nil
}

// wholeSession creates the session of a version's whole graph. It may set s.graphs.
func (o *ONNX) wholeSession(ctx context.Context, s *session, v *models.Version,
	signature *onnx.Signature, common sharedTensors, inputs, outputs []string) (
	*ort.DynamicAdvancedSession, error) {
	switch {
	case o.kernels:
		k, err := kernels.Rewrite(v.Path, signature, s.threads.count)
		s.ort = o.withKernels(k, err, v, s.threads, common, inputs, outputs)
	case o.info.Provider == CUDA && v.Roles == nil:
		if err := o.withGraphs(ctx, s, v, common, inputs, outputs); err != nil {
			return nil, err
		}
	}
	if s.ort != nil {
		return s.ort, nil
	}
	plain, err := o.plainSession(v, s.threads, common, inputs, outputs, nil)
	if err != nil {
		if s := o.withTablesOffCard(v, signature, s.threads, common, inputs, outputs,
			err); s != nil {
			return s, nil
		}
	}
	return plain, err
}

// cutSession creates the session of a version's graph that is cut.
func (o *ONNX) cutSession(v *models.Version, cut *onnx.Graph, t threads, common sharedTensors,
	inputs, outputs []string) (*ort.DynamicAdvancedSession, error) {
	model, err := cut.Marshal()
	if err != nil {
		return nil, err
	}
	if o.kernels {
		k, err := kernels.RewriteGraph(cut, t.count)
		if s := o.withKernels(k, err, v, t, common, inputs, outputs); s != nil {
			return s, nil
		}
	}
	opts, err := o.sessionOptions(v, t, nil)
	if err != nil {
		return nil, fmt.Errorf("set session options: %w", err)
	}
	defer opts.Destroy()
	if err := common.add(opts); err != nil {
		return nil, err
	}
	s, err := sessionOf(model, v, inputs, outputs, opts)
	if err != nil {
		return nil, localeError(trim(err))
	}
	return s, nil
}

// readDefaults reads the values of optional inputs. ONNX Runtime has them too, but the binding has
// a session take the same inputs in each run.
func (s *session) readDefaults() error {
	isOptional := func(p models.TensorSpec) bool { return p.Optional }
	if !slices.ContainsFunc(s.inputs, isOptional) {
		return nil
	}
	g, err := onnx.ReadGraph(s.version.Path)
	if err != nil {
		return err
	}
	s.defaults = make([]tensor.Tensor, len(s.inputs))
	for i := range s.inputs {
		if p := &s.inputs[i]; p.Optional {
			if s.defaults[i], err = g.Default(p.Name); err != nil {
				return err
			}
		}
	}
	return nil
}

// withDefaults returns the inputs with the defaults of those that are left out.
func (s *session) withDefaults(inputs []tensor.Tensor) []tensor.Tensor {
	if s.defaults == nil {
		return inputs
	}
	inputs = slices.Clone(inputs)
	for i := range inputs {
		if inputs[i].DataType == "" {
			inputs[i] = s.defaults[i]
		}
	}
	return inputs
}

// modelShape returns the shape that the model sees of an input.
func (s *session) modelShape(i int, shape []int64) ([]int64, error) {
	p := &s.inputs[i]
	if p.ModelShape == nil {
		return shape, nil
	}
	to, ok := models.Reshape(shape, p.Shape, p.ModelShape)
	if !ok {
		return nil, fmt.Errorf("shape %v cannot become %v", shape, p.ModelShape)
	}
	return to, nil
}

// queryShape returns the shape that a query gets of an output that the model gave a shape.
func (p *port) queryShape(shape []int64) []int64 {
	if p.ModelShape != nil {
		if to, ok := models.Reshape(shape, p.ModelShape, p.Shape); ok {
			return to
		}
	}
	return shape
}

// plainSession creates a session of the model as it is; onCard is as for sessionOptions.
func (o *ONNX) plainSession(v *models.Version, t threads, common sharedTensors, inputs,
	outputs []string,
	onCard map[string]string) (*ort.DynamicAdvancedSession, error) {
	opts, err := o.sessionOptions(v, t, onCard)
	if err != nil {
		return nil, fmt.Errorf("set session options: %w", err)
	}
	defer opts.Destroy()
	if err := common.add(opts); err != nil {
		return nil, err
	}
	var s *ort.DynamicAdvancedSession
	if hasMaps(v) {
		var g *onnx.Graph
		if g, err = onnx.ReadGraph(v.Path); err != nil {
			return nil, err
		}
		var model []byte
		if model, err = g.Marshal(); err != nil {
			return nil, err
		}
		s, err = sessionOf(model, v, inputs, outputs, opts)
	} else {
		s, err = ort.NewDynamicAdvancedSession(v.Path, inputs, outputs, opts)
	}
	if err != nil {
		return nil, localeError(trim(err))
	}
	return s, nil
}

// hasMaps reports whether the file of v has outputs that are no tensors where v has some, so that
// ONNX Runtime cannot be given the file as it is.
func hasMaps(v *models.Version) bool {
	return slices.ContainsFunc(v.Outputs, func(p models.TensorSpec) bool { return p.Labels != nil })
}

// sessionOf creates a session of a model that is in memory, with the external data beside v's file.
func sessionOf(model []byte, v *models.Version, inputs, outputs []string,
	opts *ort.SessionOptions) (*ort.DynamicAdvancedSession, error) {
	dir, err := filepath.Abs(filepath.Dir(v.Path))
	if err != nil {
		return nil, err
	}
	const folder = "session.model_external_initializers_file_folder_path"
	if err := opts.AddSessionConfigEntry(folder, dir); err != nil {
		return nil, err
	}
	return ort.NewDynamicAdvancedSessionWithONNXData(model, inputs, outputs, opts)
}

// withKernels creates the session of k, a model rewritten to look up rows of tables with package
// kernels; err says why it could not be. It returns nil if the model has no such lookups, or if
// they do not give what the standard operators do, and logs why.
func (o *ONNX) withKernels(k *kernels.Rewritten, err error, v *models.Version, t threads,
	common sharedTensors, inputs, outputs []string) *ort.DynamicAdvancedSession {
	log := o.log.With("model", v.String())
	if common != nil { // the first session has said it
		log = slog.New(slog.DiscardHandler)
	}
	if err == nil && k.Model == nil {
		if len(k.Left) > 0 {
			log.Info("ONNX Runtime's operators do the lookups", "reason", k.Reason())
		}
		return nil
	}
	var s *ort.DynamicAdvancedSession
	if err == nil {
		s, err = o.rewrittenSession(k, v, t, common, inputs, outputs)
	}
	if err != nil {
		log.Warn("ONNX Runtime's operators do the lookups", "reason", trim(err))
		return nil
	}
	attributes := []any{"tables", k.Tables, "operators", k.Operators, "with", kernels.Target()}
	if len(k.Left) > 0 {
		attributes = append(attributes, "others", k.Reason())
	}
	log.Info("Muster's operators do the lookups", attributes...)
	return s
}

// rewrittenSession creates the session of v's model as rewritten, after a check.
func (o *ONNX) rewrittenSession(k *kernels.Rewritten, v *models.Version, t threads,
	common sharedTensors,
	inputs, outputs []string) (*ort.DynamicAdvancedSession, error) {
	opts, err := o.sessionOptions(v, t, nil)
	if err != nil {
		return nil, err
	}
	defer opts.Destroy()
	if err := kernels.Register(opts); err != nil {
		return nil, err
	}
	if err := k.Check(opts); err != nil {
		return nil, err
	}
	if err := common.add(opts); err != nil {
		return nil, err
	}
	return sessionOf(k.Model, v, inputs, outputs, opts)
}

// rowElements returns port.rowElements of an output.
func rowElements(out models.TensorSpec, batchless bool) int {
	if out.DataType == tensor.Bytes || len(out.Shape) == 0 {
		return -1
	}
	row := out.Shape
	if !batchless {
		row = row[1:]
	}
	n, err := tensor.Elements(row)
	if err != nil {
		return -1
	}
	return n
}

// sessionOptions returns the options of a session of v; onCard are options of the CUDA provider
// beside the usual ones.
func (o *ONNX) sessionOptions(v *models.Version, t threads, onCard map[string]string) (
	*ort.SessionOptions, error) {
	opts, err := ort.NewSessionOptions()
	if err != nil {
		return nil, err
	}
	if len(t.cpus) > 1 {
		// ONNX Runtime counts processors from 1, and wants one for each thread that it starts.
		var affinities []string
		for _, cpu := range t.cpus[1:] {
			affinities = append(affinities, strconv.Itoa(cpu+1))
		}
		err = opts.AddSessionConfigEntry("session.intra_op_thread_affinities",
			strings.Join(affinities, ";"))
	}
	if t.count > 1 {
		// the caller may have a low priority
		err = errors.Join(err, t.started.Start(opts))
	}
	err = errors.Join(
		err,
		opts.SetIntraOpNumThreads(t.count),
		opts.SetInterOpNumThreads(1),
		opts.AddSessionConfigEntry("session.use_env_allocators", "1"), // see shareArena
		opts.AddSessionConfigEntry("session.inter_op.allow_spinning", "0"),
		setSpinning(opts, o.info.Version),
	)
	if o.info.Provider == CUDA {
		err = errors.Join(err, addCUDA(opts, o.memory, v.Config.TF32, onCard))
	}
	if err != nil {
		opts.Destroy()
		return nil, err
	}
	return opts, nil
}

// setSpinning has a session's threads spin while they wait, but not for long. A run wakes a thread
// that sleeps for each node that it divides, which takes some 30 us each time. Threads that spin
// for 200 us are often still awake when the next small query comes. For longer, as by ONNX
// Runtime's default, they take cores from threads with work. While they spin they pause up to 8
// times at once, which leaves more to a thread that shares their core.
func setSpinning(opts *ort.SessionOptions, version string) error {
	const prefix = "session.intra_op."
	if !boundsSpinning(version) {
		return opts.AddSessionConfigEntry(prefix+"allow_spinning", "0")
	}
	return errors.Join(
		opts.AddSessionConfigEntry(prefix+"allow_spinning", "1"),
		opts.AddSessionConfigEntry(prefix+"spin_duration_us", "200"),
		opts.AddSessionConfigEntry(prefix+"spin_backoff_max", "8"),
	)
}

// boundsSpinning reports whether a version of ONNX Runtime lets a session say for how long its
// threads spin. Earlier ones do not know the setting, and would spin for long.
func boundsSpinning(version string) bool {
	var major, minor int
	_, err := fmt.Sscanf(version, "%d.%d", &major, &minor)
	return err == nil && (major > 1 || major == 1 && minor >= 27)
}

// Close waits for runs in progress and frees the session.
func (s *session) Close() error {
	var single error
	if s.single != nil {
		single = s.single.Close()
	}
	if s.mapped != nil { // see loading
		if unlock, err := lockFiles(context.Background(), s.mapped); err == nil {
			defer unlock()
		}
	}
	s.closing.Lock()
	defer s.closing.Unlock()
	if s.ort == nil {
		return single
	}
	var err error
	if s.graphs != nil {
		err = s.graphs.close()
	} else {
		err = s.ort.Destroy()
	}
	if s.thread != nil {
		s.thread.stopThread()
	}
	s.threads.started.Close()
	err = errors.Join(single, err, s.common.Close())
	s.ort = nil
	releaseFreedMemory()
	return err
}

// Run executes one query. On the CPU a batch of independent rows runs in pieces of about 10 ms, on
// a card in pieces of the largest batch size, and the end of ctx takes effect between two pieces.
// Any other run is terminated through ONNX Runtime, which takes effect between two nodes of the
// graph. Input data that is not aligned for its type is copied.
func (s *session) Run(ctx context.Context, inputs []tensor.Tensor) (*Result, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if s.cut != nil {
		return s.runUsers(ctx, [][]tensor.Tensor{s.withDefaults(inputs)})
	}
	if s.version.Roles != nil {
		return s.runRanked(ctx, [][]tensor.Tensor{inputs})
	}
	batch, err := checkInputs(s.inputs, inputs, s.batchless)
	if err != nil {
		return nil, fmt.Errorf("run %s: %w", s.name, err)
	}
	return s.run(ctx, s.withDefaults(inputs), nil, batch)
}

// canJoin implements [joiningModel].
func (s *session) canJoin() bool { return s.graphs != nil || s.version.Roles != nil }

// runJoined implements [joiningModel].
func (s *session) runJoined(ctx context.Context, queries [][]tensor.Tensor) (*Result, error) {
	if s.cut != nil {
		return s.runUsers(ctx, queries)
	}
	if s.version.Roles != nil {
		return s.runRanked(ctx, queries)
	}
	batch := 0
	for _, inputs := range queries {
		n, err := checkInputs(s.inputs, inputs, s.batchless)
		if err != nil {
			return nil, fmt.Errorf("run %s: %w", s.name, err)
		}
		batch += n
	}
	return s.run(ctx, nil, queries, batch)
}

// run runs one query or, if joined is not nil, several as one.
func (s *session) run(ctx context.Context, inputs []tensor.Tensor, joined [][]tensor.Tensor,
	batch int) (*Result, error) {
	return s.finish(ctx, s.runs.Get().(*run), inputs, joined, batch)
}

// finish is run with the run's memory.
func (s *session) finish(ctx context.Context, r *run, inputs []tensor.Tensor,
	joined [][]tensor.Tensor, batch int) (*Result, error) {
	s.closing.RLock()
	defer s.closing.RUnlock()
	if s.ort == nil {
		return nil, ErrClosed
	}
	start := time.Now()
	if err := r.executeQuery(ctx, inputs, joined, batch); err != nil {
		r.recycleRun()
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, fmt.Errorf("run %s: %w", s.name, indexError(err))
	}
	return &Result{Outputs: r.outputs, Execution: time.Since(start), release: r.recycleRun}, nil
}

// A run holds the memory of one query, from its start until its outputs are released. Runs are
// reused.
type run struct {
	s       *session
	outputs []tensor.Tensor
	shapes  [][]int64 // of the outputs
	block   []byte    // data of the outputs whose shapes are known before the run
	copies  [][]byte  // of misaligned inputs, by input
	in, out []ort.Value
	index   []int64            // of the user of each row, if the graph is cut
	alone   [1][]tensor.Tensor // the query's inputs
	shape   []int64            // scratch
	// indexData is scratch: the part of index that a call gets.
	indexData []byte
	pinner    goruntime.Pinner
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
	if s.cut != nil {
		r.in = append(r.in, nil)
	}
	for i, out := range s.outputs {
		r.shapes[i] = append([]int64(nil), out.Shape...)
	}
	return r
}

// recycleRun makes r available for other queries.
func (r *run) recycleRun() {
	clear(r.outputs)
	r.s.runs.Put(r)
}

// executeQuery runs the query, in pieces if the session allows that, and sets r.outputs. It runs
// several as one if joined is not nil, which takes graphs.
func (r *run) executeQuery(ctx context.Context, inputs []tensor.Tensor, joined [][]tensor.Tensor,
	batch int) error {
	s := r.s
	if err := r.prepareOutputs(inputs, batch); err != nil {
		return err
	}
	if s.graphs != nil {
		if joined == nil {
			r.alone[0] = inputs
			defer clear(r.alone[:])
			joined = r.alone[:]
		}
		return s.graphs.executeQueries(ctx, r, joined, batch)
	}
	if !s.pieces || s.allocate.Load() || s.version.Mixing() != "" {
		err := r.callCancellable(ctx, inputs, batch)
		if !s.doubtsShapes(err) {
			return err
		}
		return r.callCancellable(ctx, inputs, batch)
	}
	for row := 0; row < batch; {
		if err := ctx.Err(); err != nil {
			return err
		}
		s.mu.Lock()
		most := s.speed.RowsWithin(pieceTime)
		s.mu.Unlock()
		if most == 0 {
			most = firstPiece
		}
		rows := batch - row
		if rows > most+most/4 { // a piece that is a quarter larger is better than one more piece
			rows = balancedSize(rows, most)
		}
		start := time.Now()
		if err := r.runRows(inputs, batch, row, rows, nil); s.doubtsShapes(err) {
			return r.callCancellable(ctx, inputs, batch)
		} else if err != nil {
			return err
		}
		took := time.Since(start)
		s.mu.Lock()
		s.speed.Observe(rows, took)
		s.mu.Unlock()
		row += rows
	}
	return nil
}

// otherShape matches ONNX Runtime's errors for an output whose memory has another shape than the
// output: one that a node makes, or that the graph's shapes rule out before the run. Other errors
// are those of a query.
var otherShape = regexp.MustCompile(`pre-allocated output|Got invalid dimensions for output|` +
	`Invalid rank for output`)

// doubtsShapes reports whether err is of an output with another shape than the batch size and the
// signature predict. From then on ONNX Runtime allocates all outputs.
func (s *session) doubtsShapes(err error) bool {
	return err != nil && otherShape.MatchString(err.Error()) && !s.allocate.Swap(true)
}

// balancedSize divides rows into the fewest pieces of at most most rows, of about equal size, and
// returns the size of the first.
func balancedSize(rows, most int) int {
	pieces := (rows + most - 1) / most
	return (rows + pieces - 1) / pieces
}

// prepareOutputs allocates the outputs whose shapes are known before the run, all in r.block, and
// copies those that are inputs. inputs is not used if no output is an input.
//
// Invariant: r.block holds zeros, or copies of inputs, when a run starts. ONNX Runtime writes its
// outputs, but what it left unwritten would be the answer to an earlier query, of another client.
func (r *run) prepareOutputs(inputs []tensor.Tensor, batch int) error {
	size := 0
	for _, out := range r.s.outputs {
		switch {
		case out.input >= 0:
			size += roundUp(len(inputs[out.input].Data))
		case out.rowElements > 0:
			if batch > largestTensor/out.DataType.Size()/out.rowElements {
				return fmt.Errorf(
					"output %q of batch size %d and shape %v would take more than %d bytes",
					out.Name,
					batch, out.Shape, largestTensor)
			}
			size += roundUp(batch * out.rowElements * out.DataType.Size())
		}
	}
	if len(r.block) < size {
		block := make([]byte, size+alignment)
		offset := int(-uintptr(unsafe.Pointer(&block[0])) % alignment)
		r.block = block[offset : offset+size]
	} else {
		clear(r.block[:size])
	}
	block := r.block
	for i, out := range r.s.outputs {
		o := &r.outputs[i]
		*o = tensor.Tensor{Name: out.Name, DataType: out.DataType}
		switch {
		case out.input >= 0:
			in := inputs[out.input]
			shape, err := r.s.modelShape(out.input, in.Shape)
			if err != nil {
				return fmt.Errorf("input %q: %w", in.Name, err)
			}
			r.shapes[i] = append(r.shapes[i][:0], out.queryShape(shape)...)
			o.Shape, o.Data = r.shapes[i], block[:len(in.Data):len(in.Data)]
			copy(o.Data, in.Data)
		case out.rowElements >= 0:
			if !r.s.batchless {
				r.shapes[i][0] = int64(batch)
			}
			size := batch * out.rowElements * out.DataType.Size()
			o.Shape, o.Data = r.shapes[i], block[:size:size]
		}
		block = block[roundUp(len(o.Data)):]
	}
	return nil
}

// roundUp returns the next multiple of alignment.
func roundUp(n int) int { return (n + alignment - 1) &^ (alignment - 1) }

// callCancellable runs the whole batch in one call, which is terminated when ctx ends.
func (r *run) callCancellable(ctx context.Context, inputs []tensor.Tensor, batch int) error {
	if ctx.Done() == nil {
		return r.runRows(inputs, batch, 0, batch, nil)
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
	err = r.runRows(inputs, batch, 0, batch, opts)
	if !stop() {
		<-terminated // opts must not be freed while Terminate uses it
	}
	return err
}

// runRows runs the rows [row, row+rows) of a batch in one call of ONNX Runtime. opts may be nil.
func (r *run) runRows(inputs []tensor.Tensor, batch, row, rows int,
	opts *ort.RunOptions) (err error) {
	defer func() {
		destroyValues(r.in)
		destroyValues(r.out)
		r.pinner.Unpin() // the values that point to the memory are destroyed
	}()
	for i, in := range inputs {
		if in.Shape, err = r.s.modelShape(i, in.Shape); err != nil {
			return fmt.Errorf("input %q: %w", in.Name, err)
		}
		if in.DataType == tensor.Bytes {
			r.in[i], err = newStrings(in)
		} else {
			data, first := in.Data, firstOf(in.Shape)
			if r.s.cut != nil && r.s.cut.isUser[i] {
				data, first = r.userRows(in, batch, row, rows)
			} else if rows < batch {
				first = int64(rows)
				stride := len(in.Data) / max(batch, 1)
				data = data[row*stride : (row+rows)*stride]
			}
			r.in[i], err = r.newValue(in.DataType, in.Shape, first,
				r.alignedData(i, in.DataType, data))
		}
		if err != nil {
			return fmt.Errorf("input %q: %w", in.Name, err)
		}
	}
	if r.s.cut != nil {
		if r.in[len(inputs)], err = r.newIndex(row, rows); err != nil {
			return fmt.Errorf("input %q: %w", onnx.RowToUser, err)
		}
	}
	allocate := r.s.allocate.Load()
	for i, out := range r.s.outputs {
		if !out.isPreallocated(allocate) {
			continue
		}
		o := r.outputs[i]
		stride := len(o.Data) / max(batch, 1)
		first := firstOf(o.Shape)
		if rows < batch {
			first = int64(rows)
		}
		r.out[i], err = r.newValue(o.DataType, o.Shape, first, o.Data[row*stride:(row+rows)*stride])
		if err != nil {
			return fmt.Errorf("output %q: %w", out.Name, err)
		}
	}
	if t := r.s.threads; t.started != nil && t.cpus == nil {
		t.started.LeaveCaller()
	}
	made, err := r.s.runModel(r.in, r.out, opts)
	if err != nil {
		if card := r.s.from.card; card != nil {
			return runError(trim(err), card)
		}
		return trim(err)
	}
	for i, out := range r.s.outputs {
		if out.input < 0 && r.out[i] == nil {
			r.outputs[i].Shape, r.outputs[i].Data = out.queryShape(made[i].Shape), made[i].Data
		}
	}
	return nil
}

// runModel has ONNX Runtime run the model once, on the session's thread if it has one. It returns
// the outputs that are nil in out.
func (s *session) runModel(in, out []ort.Value, opts *ort.RunOptions) (made []ortapi.Output,
	err error) {
	run := func() error { return s.ort.RunWithOptions(in, out, opts) }
	if slices.Contains(out, nil) {
		run = func() (err error) {
			made, err = ortapi.Run(s.ort, opts, in, out, s.sizes)
			return err
		}
	}
	if s.thread == nil {
		err = run()
	} else {
		err = s.thread.do(run)
	}
	return made, err
}

// A thread does work, one after the other, on one thread of the system.
type thread struct{ work chan func() }

// newThread starts a thread, which is to be ended.
func newThread() *thread {
	t := &thread{make(chan func())}
	go func() {
		goruntime.LockOSThread() // for ever: the system's thread ends with the goroutine
		for work := range t.work {
			work()
		}
	}()
	return t
}

// do returns the work's error when it is done. It may be called concurrently, but not after end.
func (t *thread) do(work func() error) error {
	done := make(chan error, 1)
	t.work <- func() { done <- work() }
	return <-done
}

func (t *thread) stopThread() { close(t.work) }

// firstOf returns the first dimension, 0 of none.
func firstOf(shape []int64) int64 {
	if len(shape) == 0 {
		return 0
	}
	return shape[0]
}

// newValue makes a value of ONNX Runtime that shares data: one of the given shape, but with another
// first dimension. It pins data until r.pinner.Unpin.
func (r *run) newValue(t tensor.DataType, shape []int64, first int64, data []byte) (ort.Value,
	error) {
	if len(data) == 0 {
		data = empty[:] // the binding needs an address even for no elements
	}
	r.pinner.Pin(&data[0])
	if len(shape) == 0 {
		v, err := ortapi.NewScalar(data, elementTypes[t])
		if err != nil {
			return nil, err // not v: an interface with a nil pointer is not nil
		}
		return v, nil
	}
	r.shape = append(r.shape[:0], shape...)
	r.shape[0] = first
	v, err := ort.NewCustomDataTensor(r.shape, data, elementTypes[t])
	if err != nil {
		return nil, err
	}
	return v, nil
}

var empty [8]byte

// alignedData returns data, or a copy if data is not aligned for its type: ONNX Runtime's kernels
// may rely on the alignment.
func (r *run) alignedData(input int, t tensor.DataType, data []byte) []byte {
	if len(data) == 0 || uintptr(unsafe.Pointer(&data[0]))%uintptr(t.Size()) == 0 {
		return data
	}
	if cap(r.copies[input]) < len(data) {
		r.copies[input] = make([]byte, len(data)+7) // Go aligns 8 bytes or more to 8
	}
	c := r.copies[input][:len(data)]
	copy(c, data)
	return c
}

// destroyValues frees the values and sets them to nil.
func destroyValues(values []ort.Value) {
	for i, v := range values {
		if v != nil {
			v.Destroy()
			values[i] = nil
		}
	}
}

// trim removes the binding's prefixes from an error of ONNX Runtime.
func trim(err error) error {
	text := strings.TrimPrefix(err.Error(), "Error running network: ")
	text = strings.TrimPrefix(text, "Error creating C session: ")
	return errors.New(strings.TrimPrefix(text, "Error creating C session from file: "))
}

// noLocale is what ONNX Runtime says of a StringNormalizer, with the name of its locale.
var noLocale = regexp.MustCompile(`Failed to construct locale with name:([^\s:]+)`)

// localeError returns err or, if it is of a locale that the machine does not have, what to do. A
// StringNormalizer without the attribute needs en_US.UTF-8, which images of clouds and containers
// leave out.
func localeError(err error) error {
	found := noLocale.FindStringSubmatch(err.Error())
	if found == nil {
		return err
	}
	locale := found[1]
	language, _, _ := strings.Cut(locale, "_")
	return fmt.Errorf("a StringNormalizer of the model needs the locale %[1]s, which this machine does "+
		"not have: install the locale %[1]s (Debian, Ubuntu: apt-get install locales, then localedef "+
		"-i %[2]s -f UTF-8 %[1]s; Fedora: dnf install glibc-langpack-%[3]s) and load the model again",
		locale, strings.TrimSuffix(locale, ".UTF-8"), language)
}
