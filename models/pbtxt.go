package models

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/api/triton"
)

// TritonFile is the name of a model's settings in a Triton model repository.
const TritonFile = "config.pbtxt"

// ensemble is the platform of a model that consists of others.
const ensemble = "ensemble"

// readTriton reads a config.pbtxt, the settings of a model, into c, whose Deadline and WarmUp stay
// 0 where the file says nothing of them. A file that does not exist leaves c as it is. All faults
// are reported at once, each with the file, the field, what was found and what was expected.
func readTriton(path, model string, c *Config) error {
	data, err := readFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	t, note, err := parseTriton(data)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if note != "" {
		c.Notes = append(c.Notes, TritonFile+": "+note)
	}
	r := tritonReader{config: c, rest: proto.CloneOf(t)}
	r.read(t, model)
	if err := errors.Join(r.faults...); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	c.Triton = t
	if without := setFields(r.rest.ProtoReflect(), "", nil); len(without) > 0 {
		slices.Sort(without)
		c.Notes = append(c.Notes, fmt.Sprintf("%s: without effect here: %s", TritonFile,
			strings.Join(slices.Compact(without), ", ")))
	}
	return nil
}

// unknownField finds the place and the name in an error of prototext.
var unknownField = regexp.MustCompile(`\(line (\d+):\d+\): unknown field: (\S+)`)

// parseTriton parses a config.pbtxt. Fields of a later version of Triton are skipped; note then
// names the first one.
func parseTriton(data []byte) (t *triton.ModelConfig, note string, err error) {
	t = &triton.ModelConfig{}
	err = prototext.Unmarshal(data, t)
	if err == nil {
		return t, "", nil
	}
	// protobuf varies the blanks in its errors so that nobody relies on them
	text := strings.ReplaceAll(strings.TrimPrefix(err.Error(), "proto:"), "\u00a0", " ")
	if unknown := unknownField.FindStringSubmatch(text); unknown != nil {
		note = fmt.Sprintf("unknown field %s in line %s, skipped with any others", unknown[2],
			unknown[1])
		if err := (prototext.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(data,
			t); err == nil {
			return t, note, nil
		}
	}
	return nil, "", errors.New(strings.TrimSpace(text))
}

// A tritonReader turns a ModelConfig into a Config. It clears in rest what it has read.
type tritonReader struct {
	config *Config
	rest   *triton.ModelConfig
	faults []error
}

func (r *tritonReader) fault(format string, args ...any) {
	r.faults = append(r.faults, fmt.Errorf(format, args...))
}

func (r *tritonReader) read(t *triton.ModelConfig, model string) {
	c := r.config
	if name := t.GetName(); name != "" && name != model {
		r.fault("name is %q, expected that of the folder, %q, or none", name, model)
	}
	r.refuseSettings(t)
	r.readPlatform(t)
	r.readVersionPolicy(t.GetVersionPolicy())
	r.rest.Name, r.rest.VersionPolicy, r.rest.MaxBatchSize = "", nil, 0
	most := int64(t.GetMaxBatchSize())
	if most < 0 || most > largestBatchSize {
		r.fault("max_batch_size is %d, expected 0 to %d", most, largestBatchSize)
		return
	}
	if most > 0 {
		c.LargestBatchSize, c.StatesBatchSize = int(most), true
	}
	for i, p := range t.GetInput() {
		c.Inputs = append(c.Inputs, r.readPort("input", p.GetName(), p.GetDataType(), p.GetDims(),
			p.GetReshape(), most > 0))
		rest := r.rest.Input[i]
		rest.Name, rest.DataType, rest.Dims, rest.Reshape, rest.Optional = "", 0, nil, nil, false
	}
	for i, p := range t.GetOutput() {
		c.Outputs = append(c.Outputs, r.readPort("output", p.GetName(), p.GetDataType(),
			p.GetDims(), p.GetReshape(), most > 0))
		rest := r.rest.Output[i]
		rest.Name, rest.DataType, rest.Dims, rest.Reshape = "", 0, nil, nil
	}
	shaped := func(p TensorSpec) bool { return p.Shape != nil }
	c.Batchless = most == 0 && (c.Ensemble != nil || slices.ContainsFunc(c.Inputs, shaped) ||
		slices.ContainsFunc(c.Outputs, shaped))
	r.readBatching(t, most)
	r.warmUp(t, most)
	if file := t.GetDefaultModelFilename(); file != "" {
		if file != filepath.Base(file) || !filepath.IsLocal(file) || file == "." {
			r.fault("default_model_filename is %q, expected the name of a file", file)
		}
		c.ModelFile, r.rest.DefaultModelFilename = file, ""
	}
}

// refuseSettings adds faults for what would change the answers, so that it cannot be left out.
func (r *tritonReader) refuseSettings(t *triton.ModelConfig) {
	refuse := func(there bool, what, why string) {
		if there {
			r.fault("%s is not supported: %s", what, why)
		}
	}
	refuse(t.GetSequenceBatching() != nil, "sequence_batching",
		"no model keeps state from one query to the next")
	refuse(t.GetModelTransactionPolicy().GetDecoupled(), "model_transaction_policy.decoupled",
		"each query has one answer")
	refuse(len(t.GetModelOperations().GetOpLibraryFilename()) > 0, "model_operations",
		"models run without custom operators")
	refuse(len(t.GetBatchInput()) > 0, "batch_input", "the model gets the clients' tensors only")
	refuse(len(t.GetBatchOutput()) > 0, "batch_output", "clients get the model's tensors only")
	const none = "ONNX has no such tensors"
	const step = "an ensemble has no model that would see another shape"
	isEnsemble := t.GetEnsembleScheduling() != nil
	for _, p := range t.GetInput() {
		at := fmt.Sprintf("input %q: ", p.GetName())
		refuse(p.GetReshape() != nil && isEnsemble, at+"reshape", step)
		refuse(p.GetAllowRaggedBatch(), at+"allow_ragged_batch", "all items have the same shape")
		refuse(p.GetIsShapeTensor(), at+"is_shape_tensor", none)
	}
	for _, p := range t.GetOutput() {
		at := fmt.Sprintf("output %q: ", p.GetName())
		refuse(p.GetReshape() != nil && isEnsemble, at+"reshape", step)
		refuse(p.GetIsShapeTensor(), at+"is_shape_tensor", none)
	}
}

func (r *tritonReader) readPlatform(t *triton.ModelConfig) {
	steps := t.GetEnsembleScheduling()
	isEnsemble := t.GetPlatform() == ensemble
	switch {
	case isEnsemble != (steps != nil):
		r.fault("platform is %q and ensemble_scheduling is %s, expected platform %q and "+
			"ensemble_scheduling, or neither", t.GetPlatform(), givenText(steps != nil), ensemble)
	case isEnsemble && t.GetBackend() != "":
		r.fault("backend is %q, expected none for platform %q", t.GetBackend(), ensemble)
	case !isEnsemble && (t.GetPlatform() != "" && t.GetPlatform() != "onnxruntime_onnx" ||
		t.GetBackend() != "" && t.GetBackend() != "onnxruntime"):
		r.fault("platform is %q and backend %q, expected \"onnxruntime_onnx\" and "+
			"\"onnxruntime\": only ONNX models are served", t.GetPlatform(), t.GetBackend())
	}
	r.config.Ensemble = steps
	r.rest.Platform, r.rest.Backend = "", ""
	for _, step := range r.rest.GetEnsembleScheduling().GetStep() {
		step.ModelName, step.ModelVersion, step.InputMap, step.OutputMap = "", 0, nil, nil
		step.ModelNamespace = "" // refused where the steps are read
	}
}

func givenText(there bool) string {
	if there {
		return "there"
	}
	return "not there"
}

func (r *tritonReader) readVersionPolicy(p *triton.ModelVersionPolicy) {
	switch {
	case p.GetAll() != nil:
		r.config.Versions = VersionPolicy{All: true}
	case p.GetSpecific() != nil:
		versions := p.GetSpecific().GetVersions()
		if len(versions) == 0 || slices.Min(versions) < 1 {
			r.fault("version_policy.specific has the versions %v, expected one or more above 0",
				versions)
		}
		r.config.Versions = VersionPolicy{Specific: slices.Clone(versions)}
	case p.GetLatest() != nil:
		n := p.GetLatest().GetNumVersions()
		if n < 1 || n > 1<<31-1 {
			r.fault("version_policy.latest.num_versions is %d, expected 1 or more", n)
		}
		r.config.Versions = VersionPolicy{Latest: int(n)}
	}
}

// readPort reads an input or output. batched says whether dims and reshape lack the batch size.
func (r *tritonReader) readPort(role, name string, d triton.DataType, dims []int64,
	reshape *triton.ModelTensorReshape, batched bool) TensorSpec {
	if name == "" {
		r.fault("%s: has no name", role)
	}
	p := TensorSpec{Name: name, DataType: dataType(d)}
	if d != triton.DataType_TYPE_INVALID && !p.DataType.Valid() {
		r.fault("%s %q: data_type is %s, expected a type such as TYPE_FP32", role, name, d)
	}
	for _, n := range dims {
		if n < 1 && n != Dynamic {
			r.fault("%s %q: dims are %v, expected sizes above 0, or -1", role, name, dims)
			break
		}
	}
	whole := func(dims []int64) []int64 {
		if batched {
			return append([]int64{Dynamic}, dims...)
		}
		return append([]int64{}, dims...)
	}
	if len(dims) > 0 {
		p.Shape = whole(dims)
	}
	if reshape == nil {
		return p
	}
	to := reshape.GetShape()
	if len(dims) == 0 || countDynamic(dims) != countDynamic(to) ||
		fixedSize(dims) != fixedSize(to) ||
		slices.ContainsFunc(to, func(d int64) bool { return d < 1 && d != Dynamic }) {
		r.fault("%s %q: reshape of dims %v to %v, expected as many elements, and as many dimensions of "+
			"-1", role, name, dims, to)
		return p
	}
	p.ModelShape = whole(to)
	return p
}

// fixedSize returns the product of the dimensions that are not dynamic; -1 if it is too large.
func fixedSize(dims []int64) int {
	n, err := tensor.Elements(slices.DeleteFunc(slices.Clone(dims),
		func(d int64) bool { return d == Dynamic }))
	if err != nil {
		return -1
	}
	return n
}

// dataType returns the protocol's name of a type; "" for none.
func dataType(d triton.DataType) tensor.DataType {
	switch d {
	case triton.DataType_TYPE_INVALID:
		return ""
	case triton.DataType_TYPE_STRING:
		return tensor.Bytes
	}
	return tensor.DataType(strings.TrimPrefix(d.String(), "TYPE_"))
}

// readBatching reads dynamic_batching: whoever asks for it says that the rows of a batch are
// independent.
func (r *tritonReader) readBatching(t *triton.ModelConfig, most int64) {
	b := t.GetDynamicBatching()
	if b == nil || most == 0 {
		return
	}
	r.config.RowsIndependent = true
	q := b.GetDefaultQueuePolicy()
	us := q.GetDefaultTimeoutMicroseconds()
	if us == 0 || q.GetTimeoutAction() != triton.ModelQueuePolicy_REJECT {
		return
	}
	r.rest.GetDynamicBatching().GetDefaultQueuePolicy().DefaultTimeoutMicroseconds = 0
	if us > uint64(longestDeadline.Microseconds()) {
		r.fault("default_timeout_microseconds is %d, expected at most %d", us,
			longestDeadline.Microseconds())
		return
	}
	r.config.Deadline = time.Duration(us) * time.Microsecond
	r.config.QoSTarget = min(r.config.QoSTarget, r.config.Deadline)
}

// warmUp reads the batch sizes of model_warmup.
func (r *tritonReader) warmUp(t *triton.ModelConfig, most int64) {
	for i, w := range t.GetModelWarmup() {
		rest := r.rest.ModelWarmup[i]
		rest.Name, rest.BatchSize = "", 0
		size := int64(max(1, w.GetBatchSize()))
		if size > max(1, most) {
			r.fault("model_warmup[%d].batch_size is %d, expected at most max_batch_size, which is "+
				"%d", i, size, most)
		}
		if !slices.Contains(r.config.WarmUp, int(size)) {
			r.config.WarmUp = append(r.config.WarmUp, int(size))
		}
	}
}

// setFields appends the names of the fields that are set in m, such as "optimization.graph.level";
// of a map of settings, each with its key.
func setFields(m protoreflect.Message, prefix string, names []string) []string {
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		name := prefix + string(f.Name())
		switch {
		case f.IsMap():
			v.Map().Range(func(k protoreflect.MapKey, _ protoreflect.Value) bool {
				names = append(names, name+"["+strconv.Quote(k.String())+"]")
				return true
			})
		case f.IsList() && f.Message() != nil:
			for i := range v.List().Len() {
				names = setFields(v.List().Get(i).Message(), name+".", names)
			}
		case f.Message() != nil:
			names = setFields(v.Message(), name+".", names)
		default:
			names = append(names, name)
		}
		return true
	})
	return names
}
