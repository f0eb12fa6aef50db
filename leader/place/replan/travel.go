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

// A travel is the way of the agents to what they should hold, in one step.
type travel struct {
	moves []Move
	waits []Wait
}

// patience is how long an agent may take to change beyond ten times what its loads usually take.
// Chosen: a fetch from a slow store still ends, and other agents do not wait for ever for one that
// hangs.
const patience = 2 * time.Minute

// Lanes of an agent that changes count in one of two ways. Those that are away may serve nothing of
// the family, as the agent drains first, or serves the family no more in the end: at most a quarter
// of the family's lanes. Those of an agent that loads first, and serves the family all the while
// but for a moment, are busy: at most a half, with those that are away.

// A host is what an agent does for the families while some change.
type host struct {
	*agent
	lanes map[string]int // by family, of what it holds, or held before it began to change
	away  bool
}

// A census is who serves which family.
type census struct {
	hosts []*host        // by name
	lanes map[string]int // of all, by family
	away  map[string]int
	busy  map[string]int
	// stay is how many agents that are not away, and not about to be, host a family.
	stay map[string]int
}

// beginChanges begins as many changes as may begin now.
func (r *Replanner) beginChanges() {
	r.moving = travel{}
	c := r.takeCensus()
	var pending []*host
	for _, h := range c.hosts {
		switch {
		case h.Fixed || h.Draining:
		case h.away:
			r.goOn(c, h)
		case len(r.wanted[h.Name].Partitions) == 0:
			// The agent held nothing when it came. It need not unload what it has loaded by itself
			// since before there is a plan.
		case !h.Held.Equal(r.wanted[h.Name]) && (r.settled || r.rescued[h.Name]):
			pending = append(pending, h)
		}
	}
	if r.memory.Paused {
		for _, h := range pending {
			if r.pinOf(h.Name) == nil && !r.memory.RolledBack {
				r.wait(h, "placements are paused")
			}
		}
		pending = slices.DeleteFunc(pending, func(h *host) bool {
			return r.pinOf(h.Name) == nil && !r.memory.RolledBack
		})
	}
	short := r.lanesShort(c)
	gain := map[names.AgentName]float64{}
	for _, h := range pending {
		gain[h.Name] = r.gainOfChange(h, short)
	}
	slices.SortStableFunc(pending, func(a, b *host) int {
		return cmp.Or(-cmp.Compare(gain[a.Name], gain[b.Name]), cmp.Compare(a.Name, b.Name))
	})
	var last []*host
	for _, h := range pending {
		why, lastHost := r.mayChange(c, h)
		if why == "" {
			r.start(c, h)
			continue
		}
		r.wait(h, why)
		if lastHost && r.pinOf(h.Name) == nil { // whoever is pinned waits for as long as it takes
			last = append(last, h)
		}
	}
	if len(last) > 0 && r.solving == nil &&
		!slices.ContainsFunc(c.hosts, func(h *host) bool { return h.away }) {
		r.unlock(last)
	}
}

// takeCensus counts who serves what.
func (r *Replanner) takeCensus() *census {
	c := &census{
		lanes: map[string]int{}, away: map[string]int{}, busy: map[string]int{},
		stay: map[string]int{},
	}
	for _, name := range slices.Sorted(maps.Keys(r.agents)) {
		a := r.agents[name]
		if !a.sentAt.IsZero() && a.Taken.Compare(a.sent.Stamp) >= 0 && a.State != Changing {
			a.sentAt = time.Time{} // the agent has it, or has failed to load it
		}
		h := &host{agent: a, away: !a.sentAt.IsZero() || a.State == Changing}
		before := a.Held
		if !a.sentAt.IsZero() {
			before = a.held
		}
		h.lanes = r.lanesByFamily(a, before)
		c.hosts = append(c.hosts, h)
		if a.Draining {
			continue
		}
		to := r.lanesByFamily(a, a.sent.Layout)
		for family, n := range h.lanes {
			c.lanes[family] += n
			switch {
			case !h.away:
				c.stay[family]++
			case a.sentAt.IsZero() || a.sent.DrainFirst || to[family] < n:
				c.away[family] += n
			default:
				c.busy[family] += n
			}
		}
	}
	return c
}

// lanesByFamily is, by family, how many lanes of an agent with a layout serve it.
func (r *Replanner) lanesByFamily(a *agent, l place.Layout) map[string]int {
	by := map[string]int{}
	for _, p := range l.Partitions {
		seen := map[string]bool{}
		for _, m := range p.Models {
			if f := r.familyOf(m); f != "" && !seen[f] {
				seen[f] = true
				by[f] += max(1, cmp.Or(p.Lanes, a.Lanes))
			}
		}
	}
	return by
}

// familyOf is the family of which a model is a variant; "" if none is known.
func (r *Replanner) familyOf(m names.ModelKey) string {
	if v := r.variantOf(m); v != nil {
		return v.Family
	}
	return ""
}

// variantOf is what is known of a model, nil if nothing is.
func (r *Replanner) variantOf(m names.ModelKey) *Variant {
	i, ok := slices.BinarySearchFunc(r.last.Variants, m, func(v Variant, m names.ModelKey) int {
		return cmp.Compare(v.Model, m)
	})
	if !ok {
		return nil
	}
	return &r.last.Variants[i]
}

// bytes is what a model takes in memory, 0 if that is unknown.
func (r *Replanner) bytes(m names.ModelKey) int64 {
	if v := r.variantOf(m); v != nil {
		return v.Bytes
	}
	return 0
}

// load is how long loading the models of to that from does not have usually takes.
func (r *Replanner) load(from, to place.Layout) (all time.Duration) {
	for _, m := range to.Models() {
		if v := r.variantOf(m); v != nil && !from.Has(m) {
			all += cmp.Or(v.Load, usualLoad)
		}
	}
	return all
}

// fitsBeside reports whether what an agent holds and what it should hold fit into its memory
// together.
func (r *Replanner) fitsBeside(a *agent, l place.Layout) bool { return r.fitTogether(a, a.Held, l) }

// fitTogether reports whether the models of two layouts fit into an agent's memory together.
func (r *Replanner) fitTogether(a *agent, k, l place.Layout) bool {
	return a.Memory == 0 || sumBytes(unionModels(k, l), r.bytes) <= a.Memory
}

// mayChange says why an agent may not begin to change now, "" if it may; and whether that is
// because it is the last host of a family.
func (r *Replanner) mayChange(c *census, h *host) (why string, last bool) {
	wanted := r.wanted[h.Name]
	to, fits := r.lanesByFamily(h.agent, wanted), r.fitsBeside(h.agent, wanted)
	for _, f := range slices.Sorted(maps.Keys(h.lanes)) {
		n := h.lanes[f]
		if c.stay[f] <= 1 && !(fits && to[f] > 0) {
			return fmt.Sprintf("it is the last host of family %s", f), c.away[f]+c.busy[f] == 0
		}
		gone := c.away[f] + c.busy[f]
		if gone > 0 && (2*(gone+n) > c.lanes[f] || !(fits && to[f] >= n) && c.away[f] > 0 &&
			4*(c.away[f]+n) > c.lanes[f]) {
			return fmt.Sprintf("%d of %d lanes of family %s are away or change", gone, c.lanes[f],
				f), false
		}
	}
	return "", false
}

// start begins the change of an agent.
func (r *Replanner) start(c *census, h *host) {
	wanted := r.wanted[h.Name]
	h.away = true
	drain, to := !r.fitsBeside(h.agent, wanted), r.lanesByFamily(h.agent, wanted)
	for f, n := range h.lanes {
		if c.stay[f]--; drain || to[f] < n {
			c.away[f] += n
		} else {
			c.busy[f] += n
		}
	}
	h.sent = Move{
		Agent: h.Name, Layout: wanted, DrainFirst: drain, Why: r.placement.Reason,
		Stamp: place.Stamp{Epoch: r.cfg.Epoch, Version: r.placement.Version},
	}
	h.sentAt, h.held = r.now, h.Held
	r.moving.moves = append(r.moving.moves, h.sent)
}

// goOn deals with an agent that is on its way.
func (r *Replanner) goOn(c *census, h *host) {
	taken := h.sentAt.IsZero() || h.Taken.Compare(h.sent.Stamp) >= 0
	wanted := r.wanted[h.Name]
	if !taken && !h.sent.Layout.Equal(wanted) && r.maySupersede(c, h) {
		// As far as is known the agent has not begun, and the newer version supersedes the move,
		// which may be on its way. So the agent must also be told if it is now to stay as it is.
		h.sent.DrainFirst = !r.fitsBeside(h.agent, wanted) || !r.fitTogether(h.agent,
			h.sent.Layout, wanted)
		h.sent.Layout, h.sent.Why = wanted, r.placement.Reason
		h.sent.Stamp.Version = r.placement.Version
	}
	if !taken {
		r.moving.moves = append(r.moving.moves, h.sent)
	} else if !h.Held.Equal(wanted) && !h.sent.Layout.Equal(wanted) && !h.sentAt.IsZero() {
		r.wait(h, fmt.Sprintf("it is on its way to what version %d wanted", h.Taken.Version))
	}
	if h.sentAt.IsZero() {
		h.sentAt, h.held = r.now, h.Held // of a former leader's doing
		h.sent = Move{Agent: h.Name, Layout: wanted, Stamp: h.Taken}
	}
	load := r.load(place.Layout{}, h.sent.Layout)
	key := fmt.Sprintf("%s %s %d", Stuck, h.Name, h.sent.Stamp.Version)
	if r.now.Sub(h.sentAt) > 10*load+patience {
		r.addEventOnce(key, Event{Kind: Stuck, Agent: h.Name, Version: h.sent.Stamp.Version,
			Text: fmt.Sprintf("agent %s has been on its way to %s for %v", h.Name, h.sent.Layout,
				r.now.Sub(h.sentAt).Round(time.Second))})
		if h.stuckAt.Before(r.now) {
			h.stuckAt = r.now.Add(r.cfg.Bar)
			r.requestPlan(fmt.Sprintf("agent %s does not get where it should", h.Name))
		}
	}
}

// maySupersede reports whether a move that may be on its way, or done already, may be followed by
// what is wanted now: no family has to lose a last host, whether the agent has begun or not.
func (r *Replanner) maySupersede(c *census, h *host) bool {
	wanted := r.wanted[h.Name]
	to := r.lanesByFamily(h.agent, wanted)
	fits := r.fitsBeside(h.agent, wanted) && r.fitTogether(h.agent, h.sent.Layout, wanted)
	before := r.lanesByFamily(h.agent, h.sent.Layout)
	for f, n := range h.lanes { // of a family that it was to serve all the while
		stayed := !h.sent.DrainFirst && before[f] >= n
		if stayed && !(fits && to[f] >= n) && c.away[f] > 0 && 4*(c.away[f]+n) > c.lanes[f] {
			return false
		}
	}
	for _, l := range []place.Layout{h.held, h.sent.Layout} {
		for f := range r.lanesByFamily(h.agent, l) {
			if c.stay[f] == 0 && !(fits && to[f] > 0) {
				return false
			}
		}
	}
	return true
}

func (r *Replanner) wait(h *host, why string) {
	r.moving.waits = append(r.moving.waits, Wait{h.Name, r.wanted[h.Name], why})
}

// unlock handles agents that are the last hosts of some family while no agent is on its way, so no
// other will take over. One of them takes its wanted layout beside what it holds, if both fit; else
// it keeps what it holds. The planner then reckons with that for a while.
func (r *Replanner) unlock(last []*host) {
	for _, h := range last {
		both := place.NewLayout(unionModels(h.Held, r.wanted[h.Name])...)
		if r.fitsBeside(h.agent, r.wanted[h.Name]) && r.misfitReason(h.agent, both) == "" {
			r.setWantedLayout(
				h, both,
				fmt.Sprintf("agent %s is the last host of a family: it holds both", h.Name))
			return
		}
	}
	h := last[0]
	r.addEvent(Event{Kind: Stuck, Agent: h.Name, Version: r.placement.Version, Text: fmt.Sprintf(
		"agent %s cannot change from %s to %s: it is the last host of a family, and both do not "+
			"fit "+
			"into its memory; it keeps what it holds", h.Name, h.Held, r.wanted[h.Name])})
	r.setWantedLayout(h, h.Held, fmt.Sprintf("agent %s is the last host of a family", h.Name))
}

// setWantedLayout wants a layout of an agent, and plans with that for a while.
func (r *Replanner) setWantedLayout(h *host, l place.Layout, reason string) {
	h.stuckAt = r.now.Add(r.cfg.Bar)
	r.wanted[h.Name] = l
	r.makeNextVersion(Planned, reason, nil)
	r.requestPlan(reason)
}

func unionModels(a, b place.Layout) []names.ModelKey {
	all := append(a.Models(), b.Models()...)
	slices.Sort(all)
	return slices.Compact(all)
}

// lanesShort is, by family, how many lanes fewer than wanted serve it.
func (r *Replanner) lanesShort(c *census) map[string]int {
	short := map[string]int{}
	for _, h := range c.hosts {
		if h.Draining {
			continue
		}
		for f, n := range r.lanesByFamily(h.agent, r.wanted[h.Name]) {
			short[f] += n
		}
		for f, n := range r.lanesByFamily(h.agent, h.Held) {
			short[f] -= n
		}
	}
	return short
}

// gainOfChange orders changes: those first that bring lanes to families that lack some and take
// none from such, by what they bring in a second of loading.
func (r *Replanner) gainOfChange(h *host, short map[string]int) float64 {
	wanted := r.wanted[h.Name]
	gain := 0.0
	for f, n := range r.lanesByFamily(h.agent, wanted) {
		gain += float64(min(n, max(0, short[f]+h.lanes[f])))
	}
	for f, n := range h.lanes {
		if short[f] > 0 {
			gain -= float64(n)
		}
	}
	load := r.load(h.Held, wanted) + 10*time.Millisecond
	return gain / load.Seconds()
}

// repeatMoves adds the moves and waits to an answer.
func (r *Replanner) repeatMoves(a *Answer) {
	a.Moves, a.Waits = r.moving.moves, r.moving.waits
}
