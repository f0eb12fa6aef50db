package models

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/muster-serve/muster/api/accuracy"
)

// A Family is what a query may ask for: models that answer the same question with different
// accuracy.
type Family struct {
	Name string
	// Variants are the models, the most accurate first; ties are ordered by name.
	Variants []Variant
}

// A Variant is a model of a family.
type Variant struct {
	Model string
	// Accuracy is in (0, 1]; 1 if Known is false.
	Accuracy float64
	// Known is whether the model's configuration has an accuracy. A family with a variant of
	// unknown accuracy is never made less accurate on purpose.
	Known bool
}

// Families groups the models of a repository into families; versions has one version of each model.
// A model without a family in its configuration is one of its own, named as itself. apart says of
// each other model that does not fit into its family why it is served under its own name only.
// Families are ordered by name.
//
// The variants of a family agree in the names, types and shapes of inputs and outputs, and in the
// QoS target, its percentile, the deadline and what happens to late queries. If they do not, the
// family is the largest group of variants that do; of equally large ones, that of the variant whose
// name comes first. A family has no name that is also a model's. Nor has it variants that are too
// inaccurate beside its best, as package accuracy has it. A measured accuracy is one beside the
// best variant, whether that is among versions or not.
func Families(versions []*Version) (families []Family, apart map[string]string) {
	apart = map[string]string{}
	byName := map[string]*Version{}
	members := map[string][]*Version{}
	for _, v := range versions {
		byName[v.Model] = v
	}
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		v := byName[name]
		family := v.Config.Family
		if _, taken := byName[family]; taken {
			apart[name] = fmt.Sprintf("family %q has the name of a model", family)
			family = ""
		}
		if family == "" {
			families = append(families, Family{Name: name, Variants: []Variant{v.toVariant()}})
			continue
		}
		members[family] = append(members[family], v)
	}
	for family, all := range members {
		// The variants that fit to the same one fit to each other, but for outputs whose shape a
		// model does not declare.
		var largest []*Version
		var model *Version
		for _, v := range all {
			var fit []*Version
			for _, other := range all {
				if v.Misfit(other) == "" {
					fit = append(fit, other)
				}
			}
			if len(fit) > len(largest) {
				largest, model = fit, v
			}
		}
		best := bestAccuracy(family, largest)
		f := Family{Name: family}
		for _, v := range all {
			why := best.Why(family, v.Config.Accuracy)
			if differs := model.Misfit(v); differs != "" {
				why = fmt.Sprintf("does not fit into family %q: %s", family, differs)
			}
			if why != "" {
				apart[v.Model] = why
				families = append(families, Family{Name: v.Model,
					Variants: []Variant{v.toVariant()}})
			} else {
				f.Variants = append(f.Variants, v.toVariant())
			}
		}
		if len(f.Variants) == 0 {
			continue
		}
		slices.SortStableFunc(f.Variants, func(a, b Variant) int {
			return cmp.Compare(b.Accuracy, a.Accuracy)
		})
		families = append(families, f)
	}
	slices.SortFunc(families, func(a, b Family) int { return strings.Compare(a.Name, b.Name) })
	return families, apart
}

// bestAccuracy is the accuracy of the best of a family's variants.
func bestAccuracy(family string, variants []*Version) accuracy.Best {
	best := accuracy.Best{}
	for _, v := range variants {
		best.Add(family, v.Config.Accuracy)
		best.Require(family, v.Config.MinAccuracy)
		if v.Config.Score > 0 { // measured: the best of its family has 1
			best.Add(family, 1)
		}
	}
	return best
}

func (v *Version) toVariant() Variant {
	a := v.Config.Accuracy
	return Variant{Model: v.Model, Accuracy: accuracy.Known(a), Known: a > 0}
}

// Misfit returns why other cannot be in a family with v; empty if it can. Of their configurations
// it reads what variants agree in.
func (v *Version) Misfit(other *Version) string {
	a, b := v.Config, other.Config
	differ := func(key string, theirs, ours any) string {
		return fmt.Sprintf("%s is %v, %v in %s", key, theirs, ours, v.Model)
	}
	switch {
	case a.QoSTarget != b.QoSTarget:
		return differ("qos_target_ms", milliseconds(b.QoSTarget), milliseconds(a.QoSTarget))
	case a.QoSPercentile != b.QoSPercentile:
		return differ("qos_percentile", b.QoSPercentile, a.QoSPercentile)
	case a.Deadline != b.Deadline:
		return differ("deadline_ms", milliseconds(b.Deadline), milliseconds(a.Deadline))
	case a.Late != b.Late:
		return differ("late", b.Late, a.Late)
	}
	if why := describePortDifferences("input", v.Model, v.Inputs, other.Inputs); why != "" {
		return why
	}
	return describePortDifferences("output", v.Model, v.Outputs, other.Outputs)
}

// describePortDifferences returns how the ports theirs differ from ours, those of model; empty if
// they do not. Their order does not count, as queries name them.
func describePortDifferences(role, model string, ours, theirs []TensorSpec) string {
	rest := slices.Clone(theirs)
	for _, p := range ours {
		i := slices.IndexFunc(rest, func(other TensorSpec) bool { return other.Name == p.Name })
		if i < 0 {
			return fmt.Sprintf("it has no %s %q, as %s does", role, p.Name, model)
		}
		other := rest[i]
		rest = slices.Delete(rest, i, i+1)
		if p.DataType != other.DataType {
			return fmt.Sprintf("%s %q is %s, %s in %s", role, p.Name, other.DataType, p.DataType,
				model)
		}
		if p.Shape != nil && other.Shape != nil && !slices.Equal(p.Shape, other.Shape) {
			return fmt.Sprintf("%s %q has shape %v, %v in %s", role, p.Name, other.Shape, p.Shape,
				model)
		}
	}
	if len(rest) > 0 {
		return fmt.Sprintf("it has %s %q, which %s does not have", role, rest[0].Name, model)
	}
	return ""
}

// ReadNewest reads the newest version of a model in the repository dir that its version policy
// chooses. It does not load the model.
func ReadNewest(dir, model string) (*Version, error) {
	if err := checkName(model); err != nil {
		return nil, err
	}
	path := filepath.Join(dir, model)
	numbers, others, err := newScanner(dir).readNumbers(path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return nil, fmt.Errorf("%w: %s is no folder", ErrNotFound, path)
	}
	if err != nil {
		return nil, err
	}
	if len(numbers) == 0 {
		return nil, fmt.Errorf("model %q: %s", model, noVersion(path, others))
	}
	c, err := configOf(dir, model)
	if err != nil {
		return nil, err
	}
	if specific := c.Versions.Specific; specific != nil && !c.Versions.All {
		numbers = slices.DeleteFunc(numbers, func(n int64) bool {
			return !slices.Contains(specific, n)
		})
	}
	if len(numbers) == 0 {
		return nil, fmt.Errorf("%w: versions %v of model %q, which its %s chooses", ErrNotFound,
			c.Versions.Specific, model, ConfigFile)
	}
	return readVersion(dir, model, numbers[0], c)
}

// ReadAll reads the newest version of each model in the repository dir, ordered by name. Models
// that cannot be read are left out.
func ReadAll(dir string) ([]*Version, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("read model directory: %w", err)
	}
	var all []*Version
	for _, e := range entries {
		if v, err := ReadNewest(dir, e.Name()); err == nil {
			all = append(all, v)
		}
	}
	return all, nil
}
