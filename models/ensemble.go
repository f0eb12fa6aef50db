package models

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/muster-serve/muster/api/triton"
)

// A Step of an ensemble runs a model once for each query. Steps share tensors by their names within
// the ensemble.
type Step struct {
	Version *Version
	// Inputs are the names of the tensors that the model gets, Outputs of those that it makes, ""
	// for one that the ensemble does not name; both in the order of the model's signature.
	// An optional input may be "" too.
	Inputs, Outputs []string
}

// maxSteps bounds the steps of an ensemble. Chosen: many times what people write, and checking the
// order takes a moment.
const maxSteps = 256

// readEnsemble reads a version of an ensemble with the configuration c, and the versions of its
// steps: of each model the newest that its version policy chooses, unless the step names one.
func readEnsemble(dir, model string, number int64, c Config) (*Version, error) {
	path, _, err := resolvePath(dir, model, TritonFile)
	if err != nil {
		return nil, err
	}
	c.noteStray(dir, model, filepath.Join(model, strconv.FormatInt(number, 10)), nil)
	v := &Version{Model: model, Number: number, Path: path, Config: c}
	var errs, more []error
	v.Inputs, errs = declaredPorts("input", c.Inputs)
	v.Outputs, more = declaredPorts("output", c.Outputs)
	errs = append(errs, more...)
	if c.Batchless {
		errs = append(errs, v.withoutBatch("max_batch_size is 0"))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if err := v.assembleSteps(dir); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return v, nil
}

// declaredPorts returns the inputs or outputs of an ensemble: what its files say of each name.
// There is no model to know more.
func declaredPorts(role string, said []TensorSpec) (ports []TensorSpec, errs []error) {
	for _, s := range said {
		i := slices.IndexFunc(ports, func(p TensorSpec) bool { return p.Name == s.Name })
		if i < 0 {
			if s.DataType == "" || s.Shape == nil {
				errs = append(errs, fmt.Errorf("%s %q: got data_type %q and dims %v, expected both",
					role, s.Name, s.DataType, s.Shape))
			}
			ports, i = append(ports, s), len(ports)
		}
		p := &ports[i]
		if s.DataType != "" && s.DataType != p.DataType ||
			s.Shape != nil && !slices.Equal(s.Shape, p.Shape) {
			errs = append(errs, fmt.Errorf("%s %q is %s %v and also %s %v, expected it once", role,
				s.Name, p.DataType, p.Shape, s.DataType, s.Shape))
		}
		if len(s.IDBounds) > 0 {
			if err := checkBounds(*p, s.IDBounds); err != nil {
				errs = append(errs, fmt.Errorf("%s %q: %w", role, s.Name, err))
			}
			p.IDBounds = s.IDBounds
		}
	}
	if len(ports) == 0 {
		errs = append(errs, fmt.Errorf("there is no %s, expected one or more", role))
	}
	return ports, errs
}

// A madeTensor is a tensor of an ensemble.
type madeTensor struct {
	TensorSpec
	by   string // the step that makes it, for errors
	used bool
}

// assembleSteps sets v.Steps, in an order in which they can run, and checks that their tensors fit.
func (v *Version) assembleSteps(dir string) error {
	steps := v.Config.Ensemble.GetStep()
	if len(steps) == 0 || len(steps) > maxSteps {
		return fmt.Errorf("ensemble_scheduling has %d steps, expected 1 to %d", len(steps),
			maxSteps)
	}
	if n := v.Config.Ensemble.GetMaxInflightRequests(); n > 0 {
		v.Config.Notes = append(slices.Clone(v.Config.Notes), fmt.Sprintf(
			"%s: without effect here: max_inflight_requests: a query is in one step at a time",
			TritonFile))
	}
	var waiting []namedStep
	for i, said := range steps {
		name := fmt.Sprintf("step %d (model %q)", i+1, said.GetModelName())
		step, err := v.step(dir, said)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		waiting = append(waiting, namedStep{step, name})
	}
	tensors := map[string]*madeTensor{}
	for _, p := range v.Inputs {
		tensors[p.Name] = &madeTensor{TensorSpec: p, by: "the ensemble's inputs"}
	}
	for len(waiting) > 0 {
		i := slices.IndexFunc(waiting, func(s namedStep) bool {
			return !slices.ContainsFunc(s.Inputs,
				func(in string) bool { return in != "" && tensors[in] == nil })
		})
		if i < 0 {
			return stuckError(waiting, tensors)
		}
		if err := waiting[i].run(tensors); err != nil {
			return fmt.Errorf("%s: %w", waiting[i].name, err)
		}
		v.Steps = append(v.Steps, waiting[i].Step)
		waiting = slices.Delete(waiting, i, i+1)
	}
	for _, p := range v.Outputs {
		made := tensors[p.Name]
		if made == nil || slices.ContainsFunc(v.Inputs,
			func(in TensorSpec) bool { return in.Name == p.Name }) {
			return fmt.Errorf("output %q: no step makes it", p.Name)
		}
		if err := checkFits(p, made.TensorSpec); err != nil {
			return fmt.Errorf("output %q, which %s makes: %w", p.Name, made.by, err)
		}
	}
	for i, p := range v.Inputs {
		if !tensors[p.Name].used {
			return fmt.Errorf("input %q: no step uses it", p.Name)
		}
		t := &tensors[p.Name].TensorSpec
		v.Inputs[i].Shape = t.Shape
		v.Inputs[i].IDBounds, v.Inputs[i].InferredBounds = t.IDBounds, t.InferredBounds
	}
	return nil
}

// A namedStep is a step with its name for errors.
type namedStep struct {
	Step
	name string
}

// step reads the model of a step, and orders its tensors.
func (v *Version) step(dir string, said *triton.ModelEnsembling_Step) (Step, error) {
	name, number := said.GetModelName(), said.GetModelVersion()
	if said.GetModelNamespace() != "" {
		return Step{}, fmt.Errorf(
			"model_namespace %q is not supported: an agent has one repository",
			said.GetModelNamespace())
	}
	if name == v.Model {
		return Step{}, errors.New("the ensemble is a step of itself")
	}
	if err := checkName(name); err != nil {
		return Step{}, err
	}
	c, err := configOf(dir, name)
	if err != nil {
		return Step{}, err
	}
	if c.Ensemble != nil {
		return Step{}, errors.New("it is an ensemble, which cannot be a step: name its steps here")
	}
	var part *Version
	if number > 0 {
		part, err = readVersion(dir, name, number, c)
	} else {
		part, err = ReadNewest(dir, name)
	}
	if err != nil {
		return Step{}, err
	}
	if !v.Batchless && part.Batchless {
		return Step{}, fmt.Errorf(
			"it has no batch dimension, and the ensemble's max_batch_size is "+
				"%d, expected 0", v.Config.LargestBatchSize)
	}
	if !v.Batchless && part.Config.LargestBatchSize < v.Config.LargestBatchSize {
		return Step{}, fmt.Errorf(
			"its largest batch size is %d, expected at least the ensemble's, "+
				"which is %d", part.Config.LargestBatchSize, v.Config.LargestBatchSize)
	}
	step := Step{Version: part}
	if step.Inputs, err = mapNames("input", part.Inputs, said.GetInputMap()); err != nil {
		return Step{}, err
	}
	for i, name := range step.Inputs {
		if name == "" && !part.Inputs[i].Optional {
			return Step{}, fmt.Errorf("input_map has nothing for the model's input %q",
				part.Inputs[i].Name)
		}
	}
	if step.Outputs, err = mapNames("output", part.Outputs, said.GetOutputMap()); err != nil {
		return Step{}, err
	}
	if len(said.GetOutputMap()) == 0 {
		return Step{}, errors.New(
			"output_map is empty, expected one or more of the model's outputs")
	}
	return step, nil
}

// mapNames returns the tensors' names that a map has for the ports of a model, in their order; ""
// for a port that is not there.
func mapNames(role string, ports []TensorSpec, names map[string]string) ([]string, error) {
	all := make([]string, len(ports))
	for _, key := range slices.Sorted(maps.Keys(names)) {
		i := slices.IndexFunc(ports, func(p TensorSpec) bool { return p.Name == key })
		if i < 0 {
			var have []string
			for _, p := range ports {
				have = append(have, strconv.Quote(p.Name))
			}
			return nil, fmt.Errorf("%s_map has %q, expected one of the model's %ss, %s", role, key,
				role, strings.Join(have, ", "))
		}
		if names[key] == "" {
			return nil, fmt.Errorf("%s_map has no tensor for %q", role, key)
		}
		all[i] = names[key]
	}
	return all, nil
}

// run checks that the tensors that the step gets fit, and adds those that it makes.
func (s *namedStep) run(tensors map[string]*madeTensor) error {
	for i, name := range s.Inputs {
		if name == "" { // an optional one
			continue
		}
		t, p := tensors[name], s.Version.Inputs[i]
		if err := checkFits(p, t.TensorSpec); err != nil {
			return fmt.Errorf("input %q gets tensor %q of %s: %w", p.Name, name, t.by, err)
		}
		t.used = true
		t.Shape = narrowShape(t.Shape, p.Shape)
		t.IDBounds = LeastBounds(t.IDBounds, p.IDBounds)
		t.InferredBounds = LeastBounds(t.InferredBounds, p.InferredBounds)
	}
	for i, name := range s.Outputs {
		if name == "" {
			continue
		}
		if t := tensors[name]; t != nil {
			return fmt.Errorf("output %q makes tensor %q, which %s makes too",
				s.Version.Outputs[i].Name, name, t.by)
		}
		tensors[name] = &madeTensor{TensorSpec: s.Version.Outputs[i], by: s.name}
	}
	return nil
}

// checkFits returns an error unless a tensor that is as made can be one as wanted.
func checkFits(wanted, made TensorSpec) error {
	if wanted.DataType != made.DataType {
		return fmt.Errorf("it is %s, expected %s", made.DataType, wanted.DataType)
	}
	if wanted.Shape == nil || made.Shape == nil {
		return nil // not known
	}
	if !slices.EqualFunc(wanted.Shape, made.Shape,
		func(w, m int64) bool { return w == m || w == Dynamic || m == Dynamic }) {
		return fmt.Errorf("its shape is %v, expected %v", made.Shape, wanted.Shape)
	}
	return nil
}

// narrowShape returns the shape a with the sizes of b where it has none; they fit.
func narrowShape(a, b []int64) []int64 {
	a = slices.Clone(a)
	for i := range min(len(a), len(b)) {
		if a[i] == Dynamic {
			a[i] = b[i]
		}
	}
	return a
}

// stuckError says why none of the steps can run.
func stuckError(waiting []namedStep, tensors map[string]*madeTensor) error {
	made := map[string]bool{}
	for _, s := range waiting {
		for _, name := range s.Outputs {
			made[name] = true
		}
	}
	var names []string
	for _, s := range waiting {
		for i, name := range s.Inputs {
			if name != "" && tensors[name] == nil && !made[name] {
				return fmt.Errorf("%s: input %q gets tensor %q, which is no input of the ensemble "+
					"and no output of a step", s.name, s.Version.Inputs[i].Name, name)
			}
		}
		names = append(names, s.name)
	}
	return fmt.Errorf("%s wait for each other's tensors in a cycle", strings.Join(names, ", "))
}

// withMemberFiles returns the fingerprint base of a model's settings, with those of all files of
// the models that it consists of, if it is an ensemble: then they are files of its versions.
func (s *scanner) withMemberFiles(model string, base fingerprint) fingerprint {
	path, _, err := resolvePath(s.dir, model, TritonFile)
	if err != nil {
		return base
	}
	data, err := readFile(path)
	if err != nil {
		return base
	}
	t, _, err := parseTriton(data)
	if err != nil {
		return base
	}
	for _, step := range t.GetEnsembleScheduling().GetStep() {
		if checkName(step.GetModelName()) != nil {
			continue
		}
		folder := filepath.Join(s.dir, step.GetModelName())
		part := s.fingerprintOf(folder, base)
		base = sha256.Sum256(append(base[:], part[:]...))
		entries, _ := s.readDir(folder) // the load reports what cannot be read
		for _, e := range entries {
			if e.Type()&fs.ModeSymlink != 0 { // of a version, perhaps
				part = s.fingerprintOf(filepath.Join(folder, e.Name()), base)
				base = sha256.Sum256(append(base[:], part[:]...))
			}
		}
	}
	return base
}
