package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/muster-serve/muster/api/accuracy"
	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/match"
	"github.com/muster-serve/muster/sim/latency"
)

// A Variant is a model that can answer for a family.
type Variant struct {
	Name string
	// Accuracy is that of the answers beside the family's best variant, in (0, 1].
	Accuracy float64
	// Latencies and Known are as those of a [Model].
	Latencies, Known map[string]match.Latencies
}

// The ways in which a query for a family is bound to a variant, see [Config.Bind].
const (
	BindByMatcher = "matcher"
	BindDrawn     = "drawn"
)

// A HeldModels says which models some instances hold: Count instances of Type that no Holding
// before it is about.
type HeldModels struct {
	Type   string
	Count  int
	Models []string
}

// fastestOf returns the least latencies of the variants, by instance type.
func fastestOf(all []map[string]match.Latencies) map[string]match.Latencies {
	by := map[string]match.Latencies{}
	for _, latencies := range all {
		for name, l := range latencies {
			if known, ok := by[name]; ok {
				by[name] = append(slices.Clip(known.(latency.Fastest)), l)
			} else {
				by[name] = latency.Fastest{l}
			}
		}
	}
	return by
}

// SetVariants makes m a family of these variants. Its latencies are those of the fastest.
func (m *Model) SetVariants(variants []Variant) {
	m.Variants = variants
	var latencies, known []map[string]match.Latencies
	for i := range variants {
		latencies = append(latencies, variants[i].Latencies)
		known = append(known, variants[i].assumedLatencies())
	}
	m.Latencies, m.Known = fastestOf(latencies), fastestOf(known)
}

func (v *Variant) assumedLatencies() map[string]match.Latencies {
	if v.Known != nil {
		return v.Known
	}
	return v.Latencies
}

// variantsOf returns what can answer a query for m: its variants, or m itself.
func (m *Model) variantsOf() []Variant {
	if len(m.Variants) > 0 {
		return m.Variants
	}
	return []Variant{{m.Name, 1, m.Latencies, m.Known}}
}

// familyName is m's name if it is a family, "" if it is a model.
func (m *Model) familyName() string {
	if len(m.Variants) > 0 {
		return m.Name
	}
	return ""
}

// withModels returns an instance like l that holds some models only.
func (l lane) withModels(has func(variant int) bool) lane {
	l.execution, l.known = slices.Clone(l.execution), slices.Clone(l.known)
	l.predicted = slices.Clone(l.predicted)
	for i := range l.predicted {
		if !has(i) {
			l.execution[i], l.known[i], l.predicted[i] = nil, nil, nil
		}
	}
	return l
}

func (c *Config) validateFamilies() (errs []error) {
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	names, several := map[string]bool{}, false
	for i := range c.Models {
		m := &c.Models[i]
		several = several || len(m.Variants) > 0
		if len(m.Variants) > 0 {
			if names[m.Name] {
				bad("family %s has the name of a model or of another family", m.Name)
			}
			names[m.Name] = true
		}
		best := accuracy.Best{}
		for _, v := range m.variantsOf() {
			best.Add(m.Name, v.Accuracy)
		}
		for _, v := range m.variantsOf() {
			if why := best.Why(m.Name, v.Accuracy); why != "" { // no leader would let it answer
				bad("variant %s is %s", v.Name, why)
			}
			if names[v.Name] {
				bad("model %s is named twice, or has the name of a family", v.Name)
			}
			names[v.Name] = true
			if !(v.Accuracy > 0 && v.Accuracy <= 1) {
				bad("model %s: accuracy is %v, want in (0, 1]", v.Name, v.Accuracy)
			}
		}
	}
	if c.Bind != "" && c.Bind != BindByMatcher && c.Bind != BindDrawn {
		bad("bind is %q, want %s or %s", c.Bind, BindByMatcher, BindDrawn)
	}
	without := slices.Contains([]string{Prequal, ORCA, Oracle}, c.Policy)
	if (several || len(c.Holds) > 0 || c.Sharing != nil) && without {
		bad("families, instances that hold some models only and machines that lanes share are " +
			"not simulated by the policies " + Prequal + ", " + ORCA + " and " + Oracle)
	}
	left := map[string]int{}
	for _, in := range c.Pool {
		left[in.Type] += in.Count
	}
	for _, h := range c.Holds {
		if left[h.Type] -= h.Count; h.Count < 0 || left[h.Type] < 0 {
			bad("hold: %d instances of %s, the pool %s has %d left for it", h.Count, h.Type, c.Pool,
				left[h.Type]+h.Count)
		}
		for _, name := range h.Models {
			if !slices.ContainsFunc(c.Models, func(m Model) bool {
				return slices.ContainsFunc(m.variantsOf(),
					func(v Variant) bool { return v.Name == name })
			}) {
				bad("hold: model %s is not simulated", name)
			}
		}
	}
	for i := range c.Models {
		m := &c.Models[i]
		if len(c.Holds) > 0 && !slices.ContainsFunc(c.poolParts(), func(p instanceGroup) bool {
			return p.bestLatencies(m) != nil
		}) {
			bad("model %s: no instance holds it", m.Name)
		}
	}
	return errs
}

// A instanceGroup is the instances of a pool that are of one type and hold the same models.
type instanceGroup struct {
	typ   string
	count int
	holds []string // nil: all models
}

// poolParts returns the parts of the pool: of each type, in the pool's order, first the holdings.
func (c *Config) poolParts() (all []instanceGroup) {
	for _, in := range c.Pool {
		left := in.Count
		for _, h := range c.Holds {
			if h.Type == in.Type && h.Count > 0 {
				models := h.Models
				if models == nil {
					models = []string{}
				}
				all = append(all, instanceGroup{h.Type, h.Count, models})
				left -= h.Count
			}
		}
		if left > 0 {
			all = append(all, instanceGroup{typ: in.Type, count: left})
		}
	}
	return all
}

func (p *instanceGroup) hasModel(model string) bool {
	return p.holds == nil || slices.Contains(p.holds, model)
}

// heldModels are the models, and variants of families, that p's instances hold, in order.
func (p *instanceGroup) heldModels(all []Model) []names.ModelKey {
	held := []names.ModelKey{}
	for i := range all {
		for _, v := range all[i].variantsOf() {
			if p.hasModel(v.Name) {
				held = append(held, names.ModelKey(v.Name))
			}
		}
	}
	slices.Sort(held)
	return held
}

// bestLatencies returns what is known of m's latencies on p, of the fastest variant that p holds;
// nil if it holds none.
func (p *instanceGroup) bestLatencies(m *Model) match.Latencies {
	var all latency.Fastest
	for _, v := range m.variantsOf() {
		if l := v.assumedLatencies()[p.typ]; l != nil && p.hasModel(v.Name) {
			all = append(all, l)
		}
	}
	if all == nil {
		return nil
	}
	return all
}

// drawnShares returns, for each variant of m, the share of its queries that [BindDrawn] sends to
// it: in proportion to the fluid limit of the instances that hold it, of whose time each variant of
// m that they hold has an equal part.
func (c *Config) drawnShares(m *Model) ([]float64, error) {
	parts, shares, sum := c.poolParts(), make([]float64, len(m.Variants)), 0.0
	for i, v := range m.Variants {
		alone := Model{
			Name: v.Name, QoSTarget: m.QoSTarget, QoSShare: m.QoSShare, BatchSizes: m.BatchSizes,
			Latencies: v.Latencies, Known: v.Known,
		}
		var its []instanceGroup
		for _, p := range parts {
			held := 0
			for _, o := range m.Variants {
				if p.hasModel(o.Name) {
					held++
				}
			}
			if p.hasModel(v.Name) {
				// Time shared between the variants counts as that many fewer instances; multiplied
				// by all numbers of variants up to 6, none is broken.
				p.count *= 60 / max(1, min(held, 6))
				its = append(its, p)
			}
		}
		if len(its) > 0 {
			limit, err := solveFluid([]Model{alone}, its, false, false)
			if err != nil {
				return nil, err
			}
			shares[i] = limit.Rate
			sum += limit.Rate
		}
	}
	if sum == 0 {
		return nil, fmt.Errorf("family %s: no instance holds a variant that is in time", m.Name)
	}
	for i := range shares {
		shares[i] /= sum
	}
	return shares, nil
}

// draw draws the variant of a query for m by the shares.
func draw(shares []float64, from *rand.Rand) int {
	x := from.Float64()
	for i, share := range shares {
		if x -= share; x < 0 {
			return i
		}
	}
	return len(shares) - 1
}

// A VariantResult is the part of a family's answers that were a variant's.
type VariantResult struct {
	Model    string  `json:"model"`
	Accuracy float64 `json:"accuracy"`
	Served   int     `json:"served"`
}

// EffectiveAccuracy is the mean accuracy of the answers, 1 if there are none.
func EffectiveAccuracy(of []VariantResult) float64 {
	sum, n := 0.0, 0
	for _, v := range of {
		sum += float64(v.Served) * v.Accuracy
		n += v.Served
	}
	if n == 0 {
		return 1
	}
	return sum / float64(n)
}
