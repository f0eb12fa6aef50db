package leader

import (
	"maps"
	"slices"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/canary"
	"github.com/muster-serve/muster/leader/match"
)

// Parts of a query are numbered between queries.
const _ = uint(canary.Numbering-(match.MostParts+1)) + uint(match.MostParts+1-canary.Numbering)

// A ModelRollout says which versions of a model answer the queries that name none.
type ModelRollout struct {
	Model string
	canary.Rollout
}

// setReleases takes all releases. A trial goes on as long as its release is the same. What a canary
// did before it was taken back would take it back again at once; and with another share its queries
// are of another time than the current version's: if a canary gets more of them since an overload
// began, it is late more often, though it is as good.
func (s *State) setReleases(all []ModelRollout) {
	before := s.releases
	s.releases = make(map[string]canary.Rollout, len(all))
	for _, r := range all {
		s.releases[r.Model] = r.Rollout
	}
	for _, m := range s.models {
		now, was := s.releases[m.Name], before[m.Name]
		switch on := now.OnTrial() && slices.Contains(now.Versions(), m.Version); {
		case on && (m.trial == nil || now != was):
			m.trial = &canary.TrialCounts{}
		case now.Canary == 0:
			m.trial = nil
		}
	}
	if !maps.Equal(before, s.releases) {
		s.modelsStale = true
		s.poolChanged()
		s.rebindQueries(func(q *query, to ModelID) bool { return q.model.ModelID != to })
	}
}

// resolveModel returns what answers a query that names asked: asked itself if that has a version,
// else what the model's release says, else the newest version.
func (s *State) resolveModel(asked ModelID, q match.QueryID) ModelID {
	other := s.Newest(asked)
	if r, ok := s.releases[asked.Name]; ok && asked.Version == 0 {
		other.Version = r.Version(q.Gateway, q.Sequence, other.Version,
			func(v int64) bool { return s.served[ModelID{asked.Name, v}] })
	}
	return other
}

// isReleased reports whether a release says which version answers q.
func (s *State) isReleased(q *query) bool {
	return q.asked.Version == 0 && !q.byFamily && s.releases[q.asked.Name].Current != 0
}

// rebindQueries moves queries that name no version and wait for a lane to the version that is to
// answer them now, if that serves and moves says so.
func (s *State) rebindQueries(moves func(q *query, to ModelID) bool) {
	for _, id := range slices.Sorted(maps.Keys(s.gateways)) {
		g := s.gateways[id]
		for _, sequence := range slices.Sorted(maps.Keys(g.queries)) {
			// A query moved earlier in this loop may have caused this one's rejection.
			q := g.queries[sequence]
			if q == nil || q.asked.Version != 0 || q.byFamily || q.model == nil {
				continue
			}
			to := s.resolveModel(q.asked, q.matchID())
			if !s.served[to] || !moves(q, to) || !s.matcher.Waits(q.matchID()) {
				continue
			}
			q.ageTo(s.now)
			q.model = s.models[to]
			s.step(match.Event{Kind: match.Cancelled, Query: q.matchID()})
			e := s.submitEvent(q, to)
			s.step(e)
		}
	}
}

// countTrialRun counts an execution for a trial. Its time cannot be compared if its batch size is 0.
func (s *State) countTrialRun(m *heldModel, typ names.LaneType, e *Event) {
	took := e.Execution
	if m.trial == nil || took <= 0 {
		return
	}
	m.trial.Times.Add(took)
	current, batch := ModelID{m.Name, s.releases[m.Name].Current}, e.BatchSize
	if like := s.models[current]; like != nil {
		batch = like.sizeOf(batch, e.Users, e.Values)
	}
	usual := s.latencies[names.TableKey{Model: current.Key(), Type: typ}]
	if usual == nil || usual.Doubtful || batch < 1 || batch > usual.Table.Largest() {
		return
	}
	m.trial.Runs.Add(time.Duration(1e9 * float64(took) / float64(usual.Table.Mean(batch))))
}

// isTried reports whether a canary of a model gets queries now, so that those of both versions
// count in its trial: they must be of the same time.
func (s *State) isTried(model string) bool {
	r := s.releases[model]
	return r.OnTrial() && s.served[ModelID{model, r.Canary}] && s.served[ModelID{model, r.Current}]
}

// trialSize is the batch size with which a query counts in the trial of a canary, 0 if it counts in
// none because it names a version or a family. A query that is not known, nil, counts by the batch
// size that its worker tells.
func (s *State) trialSize(q *query, told int) int {
	switch {
	case q == nil || q.whole == 0 && s.isReleased(q):
		return max(told, 1)
	default:
		return q.whole
	}
}

// A Trial is what the state has counted of a canary, beside the current version.
type Trial struct {
	ModelRollout
	canary.Trial
	// Serves says that agents that do not drain hold the canary.
	Serves bool
}

// Trials returns, by model, the trials that go on or, if a canary was taken back, the last ones. It
// counts since the release, or since the term began.
func (s *State) Trials() (all []Trial) {
	for _, name := range slices.Sorted(maps.Keys(s.releases)) {
		r := s.releases[name]
		if r.Canary == 0 {
			continue
		}
		t := Trial{ModelRollout: ModelRollout{name, r}, Serves: s.served[ModelID{name, r.Canary}]}
		if m := s.models[ModelID{name, r.Current}]; m != nil && m.trial != nil {
			t.Current = *m.trial
		}
		if m := s.models[ModelID{name, r.Canary}]; m != nil && m.trial != nil {
			t.Canary = *m.trial
		}
		all = append(all, t)
	}
	return all
}

// Serving returns, by model, the versions on lanes that do not drain, in order.
func (s *State) Serving() map[string][]int64 {
	all := map[string][]int64{}
	for id := range s.served {
		all[id.Name] = append(all[id.Name], id.Version)
	}
	for _, versions := range all {
		slices.Sort(versions)
	}
	return all
}
