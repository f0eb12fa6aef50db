package models

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"unicode/utf8"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/api/roles"
	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/models/onnx"
)

// Dynamic is the value, in a shape, of a dimension whose size depends on the query.
const Dynamic = onnx.Dynamic

// Names of the files in a repository.
const (
	ConfigFile = "model.yaml"
	ModelFile  = "model.onnx"
)

// A TensorSpec is an input or an output of a model.
type TensorSpec struct {
	Name     string
	DataType tensor.DataType
	// Shape is the size of each dimension, or Dynamic. Unless the version is batchless, the first
	// dimension is the batch size and always Dynamic; a scalar, whose Shape is empty, has none.
	// Shape is nil for an output whose shape the model does not declare.
	Shape []int64
	// IDBounds limits the values of an integer input: value v at index i of the second dimension
	// must satisfy 0 <= v < IDBounds[i]. A single bound holds for all indices. Nil is no limit.
	IDBounds []int64
	// InferredBounds limits the values as the model's tables do, where its configuration has no
	// IDBounds: value v must satisfy -InferredBounds[i] <= v < InferredBounds[i], since ONNX counts
	// negative ids from the end, and may be any where that is 0. It has indices as IDBounds has.
	InferredBounds []int64
	// Optional is whether a query may leave the input out: the model has a default.
	Optional bool
	// Whole is whether an input belongs to its query as a whole, without a batch size. So does each
	// scalar.
	Whole bool
	// ModelShape is the shape that the model gets or gives in place of Shape (reshape in
	// config.pbtxt), with dynamic dimensions as [Port.Reshape] says; nil: Shape.
	ModelShape []int64
	// Labels name the columns of an output that the model's file declares as maps; see
	// [onnx.ValueDescription].
	Labels []string
	// Varies is whether an output may have another shape than Shape says: its file fixes the first
	// dimension, beside outputs with a row for each item.
	Varies bool
	// Role is what the first dimension stands for in a version with [Version.Roles]; else "".
	Role roles.Role
}

// IsScalar reports whether the tensor has no dimensions. Such an input is the same for all items.
func (p *TensorSpec) IsScalar() bool { return p.Shape != nil && len(p.Shape) == 0 }

// HasRows reports whether the first dimension of the tensors of a version that is not batchless is
// the batch size.
func (p *TensorSpec) HasRows() bool {
	return !p.Whole && !p.IsScalar() && (p.Role == "" || p.Role == roles.Row)
}

// Reshape returns a shape that a query has in the form of to, where it has the form of from; one of
// them is Shape and the other ModelShape. Dynamic dimensions of to are those of from, in their
// order. It returns false if that does not give as many elements.
func Reshape(shape, from, to []int64) ([]int64, bool) {
	if len(shape) != len(from) {
		return nil, false
	}
	var sizes []int64
	for i, d := range from {
		if d == Dynamic {
			sizes = append(sizes, shape[i])
		}
	}
	if countDynamic(to) != len(sizes) {
		return nil, false
	}
	result := append([]int64{}, to...)
	for i, d := range result {
		if d == Dynamic {
			result[i], sizes = sizes[0], sizes[1:]
		}
	}
	before, err := tensor.Elements(shape)
	if err != nil {
		return nil, false
	}
	after, err := tensor.Elements(result)
	return result, err == nil && before == after
}

func countDynamic(shape []int64) (n int) {
	for _, d := range shape {
		if d == Dynamic {
			n++
		}
	}
	return n
}

// Bounds returns a bound above every id that the input takes, by indices as in IDBounds; nil if one
// of them has none. The ids from 0 on below it are valid.
func (p *TensorSpec) Bounds() []int64 {
	all := LeastBounds(p.IDBounds, p.InferredBounds)
	if slices.Contains(all, 0) {
		return nil
	}
	return all
}

// IDRange returns the range of the values at index i of the second dimension: low <= v < high. It
// returns false if they may be any.
func (p *TensorSpec) IDRange(i int) (low, high int64, ok bool) {
	at := func(bounds []int64) int64 {
		if len(bounds) == 0 {
			return 0
		}
		return bounds[min(i, len(bounds)-1)]
	}
	high = at(p.InferredBounds)
	low = -high
	if b := at(p.IDBounds); b > 0 {
		low = 0
		if high == 0 || b < high {
			high = b
		}
	}
	return low, high, high > 0
}

// A Version is one version of a model, as found on disk.
type Version struct {
	Model  string
	Number int64 // > 0; also the name of the version's folder
	// Path is the path of the version's model.onnx, or of an ensemble's config.pbtxt.
	Path string
	// Steps are those of an ensemble, in an order in which they can run; nil for a model that is a
	// file.
	Steps   []Step
	Inputs  []TensorSpec
	Outputs []TensorSpec
	// Batchless is whether the tensors have no batch dimension. A query then is one item, whatever
	// its shapes, and neither runs in pieces nor with others; Config.LargestBatchSize is 1.
	Batchless bool
	// Roles are those of the inputs and outputs of a ranker, whose queries are of one user and many
	// candidates; nil: the first dimension of all is the batch size, unless the version is
	// batchless.
	Roles    *roles.Roles
	inferred bool // Roles are, from the names of dimensions; else the settings state them
	// FixesFirst is whether the first dimension of an input is fixed, so that agents which know no
	// roles take the version for batchless.
	FixesFirst bool
	// Unproven is why the graph does not prove that rows are independent, although the settings say so;
	// "": it does, or they do not.
	Unproven string
	Config   Config

	mixing *atomic.Pointer[string] // see NoteMixing; nil: nobody has read the version from a file
}

// NoteMixing notes that runs have shown that rows depend on one another: from then on queries are
// neither split nor merged, and run in one piece. It may be called concurrently with all methods.
func (v *Version) NoteMixing(why string) {
	if v.mixing != nil {
		v.mixing.Store(&why)
	}
}

// Mixing is what NoteMixing has noted, "" if it was not called.
func (v *Version) Mixing() string {
	if v.mixing == nil || v.mixing.Load() == nil {
		return ""
	}
	return *v.mixing.Load()
}

// Splits reports whether queries may run as several parts.
func (v *Version) Splits() bool { return v.Config.Splits() && v.Mixing() == "" }

// Merging is how several waiting queries run as one.
func (v *Version) Merging() names.MergePolicy {
	if v.Mixing() != "" {
		return names.MergeNone
	}
	return v.Config.Merging()
}

// String returns the version's name for log lines and errors, such as "ncf version 1".
func (v *Version) String() string { return fmt.Sprintf("%s version %d", v.Model, v.Number) }

// ReadVersion reads the configuration and the signature of a version in the repository dir, and
// checks that they agree. It does not load the model. A file that lies outside of dir, through a
// symbolic link, is noted, and is an error in what a store has delivered. Errors name the file.
func ReadVersion(dir, model string, number int64) (*Version, error) {
	if err := checkName(model); err != nil {
		return nil, err
	}
	c, err := configOf(dir, model)
	if err != nil {
		return nil, err
	}
	return readVersion(dir, model, number, c)
}

// readVersion is ReadVersion with the configuration c.
func readVersion(dir, model string, number int64, c Config) (*Version, error) {
	if c.Ensemble != nil {
		return readEnsemble(dir, model, number, c)
	}
	folder := filepath.Join(model, strconv.FormatInt(number, 10))
	path, outside, err := resolvePath(dir, folder, cmp.Or(c.ModelFile, ModelFile))
	if err != nil {
		return nil, err
	}
	c.noteOutside(path, outside)
	s, err := onnx.ReadSignature(path)
	if errors.Is(err, fs.ErrNotExist) {
		if _, gone := os.Stat(path); gone != nil { // the model itself, not its external data
			err = fmt.Errorf("%w%s", err, insteadOf(path))
		}
	}
	if err != nil {
		return nil, err
	}
	read := []string{filepath.Base(path)}
	for _, d := range s.Data {
		data, real, err := resolvePath(dir, folder, d.Location)
		if err != nil {
			return nil, err
		}
		if filepath.Dir(real) != filepath.Dir(outside) {
			c.noteOutside(data, real)
		}
		first, _, _ := strings.Cut(d.Location, string(filepath.Separator))
		read = append(read, first)
	}
	c.noteStray(dir, model, folder, read)
	v := &Version{
		Model: model, Number: number, Path: path, Config: c, mixing: &atomic.Pointer[string]{},
	}
	var errs []error
	why := s.BatchlessReason()
	v.FixesFirst = why != ""
	inferred := v.Config.findRoles(s)
	ranks := inferred != nil || c.SaysRoles()
	whole := c.Batchless || why != "" && !ranks
	errs = v.setInputs(s, whole)
	outputs, more := mergePorts("output", freeFirst(s.Outputs, whole), c.Outputs, c.Batchless)
	v.Outputs = outputs
	errs = append(errs, more...)
	v.noteOutputs(s)
	errs = append(errs, v.checkInputs()...)
	errs = append(errs, v.checkCapture()...)
	switch {
	case ranks && len(errs) > 0:
	case inferred != nil:
		errs = append(errs, v.useRoles(*inferred, true))
	case ranks:
		errs = append(errs, v.stateRoles(s))
	case c.Batchless:
		errs = append(errs, v.withoutBatch("max_batch_size is 0 in "+TritonFile))
	case why == "":
	case c.Triton.GetMaxBatchSize() > 0:
		errs = append(errs, fmt.Errorf("max_batch_size is %d, expected 0: %s",
			c.Triton.GetMaxBatchSize(), why))
	default:
		if err := v.withoutBatch(why); err != nil {
			errs = append(errs, err)
		} else {
			v.Config.Notes = append(v.Config.Notes, "queries run one at a time: "+why)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("%s does not fit %s: %w", c.settingsPath(dir, model), path, err)
	}
	v.keepWhole()
	v.noteMixing(s)
	v.inferIndependence(s)
	return v, nil
}

// noteMixing notes what in the graph makes rows depend on one another, if the settings say that
// nothing does.
func (v *Version) noteMixing(s *onnx.Signature) {
	if !v.Config.RowsIndependent {
		return
	}
	i := s.Flow(v.FlowRoles()).Independence()
	if v.Unproven = i.Reason; !i.IsProven() && !i.Unknown {
		v.Config.Notes = append(slices.Clone(v.Config.Notes),
			fmt.Sprintf("rows_independent is true, but "+
				"rows depend on one another, so that answers change with what is split and merged: %s",
				i.Reason))
	}
}

// inferIndependence makes the rows of a version independent, of which its settings say nothing, if the
// graph proves that they are, and if all that a query has is rows or its user's.
func (v *Version) inferIndependence(s *onnx.Signature) {
	if v.Config.StatesIndependence || v.Config.Triton != nil || v.Config.RowsIndependent || v.Batchless {
		return
	}
	if v.Roles != nil && !v.Roles.CanSplit() ||
		slices.ContainsFunc(slices.Concat(v.Inputs, v.Outputs), func(p TensorSpec) bool {
			return p.Optional || v.Roles == nil && !p.HasRows()
		}) {
		return
	}
	if !s.Flow(v.FlowRoles()).Independence().IsProven() {
		return
	}
	v.Config.RowsIndependent, v.Config.InferredIndependence = true, true
	if v.Roles != nil && !v.Roles.CanMerge() {
		v.Config.Merge = names.MergeNone
	}
}

// IndependentBy says what tells that rows are independent: settings or graph; "" if nothing does.
func (v *Version) IndependentBy() string {
	switch {
	case v.Config.InferredIndependence:
		return "graph"
	case v.Config.RowsIndependent:
		return "settings"
	}
	return ""
}

// checkInputs returns an error for each input whose shape nobody says, and for what is more than a
// query may have.
func (v *Version) checkInputs() (errs []error) {
	for role, ports := range map[string][]TensorSpec{"input": v.Inputs, "output": v.Outputs} {
		if n := len(ports); n > tensor.MaxCount {
			errs = append(errs, fmt.Errorf("the model has %d %ss, expected at most %d", n, role,
				tensor.MaxCount))
		}
		for i := range ports {
			if p := &ports[i]; len(p.Shape) > tensor.MaxRank {
				errs = append(errs, fmt.Errorf("%s %q has %d dimensions, expected at most %d", role,
					p.Name, len(p.Shape), tensor.MaxRank))
			}
		}
	}
	for i := range v.Inputs {
		if p := &v.Inputs[i]; p.Shape == nil {
			errs = append(errs,
				fmt.Errorf("input %q has no shape: export the model with the shape of "+
					"each input, its first dimension dynamic, or say it in %s: inputs: [{name: %s, "+
					"shape: [-1, ...]}]", p.Name, ConfigFile, p.Name))
		}
	}
	return errs
}

// keepWhole makes the rows of a version with scalars or optional inputs dependent on each other:
// what comes in without rows is of one query, and a scalar that comes out is made of all its rows.
func (v *Version) keepWhole() {
	i := slices.IndexFunc(slices.Concat(v.Inputs, v.Outputs), func(p TensorSpec) bool {
		if v.Roles != nil { // which say what belongs to whom
			return p.Role == roles.Query && slices.Contains(v.Roles.Outputs, roles.NamedRole{
				Name: p.Name, Role: p.Role,
			}) || p.Optional
		}
		return !p.HasRows() || p.Optional
	})
	if i < 0 || v.Batchless || !v.Config.RowsIndependent {
		return
	}
	v.Config.RowsIndependent, v.Config.Merge = false, ""
	v.Config.Notes = append(slices.Clone(v.Config.Notes), fmt.Sprintf("rows are not independent, "+
		"whatever the settings say, because %q is optional or a scalar: queries are neither split nor "+
		"merged",
		slices.Concat(v.Inputs, v.Outputs)[i].Name))
}

// freeFirst returns a model's outputs with a dynamic first dimension where the file says 1, beside
// outputs that have a row for each item: exporters write so of an output with one element a row.
// batchless says that there are no rows.
func freeFirst(outputs []onnx.ValueDescription, batchless bool) []onnx.ValueDescription {
	if batchless {
		return outputs
	}
	outputs = slices.Clone(outputs)
	for i := range outputs {
		if p := &outputs[i]; p.FixesFirst() && p.Shape[0] == 1 {
			p.Shape = slices.Clone(p.Shape)
			p.Shape[0] = Dynamic
		}
	}
	return outputs
}

// noteOutputs notes which outputs of the file are served as something else, or not at all.
func (v *Version) noteOutputs(s *onnx.Signature) {
	note := func(format string, args ...any) {
		v.Config.Notes = append(slices.Clone(v.Config.Notes), fmt.Sprintf(format, args...))
	}
	for i := range v.Outputs {
		p := &v.Outputs[i]
		if p.Varies = !v.Config.Batchless && s.BatchlessReason() == "" &&
			s.Outputs[i].FixesFirst(); p.Varies {
			note("output %q is declared with shape %v, beside outputs with a row for each item: it is "+
				"answered as ONNX Runtime gives it", p.Name, s.Outputs[i].Shape)
		}
		if p.Labels = s.Outputs[i].Labels; p.Labels != nil {
			note("output %q is a sequence of maps (ZipMap): it is answered as the tensor of their %d "+
				"values a row, in the order of the model's metadata, labels.%[1]s", p.Name,
				len(p.Labels))
		}
	}
	for _, why := range s.Without {
		note("left out: %s", why)
	}
}

const (
	// maxOptional is how many inputs with a default a model may have that are for its clients to
	// give. In a model with more, they are its weights: some exporters write all of them so.
	// Chosen: a person fills in a form of so many fields, and the smallest networks have as many
	// weights.
	maxOptional = 32
	// maxDefault bounds the bytes of such a default, which each run that does not give the input
	// takes. Chosen: a copy of so many takes some microseconds.
	maxDefault = 64 << 10
)

// declaresOptional is the IR version from which on an initializer need not be an input, so that one
// that is says something.
const declaresOptional = 4

// setInputs sets the inputs to those of the file, with what the settings say of them, and returns
// an error for each contradiction. whole is whether the model has no batch dimension.
func (v *Version) setInputs(s *onnx.Signature, whole bool) (errs []error) {
	optional, c := v.chooseOptional(s), &v.Config
	v.Inputs, errs = mergePorts("input", slices.Concat(s.Inputs, optional),
		withoutRows(c.Inputs, optional), c.Batchless)
	for i := len(s.Inputs); i < len(v.Inputs); i++ {
		p := &v.Inputs[i]
		p.Optional, p.Whole = true, whole || optional[i-len(s.Inputs)].FixesFirst()
	}
	v.inferBounds(s)
	return errs
}

// chooseOptional returns the inputs with a default that a query may give: those that the settings
// name, and if they are few and small all of them. Those of a model whose rows are independent are
// its weights, unless the settings name them: an input without rows would end that.
func (v *Version) chooseOptional(s *onnx.Signature) (optional []onnx.ValueDescription) {
	var others []string
	for _, p := range s.Defaults {
		named := slices.ContainsFunc(v.Config.Inputs,
			func(in TensorSpec) bool { return in.Name == p.Name })
		n, err := tensor.Elements(p.Shape)
		small := s.IRVersion >= declaresOptional && len(s.Defaults) <= maxOptional &&
			!v.Config.RowsIndependent &&
			(err != nil || n*p.DataType.Size() <= maxDefault)
		if named || small {
			optional = append(optional, p)
		} else {
			others = append(others, strconv.Quote(p.Name))
		}
	}
	if n := len(others); n > 0 && s.IRVersion >= declaresOptional {
		if n > maxStray {
			others = append(others[:maxStray], "...")
		}
		v.Config.Notes = append(slices.Clone(v.Config.Notes),
			fmt.Sprintf("%d inputs with a default are "+
				"taken for weights, so queries cannot give them unless inputs of %s names them: %s", n,
				ConfigFile, strings.Join(others, ", ")))
	}
	return optional
}

// withoutRows returns what is said of inputs with the first dimension of optional ones as their
// model fixes it, where the settings have the batch size.
func withoutRows(said []TensorSpec, optional []onnx.ValueDescription) []TensorSpec {
	said = slices.Clone(said)
	for i := range said {
		for _, p := range optional {
			if s := &said[i]; s.Name == p.Name && p.FixesFirst() && len(s.Shape) == len(p.Shape) &&
				s.Shape[0] == Dynamic {
				s.Shape = slices.Clone(s.Shape)
				s.Shape[0] = p.Shape[0]
			}
		}
	}
	return said
}

// inferBounds gives the inputs without id bounds those of their tables. Those by column are of the
// columns that the model sees.
func (v *Version) inferBounds(s *onnx.Signature) {
	for i := range v.Inputs {
		p := &v.Inputs[i]
		if b := s.Bounds[p.Name]; len(p.IDBounds) == 0 && (p.ModelShape == nil || len(b) == 1) {
			p.InferredBounds = b
		}
	}
}

// settingsPath returns the file with the model's settings in the repository dir, for an error: both
// if there are two.
func (c *Config) settingsPath(dir, model string) string {
	path := filepath.Join(dir, model, ConfigFile)
	if c.Triton == nil {
		return path
	}
	if _, err := os.Stat(path); err != nil {
		return filepath.Join(dir, model, TritonFile)
	}
	return path + " or " + TritonFile
}

// maxStray is how many files noteStray names.
const maxStray = 10

// noteStray notes the files that nothing reads: those in the model's folder, and those in that of
// the version (folder, below dir) but for the ones that are read.
func (c *Config) noteStray(dir, model, folder string, read []string) {
	var stray []string
	entries, _ := os.ReadDir(filepath.Join(dir, model)) // ReadVersion has read more of it
	for _, e := range entries {
		_, err := strconv.ParseInt(e.Name(), 10, 64)
		if err != nil && e.Name() != ConfigFile && e.Name() != TritonFile {
			stray = append(stray, e.Name())
		}
	}
	entries, _ = os.ReadDir(filepath.Join(dir, folder))
	for _, e := range entries {
		if !slices.Contains(read, e.Name()) {
			stray = append(stray, filepath.Join(filepath.Base(folder), e.Name()))
		}
	}
	stray = slices.DeleteFunc(stray, func(name string) bool {
		return strings.HasPrefix(filepath.Base(name), ".")
	})
	if n := len(stray); n > maxStray {
		stray = append(stray[:maxStray], fmt.Sprintf("and %d others", n-maxStray))
	}
	if len(stray) > 0 {
		c.Notes = append(slices.Clone(c.Notes),
			"nothing reads the files "+strings.Join(stray, ", "))
	}
}

// withoutBatch makes v a batchless version. It is an error if its configuration says what only
// holds for batches; why says how it is known that v has none.
func (v *Version) withoutBatch(why string) error {
	v.Batchless = true
	v.Config.LargestBatchSize = 1
	if len(v.Config.WarmUp) > 0 {
		v.Config.WarmUp = []int{1}
	}
	if v.Config.RowsIndependent {
		return fmt.Errorf("rows_independent is true, but the model has no rows: %s", why)
	}
	return nil
}

// FileVersion reads the signature of a model file that is in no repository, as version 1 of a model
// without a model.yaml. It does not load the model.
func FileVersion(path string) (*Version, error) {
	s, err := onnx.ReadSignature(path)
	if err != nil {
		return nil, err
	}
	v := &Version{Model: filepath.Base(path), Number: 1, Path: path, Config: DefaultConfig()}
	why := s.BatchlessReason()
	v.FixesFirst = why != ""
	inferred := v.Config.findRoles(s)
	if inferred != nil {
		why = ""
	}
	v.setInputs(s, why != "")
	v.Outputs, _ = mergePorts("output", freeFirst(s.Outputs, why != ""), nil, false)
	v.noteOutputs(s)
	if err := errors.Join(v.checkInputs()...); err != nil {
		return nil, fmt.Errorf("read model %s: %w", path, err)
	}
	if inferred != nil {
		return v, v.useRoles(*inferred, true)
	}
	if why != "" {
		return v, v.withoutBatch(why)
	}
	return v, nil
}

// insteadOf names the files beside a missing one that somebody has probably written in its place:
// "; found mlp.onnx, expected model.onnx", or where the missing one leads. It returns "" if there
// are none.
func insteadOf(missing string) string {
	if to, err := os.Readlink(missing); err == nil {
		return fmt.Sprintf("; it is a link to %s, which is not there", to)
	}
	entries, _ := os.ReadDir(filepath.Dir(missing)) // the caller has an error already
	var others []string
	cure := ""
	for _, e := range entries {
		export := onnx.ExportOf(e.Name())
		if (filepath.Ext(e.Name()) == filepath.Ext(missing) || export != "") && len(others) < 5 {
			others = append(others, e.Name())
			cure = cmp.Or(cure, export)
		}
	}
	if len(others) == 0 {
		return ""
	}
	if cure != "" {
		cure = ": only ONNX models are served; " + cure
	}
	return fmt.Sprintf("; found %s, expected %s%s", strings.Join(others, ", "), ModelFile, cure)
}

// checkName returns an error if model cannot be the name of a model's folder. So no name that a
// client sends leads out of the repository.
func checkName(model string) error {
	// Names go into messages, which carry text in UTF-8 alone.
	if model == "" || len(model) > 255 || !utf8.ValidString(model) ||
		strings.HasPrefix(model, ".") || strings.ContainsAny(model, "/\\\x00") ||
		!filepath.IsLocal(model) {
		return fmt.Errorf(
			"%w: model %.255q; expected the name of a folder of the model directory, not hidden, in UTF-8",
			ErrName, model)
	}
	return nil
}

// StoreFolder is the hidden folder of a model directory with what was fetched from a store.
const StoreFolder = ".store"

// resolvePath returns the path of a file in dir, and where it leads if that is outside of dir,
// through symbolic links: whoever may write to the directory may have files elsewhere, as the cache
// of Hugging Face and releases beside a link named current have them. What a store has delivered
// may not lead out. A file that does not exist is no error.
func resolvePath(dir string, elements ...string) (path, outside string, err error) {
	dir, err = filepath.Abs(dir)
	if err != nil {
		return "", "", err
	}
	path = filepath.Join(append([]string{dir}, elements...)...)
	real, err := filepath.EvalSymlinks(path)
	if err != nil { // the file does not exist or cannot be read
		return path, "", nil
	}
	root, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return "", "", err
	}
	if isBelow(root, real) {
		return path, "", nil
	}
	// Each folder on the way may be a link to the store's.
	for folder := filepath.Dir(path); folder != dir && isBelow(dir, folder); {
		if from, err := filepath.EvalSymlinks(folder); err == nil &&
			isBelow(filepath.Join(root, StoreFolder), from) {
			return "", "",
				fmt.Errorf("%s leads to %s, outside of the model directory, and comes from a "+
					"store", path, real)
		}
		folder = filepath.Dir(folder)
	}
	return path, real, nil
}

// isBelow reports whether a path is that of a folder, or within it.
func isBelow(folder, path string) bool {
	relative, err := filepath.Rel(folder, path)
	return err == nil && filepath.IsLocal(relative)
}

// noteOutside notes that a file lies outside of the model directory; outside is where, or "".
func (c *Config) noteOutside(path, outside string) {
	if outside != "" {
		c.Notes = append(slices.Clone(c.Notes),
			fmt.Sprintf("%s leads to %s, outside of the model directory", path, outside))
	}
}

// mergePorts returns the model's ports (have) with the id bounds and shapes that its configuration
// adds (said), and an error for each contradiction. role is "input" or "output".
func mergePorts(role string, have []onnx.ValueDescription, said []TensorSpec,
	batchless bool) ([]TensorSpec, []error) {
	ports := make([]TensorSpec, len(have))
	names := make([]string, len(have))
	for i, p := range have {
		ports[i] = TensorSpec{Name: p.Name, DataType: p.DataType, Shape: p.Shape}
		names[i] = p.Name
	}
	var errs []error
	for _, s := range said {
		i := slices.Index(names, s.Name)
		if i < 0 {
			errs = append(errs,
				fmt.Errorf("%s %q: the model has %s", role, s.Name, strings.Join(names, ", ")))
			continue
		}
		p := &ports[i]
		if s.DataType != "" && s.DataType != p.DataType {
			errs = append(errs,
				fmt.Errorf("%s %q: data_type is %s, the model has %s", role, s.Name, s.DataType,
					p.DataType))
		}
		switch {
		case s.Shape == nil:
		case s.ModelShape != nil:
			if p.Shape != nil && !isNarrower(s.ModelShape, p.Shape, batchless) {
				errs = append(errs, fmt.Errorf("%s %q: reshape makes %v, the model has %v", role,
					s.Name,
					s.ModelShape, p.Shape))
			}
			p.Shape, p.ModelShape = s.Shape, s.ModelShape
		case p.IsScalar() && isOne(s.Shape): // Triton's settings have no scalars
		case p.Shape == nil || isNarrower(s.Shape, p.Shape, batchless):
			p.Shape = s.Shape
		default:
			errs = append(errs,
				fmt.Errorf("%s %q: shape is %v, the model has %v", role, s.Name, s.Shape, p.Shape))
		}
		if len(s.IDBounds) > 0 {
			if err := checkBounds(*p, s.IDBounds); err != nil {
				errs = append(errs, fmt.Errorf("%s %q: %w", role, s.Name, err))
			}
			p.IDBounds = s.IDBounds
		}
	}
	return ports, errs
}

// isOne reports whether a shape is that of one element, but for a batch size.
func isOne(shape []int64) bool {
	for i, d := range shape {
		if d != 1 && (i > 0 || d != Dynamic) {
			return false
		}
	}
	return true
}

// isNarrower reports whether a shape is that of the model, or has fixed sizes where the model's has
// not, but for a batch size.
func isNarrower(said, have []int64, batchless bool) bool {
	if !batchless && len(said) > 0 && len(have) > 0 && said[0] != have[0] {
		return false
	}
	return slices.EqualFunc(said, have, func(s, h int64) bool { return s == h || h == Dynamic })
}

// checkBounds checks that id bounds are possible for p: it holds integers, and there is one bound,
// or one for each index of the second dimension.
func checkBounds(p TensorSpec, bounds []int64) error {
	switch p.DataType {
	case tensor.Int8, tensor.Int16, tensor.Int32, tensor.Int64, tensor.Uint8, tensor.Uint16,
		tensor.Uint32, tensor.Uint64:
	default:
		return fmt.Errorf("id_bounds for elements of type %s, expected integers", p.DataType)
	}
	if len(bounds) == 1 {
		return nil
	}
	if len(p.Shape) < 2 || p.Shape[1] != int64(len(bounds)) {
		return fmt.Errorf(
			"got %d id_bounds, expected 1 or as many as the second dimension of shape %v",
			len(bounds), p.Shape)
	}
	return nil
}

// LeastBounds returns the id bounds that two inputs of the same shape have in common; see
// Port.IDBounds and Port.InferredBounds.
func LeastBounds(a, b []int64) []int64 {
	if len(a) < len(b) {
		a, b = b, a
	}
	if len(b) == 0 {
		return a
	}
	least := slices.Clone(a)
	for i := range least {
		if other := b[min(i, len(b)-1)]; least[i] == 0 || other != 0 && other < least[i] {
			least[i] = other
		}
	}
	return least
}
