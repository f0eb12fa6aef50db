package agent

import (
	"encoding/json"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/profiles"
)

// TestStudyBeginsFromLearned has a new leader get its first queries, where what it begins from is learned already, and
// where it is not: only then is each of them a reason to tell all what it changes.
func TestStudyBeginsFromLearned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newLeaderWorld(t)
		defer w.stop()
		a := w.add("a", 1, linear)
		soon(t, time.Second, "a leads", func() bool { return w.leading() == a })
		r := a.leader.reigning()
		model := &leaderModel{key: control.ModelKey("m", 1), name: "m", version: 1}
		p := &pool{
			members: []poolMember{{member: a.member, models: []string{model.key}, lanes: 1}},
			models:  []poolModel{{key: model.key, name: "m", version: 1, target: 100 * time.Millisecond, share: 0.99, largest: 100}},
		}
		random := rand.New(rand.NewPCG(1, 1))
		latency := func(batch int) time.Duration {
			return time.Duration(float64(linear(batch)) * (1 + 0.1*random.NormFloat64()))
		}
		begin := func() *study {
			s := newStudy(r)
			s.book = profiles.NewBook(profiles.ShippedLibrary())
			return s
		}
		learner := profiles.NewLearner(begin().key(a.member, "m", 1), nil)
		for i := range 500 {
			if err := learner.Observe(1+i%100, latency(1+i%100), "a", time.Now()); err != nil {
				t.Fatal(err)
			}
		}
		table, err := json.Marshal(learner.Table())
		if err != nil {
			t.Fatal(err)
		}
		// told is how often a profile was told in the first 40 queries.
		told := func(s *study) (n int) {
			s.poolIs(p)
			key := tableKey{model.key, a.member.LaneType()}
			for i := range 40 {
				before := s.told[key].table
				s.look(time.Now())
				if s.told[key].table != before {
					n++
				}
				s.observed(a.member, model, 1+7*i%100, latency(1+7*i%100), time.Now())
				time.Sleep(time.Millisecond)
			}
			return n
		}
		known := begin()
		known.suggest(&control.Profile{Model: model.key, Type: a.member.LaneType(), Table: table})
		if n := told(known); n != 1 {
			t.Errorf("a profile that was learned is told %d times, want 1", n)
		}
		if n := told(begin()); n < 10 {
			t.Errorf("a guess is corrected %d times, want 10 or more", n)
		}
	})
}
