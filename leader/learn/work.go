package learn

import (
	"maps"
	"math"
	"slices"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader"
	"github.com/muster-serve/muster/profiles"
	"github.com/muster-serve/muster/profiles/work"
)

const (
	// keptRuns is how many runs of a model are kept under each key, the last ones. Chosen: four times
	// what a law needs to be sure of 5 % in BenchmarkWork's histories, and 24 KiB a key.
	keptRuns = 512
	// fitEvery is how many runs of a model come between two fits. A fit takes about 1 ms a key.
	fitEvery = 64
	// minShift is the mean relative change of the work of queries from which on another law is worth
	// new profiles: by less it is within what a profile errs. Chosen; half of slowFrom.
	minShift = 0.05
)

// A modelWork is what is learned of the work of a model's queries: how many rows a user and a value
// take as long as. A law holds on all types of lanes, since a query has one size in the matcher, the
// monitor and the plans. It is the mean of the types' laws, weighted by their runs; each type has a
// profile of its own by work, which takes in what is left.
//
// Profiles by rows go on beside these: older agents are told them, and the book saves them. What is
// here has a file of its own; see [State.MarshalWorks].
type modelWork struct {
	law      work.Law // zero: rows alone
	runs     map[profiles.Key]*keptRunsOf
	learners map[profiles.Key]*profiles.Learner // by work; of keys with runs, while law is not zero
	told     map[profiles.Key]bool              // their learners begin with what a leader has told
	since    int                                // runs since the last fit
}

// newModelWork returns what is known of work by a law that was learned before.
func newModelWork(law work.Law) *modelWork {
	return &modelWork{
		law: law, runs: map[profiles.Key]*keptRunsOf{},
		learners: map[profiles.Key]*profiles.Learner{}, told: map[profiles.Key]bool{},
	}
}

// A keptRunsOf is the last runs under one key, the oldest at next once it is full.
type keptRunsOf struct {
	runs []workRun
	next int
}

type workRun struct {
	work.Run
	agent names.AgentName
	at    time.Time
}

func (k *keptRunsOf) add(r workRun) {
	if len(k.runs) < keptRuns {
		k.runs = append(k.runs, r)
		return
	}
	k.runs[k.next] = r
	k.next = (k.next + 1) % keptRuns
}

// each calls do with the runs, the oldest first.
func (k *keptRunsOf) each(do func(*workRun)) {
	for i := range k.runs {
		do(&k.runs[(k.next+i)%len(k.runs)])
	}
}

// observeWork adds a run of a model whose queries have users or values, and adopts another law if
// the runs say so.
func (s *State) observeWork(key profiles.Key, x *Observation) {
	w := s.works[x.Model]
	if w == nil {
		if x.Users <= 0 && x.Values == 0 {
			return // nothing but rows
		}
		w = &modelWork{runs: map[profiles.Key]*keptRunsOf{}}
		s.works[x.Model] = w
	}
	if x.Users < 0 || x.Execution <= 0 {
		return // of agents that do not tell all users of a run
	}
	if x.Cut {
		if l := w.learners[key]; l != nil {
			_ = l.ObserveCut(s.workOf(w, x.Model, x.BatchSize, x.Users, x.Values), x.Execution,
				x.Member.Name, x.At) // the book has taken the same
		}
		return
	}
	run := workRun{work.Run{
		Rows: x.BatchSize, Users: x.Users, Values: x.Values, Took: x.Execution,
	}, x.Member.Name, x.At}
	kept := w.runs[key]
	if kept == nil {
		kept = &keptRunsOf{}
		w.runs[key] = kept
	}
	kept.add(run)
	if w.law != (work.Law{}) {
		s.observeRun(w, x.Model, key, &run)
	}
	if w.since++; w.since >= fitEvery {
		w.since = 0
		s.adoptLaw(w, x.Model)
	}
}

// observeRun adds a run to the profile by work of a key.
func (s *State) observeRun(w *modelWork, id leader.ModelID, key profiles.Key, r *workRun) {
	l := w.learners[key]
	if l == nil {
		l = profiles.NewLearner(key, nil)
		w.learners[key] = l
	}
	_ = l.Observe(s.workOf(w, id, r.Rows, r.Users, r.Values), r.Took, r.agent, r.at) // as above
}

// workOf is the size of a query or run of a model, as the leader's state reckons it.
func (s *State) workOf(w *modelWork, id leader.ModelID, rows, users, values int) int {
	size := w.law.Size(rows, users, values)
	if m := s.findModel(id); m != nil {
		size = min(size, max(rows, m.Largest))
	}
	return min(size, profiles.MaxBatchSize)
}

// adoptLaw fits the kept runs, and adopts what they say if it differs from the law that holds.
func (s *State) adoptLaw(w *modelWork, id leader.ModelID) {
	var law work.Law
	all, better, perhaps := 0.0, 0.0, 0.0
	for _, key := range sortedKeys(w.runs) {
		var runs []work.Run
		w.runs[key].each(func(r *workRun) { runs = append(runs, r.Run) })
		fit := work.Learn(runs)
		if fit.RowsError == 0 {
			continue // too few
		}
		n := float64(fit.Runs)
		all += n
		if fit.WorkError < fit.RowsError {
			perhaps += n
		}
		if fit.IsBetter {
			better += n
			law.PerUser += n * fit.Law.PerUser
			law.PerValue += n * fit.Law.PerValue
		}
	}
	switch {
	case better > all/2: // on most lanes, surely
		law.PerUser /= better
		law.PerValue /= better
	case all == 0 || perhaps > all/2:
		return // not surely: what holds stays
	default:
		law = work.Law{}
	}
	if law == w.law || w.shift(law) < minShift && (law != work.Law{}) && (w.law != work.Law{}) {
		return
	}
	w.law, w.learners, w.told = law, nil, nil
	s.unlooked = true
	if law == (work.Law{}) {
		return
	}
	w.learners = map[profiles.Key]*profiles.Learner{}
	for _, key := range sortedKeys(w.runs) {
		w.runs[key].each(func(r *workRun) { s.observeRun(w, id, key, r) })
	}
}

func sortedKeys(runs map[profiles.Key]*keptRunsOf) []profiles.Key {
	keys := make([]profiles.Key, 0, len(runs))
	for key := range runs {
		keys = append(keys, key)
	}
	slices.SortFunc(keys, profiles.Key.Compare)
	return keys
}

// shift is by how much the work of the kept runs changes with another law, in the mean.
func (w *modelWork) shift(law work.Law) float64 {
	sum, n := 0.0, 0
	for _, kept := range w.runs {
		for i := range kept.runs {
			r := &kept.runs[i]
			was := w.law.Work(r.Rows, r.Users, r.Values)
			sum += math.Abs(law.Work(r.Rows, r.Users, r.Values)/max(was, 1) - 1)
			n++
		}
	}
	return sum / float64(max(n, 1))
}

// workTable is the profile by work of a model under a key. byRows is that by rows, which has been
// observed with the mean number of users and values: until runs under the key say more, work of
// that mean takes as long.
func (w *modelWork) workTable(key profiles.Key, byRows *profiles.Table) *profiles.Table {
	if l := w.learners[key]; l != nil && (l.Queries() >= sureQueries || w.told[key]) {
		return l.LatencyTable()
	}
	rows, size := 0.0, 0.0
	for _, kept := range w.runs {
		for i := range kept.runs {
			r := &kept.runs[i]
			rows += float64(r.Rows)
			size += w.law.Work(r.Rows, r.Users, r.Values)
		}
	}
	if rows == 0 {
		return byRows
	}
	return byRows.Stretch(size / rows)
}

// suggestWork has learning start from the law and the profile by work that a former leader has told.
func (s *State) suggestWork(key profiles.Key, told *leader.Latency) {
	var t profiles.Table
	if told.Law == (work.Law{}) || t.UnmarshalJSON(told.ToldWork) != nil {
		return
	}
	var id leader.ModelID
	id.Name, id.Version = told.Model.Split()
	w := s.works[id]
	if w == nil {
		w = newModelWork(told.Law)
		s.works[id] = w
	}
	if w.law == told.Law && w.learners[key] == nil {
		w.learners[key], w.told[key] = profiles.NewLearner(key, &t), true
	}
}

// forgetWorks drops what is known of models that are gone, and runs under keys that are not used.
func (s *State) forgetWorks(now time.Time, gone []leader.ModelID, used map[profiles.Key]bool) {
	for _, id := range gone {
		delete(s.works, id)
	}
	unknown := s.goneWorks.Over(now, keepGone, maps.Keys(s.works), func(id leader.ModelID) bool {
		return s.findModel(id) != nil
	})
	for _, id := range unknown { // restored, but no member has come with it
		delete(s.works, id)
	}
	for _, w := range s.works {
		unused := func(key profiles.Key) bool { return !used[key] }
		maps.DeleteFunc(w.runs, func(key profiles.Key, _ *keptRunsOf) bool { return unused(key) })
		maps.DeleteFunc(w.learners, func(key profiles.Key, _ *profiles.Learner) bool {
			return unused(key)
		})
	}
}

// ByWork returns a profile by rows as one by work, in which demand and sizes are told.
func (s *State) ByWork(key profiles.Key, byRows *profiles.Table) *profiles.Table {
	w := s.works[leader.ModelID{Name: key.Model, Version: key.Version}]
	if w == nil || w.law == (work.Law{}) {
		return byRows
	}
	return w.workTable(key, byRows)
}
