package zoo

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/models/onnx"
)

// generator names this package and the version of what it writes: it changes
// whenever the same options give other bytes.
const generator = "muster zoo 1"

// dataFile holds the weights, beside the model file.
const dataFile = models.ModelFile + ".data"

// ErrExists is wrapped when there is another model where one is to be written.
var ErrExists = errors.New("zoo: another model is there")

// Options of a generated model.
type Options struct {
	// Scale multiplies the number of rows of the embedding tables; empty
	// means Default.
	Scale Scale
	// Seed determines the weights: the same seed gives the same bytes on
	// every machine.
	Seed uint64
	// Overwrite replaces a model that was generated with other options.
	Overwrite bool
	// Progress, if set, is told how many bytes of how many are written. It is called by
	// one goroutine at a time.
	Progress func(done, total int64)
}

// A Scale says how many rows the embedding tables have: Small, Default, Full, or
// a fraction in (0, 1] of the full number, as "0.05" or "1/20".
type Scale string

// The named scales.
const (
	Small   Scale = "small" // 1/1000: a few MB of tables, for tests
	Default Scale = "default"
	Full    Scale = "full"
)

// fraction is the scale as a number; own is the model's default.
func (s Scale) fraction(own *big.Rat) (*big.Rat, error) {
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
		return nil, s.wrong()
	}
	if _, ok := f.SetString(string(s)); !ok || f.Sign() <= 0 || f.Cmp(big.NewRat(1, 1)) > 0 {
		return nil, s.wrong()
	}
	return &f, nil
}

func (s Scale) wrong() error {
	return fmt.Errorf("scale is %q, expected %s, %s, %s or a fraction above 0 and up to 1", s,
		Small, Default, Full)
}

// rows is full scaled by f, rounded to the nearest whole number, at least 1.
func rows(full int64, f *big.Rat) int64 {
	twice := new(big.Int).Mul(big.NewInt(2*full), f.Num())
	twice.Add(twice, f.Denom())
	twice.Quo(twice, new(big.Int).Mul(big.NewInt(2), f.Denom()))
	return max(1, twice.Int64())
}

// Names are the models that can be generated.
func Names() []string {
	names := make([]string, len(architectures))
	for i, a := range architectures {
		names[i] = a.name
	}
	return names
}

// Generate writes the model to dir/<model>/, which is made if need be. The model appears there
// complete or not at all. It reports whether it wrote the model: one generated before with the same
// options is left as it is. One generated with others is replaced if options.Overwrite is set,
// otherwise it gives an error that wraps ErrExists, as does whatever else is in its place.
func Generate(ctx context.Context, dir, model string, options Options) (written bool, err error) {
	fail := func(err error) (bool, error) {
		return false, fmt.Errorf("generate model %s: %w", model, err)
	}
	p, err := newPlan(model, options)
	if err != nil {
		return fail(err)
	}
	target := filepath.Join(dir, model)
	replace, err := p.compare(target, options.Overwrite)
	if err != nil {
		return fail(err)
	}
	if replace == keep {
		return false, nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fail(err)
	}
	// Hidden folders are no models, so no agent looks into this one.
	temporary, err := os.MkdirTemp(dir, "."+model+"-*")
	if err != nil {
		return fail(err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(temporary)) }()
	made := filepath.Join(temporary, "new")
	if err := p.write(ctx, made, options.Progress); err != nil {
		return fail(err)
	}
	if replace == overwrite {
		if err := os.Rename(target, filepath.Join(temporary, "old")); err != nil {
			return fail(err)
		}
	}
	if err := os.Rename(made, target); err != nil {
		return fail(err)
	}
	return true, nil
}

// A plan is a model that is yet to be written.
type plan struct {
	config  models.Config
	model   onnx.Model
	weights []weight
	size    int64 // of the data file
}

func newPlan(model string, options Options) (*plan, error) {
	i := slices.IndexFunc(architectures, func(a architecture) bool { return a.name == model })
	if i < 0 {
		return nil, fmt.Errorf("unknown model, expected one of %s", strings.Join(Names(), ", "))
	}
	a := architectures[i]
	scale, err := options.Scale.fraction(a.defaultScale)
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
		in := models.Port{Name: port.Name, DataType: port.DataType, Shape: port.Shape}
		if port.Name == idsInput {
			for _, t := range b.tables {
				in.IDBounds = append(in.IDBounds, t.Rows)
			}
		}
		config.Inputs = append(config.Inputs, in)
	}
	for _, port := range b.model.Outputs {
		config.Outputs = append(config.Outputs, models.Port{
			Name: port.Name, DataType: port.DataType, Shape: port.Shape,
		})
	}
	config.Generated = &models.Provenance{
		Generator:    generator,
		Architecture: "paper",
		Scale:        scale.RatString(),
		Seed:         options.Seed,
	}
	return &plan{config: config, model: b.model, weights: b.weights, size: b.size}, nil
}

// An action is what to do about what stands in a model's place.
type action int

const (
	create action = iota
	keep
	overwrite
)

// compare decides what to do about target.
func (p *plan) compare(target string, replace bool) (action, error) {
	entries, err := os.ReadDir(target)
	if errors.Is(err, fs.ErrNotExist) {
		return create, nil
	}
	if err != nil {
		return 0, err
	}
	existing, err := models.ReadConfig(filepath.Join(target, models.ConfigFile))
	if err != nil || existing.Generated == nil {
		return 0, fmt.Errorf("%w: %s was not generated; move it away first", ErrExists, target)
	}
	if g := *existing.Generated; g != *p.config.Generated {
		if !replace {
			return 0, fmt.Errorf(
				"%w: %s was generated with %s, now asked for %s; overwrite it or choose another "+
					"folder",
				ErrExists, target, describe(g), describe(*p.config.Generated))
		}
		for _, e := range entries {
			if e.Name() != models.ConfigFile && e.Name() != "1" {
				return 0, fmt.Errorf(
					"%w: %s also holds %s, which was not generated; move it away first", ErrExists,
					target, e.Name())
			}
		}
		return overwrite, nil
	}
	return keep, nil
}

func describe(g models.Provenance) string {
	return fmt.Sprintf("%s, architecture %s, scale %s, seed %d", g.Generator, g.Architecture,
		g.Scale, g.Seed)
}
