package place

import "math"

// enough is the part of a demand that counts as all of it.
const enough = 1e-9

// A ScheduledServer is one that Schedule starts: its models, one or two, and the queries/s of each.
type ScheduledServer struct {
	Models []int // indices of profiles
	QPS    []float64
}

// Schedule chooses servers that serve the demand, in queries/s by profile: Hera's Algorithm 2. Each
// model with low worker scalability, in turn, is paired until it is served, with the model of high
// scalability that has the highest affinity among those with unmet demand; if none has, among all.
// What is left of the others runs alone. A model that a server cannot serve at all gets none.
//
// The paper's lines 12 and 13 give each model of a pair the other's queries/s; here each has its
// own. The paper pairs with models that are served already.
func (m Machine) Schedule(profiles []*Profile, demand []float64) []ScheduledServer {
	served := make([]float64, len(profiles))
	unmet := func(i int) bool { return served[i] < demand[i]-enough*max(1, demand[i]) }
	var servers []ScheduledServer
	start := func(s ScheduledServer) {
		for k, i := range s.Models {
			served[i] += s.QPS[k]
		}
		servers = append(servers, s)
	}
	for i, p := range profiles {
		if !p.Low {
			continue
		}
		for unmet(i) {
			partner := m.findPartner(profiles, i, unmet)
			if partner < 0 {
				break
			}
			s := m.BestSplit(p, profiles[partner])
			if !(s.QPS[0] > 0) {
				break
			}
			start(ScheduledServer{Models: []int{i, partner}, QPS: s.QPS[:]})
		}
	}
	for i, p := range profiles {
		if most := p.Most(); most > 0 && unmet(i) {
			for range Alone(demand[i]-served[i], most) {
				start(ScheduledServer{Models: []int{i}, QPS: []float64{most}})
			}
		}
	}
	return servers
}

// findPartner is the model to pair the low model i with, -1 if there is none.
func (m Machine) findPartner(profiles []*Profile, i int, unmet func(int) bool) int {
	for _, all := range []bool{false, true} {
		best, highest := -1, -1.0
		for j, p := range profiles {
			if p.Low || !all && !unmet(j) {
				continue
			}
			a := m.Affinity(profiles[i], p)
			if a > highest || a == highest && p.Model > profiles[best].Model {
				best, highest = j, a
			}
		}
		if best >= 0 {
			return best
		}
	}
	return -1
}

// Alone is how many servers serve a demand by themselves, each at most queries/s.
func Alone(demand, most float64) int {
	return int(math.Ceil(demand/most - enough))
}

// Sharing is the program that finds the fewest servers: a server has one model, or two by any good
// split. A choice's layout is its models' names.
func (m Machine) Sharing(profiles []*Profile, demand []float64) *Program {
	p := &Program{Objective: FewestAgents}
	servers := 0
	for i, profile := range profiles {
		p.Variants = append(p.Variants, Variant{
			Model: profile.Model, Family: profile.Model, Accuracy: 100,
		})
		p.Classes = append(p.Classes, Class{Family: profile.Model, Rate: demand[i]})
		most := profile.Most()
		if most > 0 {
			servers += Alone(demand[i], most)
		}
		p.Choices = append(p.Choices, Choice{
			Layout: profile.Model, Partitions: [][]Service{{{i, i, most}}},
		})
	}
	for i, a := range profiles {
		for j := i + 1; j < len(profiles); j++ {
			b := profiles[j]
			for _, s := range m.GoodSplits(a, b) {
				p.Choices = append(p.Choices, Choice{
					Layout:     a.Model + "|" + b.Model,
					Partitions: [][]Service{{{i, i, s.QPS[0]}}, {{j, j, s.QPS[1]}}},
				})
			}
		}
	}
	p.Types = []Type{{Name: "server", Count: servers}}
	return p
}
