package replan

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/place"
	"github.com/muster-serve/muster/leader/staffing"
)

// A watch follows whether a placement makes more queries late.
type watch struct {
	history []tally // one a second, the newest last
	before  *place.Placement
	was     float64 // the late share of the two periods before
	// when all agents had arrived; zero: not all have, or nothing is watched
	since  time.Time
	base   tally                // then
	mid    tally                // a period later
	half   bool                 // mid is known
	agents int                  // then
	demand map[string]float64   // by family, that the placement is for
	undone map[string]time.Time // placements, until when they are not made again
	calm   time.Time            // until when only plans that serve more are taken
}

type tally struct {
	at          time.Time
	ended, late uint64
}

// late is the late share from o to t; ok is false if too few ended to tell.
func (t tally) lateSince(o tally) (share float64, ok bool) {
	if t.ended < o.ended+50 || t.late < o.late {
		return 0, false
	}
	return float64(t.late-o.late) / float64(t.ended-o.ended), true
}

func (r *Replanner) tallyQueries() tally {
	t := tally{at: r.now}
	for i := range r.last.Families {
		t.ended += r.last.Families[i].Ended
		t.late += r.last.Families[i].Late
	}
	return t
}

// watchPlacement begins to watch the placement that has just been made in place of another. It does
// not where nothing is known of before, as after a leader's start: there is nothing to compare with.
func (w *watch) watchPlacement(r *Replanner, before *place.Placement) {
	w.before, w.since, w.half = nil, time.Time{}, false
	now := r.tallyQueries()
	for _, t := range w.history {
		if now.at.Sub(t.at) <= 2*r.cfg.Period {
			if share, ok := now.lateSince(t); ok && now.at.Sub(t.at) >= r.cfg.Period {
				w.before, w.was = before, share
			}
			break
		}
	}
	w.demand = map[string]float64{}
	for _, f := range r.placement.Families {
		w.demand[f.Family] = f.Demand
	}
}

// undoRaise takes back a placement that has made more queries late in each of two periods.
func (r *Replanner) undoRaise() {
	w := &r.watch
	now := r.tallyQueries()
	if n := len(w.history); n == 0 || now.at.Sub(w.history[n-1].at) >= time.Second {
		w.history = append(w.history, now)
		old := slices.IndexFunc(w.history, func(t tally) bool {
			return now.at.Sub(t.at) <= 2*r.cfg.Period
		})
		w.history = slices.Delete(w.history, 0, max(0, old))
	}
	if w.before == nil || r.memory.Paused {
		return
	}
	if w.since.IsZero() {
		if r.hasArrived() {
			w.since, w.base, w.half, w.agents = r.now, now, false, len(r.agents)
		}
		return
	}
	raised := func(share float64) bool { return share > w.was+.01 && share > 2*w.was }
	switch {
	case len(r.agents) < w.agents || r.moreThan(w.demand):
		w.before = nil // queries are late for another reason
	case !w.half && r.now.Sub(w.since) >= r.cfg.Period:
		share, ok := now.lateSince(w.base)
		if !ok || !raised(share) {
			w.before = nil
			return
		}
		w.mid, w.half = now, true
	case w.half && r.now.Sub(w.since) >= 2*r.cfg.Period:
		share, ok := now.lateSince(w.mid)
		before := w.before
		w.before = nil
		if ok && raised(share) {
			r.undoPlacement(before, share)
		}
	}
}

// hasArrived reports whether all agents hold what they should.
func (r *Replanner) hasArrived() bool {
	for name, a := range r.agents {
		if !a.Fixed && !a.Draining && (a.State == Changing || !a.Held.Equal(r.wanted[name])) {
			return false
		}
	}
	return true
}

// moreThan reports whether more than the demand arrives of some family, and chance does not explain
// it.
func (r *Replanner) moreThan(demand map[string]float64) bool {
	for family, most := range demand {
		if d := r.demand[family]; d != nil && staffing.Likely(d.Mean(), demandMemory) > most {
			return true
		}
	}
	return false
}

// undoPlacement goes back to the placement before.
func (r *Replanner) undoPlacement(before *place.Placement, share float64) {
	w := &r.watch
	if w.undone == nil {
		w.undone = map[string]time.Time{}
	}
	w.undone[r.signatureOf(r.wanted)] = r.now.Add(r.cfg.Bar)
	w.calm = r.now.Add(6 * r.cfg.Period)
	bad := r.placement.Version
	r.returnTo(before)
	r.generation++
	r.makeNextVersion(
		Undone, fmt.Sprintf("placement %d is undone: %.2f %% of the queries were late over two "+
			"periods, %.2f %% before", bad, 100*share, 100*w.was), nil)
	w.before = nil // it is known
}

// returnTo wants what a placement says of the agents that there are and may hold it.
func (r *Replanner) returnTo(to *place.Placement) {
	for _, a := range to.Agents {
		known := r.agents[a.Agent]
		if known != nil && r.pinOf(a.Agent) == nil && r.misfitReason(known, a.Layout) == "" {
			r.wanted[a.Agent] = a.Layout
		}
	}
}

// misfitReason is why an agent cannot hold a layout, "" if it can.
func (r *Replanner) misfitReason(a *agent, l place.Layout) string {
	return whyUnfit(&a.Agent, l, r.bytes, func(m names.ModelKey) bool {
		_, barred := r.barred[bar{a.Name, m}]
		return barred
	})
}

// isBarred reports whether the plan is a placement that was undone not long ago.
func (w *watch) isBarred(r *Replanner, plan *Plan) bool {
	maps.DeleteFunc(w.undone, func(_ string, until time.Time) bool { return !r.now.Before(until) })
	if len(w.undone) == 0 {
		return false
	}
	wanted := maps.Clone(r.wanted)
	for i, l := range plan.layouts {
		wanted[plan.problem.agents[i].Name] = l
	}
	_, is := w.undone[r.signatureOf(wanted)]
	return is
}

// signatureOf names how many agents of each type have which layout.
func (r *Replanner) signatureOf(wanted map[names.AgentName]place.Layout) string {
	var all []string
	for name, a := range r.agents {
		all = append(all, string(a.Type)+" "+wanted[name].String())
	}
	slices.Sort(all)
	return strings.Join(all, "\n")
}
