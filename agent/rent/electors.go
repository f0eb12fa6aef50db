package rent

import (
	"maps"
	"slices"
	"time"

	"github.com/muster-serve/muster/api/control"
)

// forgotten is how long an agent that may lead may be gone until it does not count any more, while
// most of the others are there. Chosen: longer than a night in which nobody repairs a machine; one
// that is gone for good bars changes for no longer than a day.
const forgotten = 24 * time.Hour

// electors are the agents that may lead, by address: a name changes with each start. A leader that
// sees no majority of them may be cut off, and another may lead beside it. The zero value knows
// none.
type electors struct {
	known    map[string]time.Duration // when they were last there
	draining map[string]bool
}

// addSeen adds those that another leader has seen.
func (e *electors) addSeen(now time.Duration, addresses []string) {
	if e.known == nil {
		e.known, e.draining = map[string]time.Duration{}, map[string]bool{}
	}
	for _, address := range addresses {
		if _, ok := e.known[address]; !ok {
			e.known[address] = now
		}
	}
}

// beginTerm begins a term, whose times count from its own begin: all that are known count as there
// then.
func (e *electors) beginTerm() {
	for address := range e.known {
		e.known[address] = 0
	}
}

// sortedAddresses are those known, in order.
func (e *electors) sortedAddresses() []string { return slices.Sorted(maps.Keys(e.known)) }

// hasMajority reports whether most of the electors are among the members.
func (e *electors) hasMajority(now time.Duration, members []*control.Member) bool {
	e.addSeen(now, nil)
	there := map[string]bool{}
	for _, m := range members {
		if m.GetLanes() > 0 && isElector(m) {
			there[m.GetAddress()] = true
			e.known[m.GetAddress()], e.draining[m.GetAddress()] = now, m.GetDraining()
		}
	}
	for address := range e.known {
		if !there[address] && e.draining[address] { // it has left in order
			delete(e.known, address)
			delete(e.draining, address)
		}
	}
	if 2*len(there) <= len(e.known) {
		return false
	}
	for address, last := range e.known {
		if now-last > forgotten {
			delete(e.known, address)
			delete(e.draining, address)
		}
	}
	return true
}
