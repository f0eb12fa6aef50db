package lead

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/muster-serve/muster/agent/members"
	"github.com/muster-serve/muster/api/accuracy"
	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/files"
	"github.com/muster-serve/muster/api/wakeup"
	"github.com/muster-serve/muster/leader"
	"github.com/muster-serve/muster/leader/learn"
	"github.com/muster-serve/muster/profiles"
	"github.com/muster-serve/muster/profiles/work"
)

const (
	// learnRest is how long queries and answers gather before the learning loop handles them
	// together. A wake-up for each would cost the leader more time than the learning itself.
	// Chosen: profiles change in seconds, and twenty wake-ups a second cost nothing beside
	// thousands of queries.
	learnRest = 50 * time.Millisecond
	// maxObserved is how many queries, and how many answers, may wait to be learned from; further
	// ones are dropped. Chosen: far more than come within learnRest.
	maxObserved = 1 << 14
)

// This does not compile unless members.KeepTold >= learn.KeepTold. Members must keep a profile of
// the leader at least as long as the leader remembers having sent it: only after that does the
// leader send the profile again.
const _ = uint(members.KeepTold - learn.KeepTold)

// profileLearner runs a [learn.State] beside the term's loop: it passes the queries and answers of
// the term to the state, passes the state's advice to the term, and saves the book. The goroutine
// of run owns all fields except seen, which mu guards.
type profileLearner struct {
	term *term
	wake wakeup.Signal // the pool has changed
	come wakeup.Signal // seen has queries or answers
	asks chan func()   // functions for run's goroutine to call

	mu   sync.Mutex
	seen learn.Seen // what run has not handled yet

	book    *profiles.Book
	state   *learn.State
	problem string // the last error logged, so that it is logged once
}

func newLearning(t *term) *profileLearner {
	book := t.leader.book
	return &profileLearner{
		term: t, wake: wakeup.New(), come: wakeup.New(),
		asks: make(chan func()),
		book: book, state: learn.New(book),
	}
}

// poolIs passes the current pool of lanes. It does not block.
func (s *profileLearner) poolIs(p *leader.Pool) {
	s.mu.Lock()
	s.seen.Pool = p
	s.mu.Unlock()
	s.wake.Send()
}

// addArrival passes a query that was submitted. It does not block.
func (s *profileLearner) addArrival(a learn.Arrival) {
	s.mu.Lock()
	if len(s.seen.Arrivals) < maxObserved {
		s.seen.Arrivals = append(s.seen.Arrivals, a)
	}
	s.mu.Unlock()
	s.come.Send()
}

// addObservation passes the execution time of an answered query. It does not block.
func (s *profileLearner) addObservation(o learn.Observation) {
	s.mu.Lock()
	if len(s.seen.Observations) < maxObserved {
		s.seen.Observations = append(s.seen.Observations, o)
	}
	s.mu.Unlock()
	s.come.Send()
}

// startFrom passes the profiles of the former leader, which learning starts from. It must be called
// before run.
func (s *profileLearner) startFrom(v *control.View) {
	members := make([]*leader.Member, len(v.GetMembers()))
	for i, m := range v.GetMembers() {
		members[i] = memberOf(s.term.leader.config.Catalogue, m)
	}
	told := make([]leader.Latency, len(v.GetProfiles()))
	for i, p := range v.GetProfiles() {
		told[i] = leader.Latency{
			TableKey: p.TableKey(), Told: p.GetTable(), ToldWork: p.GetWorkTable(),
			Law: work.NewLaw(p.GetRowsPerUser(), p.GetRowsPerValue()),
		}
	}
	s.state.Suggest(members, told)
}

// run passes what was seen to the state, and its advice to the term, until ctx ends. It saves the
// book from time to time and when it returns.
func (s *profileLearner) run(ctx context.Context) {
	s.restoreWorks()
	defer s.save()
	timer := time.NewTimer(0)
	defer timer.Stop()
	rest := time.NewTimer(0)
	defer rest.Stop()
	tidy := time.NewTicker(learn.ForgetInterval)
	defer tidy.Stop()
	var come <-chan struct{} // nil while queries and answers gather for learnRest
	for {
		select {
		case <-s.wake:
		case <-come:
			come = nil
			rest.Reset(learnRest)
		case <-rest.C:
			come = s.come
			continue
		case <-timer.C:
		case <-tidy.C:
			s.dropGone(time.Now())
			s.save()
			continue
		case ask := <-s.asks:
			ask()
			continue
		case <-ctx.Done():
			return
		}
		if next := s.passSeen(time.Now()); next > 0 {
			timer.Reset(next)
		}
	}
}

// askLoop is [term.askGoroutine] on run's goroutine.
func (s *profileLearner) askLoop(do func()) bool { return s.term.askGoroutine(s.asks, do) }

// passSeen passes what was seen since the last call to the state, and the state's advice to the
// term. It returns the time until the next call is due; 0 if none is due before something new is
// seen.
func (s *profileLearner) passSeen(now time.Time) (next time.Duration) {
	s.mu.Lock()
	seen := s.seen
	s.seen = learn.Seen{}
	s.mu.Unlock()
	advice, next, err := s.state.Look(now, seen)
	if err != nil && err.Error() != s.problem {
		s.problem = err.Error()
		s.term.leader.log.Warn("the learning loop cannot advise on all models", "error", err)
	}
	s.term.planning.addChanges(s.state.DemandChanges())
	if advice != nil {
		s.term.postToLoop(func() { s.term.applyAdvice(advice) })
	}
	return next
}

// dropGone removes what was learned of versions and lanes that have long been gone, from the state
// and from the term.
func (s *profileLearner) dropGone(now time.Time) {
	models, tables := s.state.Forget(now)
	if len(models) > 0 || len(tables) > 0 {
		s.term.postToLoop(func() {
			s.term.step(leader.Event{Kind: leader.Outdated, Models: models, Tables: tables})
		})
	}
}

// fillDemand adds to out each model's rate and batch sizes, and the learned profiles, whose means
// are those of all runs: out is to plan with.
func (s *profileLearner) fillDemand(out *control.FleetDemand, now time.Time) {
	all := s.state.Demand(now)
	learned := s.state.Learned()
	moveToProfiled(all, func(m *leader.HeldModel) bool { return s.isProfiled(out, learned, m) })
	for _, d := range all {
		known := &control.ModelDemand{
			Model: d.Name, Version: d.Version, QosTargetNs: int64(d.QoSTarget),
			QosPercentile:    d.Share,
			LargestBatchSize: uint32(d.Largest), Queries: uint64(d.Queries), Rate: d.Rate,
		}
		for _, x := range d.BatchSizes {
			known.BatchSizes, known.Shares = append(known.BatchSizes,
				uint32(x.BatchSize)), append(known.Shares, x.Share)
		}
		out.Models = append(out.Models, known)
	}
	for _, l := range learned {
		table, err := json.Marshal(s.state.ByWork(l.Key(), l.LatencyTable()).ByLoad())
		if err != nil {
			continue // a learned table can always be encoded
		}
		out.Profiles = append(out.Profiles, &control.LearnedProfile{
			Table: table, Queries: l.Queries(), AgeNs: int64(now.Sub(l.Updated())),
		})
	}
}

// isProfiled reports whether a model's latencies are known on all types of instances that serve.
func (s *profileLearner) isProfiled(d *control.FleetDemand, learned []*profiles.Learner,
	m *leader.HeldModel) bool {
	for t := range instancesOf(d.GetMembers()) {
		on := profiles.InstanceType(t)
		if !slices.ContainsFunc(learned, func(l *profiles.Learner) bool {
			key := l.Key()
			return key.Model == m.Name && key.Version == m.Version && key.InstanceType == on
		}) {
			if _, err := s.term.leader.config.Library.Table(m.Name, on); err != nil {
				return false
			}
		}
	}
	return true
}

// moveToProfiled counts the demand of a variant that is not profiled for the most accurate one of
// its family that is, if there is one. Queries for a family count for its best variant on any disk,
// which may never have run; nobody could plan for that.
func moveToProfiled(all []learn.Demand, isProfiled func(*leader.HeldModel) bool) {
	for i := range all {
		from := &all[i]
		if from.Family == "" || from.Queries == 0 || isProfiled(from.HeldModel) {
			continue
		}
		var to *learn.Demand
		for k := range all {
			if v := &all[k]; v.Family == from.Family && k != i && isProfiled(v.HeldModel) &&
				(to == nil ||
					accuracy.Known(v.Accuracy) > accuracy.Known(to.Accuracy)) {
				to = v
			}
		}
		if to == nil {
			continue
		}
		if from.Queries > to.Queries {
			to.BatchSizes = from.BatchSizes
		}
		to.Queries, to.Rate = to.Queries+from.Queries, to.Rate+from.Rate
		from.Queries, from.Rate, from.BatchSizes = 0, 0, nil
	}
}

// save writes the book to its file if it has changed. It logs a failure.
func (s *profileLearner) save() {
	l := s.term.leader
	if !s.state.Changed() || l.forgetful {
		return
	}
	err := os.MkdirAll(l.config.StateDir, 0o755)
	if err == nil {
		err = s.book.Save(l.bookPath())
	}
	if err == nil {
		err = s.saveWorks()
	}
	if err != nil {
		l.log.Warn("cannot save the learned profiles", "error", fmt.Errorf("profiles: %w", err))
	}
}

// saveWorks writes what is known of the work of queries, or removes its file if there is nothing.
func (s *profileLearner) saveWorks() error {
	data, err := s.state.MarshalWorks()
	path := s.term.leader.worksPath()
	switch {
	case err != nil:
	case data == nil:
		if err = os.Remove(path); errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
	default:
		err = files.Replace(path, append(data, '\n'), 0o600)
	}
	return err
}

// restoreWorks has learning start from the file that saveWorks writes, where the former leader has
// told nothing. A file that cannot be read is only logged; the next save replaces it.
func (s *profileLearner) restoreWorks() {
	l := s.term.leader
	data, err := os.ReadFile(l.worksPath())
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	if err == nil {
		err = s.state.RestoreWorks(data)
	}
	if err != nil {
		l.log.Warn("cannot read what was learned of the work of queries; the leader learns it anew",
			"file", l.worksPath(), "error", err)
	}
}
