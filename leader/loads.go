package leader

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/match"
)

// This file is about queries that no model on a lane may answer, and one on a disk may: their
// client demands more accuracy than any variant that is held has, or asks for that very model.

const (
	// loadPatience is how long such a query waits for a load if it has no deadline. Chosen: most
	// models load within it, and an interactive client gives up not much later.
	loadPatience = 5 * time.Second
	// keepClass is how long a class is demand after its last query, so that what was loaded for it
	// is not unloaded between two of them. Chosen: as long as an agent whose load failed is left
	// alone.
	keepClass = 10 * time.Minute
	// maxLoaders is how many agents an error names that could load a model.
	maxLoaders = 3
)

// A ClassCount counts the queries of a family that only some of its variants may answer, of clients
// with the right to have models loaded. They are demand of their own: a variant that is less
// accurate does not serve them.
type ClassCount struct {
	Models  []ModelID // that may answer, the most accurate first
	Share   float64   // of the agents that may hold something for such queries only, in (0, 1]
	Arrived uint64
}

// A demandClass is a class of a family's demand, under the key of its least accurate model.
type demandClass struct {
	ClassCount
	last time.Duration // when its last query arrived
}

// allowed returns the models that may answer q, the most accurate first; nil if there is none. The
// result is valid until the next call.
func (s *State) allowed(q *query) []*heldModel {
	if !q.byFamily {
		if q.model == nil || q.model.accuracyOrBest() < q.accuracy {
			return nil
		}
		s.only[0] = q.model
		return s.only[:]
	}
	all := s.families[q.asked.Name]
	n := len(all)
	for n > 0 && all[n-1].accuracyOrBest() < q.accuracy {
		n--
	}
	return all[:n]
}

// needsLoad reports whether none of the models that may answer q is on a lane, and some on a disk.
func (s *State) needsLoad(allowed []*heldModel) bool {
	return len(allowed) > 0 && !slices.ContainsFunc(allowed,
		func(m *heldModel) bool { return m.held > 0 || !s.onDisk[m.ModelID] })
}

// mayWaitForLoad reports whether q, which needs a load, may wait for it. Every query may of which
// any load of its family will do while nobody serves that: somebody has to.
func (s *State) mayWaitForLoad(q *query, allowed []*heldModel) bool {
	return q.loadShare > 0 || s.loadable[allowed[0].ModelID] &&
		(!q.byFamily || len(allowed) == len(s.families[q.asked.Name]))
}

// admitLoad looks whether q has to wait for a load, and whether it may. If it may not, it returns
// false and refuses q.
func (s *State) admitLoad(q *query) bool {
	if q.attempts > 0 || q.isPart() { // it has been admitted
		return true
	}
	allowed := s.allowed(q)
	if len(allowed) == 0 {
		return true // the matcher refuses it
	}
	s.countClass(q, allowed)
	if !s.needsLoad(allowed) {
		return true
	}
	if s.mayWaitForLoad(q, allowed) {
		if q.timeLeft == 0 && q.loadShare > 0 {
			q.timeLeft = max(1, loadPatience-q.waited)
		}
		return true
	}
	g := q.gateway
	g.removeQuery(q.sequence)
	s.step(match.Event{Kind: match.Cancelled, Query: q.matchID()})
	a := s.addAction(Reject)
	a.Decision = match.Decision{
		Action: match.Reject, Reason: match.LeastAccuracy, Query: q.matchID(),
	}
	a.Loadable = allowed[len(allowed)-1].ModelID
	a.Message, a.Tag = s.couldLoad(q, allowed[len(allowed)-1]), q.tag
	if q.model != nil {
		a.Model = q.model.ModelID
	}
	return false
}

// countClass counts an arrival for the class of demand that q is of, if it is of one.
func (s *State) countClass(q *query, allowed []*heldModel) {
	family := s.families[allowed[0].told]
	if q.loadShare == 0 || len(allowed) == max(1, len(family)) {
		return
	}
	worst := allowed[len(allowed)-1]
	key := classKey{worst.familyName(), worst.key, q.byFamily}
	c := s.classes[key]
	if c == nil {
		c = &demandClass{}
		s.classes[key] = c
	}
	if c.Models = c.Models[:0]; q.waited < earlier {
		c.Arrived++
	}
	for _, m := range allowed {
		c.Models = append(c.Models, m.ModelID)
	}
	c.Share, c.last = min(q.loadShare, 1), s.now
}

// classKey is the key of a class: its family, the least accurate model that answers, and whether
// more accurate ones do, too.
type classKey struct {
	family string
	worst  names.ModelKey
	better bool
}

// classesOf returns the classes of a family of which queries have come lately.
func (s *State) classesOf(family string) (all []ClassCount) {
	for key, c := range s.classes {
		if key.family == family && s.now-c.last < keepClass {
			of := c.ClassCount
			of.Models = slices.Clone(of.Models)
			all = append(all, of)
		}
	}
	slices.SortFunc(all, func(a, b ClassCount) int {
		last := func(c ClassCount) ModelID { return c.Models[len(c.Models)-1] }
		return cmp.Or(last(a).compareTo(last(b)), cmp.Compare(len(a.Models), len(b.Models)))
	})
	return all
}

// couldLoad says what would have to be loaded for q, and who could load it.
func (s *State) couldLoad(q *query, m *heldModel) string {
	agents := s.loaders[m.ModelID]
	who := strings.Join(names.Strings(agents[:min(len(agents), maxLoaders)]), ", ")
	if more := len(agents) - maxLoaders; more > 0 {
		who += fmt.Sprintf(" and %d more", more)
	}
	what := fmt.Sprintf("no agent holds model %s", m.Name)
	if q.byFamily {
		what = fmt.Sprintf("no agent holds a variant of %s of accuracy %v; %s has %v", q.asked.Name,
			q.accuracy, m.Name, m.accuracyOrBest())
	}
	return fmt.Sprintf("%s, and %s could load it: have it placed there, or give this client "+
		"load_share in the access file", what, who)
}
