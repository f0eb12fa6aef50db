package variants

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/models/onnx"
)

// ErrNothing means that a model has nothing that a kind of variant changes. Errors wrap it.
var ErrNothing = errors.New("variants: nothing to change")

// generator is the name of this package and the version of its output.
const generator = "muster variants 1"

// A Kind says how a variant is made. Several, joined with "+", are applied in turn.
//
//	int8         products with constant weights in 8-bit integers
//	table8       embedding tables in 8-bit integers
//	table4       embedding tables in 4-bit integers
//	lowrank:R    weights as the product of two thin matrices of rank R
//	lookups:N/M  only the first N/M of the lookups in each table
//	fp16         weights, tables and all computation in FP16, for GPUs; last of those joined
type Kind string

// Kinds are the forms that a Kind takes.
const Kinds = "int8, table8, table4, lowrank:R, lookups:N/M, fp16, or several joined with +"

// changesAndSuffix returns the functions that make the variant, and the suffix of its name.
func (k Kind) changesAndSuffix() (changes []func(*onnx.Graph) (Report, error), suffix string,
	err error) {
	var suffixes []string
	for part := range strings.SplitSeq(string(k), "+") {
		name, argument, has := strings.Cut(part, ":")
		wrong := fmt.Errorf("variant %q: expected %s", part, Kinds)
		change := int8Layers
		switch {
		case name == "int8" && !has:
		case name == "fp16" && !has:
			change = fp16
		case (name == "table8" || name == "table4") && !has:
			bits := int(name[len(name)-1] - '0')
			change = func(g *onnx.Graph) (Report, error) { return quantizeTables(g, bits) }
		case name == "lowrank":
			rank, err := strconv.Atoi(argument)
			if err != nil || rank < 1 {
				return nil, "", fmt.Errorf(
					"variant %q: got rank %q, expected a whole number of at "+
						"least 1", part, argument)
			}
			change = func(g *onnx.Graph) (Report, error) { return lowRank(g, rank) }
			name += strconv.Itoa(rank)
		case name == "lookups":
			var share big.Rat
			if _, ok := share.SetString(argument); !ok || len(argument) > 16 ||
				share.Sign() <= 0 || share.Cmp(big.NewRat(1, 1)) >= 0 ||
				share.Denom().BitLen() > 31 {
				return nil, "", fmt.Errorf("variant %q: got share %q, expected a fraction above 0 "+
					"and below 1, such as 1/2", part, argument)
			}
			n, m := share.Num().Int64(), share.Denom().Int64()
			change = func(g *onnx.Graph) (Report, error) { return fewerLookups(g, n, m) }
			name += fmt.Sprintf("%dof%d", n, m)
		default:
			return nil, "", wrong
		}
		changes, suffixes = append(changes, change), append(suffixes, name)
	}
	switch at := slices.Index(suffixes, "fp16"); {
	case at >= 0 && slices.Contains(suffixes, "int8"):
		return nil, "", fmt.Errorf("variant %q: int8 gains on CPUs and fp16 on GPUs; make one of "+
			"each", k)
	case at >= 0 && at < len(suffixes)-1:
		return nil, "", fmt.Errorf("variant %q: fp16 leaves no FP32 weights that others could "+
			"change; put it last", k)
	}
	return changes, strings.Join(suffixes, "-"), nil
}

// Validate returns an error if k is no kind.
func (k Kind) Validate() error {
	_, _, err := k.changesAndSuffix()
	return err
}

// Name returns the name of the variant of a model: "wnd-int8" for "wnd". k is valid.
func (k Kind) Name(model string) string {
	_, suffix, _ := k.changesAndSuffix()
	return model + "-" + suffix
}

// A Report says what was changed in a model.
type Report struct {
	// Changed is how many layers, tables or inputs were changed.
	Changed int
	// Left names those that were not, each with the reason.
	Left []string
}

// describeNode names a node in a report.
func describeNode(n onnx.Node, why string) string {
	name := n.Name
	if name == "" && len(n.Outputs) > 0 {
		name = "the node of " + n.Outputs[0]
	}
	return fmt.Sprintf("%s %s: %s", n.Op, name, why)
}

// rewriteFile writes the variant of the model file from to the file to.
func (k Kind) rewriteFile(from, to string) (Report, error) {
	changes, _, err := k.changesAndSuffix()
	if err != nil {
		return Report{}, err
	}
	g, err := onnx.ReadGraph(from)
	if err != nil {
		return Report{}, err
	}
	if why := g.Signature.BatchlessReason(); why != "" {
		return Report{}, fmt.Errorf("model %s: %s", from, why)
	}
	var all Report
	for _, change := range changes {
		r, err := change(g)
		if err != nil {
			return Report{}, fmt.Errorf("model %s: %w", from, err)
		}
		all.Changed += r.Changed
		all.Left = append(all.Left, r.Left...)
	}
	if all.Changed == 0 {
		return Report{}, fmt.Errorf("%w: model %s has nothing that %s changes%s", ErrNothing, from,
			k,
			formatReasons(all.Left))
	}
	return all, g.Write(to)
}

func formatReasons(left []string) string {
	if len(left) == 0 {
		return ": it has no MatMul, Gemm or Gather with constant FP32 weights of two dimensions"
	}
	if n := len(left); n > 3 {
		left = append(slices.Clone(left[:3]), fmt.Sprintf("and %d more", n-3))
	}
	return ": " + strings.Join(left, "; ")
}

// A Check loads a version into ONNX Runtime and returns its error.
type Check func(ctx context.Context, v *models.Version) error

// Options are the options of Make.
type Options struct {
	// Family is the family of the model and the variant if the model has none yet.
	Family string
	// Overwrite replaces a variant that was made before, also one of the same model and kind.
	Overwrite bool
	// Check is called with the variant before it appears in the repository; nil for none.
	Check Check
}

// Made is a variant.
type Made struct {
	Name string
	// Written says that this call has made the variant. If false, the variant existed already, and
	// Report is empty.
	Written bool
	Report  Report
}

// Make makes the variant of the newest version of a model in the repository dir, and gives both
// their family. It appears with all files or not at all. Its name is k.Name(model).
func Make(ctx context.Context, dir, model string, k Kind, o Options) (made Made, err error) {
	fail := func(err error) (Made, error) {
		return Made{}, fmt.Errorf("make variant %s of model %s: %w", k, model, err)
	}
	if err := k.Validate(); err != nil {
		return fail(err)
	}
	base, err := models.ReadNewest(dir, model)
	if err != nil {
		return fail(err)
	}
	c := base.Config
	if c.Family == "" {
		c.Family = o.Family
	}
	if c.Family == "" || c.Family == model {
		return fail(fmt.Errorf("family is %q, expected a name that is not the model's", c.Family))
	}
	p := models.Provenance{Generator: generator}
	if c.Generated != nil {
		p = *c.Generated
	}
	p.From, p.Variant = model, string(k)
	made.Name = k.Name(model)
	c.Generated, c.Versions = &p, models.VersionPolicy{}
	c.Accuracy, c.Score, c.Metric, c.Measured = 0, 0, "", models.Measurement{}
	write := func(folder string) error {
		if err := os.MkdirAll(filepath.Join(folder, "1"), 0o755); err != nil {
			return err
		}
		made.Report, err = k.rewriteFile(base.Path, filepath.Join(folder, "1", models.ModelFile))
		if err != nil {
			return err
		}
		text, err := c.YAML()
		if err != nil {
			return err
		}
		head := fmt.Sprintf("# %s of %s, made by muster. Change what you like.\n", k, model)
		if err := os.WriteFile(filepath.Join(folder, models.ConfigFile),
			append([]byte(head), text...),
			0o644); err != nil {
			return err
		}
		v, err := models.ReadVersion(filepath.Dir(folder), filepath.Base(folder), 1)
		if err != nil {
			return err
		}
		return o.Check.run(ctx, v, base)
	}
	if made.Written, err = models.Install(dir, made.Name, p, o.Overwrite, write); err != nil {
		return fail(err)
	}
	if base.Config.Family == "" {
		err := models.WriteRating(filepath.Join(dir, model, models.ConfigFile),
			models.Rating{Family: c.Family})
		if err != nil {
			return fail(err)
		}
	}
	return made, nil
}

// run calls the check, if there is one, with the variant made of the version from.
func (c Check) run(ctx context.Context, made, from *models.Version) error {
	if c == nil {
		return nil
	}
	err := c(ctx, made)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return err
	}
	if own := c(ctx, from); own != nil {
		return fmt.Errorf("ONNX Runtime refuses the model itself: %w", own)
	}
	return fmt.Errorf("ONNX Runtime refuses what was made, so nothing is written: %w", err)
}

// Quantize writes the variant of the model file from to the file to, and to a file with ".data"
// after its name if from has external data. Both appear after the check, or none does. It replaces
// files of these names if overwrite is set; otherwise the error wraps models.ErrExists.
func Quantize(ctx context.Context, from, to string, k Kind, overwrite bool, check Check) (
	r Report, err error) {
	fail := func(err error) (Report, error) {
		return Report{}, fmt.Errorf("quantize %s: %w", from, err)
	}
	if err := k.Validate(); err != nil {
		return fail(err)
	}
	for _, path := range []string{to, to + dataSuffix} {
		_, err := os.Lstat(path)
		switch {
		case err == nil && !overwrite:
			return fail(fmt.Errorf("%w: %s; overwrite it or choose another name", models.ErrExists,
				path))
		case err != nil && !errors.Is(err, fs.ErrNotExist):
			return fail(err)
		}
	}
	temporary, err := os.MkdirTemp(filepath.Dir(to), "."+filepath.Base(to)+"-*")
	if err != nil {
		return fail(err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(temporary)) }()
	made := filepath.Join(temporary, filepath.Base(to))
	if r, err = k.rewriteFile(from, made); err != nil {
		return fail(err)
	}
	v, err := models.FileVersion(made)
	if err != nil {
		return fail(err)
	}
	source, err := models.FileVersion(from)
	if err != nil {
		return fail(err)
	}
	if err := check.run(ctx, v, source); err != nil {
		return fail(err)
	}
	// The data goes first, so that the model never stands without it.
	err = os.Rename(made+dataSuffix, to+dataSuffix)
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		err = os.Rename(made, to)
	}
	if err != nil {
		return fail(err)
	}
	return r, nil
}

// dataSuffix ends the name of a file with external data, as onnx.Graph.Write names it.
const dataSuffix = ".data"
