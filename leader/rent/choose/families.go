package choose

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/muster-serve/muster/leader/fleetplan"
	"github.com/muster-serve/muster/leader/plan"
	"github.com/muster-serve/muster/profiles"
)

// A Family lets variants answer the queries that a model of a problem stands for.
type Family struct {
	Name  string
	Model int // its index among the problem's models
	// TargetAccuracy is the mean accuracy that the answers are to have at least, above 0.
	TargetAccuracy float64
	// Variants may answer, the model itself among them.
	Variants []Variant
}

// A Variant is a model that may answer for a family.
type Variant struct {
	Name      string
	Accuracy  float64
	Latencies []plan.Latencies // by index of the problem's types
}

// maxBins bounds into how many ranges of batch sizes of about equal weight a demand is divided.
// Chosen: twice as many change no fleet of the tests.
const maxBins = 32

// divideAmongVariants returns the problem in which queries that a family may answer by less accurate
// variants are demand for those variants, as the cheapest fleet for the rate, in queries/s, that
// keeps the families' target accuracies divides them. Problems without such families stay as they
// are.
func (c *Chooser) divideAmongVariants(f *Fleet, rate float64) (*plan.Problem, error) {
	families := slices.DeleteFunc(slices.Clone(f.Families), func(of Family) bool {
		return len(of.Variants) < 2
	})
	if len(families) == 0 {
		return f.Problem, nil
	}
	all := 0.0
	for i := range f.Problem.Models {
		all += f.Problem.Models[i].Weight
	}
	whole, bins := c.wholeProblem(f, families, rate/all)
	plans, err := c.planner.PlanSafely(whole, 1)
	if err != nil {
		return nil, err
	}
	if len(plans) == 0 { // not even the least machines are within the limit
		return f.Problem, nil
	}
	divided := *f.Problem
	divided.Models = nil
	for i := range f.Problem.Models {
		k := slices.IndexFunc(families, func(of Family) bool { return of.Model == i })
		if k < 0 {
			divided.Models = append(divided.Models, f.Problem.Models[i])
			continue
		}
		parts := partsOf(&f.Problem.Models[i], &families[k], bins[i], plans[0].Families[i].BinRate)
		divided.Models = append(divided.Models, parts...)
	}
	return &divided, nil
}

// wholeProblem is the problem of machines and families together, and the bins of each model's batch
// sizes. scale is by which factor rates exceed the models' weights.
func (c *Chooser) wholeProblem(f *Fleet, families []Family,
	scale float64) (*fleetplan.Problem, [][]profiles.Distribution) {
	p := f.Problem
	whole := &fleetplan.Problem{BudgetUSDPerHour: c.config.MaxPrice}
	if c.config.Budget > 0 {
		whole.BudgetUSDPerHour = min(whole.BudgetUSDPerHour, c.config.Budget)
	}
	var types []int // of the problem, by type of whole
	add := func(of int, t fleetplan.Type) {
		t.Name, t.Capacity = string(p.Types[of].Name), 1
		whole.Types, types = append(whole.Types, t), append(types, of)
	}
	for i, t := range p.Types {
		if n := f.Foreign[t.Name]; n > 0 {
			add(i, fleetplan.Type{Min: n, Max: n})
		}
		l, ours := c.config.Types[t.Name]
		if price := f.priceOf(t.Name); ours && price > 0 {
			most := l.Max
			if most == 0 {
				most = int(whole.BudgetUSDPerHour/price) + 1
			}
			add(i, fleetplan.Type{PriceUSDPerHour: price, Min: min(l.Min, most), Max: most})
		}
	}
	bins := make([][]profiles.Distribution, len(p.Models))
	for i := range p.Models {
		m := &p.Models[i]
		bins[i] = binsOf(m.BatchSizes)
		family := fleetplan.Family{Name: m.Name}
		variants := []Variant{{Accuracy: 1, Latencies: m.Latencies}}
		for _, of := range families {
			if of.Model == i {
				variants, family.TargetAccuracy = of.Variants, of.TargetAccuracy
			}
		}
		for _, v := range variants {
			family.Variants = append(family.Variants, fleetplan.Variant{Accuracy: v.Accuracy})
		}
		for _, sizes := range bins[i] {
			share := 0.0
			for _, s := range sizes {
				share += s.Share
			}
			bin := fleetplan.Bin{BatchSize: sizes[len(sizes)-1].BatchSize,
				Rate: scale * m.Weight * share}
			for _, v := range variants {
				times := make([]float64, len(types))
				for k, t := range types {
					times[k] = runTime(v.Latencies[t], sizes, share, m.QoSTarget)
				}
				bin.RunTime = append(bin.RunTime, times)
			}
			family.Bins = append(family.Bins, bin)
		}
		whole.Families = append(whole.Families, family)
	}
	return whole, bins
}

// priceOf is the least price of a machine of a type, in $/hr; 0 if none is known.
func (f *Fleet) priceOf(t profiles.InstanceType) (usd float64) {
	for kind, price := range f.Prices {
		if kind.Type == t && price > 0 && (usd == 0 || price < usd) {
			usd = price
		}
	}
	return usd
}

// binsOf divides batch sizes into at most maxBins ranges of about equal weight.
func binsOf(sizes profiles.Distribution) (bins []profiles.Distribution) {
	sorted := slices.Clone(sizes)
	slices.SortFunc(sorted, func(a, b profiles.Share) int {
		return cmp.Compare(a.BatchSize, b.BatchSize)
	})
	whole := 0.0
	for _, s := range sorted {
		whole += s.Share
	}
	from, sum := 0, 0.0
	for i, s := range sorted {
		if sum += s.Share; sum >= whole/maxBins || i == len(sorted)-1 {
			bins = append(bins, sorted[from:i+1])
			from, sum = i+1, 0
		}
	}
	return bins
}

// runTime is the mean run time of a bin's queries, in seconds; 0 if one of them exceeds the target.
func runTime(l plan.Latencies, sizes profiles.Distribution, share float64,
	target time.Duration) float64 {
	if l.Mean(sizes[len(sizes)-1].BatchSize) > target {
		return 0
	}
	mean := 0.0
	for _, s := range sizes {
		mean += s.Share / share * l.Mean(s.BatchSize).Seconds()
	}
	return mean
}

// partsOf divides a model's demand among the variants of its family as rates say, in queries/s by
// variant and bin. What no machine answers stays the model's own.
func partsOf(m *plan.ModelDemand, of *Family, bins []profiles.Distribution,
	rates [][]float64) (parts []plan.ModelDemand) {
	for v := range of.Variants {
		part := *m
		part.Name = fmt.Sprintf("%s by %s", of.Name, of.Variants[v].Name)
		part.BatchSizes, part.Weight, part.Latencies = nil, 0, of.Variants[v].Latencies
		for b, sizes := range bins {
			answered := 0.0
			for k := range rates {
				answered += rates[k][b]
			}
			share := 0.0
			switch {
			case answered > 0:
				share = rates[v][b] / answered
			case of.Variants[v].Name == m.Name:
				share = 1
			}
			if share < minShareOfBin {
				continue
			}
			for _, s := range sizes {
				part.BatchSizes = append(part.BatchSizes,
					profiles.Share{BatchSize: s.BatchSize, Share: s.Share * share})
				part.Weight += m.Weight * s.Share * share
			}
		}
		if part.Weight > 0 {
			sum := part.Weight / m.Weight
			for i := range part.BatchSizes {
				part.BatchSizes[i].Share /= sum
			}
			parts = append(parts, part)
		}
	}
	return parts
}

// minShareOfBin is what rounding may leave of a bin.
const minShareOfBin = 1e-9
