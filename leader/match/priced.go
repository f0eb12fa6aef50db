package match

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/fluid"
)

// A PricedLanes holds what a gateway without a leader knows of the lanes: prices, profiles, and the
// last news of each. It ranks the lanes for a query; package inquire then asks the best.
//
// It is not safe for concurrent use.
type PricedLanes struct {
	models []Model
	catalogue
	types []*instanceType
	lanes []*pricedLane // in the order of their ids
	rng   *rand.Rand

	ranked []Candidate
}

// A pricedLane is a lane as a gateway knows it.
type pricedLane struct {
	id LaneID
	laneSpec
	heard  time.Time // the time of the last news
	freeAt time.Time
}

// A Candidate is a lane worth asking.
type Candidate struct {
	Lane LaneID
	// Model is the model that the lane would run: the one that the query names, or a variant of the
	// family that it names. Accuracy is that variant's, 1 if it is unknown.
	Model    names.ModelKey
	Accuracy float64
	// Cost is what the lane's time for the query costs, in units of what an average query is worth.
	Cost float64
	// Latency is the predicted mean execution latency there. Wait is how long the query would wait
	// there by the last news.
	Latency, Wait time.Duration
	// Needs is the time in which the lane would wait and run the query, by the last news and the 80
	// % quantile of its latency, without the ways.
	Needs time.Duration

	late      bool // it seems too late for the QoS target
	rank, tie float64
}

// An Inquiry is a query for which a lane is to be chosen.
type Inquiry struct {
	// Query identifies the query among those without a decision; the caller chooses it.
	Query uint64
	// Model is a model or a family, of which LeastAccuracy is the least accuracy that a variant
	// must have to answer the query; 0 means that any may.
	Model         names.ModelKey
	LeastAccuracy float64
	BatchSize     int
	Arrival       time.Time
	// Failed are the lanes that have failed the query. They are asked only if there are no others.
	Failed []LaneID
}

// NewPricedLanes returns a Priced with the given models and no lanes. Gateways need different
// seeds, so that they do not all ask the same of several equal lanes.
func NewPricedLanes(models []Model, seed uint64) (*PricedLanes, error) {
	cfg := Config{Models: models}
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	p := &PricedLanes{
		models: slices.Clone(models), catalogue: newCatalogue(),
		rng: rand.New(rand.NewPCG(seed, 1)),
	}
	for i, m := range p.models {
		p.byName[m.Name] = i
		p.applyModelChange(p.models, i, "")
	}
	return p, nil
}

// SetProfile sets the latency of a model on an instance type; nil means unknown.
func (p *PricedLanes) SetProfile(model names.ModelKey, laneType names.LaneType,
	t *LatencyTable) error {
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

// SetPrices sets the prices to those that a leader sent last. A price that is not a number >= 0
// counts as unknown.
func (p *PricedLanes) SetPrices(prices []fluid.Price) {
	for _, t := range p.types {
		t.unsetPrice()
	}
	for i := range prices {
		if validatePrice(&prices[i]) == nil {
			p.instanceType(prices[i].Type).setPrice(&prices[i])
		}
	}
	p.setPrices(func(yield func(*laneSpec) bool) {
		for _, l := range p.lanes {
			if !yield(&l.laneSpec) {
				return
			}
		}
	})
}

// Target returns the QoS target of a model or a family, 0 if it is unknown.
func (p *PricedLanes) Target(name names.ModelKey) time.Duration {
	if f := p.lookupFamily(name); f != nil {
		return fromMs(f.target)
	}
	return 0
}

func (p *PricedLanes) instanceType(name names.LaneType) *instanceType {
	for _, t := range p.types {
		if t.name == name {
			return t
		}
	}
	t := newInstanceType(name, len(p.models))
	p.types = append(p.types, t)
	return t
}

// Join adds a lane, or changes the models that it holds; unknown models are left out. A new lane
// counts as free until the first news of it.
func (p *PricedLanes) Join(id LaneID, laneType names.LaneType, models []names.ModelKey) {
	holds := make([]bool, len(p.models))
	for _, name := range models {
		if i, ok := p.byName[name]; ok {
			holds[i] = true
		}
	}
	i, known := p.findLane(id)
	if !known {
		p.lanes = slices.Insert(p.lanes, i, &pricedLane{id: id})
	}
	l := p.lanes[i]
	l.typ, l.holds = p.instanceType(laneType), holds
	l.setPrice(p.classModels(l.typ))
}

// Leave removes a lane that is lost or takes no more queries.
func (p *PricedLanes) Leave(id LaneID) {
	if i, ok := p.findLane(id); ok {
		p.lanes = slices.Delete(p.lanes, i, i+1)
	}
}

// NoteRemaining takes news of a lane, from gossip or an answer: at the given time it would have
// been free after remaining. News older than the last is ignored.
func (p *PricedLanes) NoteRemaining(id LaneID, at time.Time, remaining time.Duration) {
	if i, ok := p.findLane(id); ok && !at.Before(p.lanes[i].heard) {
		p.lanes[i].heard, p.lanes[i].freeAt = at, at.Add(max(0, remaining))
	}
}

func (p *PricedLanes) findLane(id LaneID) (at int, known bool) {
	return slices.BinarySearchFunc(p.lanes, id,
		func(l *pricedLane, id LaneID) int { return int(l.id) - int(id) })
}

// Rank returns up to n lanes to ask for q, which has waited for so long, the best first, by price
// times latency plus the answer's regret and waiting in QoS targets. Each lane would run the
// variant that is best by that and in time, else the fastest. Lanes that seem too late for the QoS
// target come last. Among equal lanes the order is random. Rank returns none if no lane can serve
// the query. The result is valid until the next call.
func (p *PricedLanes) Rank(now time.Time, q *Inquiry, waited time.Duration, n int) []Candidate {
	p.ranked = p.ranked[:0]
	f := p.lookupFamily(q.Model)
	if f == nil || q.BatchSize < 1 || q.BatchSize > f.largest || n < 1 {
		return nil
	}
	asks := query{family: f, accuracy: q.LeastAccuracy, batch: q.BatchSize}
	for _, l := range p.lanes {
		if c, ok := p.candidateFor(l, &asks, toMs(waited), max(0, toMs(l.freeAt.Sub(now)))); ok {
			c.tie = p.rng.Float64()
			p.keepBest(c, n)
		}
	}
	return p.ranked
}

// candidateFor returns l as a candidate for q, which has waited for so long and would wait there;
// false if l does not serve it. Times are in ms.
func (p *PricedLanes) candidateFor(l *pricedLane, q *query, waited, wait float64) (best Candidate,
	ok bool) {
	model, fastest := l.fastestVariant(q)
	if fastest == nil {
		return best, false
	}
	worth, inTime := l.timePrice(model), false
	for _, v := range q.allowedVariants() {
		tab := l.latencyTable(v.model)
		if tab == nil {
			continue
		}
		c := Candidate{
			Lane: l.id, Model: p.models[v.model].Name, Accuracy: v.accuracy,
			Cost:    worth*tab.mean[q.batch] + v.regret,
			Latency: tab.Mean(q.batch), Wait: fromMs(wait), Needs: fromMs(wait + tab.safe[q.batch]),
		}
		c.rank = c.Cost + wait/q.family.target
		if waited+wait+tab.safe[q.batch] > q.family.target {
			c.late, c.rank = true, (toMs(c.Latency)+wait)/q.family.target
			if !inTime && v.model == model {
				best, ok = c, true
			}
		} else if !inTime || c.rank < best.rank {
			best, ok, inTime = c, true, true
		}
	}
	return best, ok
}

// keepBest inserts c into ranked, which holds the best n so far.
func (p *PricedLanes) keepBest(c Candidate, n int) {
	better := func(a, b *Candidate) bool {
		if a.late != b.late {
			return b.late
		}
		return a.rank < b.rank || a.rank == b.rank && a.tie < b.tie
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

// Sent notes that a query of the given latency, or a question that reserves the lane for one, is on
// its way to a lane. The lane counts as busy for that much longer until the next news of it.
func (p *PricedLanes) Sent(id LaneID, now time.Time, latency time.Duration) {
	if i, ok := p.findLane(id); ok {
		l := p.lanes[i]
		if l.freeAt.Before(now) {
			l.freeAt = now
		}
		l.freeAt = l.freeAt.Add(latency)
	}
}
