package rent

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/muster-serve/muster/profiles"
)

// How long until the next step, while the fleet changes and while it does not.
const (
	changing = 10 * time.Second
	calm     = time.Minute
)

// slack is what rounding may make of a sum of prices or rates.
const slack = 1e-9

// deaf is how long an agent that was told to drain may fail to say that it drains before it counts
// as one that serves. Chosen: agents say so in a second, and a leader that has just changed asks
// them again.
const deaf = 30 * time.Second

// restart is how long an agent that restarts may be away. After that an instance that drains is
// returned; before, one that is only out of sight may still answer queries. Chosen: a drain of 30 s
// and a start with the load of models fit.
const restart = 90 * time.Second

// slow is the factor of latency from which an agent goes before others of its type: that from which
// an agent counts as slow everywhere.
const slow = 1.1

// duds is how many instances of a kind in a row may fail to join before the planner leaves the kind
// alone. Chosen: one may fail by chance, and each costs its first minutes.
const duds = 2

// A slotRecord is a slot of any generation.
type slotRecord struct {
	Kind
	ordinal int
}

func (s Slot) placeOf() slotRecord { return slotRecord{s.Kind, s.Ordinal} }

// A Renter decides for one leader's term. Use New to make one. It is not safe for concurrent use.
type Renter struct {
	policy Policy
	began  time.Duration
	// asked are instances that were launched, and unsure slots that may have been; each with when,
	// until it is listed.
	asked  map[string]launchRequest
	unsure map[Slot]time.Duration
	// generation is the next one of each place. It is kept for all of the term: a provider lists
	// what has ended for an hour, and knows its slot for a day.
	generation map[slotRecord]int
	known      map[string]*history
	lacks      map[Kind]lack
	duds       map[Kind]int
	// backing is until when no launch is made, why, and how long the wait was.
	backing time.Duration
	wait    time.Duration
	refusal string
}

type launchRequest struct {
	Instance
	at time.Duration
}

// A history is what a Renter has seen of an instance.
type history struct {
	agent    time.Duration // when its agent was last there
	joined   bool          // its agent was there
	draining time.Duration // since when its agent drains; -1: it does not
	told     time.Duration // when its agent was told to drain; -1: it was not
	first    time.Duration // when it was seen first
	listed   bool
	ends     bool // the provider said that it will take it
	returned bool // this Renter has returned it
	dud      bool // its agent did not join; it counts among duds once it is returned
	ended    bool
}

// isDraining reports whether its agent drained when it was last there, or was told to.
func (h *history) isDraining() bool { return h.draining >= 0 || h.told >= 0 }

type lack struct {
	until, wait time.Duration
	why         string
}

// New returns a Renter for a term that begins now.
func New(policy Policy, now time.Duration) *Renter {
	return &Renter{
		policy: policy, began: now, asked: map[string]launchRequest{},
		unsure:     map[Slot]time.Duration{},
		generation: map[slotRecord]int{}, known: map[string]*history{}, lacks: map[Kind]lack{},
		duds: map[Kind]int{},
	}
}

// SetPolicy changes the policy.
func (r *Renter) SetPolicy(policy Policy) { r.policy = policy }

// Launched tells that a launch gave the instance.
func (r *Renter) Launched(slot Slot, i Instance, now time.Duration) {
	if i.State >= Stopping {
		r.Failed(slot, Spent, "", now)
		return
	}
	i.Slot = slot
	r.noteUsed(slot)
	delete(r.unsure, slot)
	delete(r.lacks, slot.Kind)
	r.wait, r.refusal = 0, ""
	r.asked[i.ID] = launchRequest{i, now}
}

// Failed tells that a launch gave none, with the provider's words.
func (r *Renter) Failed(slot Slot, f Failure, why string, now time.Duration) {
	if f == IsShort || f == OverQuota || f == Spent {
		// An earlier call for the slot may have come through, but this one would have given it.
		delete(r.unsure, slot)
	}
	switch f {
	case IsShort:
		r.avoidKind(slot.Kind, r.policy.Shortage, r.policy.MaxShortage, why, now)
	case OverQuota:
		r.avoidKind(slot.Kind, r.policy.Quota, r.policy.Quota, why, now)
	case Denied:
		r.backOff(r.policy.Denied, why, now)
	case Spent:
		r.noteUsed(slot)
	case Throttled, Unknown:
		if f == Unknown {
			r.unsure[slot] = now
		}
		r.backOff(r.policy.MaxBackoff, why, now)
	}
}

// backOff makes no launch for a time that doubles.
func (r *Renter) backOff(most time.Duration, why string, now time.Duration) {
	r.wait = min(max(2*r.wait, r.policy.Backoff), most)
	r.backing, r.refusal = now+r.wait, why
}

// noteUsed notes that the next instance in the slot's place is of a later generation.
func (r *Renter) noteUsed(slot Slot) {
	p := slot.placeOf()
	r.generation[p] = max(r.generation[p], slot.Generation+1)
}

// avoidKind leaves a kind alone for a time that doubles.
func (r *Renter) avoidKind(kind Kind, least, most time.Duration, why string, now time.Duration) {
	l := r.lacks[kind]
	l.wait = min(max(2*l.wait, least), most)
	l.until, l.why = now+l.wait, why
	r.lacks[kind] = l
}

// Told tells that the instance's agent was told to drain. It counts as draining before it says so.
func (r *Renter) Told(id string, now time.Duration) {
	if h := r.known[id]; h != nil {
		h.told = now
	}
}

// Returned tells that a Return was carried out: the provider has taken back the instance.
func (r *Renter) Returned(a Action, now time.Duration) {
	delete(r.asked, a.ID)
	h := r.known[a.ID]
	if h == nil {
		return
	}
	if h.dud && !h.joined && !h.returned {
		if r.duds[a.Slot.Kind]++; r.duds[a.Slot.Kind] >= duds {
			r.avoidKind(a.Slot.Kind, r.policy.MaxShortage, r.policy.MaxShortage,
				fmt.Sprintf("the agents of %d instances in a row did not join", duds), now)
		}
	}
	h.returned = true
}

// Lacking are the kinds that are left alone now, in order. The planner may choose no more of them
// than there are.
func (r *Renter) Lacking(now time.Duration) (all []Lack) {
	for _, kind := range slices.SortedFunc(maps.Keys(r.lacks), Kind.Compare) {
		if l := r.lacks[kind]; now < l.until {
			all = append(all, Lack{kind, l.why, l.until - now})
		}
	}
	return all
}

// Waits says why a launch of the kind would not be tried now: "" where it would. A leader asks
// before each launch of a step, for those before it may have failed.
func (r *Renter) Waits(kind Kind, now time.Duration) string {
	if now < r.backing {
		return r.refusal
	}
	if l, ok := r.lacks[kind]; ok && now < l.until {
		return l.why
	}
	return ""
}

// Step says what to do next.
func (r *Renter) Step(seen *Seen) Step {
	s := &step{Renter: r, Seen: seen, out: Step{Next: calm, Exact: true}}
	s.joinMachines()
	if s.mayAct() {
		s.returnMachines()
		s.returnSurplus()
		s.launchMissing()
		s.drainExcess()
	} else {
		s.out.Exact = false
	}
	s.out.Exact = s.out.Exact && len(s.out.Actions) == 0
	if !s.out.Exact {
		s.out.Next = min(s.out.Next, changing)
	}
	return s.out
}

// A step is one call of Step.
type step struct {
	*Renter
	*Seen
	out Step

	taken    map[slotRecord]bool // paid for
	kinds    []Kind              // desired or there, in order
	have     map[Kind][]*Machine
	serving  map[profiles.InstanceType]int // agents, foreign ones included
	agents   int                           // their number
	starting int
	draining int
	live     int // of this fleet
	// unpriced is a kind of which something is paid for and the price is not known.
	unpriced *Kind
	blocked  bool // only the price keeps something from being launched
	missing  bool // something that is desired does not serve yet
}

func (s *step) addAction(a Action) { s.out.Actions = append(s.out.Actions, a) }
func (s *step) addEvent(f string, args ...any) {
	s.out.Events = append(s.out.Events, fmt.Sprintf(f, args...))
}

func (s *step) holdKind(reason Reason, until time.Duration, what, why string, args ...any) {
	h := Held{What: what, Reason: reason, Why: fmt.Sprintf(why, args...)}
	if until > s.Now {
		h.For = until - s.Now
		s.out.Next = min(s.out.Next, h.For)
	}
	s.out.Held = append(s.out.Held, h)
}

// joinMachines makes machines of what the provider lists, what the agents say, and what was
// launched.
func (s *step) joinMachines() {
	s.taken = map[slotRecord]bool{}
	s.have, s.serving = map[Kind][]*Machine{}, map[profiles.InstanceType]int{}
	all := map[string]*Machine{}
	for _, i := range s.Instances {
		m := &Machine{Instance: i, Phase: Starting}
		all[i.ID] = m
		delete(s.unsure, i.Slot)
		s.historyOf(i.ID).listed = true
		if a, ok := s.asked[i.ID]; ok {
			delete(s.asked, i.ID)
			s.historyOf(i.ID).agent = a.at
		}
	}
	for id, a := range s.asked {
		if s.Now-a.at > s.policy.Forget {
			delete(s.asked, id)
			continue
		}
		all[id] = &Machine{Instance: a.Instance, Phase: Asked}
	}
	for slot, at := range s.unsure {
		if s.Now-at > s.policy.Forget {
			delete(s.unsure, slot)
		}
	}
	claimed := map[string]bool{}
	agents := slices.Clone(s.Agents)
	slices.SortFunc(agents, func(a, b Agent) int { return cmp.Compare(a.Name, b.Name) })
	for i := range agents {
		a := &agents[i]
		m := all[a.Instance]
		claimed[a.Instance] = true
		if m == nil && a.Slot != nil && a.Instance != "" { // not listed yet, or any more
			h := s.historyOf(a.Instance)
			if !h.listed && s.Now-h.first <= s.policy.Forget {
				m = &Machine{Instance: Instance{ID: a.Instance, Slot: *a.Slot, State: Running,
					By: s.Desired.By}}
				all[a.Instance] = m
			}
		}
		switch {
		case m != nil:
			m.Agent = a
		case a.Ready && !a.Draining:
			s.out.Foreign = append(s.out.Foreign, *a)
			s.serving[a.Type]++
			s.agents++
		}
	}
	for id := range s.known {
		if all[id] == nil && !claimed[id] {
			delete(s.known, id)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(all)) {
		s.placeMachine(all[id])
	}
	for slot := range s.unsure {
		s.out.Price += s.priceOf(slot.Kind, 0)
		s.taken[slot.placeOf()] = true
	}
	kinds := map[Kind]bool{}
	for kind := range s.Desired.Counts {
		kinds[kind] = true
	}
	for kind := range s.have {
		kinds[kind] = true
	}
	s.kinds = slices.SortedFunc(maps.Keys(kinds), Kind.Compare)
	slices.SortFunc(s.out.Machines, func(a, b Machine) int {
		return cmp.Or(a.Slot.Compare(b.Slot.Kind), cmp.Compare(a.Slot.Ordinal, b.Slot.Ordinal),
			cmp.Compare(a.Slot.Generation, b.Slot.Generation), cmp.Compare(a.ID, b.ID))
	})
}

// historyOf is what is known of an instance.
func (s *step) historyOf(id string) *history {
	h := s.known[id]
	if h == nil {
		h = &history{draining: -1, told: -1, agent: s.Now, first: s.Now}
		s.known[id] = h
	}
	return h
}

// priceOf is what an instance costs, with what the provider says of it alone.
func (s *step) priceOf(kind Kind, said float64) float64 {
	if said > 0 {
		return said
	}
	if price := s.Prices[kind]; price > 0 {
		return price
	}
	s.unpriced = &kind
	return 0
}

// placeMachine finds a machine's phase and counts it.
func (s *step) placeMachine(m *Machine) {
	s.noteUsed(m.Slot)
	h := s.historyOf(m.ID)
	if m.State >= Stopping || h.returned {
		switch {
		case h.ended || h.returned:
		case h.ends:
			s.addEvent("%s (%s): the provider has taken it back", m.ID, m.Slot)
		case h.joined && !h.isDraining() && !m.Drained: // a drained machine may end by itself
			s.addEvent("%s (%s) was ended, and not by this leader", m.ID, m.Slot)
		}
		h.ended = true
		return
	}
	s.findPhase(m, h)
	s.taken[m.Slot.placeOf()] = true
	s.out.Price += s.priceOf(m.Slot.Kind, m.Price)
	s.live++
	switch m.Phase {
	case Drained, Lost:
	case Draining:
		s.draining++
	case Leaving:
		s.serving[m.Slot.Type]++ // until the machine is drained; it does not count as present
		s.agents++
	default:
		if m.Phase < Serving {
			s.starting++
		}
		if m.Phase == Serving {
			s.serving[m.Slot.Type]++
			s.agents++
		} else {
			s.missing = true
		}
		s.have[m.Slot.Kind] = append(s.have[m.Slot.Kind], m)
	}
	s.out.Machines = append(s.out.Machines, *m)
}

// findPhase finds a machine's phase, unless it is Asked, and notes what is new of it.
func (s *step) findPhase(m *Machine, h *history) {
	a := m.Agent
	if a == nil {
		away := s.Now - h.agent
		switch {
		case (h.isDraining() || m.Instance.Drained && !h.joined) && away > restart:
			m.Phase = Drained
		case h.isDraining():
			m.Phase = Draining
		case h.joined && away > s.policy.Lost:
			m.Phase, m.Why = Lost, fmt.Sprintf("its agent has been away for %v",
				roundToSeconds(away))
		case !h.joined && min(m.Age, away) > s.policy.JoinTimeout:
			m.Phase, m.Why = Lost,
				fmt.Sprintf("its agent has not joined within %v", s.policy.JoinTimeout)
		case h.joined || m.Age > s.Now-s.began && m.Phase != Asked:
			// of one from before this term: its agent may have joined, and restart
			m.Phase = Missing
		}
		return
	}
	if !h.joined {
		delete(s.duds, m.Slot.Kind)
	}
	h.agent, h.joined, h.ends = s.Now, true, h.ends || a.Ends > 0
	if !a.Draining {
		h.draining = -1
		if s.Now-h.told >= deaf {
			h.told = -1
		}
	} else if h.draining < 0 {
		h.draining = s.Now
	}
	switch {
	case a.Draining && s.Now-h.draining > s.policy.DrainTimeout:
		m.Phase = Drained
	case a.Draining || h.told >= 0:
		m.Phase = Draining
	case a.Ends > 0:
		m.Phase = Leaving
	case a.Ready:
		m.Phase = Serving
	default:
		m.Phase = Warming
	}
}

func roundToSeconds(d time.Duration) time.Duration { return d.Round(time.Second) }

// mayAct reports whether anything may be done at all, and says why where it may not.
func (s *step) mayAct() bool {
	const everything = "every change of the fleet"
	others := map[string]bool{}
	for _, m := range s.out.Machines {
		if m.By != "" && m.By != s.Desired.By {
			others[m.By] = true
		}
	}
	switch {
	case s.Paused != "":
		s.holdKind(Paused, 0, everything, "%s", s.Paused)
	case !s.Majority:
		s.holdKind(NoMajority, 0, everything,
			"this leader does not see most of the agents that may lead")
	case s.ListAge > s.policy.Stale:
		s.holdKind(NoList, 0, everything, "the provider has not listed the rented machines for %v",
			roundToSeconds(s.ListAge))
	case s.Now < s.began+s.policy.Settle:
		s.holdKind(Settling, s.began+s.policy.Settle, everything,
			"this leader is new and watches first")
	case len(others) > 0:
		s.holdKind(TwoFleets, 0, everything, "%d of the instances with this fleet's name were "+
			"launched by another fleet (%s; this one is %s): give one of them another name, or "+
			"adopt them by muster fleet bootstrap", len(others),
			strings.Join(slices.Sorted(maps.Keys(others)), ", "), s.Desired.By)
	default:
		return true
	}
	return false
}

// returnMachines gives back what has no agent any more, and drains what the provider will take.
func (s *step) returnMachines() {
	for _, m := range s.out.Machines {
		switch {
		case m.Phase == Drained:
			s.addAction(Action{Kind: Return, Slot: m.Slot, ID: m.ID, Why: "it is drained"})
		case m.Phase == Lost:
			s.addAction(Action{Kind: Return, Slot: m.Slot, ID: m.ID, Why: m.Why})
			h := s.known[m.ID]
			h.dud = !h.joined
		case m.Phase == Leaving && m.Agent.Ends <= s.policy.Notice:
			s.addAction(Action{Kind: Drain, Slot: m.Slot, ID: m.ID, Agent: m.Agent.Name,
				Why: fmt.Sprintf("the provider takes it in %v", roundToSeconds(m.Agent.Ends))})
			s.serving[m.Slot.Type]--
			s.agents--
		case m.Phase == Leaving:
			s.out.Next = min(s.out.Next, m.Agent.Ends-s.policy.Notice)
		}
		if m.Phase != Serving {
			s.out.Exact = false
		}
	}
}

// countExcess is by how many more than desired of a kind there are.
func (s *step) countExcess(kind Kind) int { return len(s.have[kind]) - s.Desired.Counts[kind] }

// returnSurplus gives back at once what is too much and does not serve yet.
func (s *step) returnSurplus() {
	for _, kind := range s.kinds {
		machines := s.have[kind]
		slices.SortStableFunc(machines, s.firstToGo)
		for s.countExcess(kind) > 0 {
			m := s.have[kind][0]
			if m.Phase == Asked || m.Phase >= Serving || m.Agent != nil && m.Agent.Keeper {
				break
			}
			if m.Phase == Starting {
				s.addAction(Action{
					Kind: Return, Slot: m.Slot, ID: m.ID, Why: "it is no longer desired",
				})
			} else {
				s.addAction(Action{Kind: Drain, Slot: m.Slot, ID: m.ID, Agent: m.Agent.Name,
					Why: "it is no longer desired"})
			}
			s.have[kind] = s.have[kind][1:]
			s.starting--
		}
	}
}

// firstToGo orders the machines of a kind by which is returned first.
func (s *step) firstToGo(a, b *Machine) int {
	if c := cmp.Compare(min(a.Phase, Serving), min(b.Phase, Serving)); c != 0 {
		return c // what does not serve yet
	}
	if a.Agent == nil || b.Agent == nil {
		return cmp.Or(boolOrder(b.Agent == nil, a.Agent == nil), cmp.Compare(a.Age, b.Age),
			-cmp.Compare(a.Slot.Ordinal, b.Slot.Ordinal))
	}
	return cmp.Or(
		boolOrder(a.Agent.Keeper, b.Agent.Keeper),
		boolOrder(a.Agent.Leads, b.Agent.Leads),
		boolOrder(b.Instance.Drained, a.Instance.Drained),
		boolOrder(b.Agent.Risky, a.Agent.Risky),
		boolOrder(s.hasDrifted(b), s.hasDrifted(a)),
		boolOrder(b.Agent.Factor > slow, a.Agent.Factor > slow),
		cmp.Compare(a.Agent.Load, b.Agent.Load),
		cmp.Compare(a.Age, b.Age),
		-cmp.Compare(a.Slot.Ordinal, b.Slot.Ordinal),
	)
}

func (s *step) hasDrifted(m *Machine) bool {
	return s.Template != "" && m.Template != "" && m.Template != s.Template
}

// boolOrder orders false before true.
func boolOrder(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

// launchMissing asks for the desired machines that are missing, first for the one that adds most
// for its price.
func (s *step) launchMissing() {
	counts := map[profiles.InstanceType]int{}
	maps.Copy(counts, s.serving)
	for kind, all := range s.have {
		for _, m := range all {
			if m.Phase != Serving {
				counts[kind.Type]++
			}
		}
	}
	short := map[Kind]int{}
	for _, kind := range s.kinds {
		if n := -s.countExcess(kind); n > 0 {
			short[kind], s.missing, s.out.Exact = n, true, false
		} else if n < 0 {
			s.out.Exact = false
		}
	}
	s.repeatUnanswered(short)
	for len(short) > 0 {
		kind := s.worthiestKind(short, counts)
		what := fmt.Sprintf("%s: %d more", kind, short[kind])
		price := s.Prices[kind]
		switch why := s.Waits(kind, s.Now); {
		case s.Now < s.backing:
			s.holdKind(Refused, s.backing, what, "%s", why)
		case why != "":
			s.holdKind(Short, s.lacks[kind].until, what, "%s", why)
		case price <= 0:
			s.holdKind(NoPrice, 0, what, "its price is not known")
		case s.unpriced != nil:
			s.holdKind(NoPrice, 0, what, "the price of %s, which the fleet rents, is not known",
				s.unpriced)
		case s.out.Price+price > s.policy.MaxPrice+slack:
			s.holdKind(PriceLimit, 0, what,
				"the fleet would cost $%.3f/hr, above its limit of $%.3f", s.out.Price+price,
				s.policy.MaxPrice)
			s.blocked = true
		case s.starting >= s.policy.Launches:
			s.holdKind(Busy, 0, what, "%d are starting", s.starting)
		default:
			s.launchOne(kind)
			counts[kind.Type]++
			if short[kind]--; short[kind] > 0 {
				continue
			}
		}
		delete(short, kind)
	}
}

// repeatUnanswered asks again for what may have been launched: it is paid for already, if so.
func (s *step) repeatUnanswered(short map[Kind]int) {
	slots := slices.SortedFunc(maps.Keys(s.unsure), func(a, b Slot) int {
		return cmp.Or(a.Compare(b.Kind), cmp.Compare(a.Ordinal, b.Ordinal))
	})
	for _, slot := range slots {
		if short[slot.Kind] == 0 || s.Waits(slot.Kind, s.Now) != "" {
			continue
		}
		s.addAction(Action{Kind: Launch, Slot: slot, Avoid: s.zonesToAvoid(slot.Kind),
			Why: "the provider has not answered"})
		s.starting++
		if short[slot.Kind]--; short[slot.Kind] == 0 {
			delete(short, slot.Kind)
		}
	}
}

// worthiestKind is the kind of short of which one more adds most for its price.
func (s *step) worthiestKind(short map[Kind]int, counts map[profiles.InstanceType]int) (best Kind) {
	most, now := 0.0, s.Serves(counts)
	for _, kind := range slices.SortedFunc(maps.Keys(short), Kind.Compare) {
		more := maps.Clone(counts)
		more[kind.Type]++
		worth := (s.Serves(more) - now) / max(s.Prices[kind], slack)
		if best == (Kind{}) || worth > most+slack { // one is best even if none adds anything
			best, most = kind, worth
		}
	}
	return best
}

func (s *step) launchOne(kind Kind) {
	p := slotRecord{Kind: kind}
	for s.taken[p] {
		p.ordinal++
	}
	s.taken[p] = true
	s.addAction(Action{Kind: Launch, Slot: Slot{kind, p.ordinal, s.generation[p]},
		Avoid: s.zonesToAvoid(kind),
		Why:   fmt.Sprintf("%d are desired", s.Desired.Counts[kind])})
	s.out.Price += s.Prices[kind]
	s.starting++
}

// zonesToAvoid lists the zones in which the provider takes instances of the kind back.
func (s *step) zonesToAvoid(kind Kind) (zones []string) {
	for _, m := range s.out.Machines {
		if m.Slot.Kind == kind && m.Zone != "" && m.Agent != nil &&
			(m.Agent.Ends > 0 || m.Agent.Risky) && !slices.Contains(zones, m.Zone) {
			zones = append(zones, m.Zone)
		}
	}
	return zones
}

// drainExcess drains what serves and is too much, that first which takes least capacity for its
// price, while the rest serves what is needed.
func (s *step) drainExcess() {
	for _, kind := range s.kinds {
		slices.SortStableFunc(s.have[kind], s.firstToGo)
	}
	most := max(1, int(s.policy.Drains*float64(s.live)))
	held := map[Kind]bool{}
	for {
		kind, ok := s.cheapestToDrain(held)
		if !ok {
			return
		}
		m := s.have[kind][0]
		what := fmt.Sprintf("%s: %d fewer", kind, s.countExcess(kind))
		rest := maps.Clone(s.serving)
		if m.Phase == Serving {
			rest[kind.Type]--
		}
		switch {
		case m.Phase == Asked:
			s.holdKind(Busy, 0, what, "it has just been launched")
		case m.Phase == Missing:
			s.holdKind(Busy, 0, what, "its agent is away for a moment")
		case m.Agent == nil || m.Agent.Keeper:
			s.holdKind(Needed, 0, what, "it is a keeper")
		case s.NoReturns != "":
			s.holdKind(Window, 0, what, "%s", s.NoReturns)
		case s.missing && !s.blocked:
			s.holdKind(NewFirst, 0, what, "other desired machines do not serve yet")
		case s.agents-1 < s.policy.Min:
			s.holdKind(Needed, 0, what, "%d agents serve, and %d must", s.agents, s.policy.Min)
		case s.Serves(rest) < s.Needed-slack:
			s.holdKind(Needed, s.Now+s.NeededFor, what,
				"without one the fleet would serve %.4g queries/s, and %.4g are needed",
				s.Serves(rest), s.Needed)
		case s.draining >= most:
			s.holdKind(Busy, 0, what, "%d are draining", s.draining)
		default:
			s.addAction(Action{Kind: Drain, Slot: m.Slot, ID: m.ID, Agent: m.Agent.Name,
				Why: fmt.Sprintf("%d are desired", s.Desired.Counts[kind])})
			s.have[kind] = s.have[kind][1:]
			s.draining++
			s.serving = rest
			s.agents--
			continue
		}
		held[kind] = true
	}
}

// cheapestToDrain is the kind, of those with too many and not held, whose next machine takes least
// capacity for its price along.
func (s *step) cheapestToDrain(held map[Kind]bool) (best Kind, ok bool) {
	least := 0.0
	now := s.Serves(s.serving)
	for _, kind := range s.kinds {
		if held[kind] || s.countExcess(kind) <= 0 {
			continue
		}
		rest := maps.Clone(s.serving)
		rest[kind.Type]--
		lost := (now - s.Serves(rest)) / max(s.Prices[kind], slack)
		if !ok || lost < least-slack {
			best, least, ok = kind, lost, true
		}
	}
	return best, ok
}
