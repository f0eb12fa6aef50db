package placements

import (
	"math/rand/v2"

	"github.com/muster-serve/muster/leader/place"
)

// OneModel starts servers of one model each until the demand, in queries/s by profile, is
// served, as DeepRecSys does.
func OneModel(profiles []*place.Profile, demand []float64) (servers []place.ScheduledServer) {
	for i, p := range profiles {
		most := p.Most()
		if !(most > 0) {
			continue
		}
		for range place.Alone(demand[i], most) {
			servers = append(servers, place.ScheduledServer{Models: []int{i}, QPS: []float64{most}})
		}
	}
	return servers
}

// RandomPairs starts servers of two models drawn at random, at their best split, until the demand
// is served: Hera's rival Random. With lowFirst it is Hera(Random), which is Algorithm 2 with
// partners drawn at random: models of low worker scalability are paired with others until they are
// served, and what is left of the others runs alone. Models are drawn from those that are not
// served yet, where there are any.
func RandomPairs(m place.Machine, profiles []*place.Profile, demand []float64, lowFirst bool,
	random *rand.Rand) (servers []place.ScheduledServer) {
	left := make([]float64, len(profiles))
	for i, p := range profiles {
		if p.Most() > 0 {
			left[i] = demand[i]
		}
	}
	unmet := func(i int) bool { return left[i] > 1e-9*max(1, demand[i]) }
	draw := func(from func(i int) bool) int {
		var of []int
		for i := range profiles {
			if from(i) {
				of = append(of, i)
			}
		}
		if len(of) == 0 {
			return -1
		}
		return of[random.IntN(len(of))]
	}
	best := map[[2]int]place.Split{}
	for {
		a := draw(func(i int) bool { return unmet(i) && (!lowFirst || profiles[i].Low) })
		if a < 0 {
			break
		}
		may := func(i int) bool { return i != a && !(lowFirst && profiles[i].Low) }
		b := draw(func(i int) bool { return may(i) && unmet(i) })
		if b < 0 && lowFirst {
			b = draw(may)
		}
		if b < 0 {
			break
		}
		s, ok := best[[2]int{a, b}]
		if !ok {
			s = m.BestSplit(profiles[a], profiles[b])
			best[[2]int{a, b}] = s
		}
		if !(s.QPS[0] > 0) {
			break // no split leaves it anything
		}
		left[a] -= s.QPS[0]
		left[b] -= s.QPS[1]
		servers = append(servers, place.ScheduledServer{Models: []int{a, b}, QPS: s.QPS[:]})
	}
	for i := range left {
		left[i] = max(0, left[i])
	}
	return append(servers, OneModel(profiles, left)...)
}

// When PARTIES acts, by the slack of a tenant, which is what its tail is below the target: it gives
// to one with less than the first, and takes from one with more than the second.
const (
	littleSlack = 0.05
	muchSlack   = 0.2
	// holdDown is for how many periods it takes nothing after taking has broken a target.
	holdDown = 60
)

// Parties manages two tenants as PARTIES does: by trial. It moves one core or one way at a time to
// the tenant that is nearest to its target, first from what is free, then from the other tenant,
// and changes to the other resource when a move did not help. Where both have slack it takes a unit
// from the one with most, and gives it back if that breaks a target. PARTIES also tries disk and
// network, of which models in memory use little; those trials are left out here, which favours it.
// Its period is half a second.
type Parties struct {
	Machine place.Machine
	// Keeps says that it takes nothing from tenants that have slack. PARTIES takes, so that others
	// than the two may have it; where there are none, that only costs.
	Keeps bool
	of    [2]struct {
		resource int // cores or ways: what it tries next
		grew     bool
		before   float64 // the tail when it last grew
	}
	taken struct {
		on             bool
		from, resource int
	}
	hold int
}

const (
	cores = iota
	ways
	resources
)

// part is a tenant's part of a resource.
func part(t *place.Tenant, resource int) *int {
	if resource == cores {
		return &t.Workers
	}
	return &t.Ways
}

// Adjust is the manager's decision at the end of a period.
func (p *Parties) Adjust(tenants [2]place.Tenant) (next [2]place.Tenant, changed bool) {
	next = tenants
	p.hold = max(0, p.hold-1)
	free := func(resource int) int {
		of := [resources]int{p.Machine.Cores, p.Machine.Ways}[resource]
		return of - *part(&next[0], resource) - *part(&next[1], resource)
	}
	worst, best := 0, 1
	if tenants[1].Tail > tenants[0].Tail {
		worst, best = 1, 0
	}
	if p.taken.on {
		p.taken.on = false
		if tenants[worst].Tail > 1 {
			*part(&next[p.taken.from], p.taken.resource)++
			p.of[p.taken.from].resource, p.hold = 1-p.taken.resource, holdDown
			return next, true
		}
	}
	if 1-tenants[worst].Tail < littleSlack {
		s := &p.of[worst]
		if s.grew && tenants[worst].Tail >= s.before {
			s.resource = (s.resource + 1) % resources
		}
		s.grew, s.before = true, tenants[worst].Tail
		for range resources {
			if free(s.resource) == 0 {
				if *part(&next[best], s.resource) <= 1 {
					s.resource = (s.resource + 1) % resources
					continue
				}
				*part(&next[best], s.resource)--
			}
			*part(&next[worst], s.resource)++
			return next, true
		}
		return next, false
	}
	p.of[0].grew, p.of[1].grew = false, false
	if s := &p.of[best]; !p.Keeps && 1-tenants[worst].Tail > muchSlack && p.hold == 0 {
		if *part(&next[best], s.resource) > 1 {
			*part(&next[best], s.resource)--
			p.taken.on, p.taken.from, p.taken.resource = true, best, s.resource
			return next, true
		}
		s.resource = (s.resource + 1) % resources
	}
	return next, false
}
