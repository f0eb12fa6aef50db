package renting

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/muster-serve/muster/leader/rent"
)

// A provider rents out machines.
type provider struct {
	cfg      *Config
	fleet    RentalControl
	lanes    []MachineSlot
	used     []bool // by lane: a machine has it
	machines []*rentedMachine
	launched int
	losses   *rand.Rand
}

// A rentedMachine is one that is rented.
type rentedMachine struct {
	rent.Instance
	lane     int
	launched time.Duration
	served   bool          // a leader has seen it serve
	ends     time.Duration // when the provider takes it; 0: it does not
}

func newProvider(cfg *Config, lanes []MachineSlot, its RentalControl) *provider {
	return &provider{
		cfg: cfg, fleet: its, lanes: lanes, used: make([]bool, len(lanes)),
		losses: rand.New(rand.NewPCG(cfg.Seed, 31)),
	}
}

// launch rents a machine for a slot; false if the provider has none.
func (p *provider) launch(slot rent.Slot, now time.Duration) (rent.Instance, bool) {
	for i, l := range p.lanes {
		if l.Kept || l.Type != slot.Type || p.used[i] || !p.fleet.Agent(i).Ended {
			continue
		}
		p.used[i] = true
		p.launched++
		m := &rentedMachine{
			Instance: rent.Instance{ID: fmt.Sprintf("m-%05d", p.launched), Slot: slot},
			lane:     i, launched: now,
		}
		p.machines = append(p.machines, m)
		return m.Instance, true
	}
	return rent.Instance{}, false
}

// pass lets time pass since the last step: machines boot, and spot machines are taken. It returns
// how many were.
func (p *provider) pass(now, since time.Duration) (taken int) {
	for _, t := range p.types() {
		// Drawn whether there are machines or not, so that the times do not depend on them.
		if p.losses.Float64() >= p.cfg.SpotLosses*(now-since).Hours() {
			continue
		}
		for _, m := range p.machines {
			if m.Slot.Kind == t && m.ends == 0 {
				m.ends = now + p.cfg.Notice
				taken++
			}
		}
	}
	for _, m := range p.machines {
		switch {
		case m.State == rent.Pending && now >= m.launched+p.cfg.Boot:
			m.State = rent.Running
			p.fleet.Start(m.lane)
		case m.ends > 0 && now >= m.ends:
			p.end(m)
		}
	}
	p.machines = slices.DeleteFunc(p.machines,
		func(m *rentedMachine) bool { return m.State == rent.Gone })
	return taken
}

// types are the kinds of spot machines that may be rented, in order.
func (p *provider) types() (all []rent.Kind) {
	for kind := range p.cfg.Prices {
		if kind.Market == rent.Spot {
			all = append(all, kind)
		}
	}
	slices.SortFunc(all, rent.Kind.Compare)
	return all
}

// end takes a machine back.
func (p *provider) end(m *rentedMachine) {
	m.State = rent.Gone
	p.used[m.lane] = false
	if !p.fleet.Agent(m.lane).Ended {
		p.fleet.Kill(m.lane)
	}
}

// find is the machine of a name, nil if there is none any more.
func (p *provider) find(id string) *rentedMachine {
	i := slices.IndexFunc(p.machines, func(m *rentedMachine) bool { return m.ID == id })
	if i < 0 || p.machines[i].State == rent.Gone {
		return nil
	}
	return p.machines[i]
}

// list is what the provider lists.
func (p *provider) list(now time.Duration) (all []rent.Instance) {
	for _, m := range p.machines {
		i := m.Instance
		i.Age = now - m.launched
		all = append(all, i)
	}
	return all
}

// agents are those of rented machines and of others, as members know them.
func (p *provider) agents(now time.Duration) (all []rent.Agent) {
	agent := func(lane int) (rent.Agent, bool) {
		is, l := p.fleet.Agent(lane), &p.lanes[lane]
		return rent.Agent{
			// As in production, an agent is ready that the planner has asked for nothing.
			Name: string(l.Agent), Type: l.Type, Ready: true, Draining: is.Draining,
			Leads: is.Leads, Keeper: l.Kept, Factor: 1,
		}, is.Present && !is.Ended
	}
	for i := range p.lanes {
		if a, ok := agent(i); ok && p.lanes[i].Kept {
			all = append(all, a)
		}
	}
	for _, m := range p.machines {
		a, ok := agent(m.lane)
		if !ok || m.State != rent.Running {
			continue
		}
		a.Instance, a.Slot = m.ID, &m.Slot
		if m.ends > 0 {
			a.Ends = max(1, m.ends-now)
		}
		all = append(all, a)
	}
	return all
}
