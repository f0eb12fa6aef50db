package control

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// SetRented makes p show what the leader rents, or would: the plan of a fleet that rents is that of
// its policy's limits. Without a mode the fleet rents nothing, and p stays as it is.
func (p *Plan) SetRented(s *FleetState) {
	if s.GetMode() == "" {
		return
	}
	proposal := s.GetProposal()
	p.Change, p.Gain, p.Proposed, p.Changes, p.Approve, p.Waits = false, 0, nil, nil, 0, ""
	p.AgeNs = 0 // the leader looks at these every few seconds
	switch {
	case proposal != nil:
		p.State, p.Change, p.Reason = "proposed", true, "for "+proposal.GetWhy()
		p.Changes, p.Waits = proposal.GetChanges(), proposal.GetWaits()
		if s.GetMode() == "approve" {
			p.State, p.Approve = "waits for approval", proposal.GetNumber()
		}
		if p.Now == nil {
			p.Now = &Plan_Choice{}
		}
		p.Now.Price = proposal.GetNowUsdPerHour()
		p.Proposed = &Plan_Choice{Price: proposal.GetPriceUsdPerHour()}
		for _, c := range proposal.GetCounts() {
			p.Proposed.Instances = append(p.Proposed.Instances,
				&Plan_FleetCount{Type: c.GetKind(), Count: c.GetCount()})
		}
		if p.Now.Price > 0 {
			p.Gain = 1 - p.Proposed.Price/p.Now.Price
		}
	case strings.HasPrefix(s.GetOutlook(), "no plan"), s.GetOutlook() == "":
		p.State, p.Reason = "", s.GetOutlook()
	default:
		p.State, p.Reason = "in force", s.GetOutlook()
	}
}

// Lines is the plan in lines for people; none where there is nothing to say.
func (p *Plan) Lines() []string {
	if p.GetState() == "" {
		if p.GetReason() == "" {
			return nil
		}
		return []string{p.GetReason()}
	}
	name := "plan"
	// What it says of the last minute was so when it was made.
	if age := Duration(p.GetAgeNs()); age >= 10*time.Second {
		name = fmt.Sprintf("plan of %v ago", age.Truncate(time.Second))
	}
	if p.GetApprove() > 0 {
		name = fmt.Sprintf("plan %d", p.GetApprove())
	}
	if !p.GetChange() {
		return []string{fmt.Sprintf("%s, %s: %s", name, p.GetState(), p.GetReason())}
	}
	head := fmt.Sprintf("%s, %s: $%.3f/hr instead of $%.3f", name, p.GetState(),
		p.GetProposed().GetPrice(), p.GetNow().GetPrice())
	if p.GetWaits() != "" {
		head += "; " + p.GetWaits()
	}
	lines := []string{head}
	for _, c := range p.GetChanges() {
		lines = append(lines, "  "+c)
	}
	return append(lines, "  "+p.GetReason())
}

// ChangesOf says, by type, how a fleet differs from another.
func ChangesOf(from, to map[string]int) (changes []string) {
	types := maps.Clone(from)
	maps.Copy(types, to)
	for _, t := range slices.Sorted(maps.Keys(types)) {
		switch n := to[t] - from[t]; {
		case n > 0:
			changes = append(changes, fmt.Sprintf("%s: %d more", t, n))
		case n < 0:
			changes = append(changes, fmt.Sprintf("%s: %d fewer", t, -n))
		}
	}
	return changes
}

// Counts are the instances by type.
func (c *Plan_Choice) Counts() map[string]int {
	counts := map[string]int{}
	for _, i := range c.GetInstances() {
		counts[i.GetType()] += int(i.GetCount())
	}
	return counts
}
