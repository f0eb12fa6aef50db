package main

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/pprof"
	"syscall"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader"
)

// together is how many submits a gateway's message has.
const together = 16

// A happening is an event of a query, without what all events of its kind share.
type happening struct {
	at        time.Duration
	kind      leader.EventKind
	gateway   uint64
	sequence  uint64
	attempt   int
	agent     names.AgentName
	model     int
	batch     int
	execution time.Duration
	latency   time.Duration
}

func (h *happening) fill(e *leader.Event) {
	*e = leader.Event{
		Kind: h.kind, Gateway: h.gateway, Sequence: h.sequence, Attempt: h.attempt, Agent: h.agent,
		BatchSize: h.batch, Execution: h.execution, Latency: h.latency,
	}
	switch h.kind {
	case leader.Submitted:
		e.Model.Name, e.TimeLeft, e.Splits = modelNames[h.model], time.Minute, true
	case leader.Completed:
		e.Model = leader.ModelID{Name: modelNames[h.model], Version: 1}
	}
}

// modelNames are made once: events do not make strings.
var modelNames = func() (all []string) {
	for i := range 1000 {
		all = append(all, modelID(i).Name)
	}
	return all
}()

// ends is a heap of completions, the earliest first.
type ends []happening

func (h ends) Len() int           { return len(h) }
func (h ends) Less(i, j int) bool { return h[i].at < h[j].at }
func (h ends) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *ends) Push(x any)        { *h = append(*h, x.(happening)) }
func (h *ends) Pop() any {
	old := *h
	x := old[len(old)-1]
	*h = old[:len(old)-1]
	return x
}

// A history is what happens to a leader's State in virtual time: gateways that send messages of
// many submits, in each also the cancellations of the queries that have been answered since the
// last, and lanes that complete what they are assigned.
type history struct {
	f         *fleet
	state     *leader.State
	random    *rand.Rand
	now       time.Duration
	ends      ends
	answered  [][]uint64 // by gateway, the queries to cancel
	sequences []uint64
	asked     map[[2]uint64]*happening // the queries that have not ended
	kept      []happening
	keep      bool
	late, n   int
}

func newState(f *fleet) (*leader.State, error) {
	all := make([]int, f.lanes)
	for i := range all {
		all[i] = i
	}
	return newStateOf(f, all)
}

// newStateOf returns the state of a leader of some of a fleet's agents, to which all gateways have
// connected.
func newStateOf(f *fleet, agents []int) (*leader.State, error) {
	s, err := leader.NewState(leader.Config{Self: nameOf(0)})
	if err != nil {
		return nil, err
	}
	advice, err := f.advice()
	if err != nil {
		return nil, err
	}
	var all []*leader.Member
	for _, i := range agents {
		all = append(all, f.member(i))
	}
	s.Step(0, &leader.Event{Kind: leader.ViewChanged, Members: all})
	for _, m := range all {
		s.Step(0, &leader.Event{Kind: leader.Described, Member: m})
		s.Step(0, &leader.Event{Kind: leader.Greeted, Agent: m.Name})
	}
	s.Step(0, &leader.Event{Kind: leader.Learned, Advice: advice})
	for g := range f.gateways {
		s.Step(0, &leader.Event{Kind: leader.GatewayConnected, Gateway: uint64(g + 1)})
	}
	return s, nil
}

func newHistory(f *fleet) (*history, error) {
	s, err := newState(f)
	if err != nil {
		return nil, err
	}
	return &history{
		f: f, state: s, random: rand.New(rand.NewPCG(1, 2)), now: time.Second,
		answered: make([][]uint64, f.gateways), sequences: make([]uint64, f.gateways),
		asked: map[[2]uint64]*happening{},
	}, nil
}

func (h *history) step(x happening) {
	x.at = h.now
	if h.keep {
		h.kept = append(h.kept, x)
	}
	var e leader.Event
	x.fill(&e)
	for _, a := range h.state.Step(h.now, &e) {
		if a.Kind != leader.Assign {
			continue
		}
		d := &a.Decision
		q := h.asked[[2]uint64{d.Query.Gateway, d.Query.Sequence}]
		took := time.Duration(float64(d.Latency) * (1 + runNoise*h.random.NormFloat64()))
		h.n++
		if d.Slack < 0 {
			h.late++
		}
		heap.Push(&h.ends, happening{
			at: h.now + d.Wait + took, kind: leader.Completed, gateway: d.Query.Gateway,
			sequence: d.Query.Sequence, attempt: d.Attempt, agent: a.Agent, model: q.model,
			batch: q.batch, execution: took, latency: d.Waited + d.Wait + took,
		})
	}
}

// runUntil lets time pass, with what happens meanwhile.
func (h *history) runUntil(at time.Duration) {
	for {
		next := h.state.Next()
		if len(h.ends) > 0 && h.ends[0].at <= min(at, next) {
			x := heap.Pop(&h.ends).(happening)
			h.now = max(h.now, x.at)
			h.step(x)
			g := x.gateway - 1
			h.answered[g] = append(h.answered[g], x.sequence)
			delete(h.asked, [2]uint64{x.gateway, x.sequence})
		} else if next <= at {
			h.now = max(h.now+1, next)
			h.step(happening{kind: leader.TimePassed})
		} else {
			h.now = max(h.now, at)
			return
		}
	}
}

// sendMessage has a gateway send a message.
func (h *history) sendMessage() {
	h.runUntil(h.now + time.Duration(h.random.ExpFloat64()*together/h.f.rate*1e9))
	g := uint64(h.random.IntN(h.f.gateways))
	for range together {
		h.sequences[g] += 4
		x := happening{
			kind: leader.Submitted, gateway: g + 1, sequence: h.sequences[g],
			model: h.random.IntN(h.f.models), batch: 1 + h.random.IntN(maxBatch),
		}
		h.asked[[2]uint64{x.gateway, x.sequence}] = &x
		h.step(x)
	}
	for _, sequence := range h.answered[g] {
		h.step(happening{kind: leader.Cancelled, gateway: g + 1, sequence: sequence})
	}
	h.answered[g] = h.answered[g][:0]
}

// cpuTime is the CPU time of this process so far.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err) // it has no other arguments
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// measureState is the CPU time that a State takes for a query, in us, as the median of the rounds,
// and the share of the queries that were assigned late.
func measureState(f *fleet, queries, rounds int, profile string) (us []float64, late float64,
	err error) {
	h, err := newHistory(f)
	if err != nil {
		return nil, 0, err
	}
	// A quarter, and a second of queries at each lane, come first: buffers grow, shards fill.
	warm := queries/4 + f.lanes*8
	h.keep = true
	for n := 0; n < warm; n += together {
		h.sendMessage()
	}
	from := len(h.kept)
	h.n, h.late = 0, 0
	for n := 0; n < queries; n += together {
		h.sendMessage()
	}
	late = float64(h.late) / float64(max(1, h.n))
	for range rounds {
		s, err := newState(f)
		if err != nil {
			return nil, 0, err
		}
		var e leader.Event
		for i := range h.kept[:from] {
			h.kept[i].fill(&e)
			s.Step(h.kept[i].at, &e)
		}
		runtime.GC()
		if profile != "" {
			out, err := os.Create(profile)
			if err != nil {
				return nil, 0, err
			}
			if err := pprof.StartCPUProfile(out); err != nil {
				return nil, 0, err
			}
		}
		before := cpuTime()
		for i := range h.kept[from:] {
			x := &h.kept[from+i]
			x.fill(&e)
			s.Step(x.at, &e)
		}
		us = append(us, float64(cpuTime()-before)/1e3/float64(queries))
		if profile != "" {
			pprof.StopCPUProfile()
			profile = ""
		}
	}
	if len(us) != rounds {
		return nil, 0, fmt.Errorf("%d rounds", len(us))
	}
	return us, late, nil
}
