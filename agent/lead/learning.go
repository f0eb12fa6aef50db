package lead

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/leader"
	"github.com/muster-serve/muster/leader/learn"
	"github.com/muster-serve/muster/profiles"
)

const (
	// learnRest is how long queries and answers may gather before they are looked at: to be woken
	// by each of them would cost the leader more than to learn from it.
	learnRest = 5 * time.Millisecond
	// mostObserved bounds what waits to be learned from; more is not.
	mostObserved = 1 << 14
)

// learning pumps a [learn.State] beside the term's loop: it hands it what the term has
// seen, and the term its advice, and saves the book. One goroutine, run's, has it all but
// what the lock guards.
type learning struct {
	term *term
	wake chan struct{} // the pool is another
	come chan struct{} // there are arrivals or observations
	asks chan func()   // that read what the goroutine has

	mu   sync.Mutex
	seen learn.Seen // what waits to be looked at

	book    *profiles.Book
	state   *learn.State
	problem string // the last that was logged
}

func newLearning(t *term) *learning {
	book := t.leader.book
	return &learning{
		term: t, wake: make(chan struct{}, 1), come: make(chan struct{}, 1),
		asks: make(chan func()),
		book: book, state: learn.New(book),
	}
}

// poolIs tells of the pool as it is now.
func (s *learning) poolIs(p *leader.Pool) {
	s.mu.Lock()
	s.seen.Pool = p
	s.mu.Unlock()
	signal(s.wake)
}

// arrived tells of a query.
func (s *learning) arrived(a learn.Arrival) {
	s.mu.Lock()
	if len(s.seen.Arrivals) < mostObserved {
		s.seen.Arrivals = append(s.seen.Arrivals, a)
	}
	s.mu.Unlock()
	signal(s.come)
}

// observed tells of an answer.
func (s *learning) observed(o learn.Observation) {
	s.mu.Lock()
	if len(s.seen.Observations) < mostObserved {
		s.seen.Observations = append(s.seen.Observations, o)
	}
	s.mu.Unlock()
	signal(s.come)
}

// suggest gives profiles to start from, that the leader before has told. It is called before run.
func (s *learning) suggest(v *control.View) {
	members := make([]*leader.Member, len(v.GetMembers()))
	for i, m := range v.GetMembers() {
		members[i] = memberOf(s.term.leader.config.Catalogue, m)
	}
	told := make([]leader.Latency, len(v.GetProfiles()))
	for i, p := range v.GetProfiles() {
		told[i] = leader.Latency{TableKey: p.Key(), Told: p.GetTable()}
	}
	s.state.Suggest(members, told)
}

// run learns until ctx ends.
func (s *learning) run(ctx context.Context) {
	defer s.save()
	timer := time.NewTimer(0)
	defer timer.Stop()
	rest := time.NewTimer(0)
	defer rest.Stop()
	tidy := time.NewTicker(learn.ForgetInterval)
	defer tidy.Stop()
	var come <-chan struct{} // nil while it rests
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
			s.forget(time.Now())
			s.save()
			continue
		case ask := <-s.asks:
			ask()
			continue
		case <-ctx.Done():
			return
		}
		if next := s.look(time.Now()); next > 0 {
			timer.Reset(next)
		}
	}
}

// ask has run do something, and waits until it has; it reports false if the term has ended.
func (s *learning) ask(do func()) bool {
	done := make(chan struct{})
	select {
	case s.asks <- func() { do(); close(done) }:
		<-done
		return true
	case <-s.term.ctx.Done():
		return false
	}
}

// look has what waits looked at, and gives advice; it returns after how long to look again, 0 if
// only what is seen brings more.
func (s *learning) look(now time.Time) (next time.Duration) {
	s.mu.Lock()
	seen := s.seen
	s.seen = learn.Seen{}
	s.mu.Unlock()
	advice, next, err := s.state.Look(now, seen)
	if err != nil && err.Error() != s.problem {
		s.problem = err.Error()
		s.term.leader.log.Warn("not all advice can be given", "error", err)
	}
	s.term.planning.changed(s.state.DemandChanges())
	if advice != nil {
		s.term.post(func() { s.term.advise(advice) })
	}
	return next
}

// forget has the term forget what has been gone for long.
func (s *learning) forget(now time.Time) {
	models, tables := s.state.Forget(now)
	if len(models) > 0 || len(tables) > 0 {
		s.term.post(func() {
			s.term.step(leader.Event{Kind: leader.Outdated, Models: models, Tables: tables})
		})
	}
}

// fillDemand adds what is asked of the models, and what was learned of them.
func (s *learning) fillDemand(out *control.FleetDemand, now time.Time) {
	for _, d := range s.state.Demand(now) {
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
	for _, l := range s.state.Learned() {
		table, err := json.Marshal(l.Table())
		if err != nil {
			continue // what was learned can be written
		}
		out.Profiles = append(out.Profiles, &control.LearnedProfile{
			Table: table, Queries: l.Queries(), AgeNs: int64(now.Sub(l.Updated())),
		})
	}
}

// save keeps what was learned.
func (s *learning) save() {
	l := s.term.leader
	if !s.state.Changed() || l.forgetful {
		return
	}
	err := os.MkdirAll(l.config.StateDir, 0o755)
	if err == nil {
		err = s.book.Save(l.bookPath())
	}
	if err != nil {
		l.log.Warn("what was learned is not kept", "error", fmt.Errorf("profiles: %w", err))
	}
}
