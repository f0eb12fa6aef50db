package zoo

import (
	"context"
	"fmt"
	"math/big"
	"slices"
	"strings"

	"github.com/muster-serve/muster/api/roles"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/models/onnx"
)

// generator is the name of this package and the version of its output. The version changes when the
// same options give other bytes.
const generator = "muster zoo 1"

// dataFile is the name of the file with the weights, beside the model file.
const dataFile = models.ModelFile + ".data"

// Options are the options of a generated model.
type Options struct {
	// Scale multiplies the number of rows of the embedding tables; empty
	// means Default.
	Scale Scale
	// Seed determines the weights: the same seed gives the same bytes on
	// every machine.
	Seed uint64
	// Overwrite replaces a model that was generated with other options.
	Overwrite bool
	// Progress, if set, is called with the number of bytes of weights that are written and their
	// total, by one goroutine at a time.
	Progress func(done, total int64)
}

// A Scale is the number of rows of the embedding tables: Small, Default, Full, or a fraction in
// (0, 1] of the full number, such as "0.05" or "1/20".
type Scale string

// The named scales.
const (
	Small   Scale = "small" // 1/1000: a few MB of tables, for tests
	Default Scale = "default"
	Full    Scale = "full"
)

// asFraction returns the scale as a number; own is that of Default for the model.
func (s Scale) asFraction(own *big.Rat) (*big.Rat, error) {
	switch s {
	case Small:
		return big.NewRat(1, 1000), nil
	case Default, "":
		return own, nil
	case Full:
		return big.NewRat(1, 1), nil
	}
	var f big.Rat
	if len(s) > 32 || strings.ContainsAny(string(s), "eEpPxX_") {
		return nil, s.scaleError()
	}
	if _, ok := f.SetString(string(s)); !ok || f.Sign() <= 0 || f.Cmp(big.NewRat(1, 1)) > 0 {
		return nil, s.scaleError()
	}
	return &f, nil
}

// Validate returns the fault of s, or nil.
func (s Scale) Validate() error {
	_, err := s.asFraction(nil)
	return err
}

func (s Scale) scaleError() error {
	return fmt.Errorf("scale is %q, expected %s, %s, %s or a fraction above 0 and up to 1", s,
		Small, Default, Full)
}

// scaleRows returns full * f, rounded to the nearest whole number, at least 1.
func scaleRows(full int64, f *big.Rat) int64 {
	twice := new(big.Int).Mul(big.NewInt(2*full), f.Num())
	twice.Add(twice, f.Denom())
	twice.Quo(twice, new(big.Int).Mul(big.NewInt(2), f.Denom()))
	return max(1, twice.Int64())
}

// Names returns the names of the models of DeepRecSys.
func Names() []string { return namesOf(architectures) }

// Rankers returns the names of the models that score the candidates of one user.
func Rankers() []string { return namesOf(rankers) }

func namesOf(all []architecture) []string {
	names := make([]string, len(all))
	for i, a := range all {
		names[i] = a.name
	}
	return names
}

// Generate writes the model to dir/<model>/ and creates dir if it does not exist. The folder
// appears with all files or not at all. Generate returns false if the same model is already there.
// A model that was generated with other options is replaced if options.Overwrite is set. Otherwise,
// and for anything else in its place, the error wraps models.ErrExists.
func Generate(ctx context.Context, dir, model string, options Options) (written bool, err error) {
	fail := func(err error) (bool, error) {
		return false, fmt.Errorf("generate model %s: %w", model, err)
	}
	p, err := newPlan(model, options)
	if err != nil {
		return fail(err)
	}
	written, err = models.Install(dir, model, *p.config.Generated, options.Overwrite,
		func(folder string) error { return p.write(ctx, folder, options.Progress) })
	if err != nil {
		return fail(err)
	}
	return written, nil
}

// A plan describes a model to write.
type plan struct {
	config  models.Config
	model   onnx.Model
	weights []weight
	size    int64 // of the data file
}

func newPlan(model string, options Options) (*plan, error) {
	all := slices.Concat(architectures, rankers)
	i := slices.IndexFunc(all, func(a architecture) bool { return a.name == model })
	if i < 0 {
		return nil, fmt.Errorf("unknown model, expected one of %s", strings.Join(namesOf(all),
			", "))
	}
	a := all[i]
	scale, err := options.Scale.asFraction(a.defaultScale)
	if err != nil {
		return nil, err
	}
	b := newBuilder(model, scale, options.Seed)
	a.build(b)
	config := models.DefaultConfig()
	config.QoSTarget = a.qosTarget
	config.Deadline = 10 * a.qosTarget
	config.LargestBatchSize = 1000
	config.WarmUp = []int{1, 1000}
	config.RowsIndependent = true
	config.Tables = b.tables
	for _, port := range b.model.Inputs {
		in := models.TensorSpec{Name: port.Name, DataType: port.DataType, Shape: port.Shape}
		in.IDBounds = b.bounds[port.Name]
		if isUserInput[port.Name] {
			in.Role = roles.User
			config.Requires = 2 // the first format with roles
		}
		config.Inputs = append(config.Inputs, in)
	}
	for _, port := range b.model.Outputs {
		config.Outputs = append(config.Outputs, models.TensorSpec{
			Name: port.Name, DataType: port.DataType, Shape: port.Shape,
		})
	}
	config.Generated = &models.Provenance{
		Generator:    generator,
		Architecture: a.source,
		Scale:        scale.RatString(),
		Seed:         options.Seed,
	}
	return &plan{config: config, model: b.model, weights: b.weights, size: b.size}, nil
}
