package match

import (
	"cmp"
	"iter"
	"maps"
	"math"
	"slices"

	"github.com/muster-serve/muster/api/names"
)

// The cost of a variant's answer for its lack of accuracy, in units of the value of an average
// query: regretOfPoint for each point (.01) below the family's best variant, and at most maxRegret.
// Chosen: two and a half points weigh as much as an answer in time, so a worse variant is taken
// where it saves more than waiting; no lack of accuracy weighs as much as six lost queries.
const regretOfPoint, maxRegret = 0.4, 5

// A family is what a query asks for: the models that may answer it. For a query that names a model
// it is that model alone.
type family struct {
	name     names.ModelKey // "" of a single model, which queries name
	variants []variant      // the most accurate first, then by name
	// All variants agree in the QoS target, in ms, and in rejectLate; while they are being changed
	// one after the other, what some allow is allowed. largest is the least of their largest batch
	// sizes, and queries are split only if all variants may be.
	target     float64
	largest    int
	rejectLate bool
	splits     bool
	renewed    bool // since the last arrange
}

// A variant is a model that may answer for a family.
type variant struct {
	model    int
	accuracy float64 // in (0, 1]
	regret   float64 // what an answer costs
}

// accuracyOrBest is the model's accuracy, 1 if it is unknown.
func (m *Model) accuracyOrBest() float64 {
	if m.Accuracy == 0 {
		return 1
	}
	return m.Accuracy
}

// newFamily returns the family of the given models.
func newFamily(name names.ModelKey, models []Model, of []int) family {
	f := family{name: name, largest: MaxBatchSize, rejectLate: true, splits: true}
	unknown, best := false, 0.0
	for _, i := range of {
		m := &models[i]
		f.target = max(f.target, toMs(m.QoSTarget))
		f.largest = min(f.largest, m.LargestBatchSize)
		f.rejectLate, f.splits = f.rejectLate && m.RejectLate, f.splits && m.Splits
		f.variants = append(f.variants, variant{model: i, accuracy: m.accuracyOrBest()})
		unknown, best = unknown || m.Accuracy == 0, max(best, m.accuracyOrBest())
	}
	for i := range f.variants {
		v := &f.variants[i]
		v.regret = min(maxRegret, regretOfPoint*100*(best-v.accuracy))
		if unknown && v.accuracy < best { // nobody knows by how much
			v.regret = maxRegret
		}
	}
	slices.SortFunc(f.variants, func(a, b variant) int {
		return cmp.Or(cmp.Compare(b.accuracy, a.accuracy),
			cmp.Compare(models[a.model].Name, models[b.model].Name))
	})
	return f
}

// A catalogue says what queries may ask for. Queries point to families, which therefore change in
// place.
type catalogue struct {
	byName map[names.ModelKey]int     // models
	alone  []*family                  // by model: the model alone
	named  map[names.ModelKey]*family // families
	// anyRenewed says that a family is renewed, anyEmpty that one has no variants
	anyRenewed, anyEmpty bool
}

func newCatalogue() catalogue {
	return catalogue{byName: map[names.ModelKey]int{}, named: map[names.ModelKey]*family{}}
}

// lookupFamily returns what a query that names a model or a family asks for, nil if that is
// unknown. A model goes before a family of the same name.
func (c *catalogue) lookupFamily(name names.ModelKey) *family {
	if i, ok := c.byName[name]; ok {
		return c.alone[i]
	}
	return c.named[name]
}

// applyModelChange enters a model that is new, has other settings, or is gone.
func (c *catalogue) applyModelChange(models []Model, i int, was names.ModelKey) {
	c.anyRenewed = true
	for len(c.alone) <= i {
		c.alone = append(c.alone, &family{})
	}
	if models[i].Name == "" {
		c.alone[i] = &family{} // no query asks for it
	} else {
		*c.alone[i] = newFamily("", models, []int{i})
		c.alone[i].renewed = true
	}
	for _, name := range []names.ModelKey{was, models[i].Family} {
		if name == "" {
			continue
		}
		var of []int
		for k := range models {
			if models[k].Name != "" && models[k].Family == name {
				of = append(of, k)
			}
		}
		f := c.named[name]
		if f == nil {
			f = &family{}
			c.named[name] = f
		}
		if len(of) > 0 {
			*f = newFamily(name, models, of)
		} else {
			f.variants = nil // queries that wait may still ask for it
		}
		f.renewed = true
	}
}

// clearChanges notes that all changes are arranged. It deletes the families without variants that
// no query names.
func (c *catalogue) clearChanges(queries map[QueryID]*query) {
	if c.anyRenewed {
		c.anyRenewed, c.anyEmpty = false, false
		for _, f := range c.alone {
			f.renewed = false
		}
		for _, f := range c.named {
			f.renewed, c.anyEmpty = false, c.anyEmpty || len(f.variants) == 0
		}
	}
	if !c.anyEmpty {
		return
	}
	asked := map[*family]bool{}
	for _, q := range queries {
		asked[q.family] = true
	}
	c.anyEmpty = false
	for name, f := range c.named {
		if len(f.variants) > 0 {
			continue
		}
		if asked[f] {
			c.anyEmpty = true
		} else {
			delete(c.named, name)
		}
	}
}

// allFamilies iterates over the families of several variants, and over the models that are in none.
func (c *catalogue) allFamilies(models []Model) iter.Seq[*family] {
	return func(yield func(*family) bool) {
		for i, f := range c.alone {
			if models[i].Name != "" && models[i].Family == "" && !yield(f) {
				return
			}
		}
		for _, name := range slices.Sorted(maps.Keys(c.named)) {
			if !yield(c.named[name]) {
				return
			}
		}
	}
}

// allowedVariants returns the variants that may answer q, the most accurate first.
func (q *query) allowedVariants() []variant {
	all := q.family.variants
	for n := len(all); n > 0 && all[n-1].accuracy < q.accuracy; n-- {
		all = all[:n-1]
	}
	return all
}

// allowsModel reports whether a model may answer q.
func (q *query) allowsModel(model int) bool {
	return slices.ContainsFunc(q.allowedVariants(),
		func(v variant) bool { return v.model == model })
}

// latencyTable returns the latencies of a model on l, nil if l does not hold it or they are
// unknown.
func (l *laneSpec) latencyTable(model int) *LatencyTable {
	if l.holds[model] {
		return l.typ.tables[model]
	}
	return nil
}

// fastestVariant returns the variant that takes the least time for q on l, and its latencies; -1
// and nil if l serves none.
func (l *laneSpec) fastestVariant(q *query) (model int, t *LatencyTable) {
	model = -1
	for _, v := range q.allowedVariants() {
		if tab := l.latencyTable(v.model); tab != nil && (t == nil ||
			tab.mean[q.batch] < t.mean[q.batch]) {
			model, t = v.model, tab
		}
	}
	return model, t
}

// inTime returns the variant that l runs for q under a policy that knows no accuracies: the most
// accurate that takes no longer than the given time, in ms, else the fastest.
func (l *laneSpec) inTime(q *query, ms float64) (model int, latency float64) {
	for _, v := range q.allowedVariants() {
		if tab := l.latencyTable(v.model); tab != nil && tab.mean[q.batch] <= ms {
			return v.model, tab.mean[q.batch]
		}
	}
	model, t := l.fastestVariant(q)
	if t == nil {
		return -1, math.Inf(1)
	}
	return model, t.mean[q.batch]
}

// remainingTime returns the time until q's QoS target, in ms.
func (m *Matcher) remainingTime(q *query) float64 { return q.family.target - (m.now - q.arrival) }
