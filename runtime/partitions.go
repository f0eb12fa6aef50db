package runtime

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/muster-serve/muster/api/names"
)

// A Part is a partition and the models whose queries run there.
type Part struct {
	*Partition
	// Models are the models of the partition; nil: all that no other partition has.
	Models []string
	// First is the number of its first lane among all lanes; Arrange sets it.
	First int
}

// Partitions are all lanes of a process, numbered through, each with the models of its partition.
// Other partitions can take their place while queries run ([Partitions.Arrange]). The methods may
// be called concurrently; only Do, Drain and Retire block.
type Partitions struct {
	now atomic.Pointer[arrangement]
	// changing guards changes of now.
	changing sync.Mutex
	// draining counts the queries that got no answer because their lanes drain. Lanes that were
	// replaced refuse some that others then answer.
	draining atomic.Uint64
}

// An arrangement is the partitions at a time. It is never changed.
type arrangement struct {
	parts []Part
	// former had the lanes before, the last first. They run what they hold, and queries of models
	// that no part has any more.
	former []Part
	ended  LanesStats // Busy and Dropped of those that were retired
}

// NewPartitions returns the lanes of some partitions, in their order. A model may be
// in one of them.
func NewPartitions(parts ...Part) (*Partitions, error) {
	p := &Partitions{}
	p.now.Store(&arrangement{})
	if _, err := p.Arrange(parts...); err != nil {
		return nil, err
	}
	return p, nil
}

// Arrange makes parts all the lanes, numbered anew. Those of the partitions before that are not
// among them take no new queries of the models of parts, and are returned: Retire ends them. A
// query that is sent to a lane which has another model now runs on a lane that has its model.
func (p *Partitions) Arrange(parts ...Part) (former []Part, err error) {
	numbered := make([]Part, len(parts))
	lanes := 0
	seen := map[string]bool{}
	for i, part := range parts {
		for _, m := range part.Models {
			if seen[m] {
				return nil, fmt.Errorf("runtime: model %q is in two partitions", m)
			}
			seen[m] = true
		}
		if part.Models == nil && slices.ContainsFunc(parts[:i], func(o Part) bool {
			return o.Models == nil
		}) {
			return nil, errors.New("runtime: two partitions are for all other models")
		}
		part.First = lanes
		lanes += part.lanes
		numbered[i] = part
	}
	p.changing.Lock()
	defer p.changing.Unlock()
	before := p.now.Load()
	for _, part := range before.parts {
		if !hasPartition(numbered, part.Partition) {
			former = append(former, part)
		}
	}
	p.now.Store(&arrangement{
		parts: numbered, former: slices.Concat(former, before.former), ended: before.ended,
	})
	return former, nil
}

// Retire ends partitions that Arrange has returned. It blocks until all that they hold has ended;
// when ctx ends, it cancels the rest.
func (p *Partitions) Retire(ctx context.Context, former []Part) error {
	err := drainParts(ctx, former)
	p.changing.Lock()
	defer p.changing.Unlock()
	next := *p.now.Load()
	next.former = slices.DeleteFunc(slices.Clone(next.former), func(part Part) bool {
		if !hasPartition(former, part.Partition) {
			return false
		}
		s := part.Stats()
		s.Running, s.Waiting, s.WaitingBytes = 0, 0, 0 // a run that drain gave up ends by itself
		next.ended.Add(s)
		return true
	})
	p.now.Store(&next)
	return err
}

func hasPartition(parts []Part, p *Partition) bool {
	return slices.ContainsFunc(parts, func(o Part) bool { return o.Partition == p })
}

// Parts returns the partitions, which must not be changed.
func (p *Partitions) Parts() []Part { return p.now.Load().parts }

// Former returns the partitions that Arrange has replaced and that are not retired yet.
func (p *Partitions) Former() []Part { return p.now.Load().former }

// Of returns the partition of a model; nil if it has none.
func (p *Partitions) Of(model string) *Part {
	now := p.now.Load()
	if part := partOf(now.parts, model); part != nil {
		return part
	}
	return partOf(now.former, model)
}

func partOf(parts []Part, model string) *Part {
	var others *Part
	for i := range parts {
		part := &parts[i]
		if slices.Contains(part.Models, model) {
			return part
		}
		if part.Models == nil && others == nil {
			others = part
		}
	}
	return others
}

func (p *Partitions) ofProfile(profile names.ModelKey) *Part {
	model, _ := profile.Split()
	return p.Of(model)
}

// Do is [Lanes.Do] on the partition of q.Profile's model. Lanes are numbered among all.
func (p *Partitions) Do(ctx context.Context, q Query) (*Result, error) {
	part := p.ofProfile(q.Profile)
	for {
		if part == nil {
			return nil, fmt.Errorf("runtime: no partition has the model of %s", q.Profile)
		}
		here := q
		here.Lane -= part.First
		if m, ok := q.Model.(*Spread); ok {
			here.Model = m.On(part.Partition)
		}
		result, err := part.Do(ctx, here)
		if err == nil {
			result.Lane += part.First
			return result, nil
		}
		// The partition may have been retired just now.
		next := p.ofProfile(q.Profile)
		switch {
		case !errors.Is(err, ErrDraining):
			return nil, err
		case next != nil && next.Partition == part.Partition:
			p.draining.Add(1)
			return nil, err
		}
		part = next
	}
}

// Drain drains all lanes; see [Lanes.Drain].
func (p *Partitions) Drain(ctx context.Context) error {
	now := p.now.Load()
	return drainParts(ctx, slices.Concat(now.parts, now.former))
}

func drainParts(ctx context.Context, parts []Part) error {
	errs := make(chan error, len(parts))
	for _, part := range parts {
		go func() { errs <- part.Drain(ctx) }()
	}
	var err error
	for range parts {
		if e := <-errs; e != nil {
			err = e
		}
	}
	return err
}

// Considerate is [Lanes.Considerate] of all lanes.
func (p *Partitions) Considerate(ctx context.Context) context.Context {
	return context.WithValue(ctx, servingModels{}, p)
}

// Calm is [Lanes.Calm] of all lanes.
func (p *Partitions) Calm() bool {
	now := p.now.Load()
	busy := func(part Part) bool { return !part.Calm() }
	return !slices.ContainsFunc(now.parts, busy) && !slices.ContainsFunc(now.former, busy)
}

// RefusesUnread is [Lanes.RefusesUnread] if there is one partition. With several it is false:
// before a query is read, its partition is unknown.
func (p *Partitions) RefusesUnread(held int64) bool {
	parts := p.Parts()
	return len(parts) == 1 && parts[0].RefusesUnread(held)
}

// UnreadError is [Lanes.UnreadError] if there is one partition. With several, the client is told to
// try again when the first of their lanes is free.
func (p *Partitions) UnreadError(held int64) *OverloadedError {
	if parts := p.Parts(); len(parts) == 1 {
		return parts[0].UnreadError(held)
	}
	s := p.Stats()
	return &OverloadedError{s.Waiting, held, max(s.Remaining, time.Millisecond)}
}

// Stats returns a snapshot of all lanes. Remaining is that of the partition with the least. Queries
// that former lanes still hold count.
func (p *Partitions) Stats() (all LanesStats) {
	now := p.now.Load()
	all = now.ended
	for i, part := range now.parts {
		s := part.Stats()
		all.Add(s)
		all.Lanes += s.Lanes
		if i == 0 || s.Remaining < all.Remaining {
			all.Remaining = s.Remaining
		}
		all.RemainingByLane = append(all.RemainingByLane, s.RemainingByLane...)
	}
	for _, part := range now.former {
		all.Add(part.Stats())
	}
	all.Dropped.Draining = p.draining.Load()
	return all
}

// LaneShare is which part of all cores a lane of a model's partition has; 0 if it has none. It takes
// no lock.
func (p *Partitions) LaneShare(model string) float64 {
	part, cores := p.Of(model), 0
	for _, each := range p.Parts() {
		cores += each.cores
	}
	if part == nil || cores == 0 {
		return 0
	}
	return float64(part.cores) / float64(part.lanes) / float64(cores)
}

// Remaining is [Lanes.Remaining] of a model's partition; 0 if it has none.
func (p *Partitions) Remaining(model string) time.Duration {
	if part := p.Of(model); part != nil {
		return part.Remaining()
	}
	return 0
}

// RemainingByLane returns LanesStats.RemainingByLane.
func (p *Partitions) RemainingByLane() (all []time.Duration) {
	for _, part := range p.Parts() {
		all = append(all, part.RemainingByLane()...)
	}
	return all
}

// Estimate is [Lanes.Estimate].
func (p *Partitions) Estimate(profile names.ModelKey, batchSize int) time.Duration {
	if part := p.ofProfile(profile); part != nil {
		return part.Estimate(profile, batchSize)
	}
	return 0
}

// Reserve is [Lanes.Reserve] on the partition of the profile's model, which must have one.
func (p *Partitions) Reserve(profile names.ModelKey, batchSize int,
	keep time.Duration) *Reservation {
	return p.ofProfile(profile).Reserve(profile, batchSize, keep)
}

// Release is [Lanes.Release].
func (p *Partitions) Release(r *Reservation) {
	if r != nil {
		r.of.Release(r)
	}
}
