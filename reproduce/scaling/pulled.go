package scaling

import (
	"time"

	"github.com/muster-serve/muster/reproduce/placements"
)

// A pulled system is SlackFit: queries wait for their family, and an idle agent takes some.
type pulled struct {
	*run
	fit     *placements.SlackFit
	devices []*device // by agent
	waiting [][]int   // by family, the oldest first
}

// A device is an agent of a family.
type device struct {
	agent, typ, family int
	busy               bool
}

type deviceEnds struct {
	device  *device
	ids     []int
	variant int
}

func (p *pulled) placed(agent int) {
	a := &p.state.Agents[agent]
	d := p.devices[agent]
	if a.Variant < 0 {
		p.devices[agent] = nil
		return
	}
	of := p.Fleet.Variants[a.Variant].Family
	if d != nil && d.family == of {
		return
	}
	// One that still runs goes on, and its agent with the new family only after that.
	n := &device{agent: agent, typ: a.Type, family: of}
	if d != nil {
		n.busy = d.busy
	}
	p.devices[agent] = n
	p.take(n)
}

func (p *pulled) arrived(id int) {
	k := p.queries[id].family
	p.waiting[k] = append(p.waiting[k], id)
	var fastest *device
	for _, d := range p.devices {
		if d != nil && !d.busy && d.family == k &&
			(fastest == nil || p.single(d) < p.single(fastest)) {
			fastest = d
		}
	}
	if fastest != nil {
		p.take(fastest)
	}
}

// single is how long a device runs one query by the variant that it runs if no time is left.
func (p *pulled) single(d *device) time.Duration {
	v, _ := p.fit.Choose(p.Fleet, d.typ, d.family, 0)
	if v < 0 {
		return 1 << 62
	}
	return p.Fleet.Latency[d.typ][v][0] // as it is known
}

// least is how long the fastest of a family's devices runs one query.
func (p *pulled) least(family int) time.Duration {
	least := time.Duration(1 << 62)
	for _, d := range p.devices {
		if d != nil && d.family == family {
			least = min(least, p.single(d))
		}
	}
	return least
}

// take starts a run on an idle device.
func (p *pulled) take(d *device) {
	if d.busy {
		return
	}
	queue := p.waiting[d.family]
	for len(queue) > 0 && p.now+p.least(d.family) > p.queries[queue[0]].due {
		p.finish(queue[0], -1, false) // nobody answers it in time
		queue = queue[1:]
	}
	p.waiting[d.family] = queue
	if len(queue) == 0 || p.now+p.single(d) > p.queries[queue[0]].due { // for a faster one
		return
	}
	variant, size := p.fit.Choose(p.Fleet, d.typ, d.family, p.queries[queue[0]].due-p.now)
	if variant < 0 {
		return
	}
	n := min(p.Fleet.Sizes[size], len(queue))
	ids := queue[:n:n]
	p.waiting[d.family] = queue[n:]
	d.busy = true
	p.push(p.now+p.latency(d.typ, variant, p.sizeFor(n)), deviceEnds{d, ids, variant})
}

func (p *pulled) handle(e event) {
	x := e.what.(deviceEnds)
	for _, id := range x.ids {
		p.finish(id, x.variant, false)
	}
	x.device.busy = false
	d := p.devices[x.device.agent]
	if d != nil && d != x.device {
		d.busy = false
	}
	if d != nil {
		p.take(d)
	}
}
