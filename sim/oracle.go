package sim

import (
	"container/heap"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/muster-serve/muster/leader/match"
)

// oracleRate is the throughput, in queries/s, of the policy oracle, which knows the whole sequence
// of queries (KAIROS, section 7). An idle base instance takes the largest query left, an idle
// auxiliary one the smallest; neither takes a query whose mean latency there exceeds the QoS
// target. Waiting does not count. The throughput is the rate at which the sequence is served.
func oracleRate(cfg *Config, seed uint64) (float64, error) {
	if len(cfg.Models) != 1 {
		return 0, fmt.Errorf("the oracle simulates one model, not %d", len(cfg.Models))
	}
	c := *cfg
	c.Seed, c.Rate = seed, 1
	r, err := newRun(&c)
	if err != nil {
		return 0, err
	}
	stream, err := c.queryStream()
	if err != nil {
		return 0, err
	}
	type item struct {
		batch   int
		uniform float64
	}
	items := make([]item, 0, c.Queries)
	for q := range stream {
		items = append(items, item{q.BatchSize, drawUniform(r.ranks)})
		if len(items) == c.Queries {
			break
		}
	}
	if len(items) == 0 {
		return 0, errors.New("no queries arrive")
	}
	slices.SortStableFunc(items, func(a, b item) int { return a.batch - b.batch })

	m := &c.Models[0]
	base := make([]bool, len(r.types))
	for t, name := range r.types {
		base[t] = isBase(c.Models, name)
	}
	var idle idleLanes
	for i := range r.lanes {
		idle = append(idle, idleLane{lane: i, order: i})
	}
	first, last := 0, len(items)-1
	var end time.Duration
	order := len(r.lanes)
	for first <= last {
		if len(idle) == 0 {
			return 0, nil // no instance of the pool can serve the queries left
		}
		e := heap.Pop(&idle).(idleLane)
		l := &r.lanes[e.lane]
		next := &items[first]
		if base[l.instanceType] {
			next = &items[last]
		}
		execution := l.execution[0]
		if meanLatency(m.assumedLatencies(r.types[l.instanceType]), next.batch) > m.QoSTarget {
			continue // the smallest is too large for it, so it takes no more
		}
		if base[l.instanceType] {
			last--
		} else {
			first++
		}
		e.at += execution.Quantile(next.uniform, next.batch)
		end = max(end, e.at)
		order++
		e.order = order
		heap.Push(&idle, e)
	}
	return float64(len(items)) / end.Seconds(), nil
}

// An idleLane is a lane that is idle from a time on.
type idleLane struct {
	at          time.Duration
	order, lane int // order breaks ties
}

// idleLanes is a heap, the lane that is idle first in front; see [container/heap].
type idleLanes []idleLane

func (h idleLanes) Len() int      { return len(h) }
func (h idleLanes) Swap(i, k int) { h[i], h[k] = h[k], h[i] }
func (h idleLanes) Less(i, k int) bool {
	return h[i].at < h[k].at || h[i].at == h[k].at && h[i].order < h[k].order
}

// Push implements heap.Interface.
func (h *idleLanes) Push(x any) { *h = append(*h, x.(idleLane)) }

// Pop implements heap.Interface.
func (h *idleLanes) Pop() any {
	last := len(*h) - 1
	l := (*h)[last]
	*h = (*h)[:last]
	return l
}

func meanLatency(l match.Latencies, batchSize int) time.Duration {
	if l == nil {
		return math.MaxInt64
	}
	return l.Mean(batchSize)
}
