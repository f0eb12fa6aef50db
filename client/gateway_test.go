package client

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/match"
	"github.com/muster-serve/muster/profiles"
)

// These are package queries', in which they say what they are for.
const (
	leastSilence = 10 * time.Millisecond
	lostSilence  = time.Second
	firstAnswer  = 250 * time.Millisecond
	lastRetry    = 25 * time.Millisecond
	leastOverdue = 100 * time.Millisecond
)

// many has n queries answered at the same time and returns how long the longest
// took.
func many(t *testing.T, g *Gateway, n int) (longest time.Duration) {
	t.Helper()
	var mu sync.Mutex
	var all sync.WaitGroup
	for range n {
		all.Go(func() {
			start := time.Now()
			good(t, g, t.Context())
			mu.Lock()
			defer mu.Unlock()
			longest = max(longest, time.Since(start))
		})
	}
	all.Wait()
	return longest
}

// assignTo assigns every query to an agent.
func assignTo(agent string) func(*control.Submit, int) *control.MatchMessage {
	return func(s *control.Submit, _ int) *control.MatchMessage {
		return &control.MatchMessage{
			Assign: []*control.Assign{
				{Sequence: s.Sequence, Attempt: s.Attempts + 1, Agent: agent,
					ExecutionNs: int64(time.Millisecond)},
			},
		}
	}
}

// total counts over all agents how often queries ran to their end, and leaves
// no reservation unnoticed.
func (f *testFleet) total(t *testing.T) (ran int) {
	t.Helper()
	for _, a := range f.agents {
		a.mu.Lock()
		for _, n := range a.ran {
			ran += n
		}
		if len(a.reserved) > 0 {
			t.Errorf("%s: reservations %v are left", a.name, a.reserved)
		}
		a.mu.Unlock()
	}
	return ran
}

// TestNoLeader has queries decided from the start by the gateway alone.
func TestNoLeader(t *testing.T) {
	bubble(t, 6, func(t *testing.T, f *testFleet) {
		g := f.gateway()
		settle()
		if took := many(t, g, 40); took > 50*time.Millisecond {
			t.Errorf("took %v", took)
		}
		settle()
		if n := f.total(t); n != 40 {
			t.Errorf("%d runs, want 40", n)
		}
		// Whoever finds all lanes busy, which depends on the order in which others
		// are decided, asks one.
		if s := g.Stats(); s.Leaderless != 40 || s.Attempts != 40 || s.Submits != 0 ||
			s.Probes > 160 || s.Probes < 120 {
			t.Errorf("stats are %+v", s)
		}
	})
}

// TestCheapestInTime has the gateway take the one that is in time.
func TestCheapestInTime(t *testing.T) {
	bubble(t, 6, func(t *testing.T, f *testFleet) {
		for i, a := range f.agents {
			a.busy = time.Second
			if i == 3 {
				a.busy = 10 * time.Millisecond
			}
			if i == 4 {
				a.busy = -1
			}
		}
		g := f.gateway()
		settle()
		for range 20 {
			good(t, g, t.Context())
		}
		settle()
		if n := f.total(t); n != 20 || len(f.agents[3].seen) != 20 {
			t.Errorf("%d runs, %d of them on the agent that is in time; want 20", n,
				len(f.agents[3].seen))
		}
	})
}

// TestSilentMember has a member that is asked not answer: it costs the first
// query a moment, and the others nothing, until it is back.
func TestSilentMember(t *testing.T) {
	bubble(t, 4, func(t *testing.T, f *testFleet) {
		g := f.gateway()
		settle()
		f.agents[2].freeze()
		for i := range 10 {
			start := time.Now()
			good(t, g, t.Context())
			want := time.Millisecond // to run
			if i == 0 {
				want += time.Millisecond
			}
			if took := time.Since(start); took > want {
				t.Errorf("query %d took %v, want %v", i, took, want)
			}
		}
		f.agents[2].thaw()
		settle()
		f.total(t) // it released what it had kept for the first
		for _, a := range f.agents {
			a.busy = time.Hour
		}
		f.agents[2].busy = 0
		for range 5 {
			good(t, g, t.Context())
		}
		if n := len(f.agents[2].ran); n != 5 {
			t.Errorf("back again it ran %d queries, want 5", n)
		}
	})
}

// TestPrepared: a gateway has read what it needs to decide alone before its leader goes.
func TestPrepared(t *testing.T) {
	bubble(t, 2, func(t *testing.T, f *testFleet) {
		f.lead("agent-0", "agent-1")
		g := f.gateway()
		settle()
		stale := func() bool {
			g.leaderless.mu.Lock()
			defer g.leaderless.mu.Unlock()
			return g.leaderless.stale || g.leaderless.priced == nil
		}
		for range 2 {
			g.SetView(f.view())
			if !stale() {
				t.Fatal("a new view changes nothing")
			}
			for range 12 {
				good(t, g, t.Context())
				time.Sleep(prepareInterval / 10)
			}
			if stale() {
				t.Error("after a second with queries it could not decide alone at once")
			}
		}
	})
}

// TestAsksFew has members with known profiles be asked one at a time, and those that do
// not answer only once.
func TestAsksFew(t *testing.T) {
	bubble(t, 4, func(t *testing.T, f *testFleet) {
		g := f.gateway()
		v := f.view()
		ms := time.Millisecond
		knot := func(batch int) profiles.Knot {
			return profiles.Knot{BatchSize: batch, Mean: ms, P50: ms, P90: ms, P99: ms}
		}
		table, err := profiles.NewTable(profiles.Key{Model: "sum", InstanceType: "local"},
			profiles.Measured, "test", []profiles.Knot{knot(1), knot(1000)})
		if err != nil {
			t.Fatal(err)
		}
		data, err := json.Marshal(table)
		if err != nil {
			t.Fatal(err)
		}
		v.Profiles = []*control.Profile{
			{Model: string(names.NewModelKey("sum", 1)), Type: string(v.Members[0].LaneType()),
				Table: data},
		}
		g.SetView(v)
		settle()
		f.agents[1].stop()
		f.agents[2].freeze()
		const queries = 50
		slow := 0
		for range queries {
			start := time.Now()
			good(t, g, t.Context())
			if time.Since(start) > 2*ms {
				slow++
			}
		}
		if slow > 1 {
			t.Errorf("%d queries waited for the member that is silent, want 1 at most", slow)
		}
		if n := g.Stats().Probes; n > queries+8 {
			t.Errorf(
				"%d questions for %d queries, want one for each, and a few for the members that "+
					"do not answer", n, queries)
		}
		f.agents[2].thaw()
		settle()
		f.total(t)
	})
}

// TestNobodyCan has all members refuse until half a second later.
func TestNobodyCan(t *testing.T) {
	bubble(t, 3, func(t *testing.T, f *testFleet) {
		for _, a := range f.agents {
			a.busy = -1
		}
		g := f.gateway()
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		start := time.Now()
		if _, err := g.Infer(ctx, sumQuery(1), start); status.Code(err) != codes.DeadlineExceeded ||
			time.Since(start) != 300*time.Millisecond {
			t.Errorf("got %v after %v, want DeadlineExceeded after 300ms", err, time.Since(start))
		} else if want := "context deadline exceeded 300ms after the query arrived: it waited " +
			"for a lane; there was no leader, and none of the 3 agents asked could take " +
			"it"; status.Convert(err).Message() != want {
			t.Errorf("got  %s\nwant %s", status.Convert(err).Message(), want)
		}
		go func() {
			time.Sleep(500 * time.Millisecond)
			f.agents[1].mu.Lock()
			f.agents[1].busy = 0
			f.agents[1].mu.Unlock()
		}()
		if took := many(t, g, 5); took < 500*time.Millisecond || took > 600*time.Millisecond {
			t.Errorf("took %v, want little more than 500ms", took)
		}
		settle()
		f.total(t)
	})
}

// TestLeaderKilled kills the leader while queries wait at it and run.
func TestLeaderKilled(t *testing.T) {
	for _, successor := range []string{"agent-1", ""} {
		t.Run("successor "+successor, func(t *testing.T) {
			bubble(t, 4, func(t *testing.T, f *testFleet) {
				f.lead("agent-0", successor)
				turn := 0
				f.agents[0].assign = func(s *control.Submit, n int) *control.MatchMessage {
					if turn++; turn%2 == 0 {
						return nil // it waits
					}
					return assignTo("agent-3")(s, n)
				}
				f.agents[3].takes = 60 * time.Millisecond
				g := f.gateway()
				settle()
				go func() {
					time.Sleep(10 * time.Millisecond)
					if successor != "" { // it leads when the gateway comes
						f.elect(successor, "agent-2")
					}
					f.agents[0].stop()
					f.tell()
				}()
				if took := many(t, g, 20); took > 200*time.Millisecond {
					t.Errorf("took %v", took)
				}
				settle()
				if n := f.total(t); n != 20 {
					t.Errorf("%d runs, want 20: nothing that runs is thrown away", n)
				}
				if successor == "" {
					return
				}
				// What was sent is told to the new leader with its place; others may
				// have been sent meanwhile.
				submits := f.agents[1].submits
				if len(submits) < 20 {
					t.Fatalf("the new leader got %d submits, want 20", len(submits))
				}
				submits = submits[:20] // later ones are of attempts on the agent that died
				for _, s := range submits {
					if s.Sequence%8 == 4 && (s.Agent != "agent-3" || s.Attempts != 1) {
						t.Errorf("the new leader got %v", s)
					}
				}
				if !slices.IsSortedFunc(submits,
					func(a, b *control.Submit) int { return int(a.Sequence) - int(b.Sequence) }) {
					t.Error("submits out of order")
				}
			})
		})
	}
}

// TestLeaderFrozen freezes the leader and lets it go on.
func TestLeaderFrozen(t *testing.T) {
	bubble(t, 4, func(t *testing.T, f *testFleet) {
		f.lead("agent-0", "agent-1")
		g := f.gateway()
		settle()
		good(t, g, t.Context())
		f.agents[0].freeze()
		if took := many(t, g, 10); took < leastSilence || took > leastSilence+5*time.Millisecond {
			t.Errorf("took %v, want at least the %v that the leader has, and little more", took,
				leastSilence)
		}
		if took := many(t, g, 10); took > 50*time.Millisecond {
			t.Errorf("with a leader known to be silent took %v", took)
		}
		f.agents[0].thaw()
		time.Sleep(200 * time.Millisecond)
		before := g.Stats()
		if before.Silences != 1 || before.Leaderless != 20 {
			t.Errorf("stats are %+v", before)
		}
		many(t, g, 10)
		if after := g.Stats(); after.Leaderless != before.Leaderless ||
			after.Submits != before.Submits+10 {
			t.Errorf("back at the leader: stats are %+v, were %+v", after, before)
		}
		settle()
		f.total(t)
		// The leader was told of what was decided without it, and that what it decided
		// when it went on came too late.
		f.agents[0].mu.Lock()
		defer f.agents[0].mu.Unlock()
		cancels := map[uint64]bool{}
		for _, sequence := range f.agents[0].cancels {
			cancels[sequence] = true
		}
		if len(cancels) != 10 || len(f.agents[0].unused) != 10 {
			t.Errorf("queries %v cancelled, %d assignments unused; want the 10 that were submitted",
				cancels, len(f.agents[0].unused))
		}
	})
}

// TestFrozenLeaderReplaced freezes the leader for good, and nobody tells the gateway who leads
// then: it finds the successor by itself.
func TestFrozenLeaderReplaced(t *testing.T) {
	bubble(t, 3, func(t *testing.T, f *testFleet) {
		f.lead("agent-0", "agent-1")
		g := f.gateway()
		settle()
		good(t, g, t.Context())
		f.agents[0].freeze()
		// the last heartbeat, and a try of each too early
		time.Sleep(lostSilence + 100*time.Millisecond)
		f.agents[1].assign = assignTo("agent-2")
		f.lead("agent-1", "agent-2")
		time.Sleep(firstAnswer + 2*lastRetry)
		if got := g.Leader(); got != "agent-1" {
			t.Errorf("the gateway follows %q, want agent-1", got)
		}
		many(t, g, 10)
		f.agents[1].mu.Lock()
		if n := len(f.agents[1].submits); n != 10 {
			t.Errorf("the new leader got %d submits, want 10", n)
		}
		f.agents[1].mu.Unlock()
		f.agents[0].thaw()
		settle()
		f.total(t)
	})
}

// TestHeartbeatsOnly has a leader that lives and never decides: the queries are
// its own, and wait.
func TestHeartbeatsOnly(t *testing.T) {
	bubble(t, 3, func(t *testing.T, f *testFleet) {
		f.lead("agent-0", "agent-1")
		f.agents[0].assign = func(*control.Submit, int) *control.MatchMessage { return nil }
		g := f.gateway()
		settle()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := g.Infer(ctx, sumQuery(1), time.Now())
		if status.Code(err) != codes.DeadlineExceeded {
			t.Errorf("got %v, want DeadlineExceeded", err)
		}
		if s := g.Stats(); s.Silences != 0 || s.Leaderless != 0 {
			t.Errorf("stats are %+v", s)
		}
		time.Sleep(time.Second)
		f.agents[0].mu.Lock()
		defer f.agents[0].mu.Unlock()
		if !slices.Equal(f.agents[0].cancels, []uint64{4}) {
			t.Errorf("cancels are %v, want 4", f.agents[0].cancels)
		}
	})
}

// TestNewLeader has another agent lead while the old leader still does so, too.
func TestNewLeader(t *testing.T) {
	bubble(t, 3, func(t *testing.T, f *testFleet) {
		f.lead("agent-0", "agent-1")
		f.agents[0].assign = func(*control.Submit, int) *control.MatchMessage { return nil }
		g := f.gateway()
		settle()
		go func() {
			time.Sleep(100 * time.Millisecond)
			v := f.view()
			v.Leadership = &control.Leadership{Epoch: 2, Leader: "agent-2"}
			f.agents[2].assign = assignTo("agent-1")
			f.mu.Lock()
			f.leadership = v.Leadership
			f.mu.Unlock()
			g.SetView(v)
		}()
		if took := many(t, g, 5); took < 100*time.Millisecond || took > 120*time.Millisecond {
			t.Errorf("took %v, want little more than 100ms", took)
		}
		if leader := g.Leader(); leader != "agent-2" {
			t.Errorf("follows %q, want agent-2", leader)
		}
	})
}

// TestWorkerKilled kills the worker: before a query comes, and while it runs.
func TestWorkerKilled(t *testing.T) {
	for _, led := range []bool{true, false} {
		bubble(t, 4, func(t *testing.T, f *testFleet) {
			if led {
				f.lead("agent-0", "agent-1")
				f.agents[0].assign = func(s *control.Submit, n int) *control.MatchMessage {
					if s.Attempts == 0 {
						return assignTo("agent-3")(s, n)
					}
					return assignTo("agent-2")(s, n)
				}
			} else {
				f.agents[0].busy, f.agents[1].busy = -1, -1
				f.agents[2].busy = time.Second // the third is taken first
			}
			f.agents[3].takes = 20 * time.Millisecond
			g := f.gateway()
			settle()
			go func() {
				time.Sleep(10 * time.Millisecond)
				f.agents[3].stop()
			}()
			if took := many(t, g, 10); took > 100*time.Millisecond {
				t.Errorf("took %v", took)
			}
			many(t, g, 10)
			settle()
			f.agents[3].mu.Lock()
			clear(f.agents[3].reserved) // it is dead
			f.agents[3].mu.Unlock()
			if n := f.total(t); n != 20 || len(f.agents[2].ran) != 20 {
				t.Errorf("%d runs, %d on the agent left; want 20", n, len(f.agents[2].ran))
			}
		})
	}
}

// TestUnreachableChoice has the leader send each query again and again to a member that the gateway
// does not know, or does not reach: it is then decided without the leader.
func TestUnreachableChoice(t *testing.T) {
	for _, choice := range []string{"agent-9", "agent-2"} {
		bubble(t, 4, func(t *testing.T, f *testFleet) {
			f.lead("agent-0", "agent-1")
			f.agents[0].assign = assignTo(choice)
			g := f.gateway()
			settle()
			f.agents[2].stop()
			many(t, g, 10)
			if s := g.Stats(); s.Leaderless != 10 || s.Attempts != 30 {
				t.Errorf(
					"%d attempts, %d of them decided alone; want two of each query by the leader "+
						"and one alone", s.Attempts, s.Leaderless)
			}
			settle()
			f.agents[2].mu.Lock()
			clear(f.agents[2].reserved) // it is dead
			f.agents[2].mu.Unlock()
			if n := f.total(t); n != 10 {
				t.Errorf("%d runs, want 10", n)
			}
		})
	}
}

// TestWorkerFrozen has the leader offer a query again, and the gateway do so
// itself where nobody leads.
func TestWorkerFrozen(t *testing.T) {
	for _, led := range []bool{true, false} {
		bubble(t, 3, func(t *testing.T, f *testFleet) {
			if led {
				f.lead("agent-0", "agent-1")
			}
			f.agents[2].takes = 10 * time.Second
			if led {
				f.agents[0].assign = func(s *control.Submit, n int) *control.MatchMessage {
					if s.Attempts == 0 && s.Sequence > 4 {
						return assignTo("agent-2")(s, n)
					}
					// With a later submit, what went to the frozen agent is offered again and
					// assigned.
					return assignTo("agent-1")(s, n)
				}
			} else {
				f.agents[0].busy = 2 * time.Second
				f.agents[1].busy = time.Second
				f.agents[2].takes = 5 * time.Millisecond
			}
			g := f.gateway()
			settle()
			if led {
				go func() {
					time.Sleep(100 * time.Millisecond)
					g.handleMessage(&control.MatchMessage{
						OfferAgain: []*control.OfferAgain{
							{Sequence: 8, Attempt: 1, Reason: "lane-overdue"},
						},
					})
					time.Sleep(50 * time.Millisecond)
					g.handleMessage(&control.MatchMessage{
						Assign: []*control.Assign{{Sequence: 8, Attempt: 2, Agent: "agent-1"}},
					})
				}()
				good(t, g, t.Context())
				start := time.Now()
				good(t, g, t.Context())
				if took := time.Since(start); took < 150*time.Millisecond ||
					took > 160*time.Millisecond {
					t.Errorf("took %v, want little more than 150ms", took)
				}
				return
			}
			// It answers probes, and is then frozen with the query.
			go func() {
				time.Sleep(2 * time.Millisecond)
				f.agents[2].freeze()
			}()
			start := time.Now()
			good(t, g, t.Context())
			if took := time.Since(start); took < leastOverdue || took > 300*time.Millisecond {
				t.Errorf("took %v, want little more than %v", took, leastOverdue)
			}
			f.agents[2].thaw()
			settle()
		})
	}
}

// TestOfferedAgainFirstWins has the attempt that was given up answer first.
func TestOfferedAgainFirstWins(t *testing.T) {
	bubble(t, 2, func(t *testing.T, f *testFleet) {
		f.lead("agent-0", "agent-1")
		f.agents[0].assign = assignTo("agent-1")
		f.agents[1].takes = 100 * time.Millisecond
		g := f.gateway()
		settle()
		go func() {
			time.Sleep(50 * time.Millisecond)
			g.handleMessage(&control.MatchMessage{
				OfferAgain: []*control.OfferAgain{{Sequence: 4, Attempt: 1}},
			})
		}()
		good(t, g, t.Context())
		// The leader's new assignment crosses the answer.
		g.handleMessage(&control.MatchMessage{
			Assign: []*control.Assign{{Sequence: 4, Attempt: 2, Agent: "agent-0"}},
		})
		time.Sleep(time.Second)
		if n := f.total(t); n != 1 {
			t.Errorf("%d runs, want 1", n)
		}
		f.agents[0].mu.Lock()
		defer f.agents[0].mu.Unlock()
		if len(f.agents[0].unused) != 1 || f.agents[0].unused[0].Attempt != 2 ||
			!slices.Contains(f.agents[0].cancels, 4) {
			t.Errorf("cancels %v, unused %v; want query 4 cancelled and attempt 2 unused",
				f.agents[0].cancels, f.agents[0].unused)
		}
	})
}

// TestHedged has the leader give up an attempt and assign the query anew while the first attempt
// goes on: the first answer counts, whichever it is, and ends the other attempt.
func TestHedged(t *testing.T) {
	for _, c := range []struct {
		first, second, want time.Duration
	}{
		{200 * time.Millisecond, time.Second, 200 * time.Millisecond},
		{time.Second, 50 * time.Millisecond, 170 * time.Millisecond},
	} {
		bubble(t, 3, func(t *testing.T, f *testFleet) {
			f.lead("agent-0", "agent-1")
			f.agents[0].assign = assignTo("agent-1")
			f.agents[1].takes, f.agents[2].takes = c.first, c.second
			g := f.gateway()
			settle()
			// More than may be hedged at once: of the others the first attempt is cut off.
			const n, most = 30, 18
			begun := time.Now()
			for i := range n {
				go func() {
					time.Sleep(100 * time.Millisecond)
					sequence := uint64(4 * (i + 1))
					g.handleMessage(&control.MatchMessage{
						OfferAgain: []*control.OfferAgain{{Sequence: sequence, Attempt: 1}},
					})
					time.Sleep(20 * time.Millisecond)
					g.handleMessage(&control.MatchMessage{
						Assign: []*control.Assign{{Sequence: sequence, Attempt: 2,
							Agent: "agent-2"}},
					})
				}()
				start := time.Now()
				good(t, g, t.Context())
				hedged := g.Stats().Hedged
				if took := time.Since(start); int(hedged) == i+1 && took != c.want {
					t.Errorf("query %d took %v, want %v", i, took, c.want)
				}
			}
			if s := g.Stats(); s.Hedged < 16 || s.Hedged > most || s.Hedged+s.Superseded != n {
				t.Errorf("in %v %d of %d queries were hedged, and %d cut off; want 16 to %d, and the "+
					"others", time.Since(begun), s.Hedged, n, s.Superseded, most)
			}
			time.Sleep(time.Second)
			if ran := f.total(t); ran != n {
				t.Errorf("%d runs came to their end, want one a query, %d", ran, n)
			}
			f.agents[0].mu.Lock()
			defer f.agents[0].mu.Unlock()
			// What the leader waits for, an agent tells it; of an earlier attempt's answer the
			// gateway does.
			if told := len(f.agents[0].cancels) > 0; told != (c.first < c.second) {
				t.Errorf("the leader is told that queries are over: %v, want %v", told, !told)
			}
		})
	}
}

// TestAttemptsAreBounded has every worker refuse, or cut attempts off, with and without a leader.
func TestAttemptsAreBounded(t *testing.T) {
	for i, code := range []codes.Code{
		codes.Unavailable, codes.Unavailable, codes.Canceled, codes.Canceled,
	} {
		bubble(t, 7, func(t *testing.T, f *testFleet) {
			if i%2 == 0 {
				f.lead("agent-0", "agent-1")
			}
			for _, a := range f.agents {
				a.refuse = status.Error(code, "the lane is full")
			}
			g := f.gateway()
			settle()
			_, err := g.Infer(t.Context(), sumQuery(1), time.Now())
			if status.Code(err) != codes.Unavailable ||
				!strings.HasPrefix(status.Convert(err).Message(),
					"gave up after 4 attempts, the last on agent ") {
				t.Errorf("got %v, want Unavailable after 4 attempts", err)
			}
			seen := 0
			for _, a := range f.agents {
				if a.mu.Lock(); len(a.seen) > 1 {
					t.Errorf("%s was tried %d times while there were others", a.name, len(a.seen))
				}
				seen += len(a.seen)
				a.mu.Unlock()
			}
			if seen != match.MaxAttempts {
				t.Errorf("%d attempts, want %d", seen, match.MaxAttempts)
			}
			// What is wrong with a query is not tried again.
			for _, a := range f.agents {
				a.refuse = status.Error(codes.InvalidArgument, "input x")
			}
			if _, err := g.Infer(t.Context(), sumQuery(1),
				time.Now()); status.Code(err) != codes.InvalidArgument ||
				g.Stats().Attempts != match.MaxAttempts+1 {
				t.Errorf("got %v after %d attempts, want InvalidArgument after one", err,
					g.Stats().Attempts-match.MaxAttempts)
			}
		})
	}
}

// TestRejected maps what the leader says.
func TestRejected(t *testing.T) {
	for reason, code := range map[match.Reason]codes.Code{
		match.Overloaded: codes.ResourceExhausted, match.Late: codes.ResourceExhausted,
		match.UnknownModel: codes.NotFound,
		match.BadBatchSize: codes.InvalidArgument, match.DeadlinePassed: codes.DeadlineExceeded,
		match.TooManyAttempts: codes.Unavailable,
	} {
		bubble(t, 2, func(t *testing.T, f *testFleet) {
			f.lead("agent-0", "agent-1")
			f.agents[0].assign = func(s *control.Submit, _ int) *control.MatchMessage {
				return &control.MatchMessage{
					Reject: []*control.Reject{
						{Sequence: s.Sequence, Reason: reason.String(), Message: "because",
							RetryAfterNs: 5e6},
					},
				}
			}
			g := f.gateway()
			settle()
			start := time.Now()
			_, err := g.Infer(t.Context(), sumQuery(1), start)
			if status.Code(err) != code || status.Convert(err).Message() != "because" ||
				time.Since(start) > 0 {
				t.Errorf("%v: got %v after %v, want %v at once", reason, err, time.Since(start),
					code)
			}
			var retry time.Duration
			for _, d := range status.Convert(err).Details() {
				if r, ok := d.(*errdetails.RetryInfo); ok {
					retry = r.RetryDelay.AsDuration()
				}
			}
			if code == codes.ResourceExhausted && retry != 5*time.Millisecond {
				t.Errorf("%v: retry after %v, want 5ms", reason, retry)
			}
		})
	}
}

// TestNoSuchModel has errors say what there is.
func TestNoSuchModel(t *testing.T) {
	bubble(t, 2, func(t *testing.T, f *testFleet) {
		g := f.gateway()
		for _, tt := range []struct {
			model, version string
			code           codes.Code
			message        string
		}{
			{"x", "", codes.NotFound, `no agent holds model "x"; they hold: sum`},
			{"sum", "2", codes.NotFound, `no agent holds version "2" of model "sum"; there are: 1`},
			{"sum", "one", codes.InvalidArgument,
				`version "one" of model "sum", want a whole number above 0`},
		} {
			req := sumQuery(1)
			req.Model, req.Version = tt.model, tt.version
			_, err := g.Infer(t.Context(), req, time.Now())
			if status.Code(err) != tt.code || status.Convert(err).Message() != tt.message {
				t.Errorf("got %v, want %v: %s", err, tt.code, tt.message)
			}
		}
		v := f.view()
		could := proto.CloneOf(v.Members[0].Models[0])
		could.Name, could.Family = "variant", "family"
		lone := proto.CloneOf(could)
		lone.Name, lone.Family = "lone", ""
		v.Members[0].Loadable = []*control.Model{could, lone}
		g.SetView(v)
		for model, want := range map[string]codes.Code{ // wait until a leader has it loaded
			"family": codes.DeadlineExceeded, "lone": codes.DeadlineExceeded,
			"variant": codes.DeadlineExceeded, "other": codes.NotFound,
		} {
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			req := sumQuery(1)
			req.Model = model
			_, err := g.Infer(ctx, req, time.Now())
			if status.Code(err) != want || want == codes.DeadlineExceeded &&
				!strings.Contains(err.Error(), "no agent that takes queries holds the model") {
				t.Errorf("%s, which can be loaded: got %v, want %v", model, err, want)
			}
			cancel()
		}
		v = f.view()
		for _, m := range v.Members {
			m.Draining = true
		}
		g.SetView(v)
		if _, err := g.Infer(t.Context(), sumQuery(1),
			time.Now()); status.Code(err) != codes.Unavailable {
			t.Errorf("all drain: got %v, want Unavailable", err)
		}
	})
}

// TestCancelled has callers give up: the worker and the leader are told.
func TestCancelled(t *testing.T) {
	bubble(t, 2, func(t *testing.T, f *testFleet) {
		f.lead("agent-0", "agent-1")
		f.agents[0].assign = assignTo("agent-1")
		f.agents[1].takes = time.Second
		g := f.gateway()
		settle()
		ctx, cancel := context.WithCancel(t.Context())
		go func() { time.Sleep(10 * time.Millisecond); cancel() }()
		_, err := g.Infer(ctx, sumQuery(1), time.Now())
		if status.Code(err) != codes.Canceled {
			t.Errorf("got %v, want Canceled", err)
		}
		time.Sleep(2 * time.Second)
		if n := f.total(t); n != 0 {
			t.Errorf("%d runs, want none", n)
		}
		f.agents[0].mu.Lock()
		defer f.agents[0].mu.Unlock()
		if !slices.Equal(f.agents[0].cancels, []uint64{4}) {
			t.Errorf("cancels are %v, want 4", f.agents[0].cancels)
		}
	})
}

// TestGatewayCloses ends what waits and what runs.
func TestGatewayCloses(t *testing.T) {
	bubble(t, 2, func(t *testing.T, f *testFleet) {
		f.lead("agent-0", "agent-1")
		f.agents[0].assign = func(s *control.Submit, n int) *control.MatchMessage {
			if n == 1 {
				return assignTo("agent-1")(s, n)
			}
			return nil
		}
		f.agents[1].takes = time.Hour
		g := f.gateway()
		settle()
		errs := make(chan error)
		for range 2 {
			go func() { _, err := g.Infer(t.Context(), sumQuery(1), time.Now()); errs <- err }()
		}
		time.Sleep(time.Second)
		g.Close()
		for range 2 {
			if err := <-errs; status.Code(err) != codes.Canceled {
				t.Errorf("got %v, want Canceled", err)
			}
		}
		if _, err := g.Infer(t.Context(), sumQuery(1),
			time.Now()); status.Code(err) != codes.Canceled {
			t.Errorf("afterwards: got %v, want Canceled", err)
		}
	})
}
