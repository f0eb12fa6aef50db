package replan

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/place"
)

// Two rules keep a family that loses an agent served.
//
// A family of which a plan leaves one host gets a stand-by: another agent holds the family's
// fastest variant, too, on the same lanes. It costs memory, and neither accuracy nor served
// queries, as lanes are not set aside. Only an agent gets one that can still load the largest of
// its models before it unloads another.
//
// A family of which no host is left gets one at once, be it in the time in which a new leader
// changes nothing, or between two plans: an agent that has the memory holds the family's fastest
// variant, too; if none has, one does in place of what it holds, all of which others hold as well.

// hosts is how many agents should host each family, if they can: one may be lost.
const hosts = 2

// hostless is how long a family has no host before it counts as lost. Chosen: agents greet a new
// leader, and links that have broken come back, within it.
const hostless = 500 * time.Millisecond

// A roster is agents, and what each is to hold.
type roster struct {
	agents  []Agent
	layouts []place.Layout // by agent
	// may says whether an agent can be asked for more; fits why it cannot hold a layout, "" if it
	// can; takes how long it runs a variant, 0: unknown; bytes what a model takes.
	may   func(i int) bool
	fits  func(a *Agent, l place.Layout) string
	takes func(v *Variant, t names.LaneType) time.Duration
	bytes func(m names.ModelKey) int64
}

// holdsFamily reports whether a layout has a variant of a family.
func holdsFamily(l place.Layout, family []*Variant) bool {
	return slices.ContainsFunc(family, func(v *Variant) bool { return l.Has(v.Model) })
}

// add lets one more agent hold a variant of a family of the target, beside what it is to hold; with
// room only one that could load another model beside that. It returns -1 if no agent can.
func (r *roster) add(family []*Variant, target time.Duration, room bool) int {
	type offer struct {
		agent, models int
		late, held    int // 1: it is
		takes         time.Duration
		variant       *Variant
	}
	// Agents are looked at from behind a host on, so that families with a host each do not all
	// choose the same agents.
	first := 1 + slices.IndexFunc(r.layouts, func(l place.Layout) bool {
		return holdsFamily(l,
			family)
	})
	var best *offer
	better := func(a, b *offer) int {
		return cmp.Or(cmp.Compare(a.late, b.late), -cmp.Compare(a.held, b.held),
			cmp.Compare(a.models, b.models), cmp.Compare(a.takes, b.takes),
			-cmp.Compare(a.variant.Accuracy, b.variant.Accuracy))
	}
	for n := range r.agents {
		i := (first + n) % len(r.agents)
		a, l := &r.agents[i], r.layouts[i]
		if !r.may(i) || a.Draining || a.Fixed || holdsFamily(l, family) || !l.IsOnAllLanes() {
			continue
		}
		var here *offer // of this agent
		for _, v := range family {
			with := place.NewLayout(append(l.Models(), v.Model)...)
			if r.fits(a, with) != "" || room && !r.leavesRoom(a, with) {
				continue
			}
			o := &offer{agent: i, models: len(l.Models()), variant: v, takes: r.takes(v, a.Type)}
			if o.takes == 0 || o.takes > target {
				o.late = 1
			}
			if a.Held.Has(v.Model) {
				o.held = 1
			}
			if here == nil || better(o, here) < 0 {
				here = o
			}
		}
		if here != nil && (best == nil || better(here, best) < 0) {
			best = here
		}
	}
	if best == nil {
		return -1
	}
	r.layouts[best.agent] = place.NewLayout(
		append(r.layouts[best.agent].Models(), best.variant.Model)...)
	return best.agent
}

// leavesRoom reports whether an agent can load the largest other model beside a layout.
func (r *roster) leavesRoom(a *Agent, l place.Layout) bool {
	largest := int64(0)
	for _, m := range a.Available {
		if !l.Has(m) {
			largest = max(largest, r.bytes(m))
		}
	}
	return a.Memory == 0 || sumBytes(l.Models(), r.bytes)+largest <= a.Memory
}

// byFamily are the variants by family.
func byFamily(variants []Variant) map[string][]*Variant {
	all := map[string][]*Variant{}
	for i := range variants {
		v := &variants[i]
		all[v.Family] = append(all[v.Family], v)
	}
	return all
}

// standBy gives the families stand-bys of which the plan has too few hosts.
func (p *Problem) standBy(plan *Plan) {
	to := &roster{
		agents: p.agents, layouts: plan.layouts, fits: p.misfitReason, bytes: p.bytes,
		may: func(i int) bool { return !p.only[p.agents[i].Name] },
		takes: func(v *Variant, t names.LaneType) time.Duration {
			f, known := p.family[v.Family], p.latenciesOf(v, t)
			if known == nil {
				return 0
			}
			return known.Mean(p.sizes[f][len(p.sizes[f])/2].mean)
		},
	}
	count := map[string]int{}
	for i := range p.agents {
		seen := map[string]bool{}
		for _, m := range plan.layouts[i].Models() {
			if v, ok := p.model[m]; ok && !seen[p.variants[v].Family] {
				seen[p.variants[v].Family] = true
				count[p.variants[v].Family]++
			}
		}
	}
	variants := byFamily(p.variants)
	for f := range p.families {
		name, target := p.families[f].Name, p.families[f].QoSTarget
		for n := count[name]; n < hosts; n++ {
			if to.add(variants[name], target, n > 0) < 0 {
				break
			}
		}
	}
}

// rescueFamilies gives families a host that have lost theirs.
func (r *Replanner) rescueFamilies() {
	variants := byFamily(r.last.Variants)
	there := map[string]int{} // hosts, and agents on their way to be one
	for _, a := range r.agents {
		if a.Draining {
			continue
		}
		models := slices.Clone(a.Held.Models())
		if !a.sentAt.IsZero() {
			models = append(models, a.sent.Layout.Models()...)
		}
		seen := map[string]bool{}
		for _, m := range models {
			if f := r.familyOf(m); f != "" && !seen[f] {
				seen[f] = true
				there[f]++
			}
		}
	}
	for i := range r.last.Families {
		f := &r.last.Families[i]
		since, known := r.hostless[f.Name]
		switch {
		case there[f.Name] > 0 || len(variants[f.Name]) == 0:
			delete(r.hostless, f.Name)
		case !known:
			r.hostless[f.Name] = r.now
		case r.now.Sub(since) >= hostless && !r.memory.Paused:
			r.hostFamily(f, variants[f.Name], there)
		}
	}
}

// hostFamily has an agent load a variant of a family at once.
func (r *Replanner) hostFamily(f *Family, family []*Variant, there map[string]int) {
	to := &roster{
		bytes: r.bytes,
		fits:  func(a *Agent, l place.Layout) string { return r.misfitReason(r.agents[a.Name], l) },
		takes: func(v *Variant, t names.LaneType) time.Duration {
			known := r.last.Latencies[names.TableKey{Model: v.Model, Type: t}]
			if known == nil {
				return 0
			}
			sizes := toBins(f.Sizes)
			return known.Mean(sizes[len(sizes)/2].mean)
		},
	}
	var alike []bool // others hold all that the agent holds
	for _, name := range slices.Sorted(maps.Keys(r.agents)) {
		a := r.agents[name]
		if !a.sentAt.IsZero() || a.State == Changing || r.pinOf(name) != nil {
			continue // the agent is on its way, or must stay
		}
		if holdsFamily(r.wanted[name], family) {
			r.rescued[name] = true // and may begin
			return
		}
		l, pending := a.Held, r.rescued[name] && !a.Held.Equal(r.wanted[name])
		if pending { // for another family
			l = r.wanted[name]
		}
		to.agents, to.layouts = append(to.agents, a.Agent), append(to.layouts, l)
		alike = append(alike, !pending && !slices.ContainsFunc(a.Held.Models(),
			func(m names.ModelKey) bool {
				return there[r.familyOf(m)] < 2
			}))
	}
	to.may = func(int) bool { return true }
	i := to.add(family, f.QoSTarget, false)
	if i < 0 {
		to.may = func(i int) bool { return alike[i] }
		clear(to.layouts)
		i = to.add(family, f.QoSTarget, false)
	}
	if i < 0 {
		return
	}
	name := to.agents[i].Name
	r.wanted[name] = to.layouts[i]
	r.rescued[name] = true
	there[f.Name]++
	delete(r.hostless, f.Name)
	reason := fmt.Sprintf("family %s has no host", f.Name)
	r.makeNextVersion(Planned, reason, nil)
	r.requestPlan(reason)
}
