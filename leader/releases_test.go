package leader

import (
	"strings"
	"testing"
	"time"

	"github.com/muster-serve/muster/leader/canary"
)

// versions is a member of one lane that holds versions of the model m.
func versions(name string, all ...int64) *Member {
	m := box(name)
	m.Models = nil
	for _, v := range all {
		m.Models = append(m.Models, Model{
			ModelID: ModelID{"m", v}, QoSTarget: 100 * time.Millisecond, Share: .99, Largest: 100,
		})
	}
	return m
}

// release tells of a release of the model m.
func (in *told) release(r canary.Release) []Action {
	in.t.Helper()
	e := Event{Kind: Released, Releases: []Release{{"m", r}}}
	_, again, err := ParseEvent(AppendEvent(nil, in.now, &e))
	if err != nil || len(again.Releases) != 1 || again.Releases[0] != e.Releases[0] {
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
			if d := got[v] - want[v]; d < -3 || d > 3 {
				t.Errorf("%s: got %v of each version, want %v", what, got, want)
			}
		}
		if n != named {
			t.Errorf("%s: the gateway was told the version of %d queries, want %d", what, n, named)
		}
	}
	expect("nothing was released", 1, map[int64]int{4: 200}, 0)
	in.release(canary.Release{Current: 3})
	expect("3 is released", 1000, map[int64]int{3: 200}, 200)
	in.release(canary.Release{Current: 3, Canary: 4, Share: .2})
	expect("4 is on trial", 2000, map[int64]int{3: 160, 4: 40}, 200)
	trials := in.Trials()
	if len(trials) != 1 || !trials[0].Serves || trials[0].Canary.Answered < 37 ||
		trials[0].Canary.Answered+trials[0].Current.Answered != 200 ||
		trials[0].Canary.Runs.Total != trials[0].Canary.Answered {
		t.Errorf("got the trials %+v", trials)
	}
	in.release(canary.Release{Current: 3, Canary: 5, Share: .5})
	expect("nobody holds the canary", 3000, map[int64]int{3: 200}, 200)
	if trials := in.Trials(); trials[0].Serves || trials[0].Current.Answered != 200 {
		t.Errorf("another canary: got the trials %+v", trials)
	}
	in.release(canary.Release{Current: 5})
	expect("nobody holds the current version", 4000, map[int64]int{4: 200}, 200)
	in.release(canary.Release{Current: 3, Canary: 4})
	expect("4 was taken back", 5000, map[int64]int{3: 200}, 200)
	if a := in.ask(6000*canary.Numbering, ModelID{"m", 4}, 0); a == nil ||
		a.Model.Version != 4 || a.Known {
		t.Errorf("a query that names 4: got %+v", a)
	}
}

// TestTrialAgain: a canary that was taken back and is tried again is judged by what it does from then
// on. Another share alone does not begin the trial anew.
func TestTrialAgain(t *testing.T) {
	in := newTold(t)
	in.tell(Event{Kind: GatewayConnected, Gateway: 1})
	in.join(versions("w0", 3, 4))
	counted := func(what string, r canary.Release, before uint64) {
		t.Helper()
		in.release(r)
		got := in.Trials()[0]
		if n := got.Current.Queries() + got.Canary.Queries(); n != before {
			t.Errorf("%s: %d queries count, want %d", what, n, before)
		}
	}
	counted("on trial", canary.Release{Current: 3, Canary: 4, Share: .2}, 0)
	in.goes(1, 100)
	counted("a larger share", canary.Release{Current: 3, Canary: 4, Share: .5}, 100)
	counted("taken back", canary.Release{Current: 3, Canary: 4}, 100)
	counted("tried again", canary.Release{Current: 3, Canary: 4, Share: .2}, 0)
}

// TestReleaseMovesWaiting: queries that wait when a canary is taken back wait for the version that
// answers now.
func TestReleaseMovesWaiting(t *testing.T) {
	in := newTold(t)
	in.tell(Event{Kind: GatewayConnected, Gateway: 1})
	in.join(versions("w0", 3, 4))
	in.release(canary.Release{Current: 3, Canary: 4, Share: .999})
	var running []*Action
	for i := uint64(1); i <= 8; i++ {
		if a := in.ask(i*canary.Numbering, ModelID{"m", 0}, 0); a != nil {
			running = append(running, a)
		}
	}
	if waiting, _ := in.Waiting(); waiting < 4 || len(running) == 0 {
		t.Fatalf("%d queries wait and %d run", waiting, len(running))
	}
	in.release(canary.Release{Current: 3, Canary: 4})
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
	in.release(canary.Release{Current: 3, Canary: 4, Share: .5})
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
	in.tell(Event{Kind: Failed, Model: ModelID{"m", 4}, Why: "internal", N: 2})
	in.tell(Event{Kind: Failed, Model: ModelID{"m", 4}, Why: "invalid", N: 5, Excused: true})
	got := in.Trials()[0]
	c := got.Canary
	if c.Answered != 3 || c.Late != 1 || c.Failed != 2 || c.Runs.Total != 3 {
		t.Errorf("the canary's counts are %+v", c)
	}
	if c := got.Current; c.Answered != 1 || c.Late != 0 || c.Runs.Total != 1 {
		t.Errorf("the current version's counts are %+v", c)
	}
	if current, canary := got.Slow(); current != 0 || canary != 2 {
		t.Errorf("%d and %d runs are slow, want 0 and 2", current, canary)
	}
	if after := in.FamilyCounts()[0]; after.Arrived-before.Arrived != 4 {
		t.Errorf("%d queries have arrived, want 4 without the shadow", after.Arrived-before.Arrived)
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
	in.release(canary.Release{Current: 3, Canary: 4, Share: .9})
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
