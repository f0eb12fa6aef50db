package merge

import (
	"time"

	"github.com/muster-serve/muster/runtime/queue"
)

// A Mergeable is a query in a [queue.Queue] of which several may run together.
type Mergeable interface {
	queue.Item
	// Merging returns what the query shares with those that it may run with, and its batch size. A
	// nil kind means that it runs alone. group, if not nil, was sent to run together.
	Merging() (kind *Kind, batch int, group *Group)
}

// A Taker takes from a queue what a lane is to run next. The zero value is ready to use.
type Taker[T Mergeable] struct {
	waiting, run []T
	items        []Item
	tried        []*Kind
}

// Take removes from q the queries that a lane which is free now runs as one, the most urgent first,
// and returns them. If it returns none, until is when to call it again at the latest; it is Never
// if q is empty. The result is valid until the next call.
func (t *Taker[T]) Take(q *queue.Queue[T], now time.Duration) (run []T, until time.Duration) {
	until = Never
	t.tried, t.run = t.tried[:0], t.run[:0]
	t.waiting = q.First(t.waiting[:0], now, 1)
	if len(t.waiting) == 0 {
		return nil, until
	}
	switch kind, _, group := t.waiting[0].Merging(); {
	case group.isAwaited(now):
		return nil, group.until
	case !kind.seeksOthers():
		q.Remove(t.waiting[0])
		return append(t.run, t.waiting[0]), now
	}
	t.waiting = q.First(t.waiting[:0], now, Most)
	for i, head := range t.waiting {
		kind, batch, group := head.Merging()
		switch {
		case group.isAwaited(now): // only where the queries before wait for others by their policy
			return nil, min(until, group.until)
		case !kind.seeksOthers():
			q.Remove(head)
			return append(t.run, head), now
		}
		if t.hasTried(kind) {
			continue
		}
		t.tried = append(t.tried, kind)
		t.items = append(t.items[:0], toItem(head, batch))
		for _, x := range t.waiting[i+1:] {
			of, n, with := x.Merging()
			other := toItem(x, n)
			other.Planned = with != nil && with == group && of == kind
			other.Other = of != kind || !other.Planned && with.isAwaited(now)
			t.items = append(t.items, other)
		}
		take, at := kind.Choose(now, t.items)
		if at > now {
			until = min(until, at) // meanwhile a query of another kind may run
			continue
		}
		for _, k := range take {
			x := t.waiting[i+k]
			q.Remove(x)
			t.run = append(t.run, x)
		}
		return t.run, now
	}
	return nil, until
}

func (t *Taker[T]) hasTried(kind *Kind) bool {
	for _, k := range t.tried {
		if k == kind {
			return true
		}
	}
	return false
}

// toItem describes a query.
func toItem[T Mergeable](x T, batch int) Item {
	of := queue.PlaceOf(x)
	due := of.Due()
	if due == queue.NoTarget {
		due = Never
	}
	return Item{Batch: batch, Due: due, Mean: of.Estimate, P80: of.Estimate}
}
