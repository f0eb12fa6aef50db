package place

import (
	"cmp"
	"slices"

	"github.com/muster-serve/muster/api/names"
)

// Bounds of the pairs to choose from: a model of low worker scalability is combined with its
// bestPartners best partners, and each pair gets bestSplits splits of the cores, from one end to
// the other. Chosen: the best partners matter most, and the number of pairs multiplies the program.
const (
	bestPartners = 3
	bestSplits   = 4
)

// A Pair is two models side by side on a machine.
type Pair struct {
	Models [2]int // indices of profiles
	Split
}

// Pairs are those that are worth choosing from: each model of low worker scalability with the three
// of the highest affinity, by Algorithm 1, at four splits. Of the splits than which no other has
// more of both models these are the best one and those that are spread evenly over the rest.
func (m Machine) Pairs(profiles []*Profile) (pairs []Pair) {
	type couple struct {
		partner  int
		affinity float64
	}
	seen := map[[2]int]bool{}
	for i, p := range profiles {
		if !p.Low || !(p.Most() > 0) {
			continue
		}
		var partners []couple
		for j, q := range profiles {
			if j != i && q.Most() > 0 {
				partners = append(partners, couple{j, m.Affinity(p, q)})
			}
		}
		slices.SortStableFunc(partners, func(a, b couple) int {
			return cmp.Compare(b.affinity, a.affinity)
		})
		for _, c := range partners[:min(bestPartners, len(partners))] {
			key := [2]int{min(i, c.partner), max(i, c.partner)}
			if seen[key] {
				continue
			}
			seen[key] = true
			for _, s := range m.spreadSplits(p, profiles[c.partner]) {
				pairs = append(pairs, Pair{[2]int{i, c.partner}, s})
			}
		}
	}
	return pairs
}

// spreadSplits are few of the good splits: the best, and others from one end to the other.
func (m Machine) spreadSplits(a, b *Profile) []Split {
	good := slices.DeleteFunc(m.GoodSplits(a, b),
		func(s Split) bool { return !(s.QPS[0] > 0 && s.QPS[1] > 0) })
	if len(good) == 0 {
		return nil
	}
	slices.SortFunc(good, func(x, y Split) int { return cmp.Compare(x.QPS[0], y.QPS[0]) })
	best := m.BestSplit(a, b)
	few := []Split{best}
	for k := range bestSplits - 1 {
		s := good[k*(len(good)-1)/(bestSplits-2)]
		if !slices.Contains(few, s) {
			few = append(few, s)
		}
	}
	return few
}

// Layout is the pair's, of models by profile, with a lane of one core for each worker.
func (p *Pair) Layout(models []names.ModelKey) Layout {
	var l Layout
	for k, i := range p.Models {
		l.Partitions = append(l.Partitions, Partition{
			Models: []names.ModelKey{models[i]}, Lanes: p.Workers[k], Cores: 1, Ways: p.Ways[k],
		})
	}
	return l.canonicalForm()
}

// A Host is an instance type and what the models, each a profile, do there. A model that cannot run
// there has a profile of 0 queries/s.
type Host struct {
	Type
	Machine
	Profiles []*Profile
}

// SharingOn is the program that serves the demand, in queries/s by model, on instances of several
// types: each has one model, or two as one of its Pairs. The hosts' profiles are of the same models
// in the same order. A choice's layout is its models' names.
func SharingOn(hosts []Host, demand []float64, objective Objective) *Program {
	p := &Program{Objective: objective}
	for t, h := range hosts {
		p.Types = append(p.Types, h.Type)
		for i, profile := range h.Profiles {
			if t == 0 {
				p.Variants = append(p.Variants, Variant{
					Model: profile.Model, Family: profile.Model, Accuracy: 100,
				})
				p.Classes = append(p.Classes, Class{Family: profile.Model, Rate: demand[i]})
			}
			if most := profile.Most(); most > 0 {
				p.Choices = append(p.Choices, Choice{
					Type: t, Layout: profile.Model, Partitions: [][]Service{{{i, i, most}}},
				})
			}
		}
		for _, pair := range h.Pairs(h.Profiles) {
			i, j := pair.Models[0], pair.Models[1]
			p.Choices = append(p.Choices, Choice{
				Type: t, Layout: h.Profiles[i].Model + "|" + h.Profiles[j].Model,
				Partitions: [][]Service{{{i, i, pair.QPS[0]}}, {{j, j, pair.QPS[1]}}},
			})
		}
	}
	return p
}

// FewestServers finds servers that serve the demand with one model or two each: of all pairs at all
// good splits, or of the Pairs, whichever search finds fewer. The solution is of the program that
// is returned.
func (m Machine) FewestServers(profiles []*Profile, demand []float64, steps int) (*Solution,
	*Program, error) {
	all := m.Sharing(profiles, demand)
	best, err := Solve(all, steps)
	if err != nil {
		return nil, nil, err
	}
	few := SharingOn([]Host{{all.Types[0], m, profiles}}, demand, FewestAgents)
	other, err := Solve(few, steps)
	if err != nil {
		return nil, nil, err
	}
	if other.Served >= best.Served-1e-9 && other.Agents < best.Agents {
		return other, few, nil
	}
	return best, all, nil
}
