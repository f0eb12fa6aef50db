package match

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/fluid"
)

// A Price is the worth of an instance type's time, by the name under which those
// who see this package alone know it.
type Price = fluid.Price

// A Priced is what a gateway that has no leader knows of the lanes: prices, profiles and what was
// last heard. It ranks them for a query; [Leaderless] then asks the best.
//
// It is not safe for concurrent use.
type Priced struct {
	models []Model
	byName map[names.ModelKey]int
	types  []*instanceType
	lanes  []*pricedLane // in the order of their ids
	rng    *rand.Rand

	ranked []Candidate
}

// A pricedLane is a lane as a gateway believes it to be.
type pricedLane struct {
	id     LaneID
	typ    *instanceType
	holds  []bool
	heard  time.Time // when this was so
	freeAt time.Time
}

// A Candidate is a lane worth asking.
type Candidate struct {
	Lane LaneID
	// Cost is what the lane's time for the query costs, in units of what an average query is worth.
	Cost float64
	// Latency is the predicted mean execution latency there, Wait how long the query would wait
	// there by what was last heard.
	Latency, Wait time.Duration
	// Needs is the time until the lane would have answered with a high certainty, if it is as
	// believed, without the ways.
	Needs time.Duration

	rank, tie float64
}

// NewPriced returns what a gateway knows that knows the given models and no lanes. Gateways must
// have different seeds, for they should not ask the same of several equal lanes.
func NewPriced(models []Model, seed uint64) (*Priced, error) {
	cfg := Config{Models: models}
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	p := &Priced{
		models: slices.Clone(models), byName: map[names.ModelKey]int{},
		rng: rand.New(rand.NewPCG(seed, 1)),
	}
	for i, m := range p.models {
		p.byName[m.Name] = i
	}
	return p, nil
}

// SetProfile sets the latency of a model on an instance type; nil: unknown.
func (p *Priced) SetProfile(model names.ModelKey, laneType names.LaneType, t *Table) error {
	i, ok := p.byName[model]
	if !ok {
		return fmt.Errorf("profile of model %q on %s: no such model is configured", model,
			laneType)
	}
	if t != nil && t.Largest() < p.models[i].LargestBatchSize {
		return fmt.Errorf("profile of model %q on %s: ends at batch size %d, want %d", model,
			laneType, t.Largest(), p.models[i].LargestBatchSize)
	}
	p.instanceType(laneType).tables[i] = t
	return nil
}

// SetPrices sets the prices, the last that the leader has sent. One that is no
// number >= 0 counts as unknown.
func (p *Priced) SetPrices(prices []fluid.Price) {
	for _, t := range p.types {
		t.price = math.NaN()
	}
	for _, price := range prices {
		if price.PerMs >= 0 && price.PerMs <= math.MaxFloat64 {
			p.instanceType(price.Type).price = price.PerMs
		}
	}
}

// target is a model's QoS target, 0 of one that is not known.
func (p *Priced) target(model names.ModelKey) time.Duration {
	if i, ok := p.byName[model]; ok {
		return p.models[i].QoSTarget
	}
	return 0
}

func (p *Priced) instanceType(name names.LaneType) *instanceType {
	for _, t := range p.types {
		if t.name == name {
			return t
		}
	}
	t := newInstanceType(name, len(p.models))
	p.types = append(p.types, t)
	return t
}

// Join tells of a lane, or of a change of what it holds; models unknown here are left out.
// It counts as free until something else is heard.
func (p *Priced) Join(id LaneID, laneType names.LaneType, models []names.ModelKey) {
	holds := make([]bool, len(p.models))
	for _, name := range models {
		if i, ok := p.byName[name]; ok {
			holds[i] = true
		}
	}
	i, known := p.find(id)
	if !known {
		p.lanes = slices.Insert(p.lanes, i, &pricedLane{id: id})
	}
	p.lanes[i].typ, p.lanes[i].holds = p.instanceType(laneType), holds
}

// Leave tells that a lane is lost or takes nothing more.
func (p *Priced) Leave(id LaneID) {
	if i, ok := p.find(id); ok {
		p.lanes = slices.Delete(p.lanes, i, i+1)
	}
}

// Heard tells what a lane said of itself, by gossip or in an answer: as of the
// given time it would be free after remaining. Older news than the last is ignored.
func (p *Priced) Heard(id LaneID, at time.Time, remaining time.Duration) {
	if i, ok := p.find(id); ok && !at.Before(p.lanes[i].heard) {
		p.lanes[i].heard, p.lanes[i].freeAt = at, at.Add(max(0, remaining))
	}
}

func (p *Priced) find(id LaneID) (at int, known bool) {
	return slices.BinarySearchFunc(p.lanes, id,
		func(l *pricedLane, id LaneID) int { return int(l.id) - int(id) })
}

// Rank returns up to n lanes to ask for a query, the best first: by price times latency, plus
// waiting in QoS targets; those that seem too late come last. Of equals it draws. It returns none
// if no lane can serve the query. The result is valid until the next call.
func (p *Priced) Rank(now time.Time, model names.ModelKey, batchSize int, waited time.Duration,
	n int) []Candidate {
	p.ranked = p.ranked[:0]
	m, ok := p.byName[model]
	if !ok || batchSize < 1 || batchSize > p.models[m].LargestBatchSize || n < 1 {
		return nil
	}
	target := toMs(p.models[m].QoSTarget)
	for _, l := range p.lanes {
		tab := l.typ.tables[m]
		if tab == nil || !l.holds[m] {
			continue
		}
		wait := max(0, toMs(l.freeAt.Sub(now)))
		c := Candidate{
			Lane: l.id, Cost: l.typ.worth(m) * tab.mean[batchSize], Latency: tab.Mean(batchSize),
			Wait: fromMs(wait), tie: p.rng.Float64(),
		}
		c.rank = c.Cost + wait/target
		c.Needs = fromMs(wait + tab.safe[batchSize])
		if toMs(waited)+wait+tab.safe[batchSize] > target {
			c.rank = latePrice + (toMs(c.Latency)+wait)/target
		}
		p.keepBest(c, n)
	}
	return p.ranked
}

// keepBest inserts c into ranked, which holds the best n so far.
func (p *Priced) keepBest(c Candidate, n int) {
	better := func(a, b *Candidate) bool {
		return a.rank < b.rank ||
			a.rank == b.rank && a.tie < b.tie
	}
	if len(p.ranked) < n {
		p.ranked = append(p.ranked, c)
	} else if last := &p.ranked[n-1]; better(&c, last) {
		*last = c
	}
	for i := len(p.ranked) - 1; i > 0 && better(&p.ranked[i], &p.ranked[i-1]); i-- {
		p.ranked[i], p.ranked[i-1] = p.ranked[i-1], p.ranked[i]
	}
}

// Sent tells that a query of the given latency is on its way to a lane, or a question that reserves
// its place: the lane counts as busy for so much longer until something else is heard.
func (p *Priced) Sent(id LaneID, now time.Time, latency time.Duration) {
	if i, ok := p.find(id); ok {
		l := p.lanes[i]
		if l.freeAt.Before(now) {
			l.freeAt = now
		}
		l.freeAt = l.freeAt.Add(latency)
	}
}
