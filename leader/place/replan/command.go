package replan

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/place"
)

// Command does what an operator asks, or says why not. The next step tells and carries it out.
func (r *Replanner) Command(c Command) error {
	if r.last == nil || r.placement == nil {
		return errors.New("the leader has not seen its agents yet")
	}
	by := ""
	if c.By != "" {
		by = ", asked by " + c.By
	}
	var text string
	switch c.Verb {
	case Pause:
		r.memory.Paused, r.memory.RolledBack = true, false
		text = "placements are paused" + by
	case Resume:
		if !r.memory.Paused {
			return errors.New("placements are not paused")
		}
		r.memory.Paused, r.memory.RolledBack = false, false
		r.requestPlan("placements go on")
		text = "placements go on" + by
	case Pin:
		a, err := r.findAgent(c.Agent)
		if err != nil {
			return err
		}
		if a.Fixed {
			return fmt.Errorf("agent %s always holds the models of its settings", c.Agent)
		}
		if err := c.Layout.Validate(); err != nil {
			return fmt.Errorf("layout %s: %w", c.Layout, err)
		}
		if why := r.misfitReason(a, c.Layout); why != "" {
			return fmt.Errorf("agent %s cannot hold %s: %s", c.Agent, c.Layout, why)
		}
		r.removePin(c.Agent)
		r.memory.Pins = append(r.memory.Pins, place.AgentLayout{
			Agent: c.Agent, Layout: c.Layout, Since: r.placement.Version + 1,
		})
		slices.SortFunc(r.memory.Pins, func(a, b place.AgentLayout) int {
			return cmp.Compare(a.Agent, b.Agent)
		})
		r.requestPlan(fmt.Sprintf("agent %s is pinned", c.Agent))
		text = fmt.Sprintf("agent %s is pinned to %s%s", c.Agent, c.Layout, by)
	case Unpin:
		if !r.removePin(c.Agent) {
			return fmt.Errorf("agent %s is not pinned", c.Agent)
		}
		r.requestPlan(fmt.Sprintf("agent %s is no longer pinned", c.Agent))
		text = fmt.Sprintf("agent %s is no longer pinned%s", c.Agent, by)
	case Rollback:
		if err := r.rollBackTo(c.Version, by); err != nil {
			return err
		}
		r.remember = true
		return nil
	default:
		return fmt.Errorf("verb %d is unknown", c.Verb)
	}
	r.remember = true
	r.addEvent(Event{Kind: Commanded, Agent: c.Agent, Version: r.placement.Version, Text: text})
	return nil
}

// findAgent returns the agent of a name, if it is in the snapshot.
func (r *Replanner) findAgent(name names.AgentName) (*agent, error) {
	a := r.agents[name]
	if a == nil {
		return nil, fmt.Errorf("no agent is named %q; there are %s", name,
			summarizeTexts(names.Strings(
				slices.Sorted(maps.Keys(r.agents)))))
	}
	return a, nil
}

func (r *Replanner) removePin(name names.AgentName) bool {
	n := len(r.memory.Pins)
	r.memory.Pins = slices.DeleteFunc(r.memory.Pins, func(p place.AgentLayout) bool {
		return p.Agent == name
	})
	return len(r.memory.Pins) < n
}

func (r *Replanner) rollBackTo(version uint64, by string) error {
	if version == r.placement.Version {
		return fmt.Errorf("version %d is the placement that there is", version)
	}
	i := slices.IndexFunc(r.memory.Placements, func(p place.Placement) bool {
		return p.Version == version
	})
	if i < 0 {
		var known []string
		for _, p := range r.memory.Placements {
			known = append(known, fmt.Sprint(p.Version))
		}
		return fmt.Errorf("version %d is not remembered; there are %s", version,
			strings.Join(known, ", "))
	}
	r.memory.Paused, r.memory.RolledBack = true, true
	r.returnTo(&r.memory.Placements[i])
	r.generation++
	r.makeNextVersion(Commanded, fmt.Sprintf("back to version %d%s; placements are paused",
		version, by),
		r.memory.Placements[i].Families)
	r.watch.before = nil
	return nil
}

// applyPins wants of pinned agents what they are pinned to, as far as they can hold it.
func (r *Replanner) applyPins() {
	for _, p := range r.memory.Pins {
		a := r.agents[p.Agent]
		if a == nil || a.Fixed || r.wanted[p.Agent].Equal(p.Layout) || r.misfitReason(a,
			p.Layout) != "" {
			continue
		}
		r.wanted[p.Agent] = p.Layout
		r.makeNextVersion(Planned, fmt.Sprintf("agent %s is pinned to %s", p.Agent, p.Layout), nil)
		r.watch.before = nil
		r.generation++
	}
}

// Explain says why an agent holds what it holds, in lines for people.
func (r *Replanner) Explain(name names.AgentName) ([]string, error) {
	if r.last == nil || r.placement == nil {
		return nil, errors.New("the leader has not seen its agents yet")
	}
	a, err := r.findAgent(name)
	if err != nil {
		return nil, err
	}
	var lines []string
	say := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	say("agent %s (%s) holds %s", name, a.Type, a.Held)
	r.explainWanted(a, say)
	for _, w := range r.moving.waits {
		if w.Agent == name {
			say("it waits to change: %s", w.Why)
		}
	}
	for _, m := range r.moving.moves {
		if m.Agent == name {
			say("it is asked to change, version %d", m.Stamp.Version)
		}
	}
	if a.State == Changing {
		say("it is changing, version %d", a.Taken.Version)
	}
	for b, until := range r.barred {
		if b.agent == name {
			say("model %s is not asked of it for %v: its load failed", b.model,
				until.Sub(r.now).Round(time.Second))
		}
	}
	slices.Sort(lines[len(lines)-r.countBars(name):])
	if a.stuckAt.After(r.now) {
		say("it keeps what it holds for %v, as it could not change",
			a.stuckAt.Sub(r.now).Round(time.Second))
	}
	r.explainOthers(a, say)
	return lines, nil
}

func (r *Replanner) countBars(name names.AgentName) (n int) {
	for b := range r.barred {
		if b.agent == name {
			n++
		}
	}
	return n
}

// explainWanted says what an agent should hold, since when, and what for.
func (r *Replanner) explainWanted(a *agent, say func(string, ...any)) {
	if a.Fixed {
		say("it is never asked to hold anything else: its settings say so")
		return
	}
	for _, w := range r.placement.Agents {
		if w.Agent != a.Name {
			continue
		}
		reason := "which is not remembered"
		for _, p := range r.memory.Placements {
			if p.Version == w.Since {
				reason = p.Reason
			}
		}
		say("it should hold %s since version %d: %s", w.Layout, w.Since, reason)
	}
	if pin := r.pinOf(a.Name); pin != nil {
		say("an operator has pinned it to %s", *pin)
		if why := r.misfitReason(a, *pin); why != "" {
			say("that it cannot hold now: %s", why)
		}
	}
	families := map[string]bool{}
	for _, m := range r.wanted[a.Name].Models() {
		families[r.familyOf(m)] = true
	}
	for _, f := range r.placement.Families {
		if !families[f.Family] {
			continue
		}
		say("family %s: %.4g queries/s arrive, planned for %.4g, of which %.2f %% can be served, "+
			"at accuracy %.4f", f.Family, f.Rate, f.Demand, 100*f.Served, f.Accuracy)
		for _, s := range f.Shares {
			say("  %.1f %% of them by %s", 100*s.Share, s.Model)
		}
	}
	if r.memory.Paused {
		say("placements are paused")
	}
}

// explainOthers says which models an agent cannot hold.
func (r *Replanner) explainOthers(a *agent, say func(string, ...any)) {
	for i := range r.last.Variants {
		v := &r.last.Variants[i]
		if _, barred := r.barred[bar{a.Name, v.Model}]; barred ||
			!slices.Contains(a.Available, v.Model) {
			continue
		}
		if why := r.misfitReason(a, place.NewLayout(v.Model)); why != "" {
			say("it cannot hold %s: %s", v.Model, why)
		} else if r.last.Latencies[names.TableKey{Model: v.Model, Type: a.Type}] == nil {
			say("how fast it runs %s is not known; it is taken to be as slow as its family's "+
				"slowest",
				v.Model)
		}
	}
}
