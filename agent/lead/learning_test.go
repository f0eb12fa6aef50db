package lead

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/leader"
	"github.com/muster-serve/muster/profiles"
)

// TestLearningBeginsFromLearned has a new leader get its first queries, where what it begins from is learned already, and
// where it is not: only then is each of them a reason to tell all what it changes.
func TestLearningBeginsFromLearned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newLeaderWorld(t)
		defer w.stop()
		a := w.add("a", 1, linear)
		soon(t, time.Second, "a leads", func() bool { return w.leading() == a })
		term := a.leader.leads()
		model := leader.ModelID{Name: "m", Version: 1}
		member := memberOf(profiles.DefaultCatalogue(), a.member)
		p := &leader.Pool{
			Members: []leader.PoolMember{{Member: member, Holds: []leader.ModelID{model}}},
			Models:  []leader.Model{{ModelID: model, QoSTarget: 100 * time.Millisecond, Share: 0.99, Largest: 100}},
		}
		random := rand.New(rand.NewPCG(1, 1))
		latency := func(batch int) time.Duration {
			return time.Duration(float64(linear(batch)) * (1 + 0.1*random.NormFloat64()))
		}
		begin := func() *learning {
			s := newLearning(term)
			s.book = profiles.NewBook(profiles.ShippedLibrary())
			return s
		}
		learner := profiles.NewLearner(member.Model(model).Profile, nil)
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
		told := func(s *learning) (n int) {
			s.poolIs(p)
			key := leader.TableKey{Model: model.Key(), Type: a.member.LaneType()}
			for i := range 40 {
				before := s.told[key].table
				s.look(time.Now())
				if s.told[key].table != before {
					n++
				}
				s.observed(member, model, 1+7*i%100, latency(1+7*i%100), time.Now())
				time.Sleep(time.Millisecond)
			}
			return n
		}
		known := begin()
		known.suggest(&control.View{
			Members:  []*control.Member{a.member},
			Profiles: []*control.Profile{{Model: model.Key(), Type: a.member.LaneType(), Table: table}},
		})
		if n := told(known); n != 1 {
			t.Errorf("a profile that was learned is told %d times, want 1", n)
		}
		if n := told(begin()); n < 10 {
			t.Errorf("a guess is corrected %d times, want 10 or more", n)
		}
	})
}

// TestLearningOtherFiles: agents of one type hold other files under the same version. What runs at one
// says nothing of the others, nor that it is slow; what is told is of the files that most hold.
func TestLearningOtherFiles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newLeaderWorld(t)
		defer w.stop()
		a := w.add("a", 1, linear)
		soon(t, time.Second, "a leads", func() bool { return w.leading() == a })
		s := newLearning(a.leader.leads())
		s.book = profiles.NewBook(nil)
		model := leader.ModelID{Name: "m", Version: 1}
		p := &leader.Pool{Models: []leader.Model{{ModelID: model, QoSTarget: 100 * time.Millisecond, Share: 0.99, Largest: 100}}}
		for name, checksum := range map[string]string{"x": "new", "y": "old", "z": "old"} {
			m := proto.CloneOf(a.member)
			m.Name, m.Models[0].Checksum = name, checksum
			p.Members = append(p.Members, leader.PoolMember{Member: memberOf(profiles.DefaultCatalogue(), m), Holds: []leader.ModelID{model}})
		}
		slices.SortFunc(p.Members, func(a, b leader.PoolMember) int { return strings.Compare(a.Name, b.Name) })
		s.poolIs(p)
		for i := range 300 {
			m, batch := p.Members[i%3].Member, 1+i%100
			latency := linear(batch)
			if m.Models[0].Profile.Checksum == "new" {
				latency *= 3
			}
			s.observed(m, model, batch, latency, time.Now())
			s.look(time.Now())
			time.Sleep(10 * time.Millisecond)
		}
		told := s.told[leader.TableKey{Model: model.Key(), Type: a.member.LaneType()}].table
		if got, want := told.Mean(50), linear(50); math.Abs(float64(got)/float64(want)-1) > 0.05 {
			t.Errorf("%v is told of batch size 50, want %v, as the files have that most hold", got, want)
		}
		if len(s.scaled) > 0 {
			t.Errorf("these are slow: %v, want none", s.scaled)
		}
		for _, m := range p.Members {
			want := uint64(200)
			if m.Models[0].Profile.Checksum == "new" {
				want = 100
			}
			if got := s.book.Learner(m.Model(model).Profile).Queries(); got != want {
				t.Errorf("%d queries are known of the files of %s, want %d", got, m.Name, want)
			}
		}
		gone := proto.CloneOf(a.member)
		gone.Models = nil
		s.observed(memberOf(profiles.DefaultCatalogue(), gone), model, 50, time.Second, time.Now()) // the version was unloaded meanwhile
		s.look(time.Now())
		if keys := s.book.Keys(); len(keys) != 2 {
			t.Errorf("is learned of %v, want of two versions of the files", keys)
		}
		d := &control.FleetDemand{}
		if s.fillDemand(d, time.Now()); len(d.Profiles) != 1 {
			t.Errorf("the demand has %d profiles of one version on one type, want 1", len(d.Profiles))
		}
	})
}
