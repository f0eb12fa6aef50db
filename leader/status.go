package leader

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/match"
)

const (
	// StatusSeconds is the number of seconds over which a status counts queries.
	StatusSeconds = 60
	// rateSeconds is the longest time, in seconds, over which a status averages rates. Chosen: a
	// hundred queries at 10 queries/s, so rates vary by a tenth; people see a change within
	// seconds.
	rateSeconds = 10
)

// A Status describes the leader's fleet for people to read.
type Status struct {
	Waiting, WaitingLate int
	Rate                 float64 // queries/s that arrive
	Limit                float64 // the fluid limit, queries/s; 0: unknown
	Agents               []AgentStatus
	// Models are by name and version. Queries that reached no version are of one without a name,
	// and those for a family that failed are of one with the family's name and version 0; they are
	// absent if there were none.
	Models []ModelStatus
	// Families are by name.
	Families []FamilyStatus
	// Decisions are the last ones, newest first. The gateway of a query is the number of its
	// connection in this term, from 1 on; 0: it had gone.
	Decisions []string
}

// An AgentStatus describes an agent that has lanes.
type AgentStatus struct {
	Name    names.AgentName
	Type    names.LaneType // its lanes' type as the matcher knows it
	Factor  float64        // its latency against its type's mean; 0: unknown
	Busy    float64        // share of its lanes' time in use
	Overdue bool
}

// A ModelStatus describes a version of a model.
type ModelStatus struct {
	ModelID
	Rate float64 // queries/s that arrive: answered and failed ones
	// Within is the share answered in time of the last minute's queries, without those that failed
	// because of what their clients did. It counts if Any.
	Within         float64
	Any            bool
	Answered, Late uint64 // queries since the term began
	// Unmet is the share of its queries that would be late if no other queries came, or that nobody
	// answers, if that is more than may be late; else 0. WhyUnmet says why.
	Unmet    float64
	WhyUnmet string
	// Refused is how many queries failed since the term began, by reason. The caller must not
	// change it.
	Refused map[string]uint64
	// NonFinite is how many answers, or answers of parts, had NaN or infinity since the term began.
	NonFinite uint64
}

// A FamilyStatus describes a family of models, of which each may answer. It counts all answers of
// the versions that answer for the family, also of those that were asked for by their own names.
type FamilyStatus struct {
	Name string
	// Rate, Within and Any are as those of a ModelStatus. They also count the queries for the
	// family that failed before a variant was chosen, or after.
	Rate, Within float64
	Any          bool
	// Accuracy is the effective accuracy: the mean of the answers of the last ten seconds, in
	// (0, 1]; 0 if there were none. Best is that of the best variant, 1 if it is unknown.
	Accuracy, Best float64
	Variants       []VariantStatus // by accuracy, the best first, then by name
}

// A VariantStatus describes a variant of a family: the version of it that answers.
type VariantStatus struct {
	ModelID
	Accuracy float64 // 1 if it is unknown
	// Share is the part of the family's answers of the last ten seconds that were the variant's.
	Share    float64
	Answered uint64 // queries since the term began
}

// Status returns the status as of now.
func (s *State) Status() *Status {
	all, late := s.matcher.Waiting()
	// Rates are averaged over no longer than this agent has led, and over at least a second, so
	// that a single query does not count as many a second.
	span := min(max(s.now, time.Second), rateSeconds*time.Second)
	out := &Status{Waiting: all, WaitingLate: late, Limit: s.limit}
	out.Rate = s.ended.sumOver(s.now, span) / span.Seconds()
	for _, name := range slices.Sorted(maps.Keys(s.members)) {
		m := s.members[name]
		a := AgentStatus{Name: name, Type: m.typ, Factor: s.factors[name]}
		if len(m.lanes) > 0 {
			a.Busy = min(1, m.busy.sumOver(s.now, span)/float64(span)/float64(len(m.lanes)))
		}
		for _, ln := range m.lanes {
			_, asked := s.matcher.Load(ln.id)
			a.Overdue = a.Overdue || asked > 0
		}
		out.Agents = append(out.Agents, a)
	}
	held := s.heldVersions()
	for _, m := range s.models {
		// A version that no member has any more stays for a minute after its last query.
		if held[m.ModelID] || m.lastSeconds(s.now, StatusSeconds) != (tally{}) {
			status := m.statusAt(s.now)
			if status.Unmet = s.unmet[m.ModelID]; status.Unmet > 0 {
				status.WhyUnmet = s.whyUnmet(m.ModelID)
			}
			out.Models = append(out.Models, status)
		}
	}
	if len(s.nowhere.refusals) > 0 {
		out.Models = append(out.Models, s.nowhere.statusAt(s.now))
	}
	for _, m := range s.unbound {
		out.Models = append(out.Models, m.statusAt(s.now))
	}
	slices.SortFunc(out.Models, func(a, b ModelStatus) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Version, b.Version))
	})
	out.Families = s.Families()
	for i := range len(s.decisions) {
		d := &s.decisions[(s.decided-1-i)%len(s.decisions)]
		text := match.AppendDecision(nil, d)
		if ln := s.lanes[d.Lane]; ln != nil && d.Action == match.Assign {
			text = append(text, " agent="+ln.member.Name...)
		}
		out.Decisions = append(out.Decisions, string(text))
	}
	return out
}

// Families returns the status of each family as of now, by name.
func (s *State) Families() (all []FamilyStatus) {
	for _, name := range slices.Sorted(maps.Keys(s.families)) {
		all = append(all, s.familyStatus(name))
	}
	return all
}

func (s *State) familyStatus(name string) FamilyStatus {
	f := FamilyStatus{Name: name}
	var minute, lately tally
	if m := s.unbound[name]; m != nil {
		minute.add(m.lastSeconds(s.now, StatusSeconds))
		lately.add(m.lastSeconds(s.now, rateSeconds))
	}
	for _, m := range s.families[name] {
		v := VariantStatus{
			ModelID: m.ModelID, Accuracy: m.accuracyOrBest(), Answered: m.total.answered,
		}
		last := m.lastSeconds(s.now, rateSeconds)
		minute.add(m.lastSeconds(s.now, StatusSeconds))
		lately.add(last)
		v.Share = float64(last.answered)
		f.Best = max(f.Best, v.Accuracy)
		f.Variants = append(f.Variants, v)
	}
	for i := range f.Variants {
		v := &f.Variants[i]
		v.Share /= max(float64(lately.answered), 1)
		f.Accuracy += v.Share * v.Accuracy
	}
	f.Rate = lately.ratePerSecond(s.now)
	f.Within, f.Any = minute.inTimeShare()
	return f
}

// heldVersions are the versions that members have, by the view or by their links.
func (s *State) heldVersions() map[ModelID]bool {
	held := maps.Clone(s.loadable)
	if held == nil {
		held = map[ModelID]bool{}
	}
	for _, m := range s.members {
		for _, k := range m.holds {
			held[k.ModelID] = true
		}
	}
	for _, m := range s.view {
		for i := range m.Models {
			held[m.Models[i].ModelID] = true
		}
	}
	return held
}

// statusAt returns the status of the model as of now.
func (m *heldModel) statusAt(now time.Duration) ModelStatus {
	minute, lately := m.lastSeconds(now, StatusSeconds), m.lastSeconds(now, rateSeconds)
	status := ModelStatus{
		ModelID: m.ModelID, Answered: m.total.answered, Late: m.total.late,
		Refused: m.refusals, NonFinite: m.nonFinite,
	}
	status.Rate = lately.ratePerSecond(now)
	status.Within, status.Any = minute.inTimeShare()
	return status
}

// A tally counts queries of a model. Of those that failed, excused say nothing about the QoS.
type tally struct {
	second                        int64
	answered, late, lost, excused uint64
}

// add adds the counts of o.
func (t *tally) add(o tally) {
	t.answered += o.answered
	t.late += o.late
	t.lost += o.lost
	t.excused += o.excused
}

// ratePerSecond is the queries/s of t, which counts those of the last rateSeconds.
func (t *tally) ratePerSecond(now time.Duration) float64 {
	// The counts are of whole seconds, of which the last one is not over.
	span := min(now, (rateSeconds-1)*time.Second+now%time.Second)
	return float64(t.answered+t.lost+t.excused) / max(span, time.Second).Seconds()
}

// inTimeShare is the share answered in time, without the excused ones; any is false if there were
// none.
func (t *tally) inTimeShare() (share float64, any bool) {
	n := t.answered + t.lost
	if n == 0 {
		return 0, false
	}
	return float64(t.answered-t.late) / float64(n), true
}

// countTally adds t to the model's counts of the current second and of the whole term.
func (s *State) countTally(m *heldModel, t tally) {
	s.ended.add(s.now, float64(t.answered+t.lost+t.excused))
	if m != &s.nowhere {
		f := s.familyCount(m)
		f.Ended += t.answered + t.lost
		f.Late += t.late + t.lost
	}
	second := int64(s.now / time.Second)
	p := &m.perSecond[second%StatusSeconds]
	if p.second != second {
		*p = tally{second: second}
	}
	for _, to := range []*tally{p, &m.total} {
		to.add(t)
	}
}

// lastSeconds is the sum of the counts of the last seconds.
func (m *heldModel) lastSeconds(now time.Duration, seconds int64) (sum tally) {
	second := int64(now / time.Second)
	for i := range m.perSecond {
		if p := &m.perSecond[i]; p.second > second-seconds && p.second <= second {
			sum.add(*p)
		}
	}
	return sum
}

// A secondsRing sums values over the last minute, by tenths of a second. Its zero value is ready to
// use.
type secondsRing struct {
	parts [10 * StatusSeconds]struct {
		at  int64 // in tenths of a second
		sum float64
	}
}

func tenthsOf(now time.Duration) int64 { return int64(now / (100 * time.Millisecond)) }

func (r *secondsRing) add(now time.Duration, v float64) {
	at := tenthsOf(now)
	p := &r.parts[at%int64(len(r.parts))]
	if p.at != at {
		p.at, p.sum = at, 0
	}
	p.sum += v
}

// sumOver is the sum of the values added in the time over before now, at most a minute.
func (r *secondsRing) sumOver(now time.Duration, over time.Duration) (sum float64) {
	last := tenthsOf(now)
	for at := max(0, last-int64(over/(100*time.Millisecond))+1); at <= last; at++ {
		if p := &r.parts[at%int64(len(r.parts))]; p.at == at {
			sum += p.sum
		}
	}
	return sum
}

// Holds lists the attempts that the state believes a member's lane to hold; only their query and
// attempt are set.
func (s *State) Holds(agent names.AgentName, lane int) (all []Held) {
	if ln := s.findLane(agent, lane); ln != nil {
		for _, r := range s.matcher.Holds(nil, ln.id) {
			h := Held{
				Gateway: r.Query.Gateway, Sequence: r.Query.Sequence, Attempt: r.Attempt,
				Lane: lane,
			}
			all = append(all, h)
		}
	}
	return all
}

// Sizes counts what the state keeps in memory, by name of the collection, so that tests can check
// what it forgets.
func (s *State) Sizes() map[string]int {
	waiting, _ := s.matcher.Waiting()
	reserved, queries := 0, 0
	for id := range s.lanes {
		holds, _ := s.matcher.Load(id)
		reserved += holds
	}
	for _, g := range s.gateways {
		queries += len(g.queries)
	}
	return map[string]int{
		"members": len(s.members), "lanes": len(s.lanes),
		"models": len(s.models), "matcher's models": s.matcher.Models(),
		"latencies": len(s.latencies), "gateways": len(s.gateways), "accounts": len(s.accounts),
		"gone": len(s.gone), "factors": len(s.factors) + len(s.slow), "prices": len(s.prices),
		"counts": len(s.counts), "waiting": waiting, "reserved": reserved, "queries": queries,
		"parked": s.parkings,
	}
}
