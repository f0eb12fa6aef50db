package leader

import (
	"strings"
	"testing"
	"time"

	"github.com/muster-serve/muster/leader/canary"
	"github.com/muster-serve/muster/leader/match"
)

// versions is a member of one lane that holds versions of the model m.
func versions(name string, all ...int64) *Member {
	m := box(name)
	m.Models = nil
	for _, v := range all {
		m.Models = append(m.Models, HeldModel{
			ModelID: ModelID{"m", v}, QoSTarget: 100 * time.Millisecond, Share: .99, Largest: 100,
		})
	}
	return m
}

// release tells of a release of the model m.
func (in *told) release(r canary.Rollout) []Action {
	in.t.Helper()
	e := Event{Kind: Released, Rollouts: []ModelRollout{{"m", r}}}
	_, again, err := ParseEvent(AppendEvent(nil, in.now, &e))
	if err != nil || len(again.Rollouts) != 1 || again.Rollouts[0] != e.Rollouts[0] {
		in.t.Errorf("read as %+v, %v, want %+v", again, err, e)
	}
	return in.tell(e)
}

// goes asks n queries, one after the other, which all go to a lane at once, and returns how many go
// to each version, and for how many the gateway is told the version.
func (in *told) goes(first uint64, n int) (to map[int64]int, named int) {
	in.t.Helper()
	to = map[int64]int{}
	for i := range n {
		a := in.ask((first+uint64(i))*canary.Numbering, ModelID{"m", 0}, 0)
		if a == nil || a.Kind != Assign {
			in.t.Fatalf("query %d: got %+v, want it assigned", i, a)
		}
		to[a.Model.Version]++
		if a.Known {
			named++
		}
		in.answer(a)
	}
	return to, named
}

// TestRelease: queries that name no version get the newest, until a version is released. Then a
// canary gets its share, but nothing while no lane serves it, and nothing once it is taken back.
func TestRelease(t *testing.T) {
	in := newTold(t)
	in.tell(Event{Kind: GatewayConnected, Gateway: 1})
	in.join(versions("w0", 3, 4), versions("w1", 3))
	expect := func(what string, first uint64, want map[int64]int, named int) {
		t.Helper()
		got, n := in.goes(first, 200)
		for v := int64(1); v < 6; v++ {
			if got[v] != want[v] {
				t.Errorf("%s: got %v of each version, want %v", what, got, want)
			}
		}
		if n != named {
			t.Errorf("%s: the gateway was told the version of %d queries, want %d", what, n, named)
		}
	}
	expect("nothing was released", 1, map[int64]int{4: 200}, 0)
	in.release(canary.Rollout{Current: 3})
	expect("3 is released", 1000, map[int64]int{3: 200}, 200)
	tried := canary.Rollout{Current: 3, Canary: 4, Share: .2}
	in.release(tried)
	takes := 0
	for i := range uint64(200) {
		if tried.Takes(1, (2000+i)*canary.Numbering) {
			takes++
		}
	}
	expect("4 is on trial", 2000, map[int64]int{3: 200 - takes, 4: takes}, 200)
	trials := in.Trials()
	canaryTotal, currentTotal := trials[0].Canary.Total(), trials[0].Current.Total()
	if len(trials) != 1 || !trials[0].Serves || canaryTotal.Answered != uint64(takes) ||
		canaryTotal.Answered+currentTotal.Answered != 200 ||
		trials[0].Canary.Runs.Total != canaryTotal.Answered {
		t.Errorf("got the trials %+v", trials)
	}
	in.release(canary.Rollout{Current: 3, Canary: 5, Share: .5})
	expect("nobody holds the canary", 3000, map[int64]int{3: 200}, 200)
	// The canary's queries are to be compared with those of the same time.
	if trials := in.Trials(); trials[0].Serves || trials[0].Current.Total().Queries() != 0 {
		t.Errorf("another canary, which nobody holds: %+v count of the current version",
			trials[0].Current.Total())
	}
	in.release(canary.Rollout{Current: 5})
	expect("nobody holds the current version", 4000, map[int64]int{4: 200}, 200)
	in.release(canary.Rollout{Current: 3, Canary: 4})
	expect("4 was taken back", 5000, map[int64]int{3: 200}, 200)
	if a := in.ask(6000*canary.Numbering, ModelID{"m", 4}, 0); a == nil ||
		a.Model.Version != 4 || a.Known {
		t.Errorf("a query that names 4: got %+v", a)
	}
}

// TestTrialAgain: a canary that was taken back and is tried again, or gets another share, is judged
// by what it does from then on.
func TestTrialAgain(t *testing.T) {
	in := newTold(t)
	in.tell(Event{Kind: GatewayConnected, Gateway: 1})
	in.join(versions("w0", 3, 4))
	counted := func(what string, r canary.Rollout, before uint64) {
		t.Helper()
		in.release(r)
		got := in.Trials()[0]
		if n := got.Current.Total().Queries() + got.Canary.Total().Queries(); n != before {
			t.Errorf("%s: %d queries count, want %d", what, n, before)
		}
	}
	counted("on trial", canary.Rollout{Current: 3, Canary: 4, Share: .2}, 0)
	in.goes(1, 100)
	counted("the same again", canary.Rollout{Current: 3, Canary: 4, Share: .2}, 100)
	counted("a larger share", canary.Rollout{Current: 3, Canary: 4, Share: .5}, 0)
	in.goes(1000, 50)
	counted("taken back", canary.Rollout{Current: 3, Canary: 4}, 50)
	counted("tried again", canary.Rollout{Current: 3, Canary: 4, Share: .2}, 0)
}

// TestReleaseMovesWaiting: queries that wait when a canary is taken back wait for the version that
// answers now.
func TestReleaseMovesWaiting(t *testing.T) {
	in := newTold(t)
	in.tell(Event{Kind: GatewayConnected, Gateway: 1})
	in.join(versions("w0", 3, 4))
	in.release(canary.Rollout{Current: 3, Canary: 4, Share: .999})
	var running []*Action
	for i := uint64(1); i <= 8; i++ {
		if a := in.ask(i*canary.Numbering, ModelID{"m", 0}, 0); a != nil {
			running = append(running, a)
		}
	}
	if waiting, _ := in.Waiting(); waiting < 4 || len(running) == 0 {
		t.Fatalf("%d queries wait and %d run", waiting, len(running))
	}
	in.release(canary.Rollout{Current: 3, Canary: 4})
	in.now += 10 * time.Millisecond
	for _, a := range in.tell(Event{
		Kind: Completed, Agent: "w0", Gateway: 1, Sequence: running[0].Decision.Query.Sequence,
		Attempt: 1, Model: ModelID{"m", 4}, BatchSize: 10, Execution: 10 * time.Millisecond,
	}) {
		if a.Kind == Assign && a.Model.Version != 3 {
			t.Errorf("query %v goes to version %d, want 3", a.Decision.Query, a.Model.Version)
		}
	}
}

// TestTrial: a canary's failures, late queries and slow runs count, and shadows do not.
func TestTrial(t *testing.T) {
	in := newTold(t)
	in.tell(Event{Kind: GatewayConnected, Gateway: 1})
	in.join(versions("w0", 3, 4))
	in.release(canary.Rollout{Current: 3, Canary: 4, Share: .5})
	ends := func(version int64, took time.Duration, shadow bool) {
		in.now += took
		in.tell(Event{
			Kind: Completed, Agent: "w0", Gateway: 7, Sequence: uint64(in.now), Attempt: 1,
			Model: ModelID{"m", version}, BatchSize: 10, Execution: took, Latency: took,
			Shadow: shadow,
		})
	}
	before := in.FamilyCounts()[0]
	ends(4, 200*time.Millisecond, false) // late, and slow: 10 ms is usual
	ends(4, 20*time.Millisecond, false)  // slow
	ends(4, 11*time.Millisecond, false)
	ends(3, 11*time.Millisecond, false)
	ends(3, 200*time.Millisecond, true)
	fails := func(version int64, n uint64, batch int, excused bool) {
		e := Event{
			Kind: Failed, Model: ModelID{"m", version}, Why: "internal", N: n, BatchSize: batch,
			Excused: excused,
		}
		_, again, err := ParseEvent(AppendEvent(nil, in.now, &e))
		if err != nil || again.BatchSize != batch {
			t.Errorf("read as %+v, %v, want %+v", again, err, e)
		}
		in.tell(e)
	}
	fails(4, 2, 16, false)
	fails(4, 3, 0, false)  // of an older gateway
	fails(4, 4, -1, false) // which reached no version
	fails(4, 5, 16, true)
	got := in.Trials()[0]
	want := canary.TrialCounts{UnsizedFailed: 3, Runs: got.Canary.Runs, Times: got.Canary.Times}
	want.Classes[canary.ClassOf(10)] = canary.Tally{Answered: 3, Late: 1, Failed: 2}
	if c := got.Canary; c != want || c.Runs.Total != 3 {
		t.Errorf("the canary's counts are %+v and %d without a size, %d runs", c.Classes,
			c.UnsizedFailed, c.Runs.Total)
	}
	if c := got.Current; c.Total() != (canary.Tally{Answered: 1}) || c.Runs.Total != 1 {
		t.Errorf("the current version's counts are %+v, %d runs", c.Classes, c.Runs.Total)
	}
	if current, canary := got.Slow(); current != 0 || canary != 2 {
		t.Errorf("%d and %d runs are slow, want 0 and 2", current, canary)
	}
	if after := in.FamilyCounts()[0]; after.Arrived-before.Arrived != 4 {
		t.Errorf("%d queries have arrived, want 4 without the shadow", after.Arrived-before.Arrived)
	}
}

// TestTrialCountsWhatItTries: queries that name a version are no draw of a trial, and one that runs
// in parts counts by the size that it came with, as it would if it failed.
func TestTrialCountsWhatItTries(t *testing.T) {
	in := newTold(t)
	in.tell(Event{Kind: GatewayConnected, Gateway: 1})
	in.join(versions("w0", 3, 4))
	in.release(canary.Rollout{Current: 3, Canary: 4, Share: .5})
	for i := range uint64(10) {
		a := in.ask((i+1)*canary.Numbering, ModelID{"m", 4}, 0)
		if a == nil || a.Kind != Assign {
			t.Fatalf("got %+v, want it assigned", a)
		}
		in.answer(a)
	}
	if got := in.Trials()[0].Canary.Total(); got != (canary.Tally{}) {
		t.Errorf("of queries that name the version %+v count, want none", got)
	}
	m := in.models[ModelID{"m", 3}]
	released := ModelID{"m", 0}
	for _, tt := range []struct {
		what string
		q    *query
		want int
	}{
		{"unknown", nil, 10},
		{"names none", &query{asked: released, model: m}, 10},
		{"names a version", &query{asked: ModelID{"m", 3}, model: m}, 0},
		{"a part", &query{asked: ModelID{"m", 3}, model: m, whole: 90}, 90},
		{"by its family", &query{asked: released, byFamily: true}, 0},
	} {
		if got := in.trialSize(tt.q, 10); got != tt.want {
			t.Errorf("%s: counts with size %d, want %d", tt.what, got, tt.want)
		}
	}
	g := in.gateways[1]
	whole := &query{
		gateway: g, sequence: 400 * canary.Numbering, asked: released, model: m, batch: 90,
		splits: true,
	}
	g.addQuery(whole)
	d := &match.Decision{Query: whole.matchID(), Model: m.key, Rows: []int{50, 40}}
	in.split(g, whole, d)
	for i := range d.Rows {
		part := g.queries[d.Query.Part(i+1).Sequence]
		if got := in.trialSize(part, part.batch); got != 90 {
			t.Errorf("part %d of a query of 90 counts with size %d", i+1, got)
		}
	}
}

// TestReleaseOfFamily: of a model that was released its current version answers for its family.
func TestReleaseOfFamily(t *testing.T) {
	in := newTold(t)
	in.tell(Event{Kind: GatewayConnected, Gateway: 1})
	in.join(holder("w0", "m/3=1", "m/4=1"))
	a := in.ask(4, ModelID{"f", 0}, 0)
	if a == nil || a.Model.Version != 4 {
		t.Fatalf("nothing released: got %+v, want version 4", a)
	}
	in.answer(a)
	in.release(canary.Rollout{Current: 3, Canary: 4, Share: .9})
	for i := uint64(2); i < 4; i++ {
		a := in.ask(4*i, ModelID{"f", 0}, 0)
		if a == nil || a.Model.Version != 3 {
			t.Fatalf("3 released: got %+v, want version 3", a)
		}
		in.answer(a)
	}
}

func TestReleasedSerialForm(t *testing.T) {
	for _, bad := range []string{
		"0s released canary=4", "0s released model=m/3 share=2", "0s released model=m/3 canary=x",
		"0s released model=m/3 other=1",
	} {
		if _, e, err := ParseEvent([]byte(bad)); err == nil {
			t.Errorf("%s: got %+v", bad, e)
		}
	}
	line := "1s released model=a/3 model=b/1 canary=2 share=0.05"
	at, e, err := ParseEvent([]byte(line))
	if got := string(AppendEvent(nil, at, &e)); err != nil || got != line {
		t.Errorf("got %s, %v, want %s", got, err, line)
	}
	line = "1s completed agent=w0 lane=0 query=1/4 attempt=1 model=m/3 shadow=yes"
	at, e, err = ParseEvent([]byte(line))
	if got := string(AppendEvent(nil, at, &e)); err != nil ||
		strings.TrimSpace(strings.Replace(got, "  ", " ", -1)) != line {
		t.Errorf("got %s, %v, want %s", got, err, line)
	}
}
