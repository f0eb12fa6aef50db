package agent

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"

	"github.com/muster-serve/muster/agent/members"
	"github.com/muster-serve/muster/api/control"
	core "github.com/muster-serve/muster/leader"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/profiles"
)

// TestLeaderForgets has the only agent of a type, which alone holds a model, go: a leader knows of
// both for as long as a restart takes, not for ever, and tells anew when they are back.
func TestLeaderForgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newLeaderWorld(t)
		defer w.stop()
		a := w.add("a", 1, linear)
		soon(t, time.Second, "a leads", func() bool { return w.leading() == a })
		term := a.leader.leads()
		g := w.gateway(7)
		defer g.close()
		join := func(name string) *testNode {
			t.Helper()
			b := w.add(name, -1, linear)
			b.mu.Lock()
			b.member.InstanceType = "cart"
			b.member.Models = append(b.member.Models, testModel("n", 100*time.Millisecond))
			b.mu.Unlock()
			soon(t, time.Second, name+" is there", func() (there bool) {
				term.call(func() { n := term.state.Sizes(); there = n["members"] == 2 && n["latencies"] == 3 })
				return there
			})
			return b
		}
		const n = "n/1 on cart/cpu/1"
		told := func() bool {
			g.mu.Lock()
			defer g.mu.Unlock()
			return g.profiles[n] != nil
		}
		known := func() (what string) {
			var sizes map[string]int
			monitors := 0
			term.call(func() { sizes = term.state.Sizes() })
			term.learning.ask(func() { monitors = len(term.learning.monitors) })
			return fmt.Sprintf("%d models, %d profiles, %d monitors", sizes["models"], sizes["latencies"], monitors)
		}
		ask := func(model string) {
			term.learning.arrived(core.ModelID{Name: model, Version: 1}, 10, time.Now())
			time.Sleep(time.Second)
		}
		b := join("b")
		soon(t, time.Second, "the gateway is told", told)
		ask("m")
		ask("n")
		w.kill(b, true)
		time.Sleep(4 * time.Minute)
		if got := known(); got != "2 models, 3 profiles, 2 monitors" {
			t.Errorf("after 4 minutes the leader knows %s", got)
		}
		c := join("c") // in time: nothing is forgotten
		time.Sleep(10 * time.Minute)
		if got := known(); got != "2 models, 3 profiles, 2 monitors" {
			t.Errorf("with an agent that is back the leader knows %s", got)
		}
		w.kill(c, true)
		time.Sleep(7 * time.Minute)
		if got := known(); got != "1 models, 1 profiles, 1 monitors" {
			t.Errorf("after 7 minutes the leader knows %s", got)
		}
		g.mu.Lock()
		delete(g.profiles, n)
		g.mu.Unlock()
		join("d")
		soon(t, time.Second, "the gateway is told again", told)
	})
}

// TestMetricsForget: the series of a version go all together, a while after it last served; its
// state stays as long as it is on disk.
func TestMetricsForget(t *testing.T) {
	m := newMetrics()
	now := time.Unix(0, 0)
	series := func(version string) (n int) {
		t.Helper()
		families, err := m.registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, family := range families {
			for _, x := range family.GetMetric() {
				for _, l := range x.GetLabel() {
					if l.GetName() == "version" && l.GetValue() == version && strings.HasPrefix(family.GetName(), "muster_") {
						n++
					}
				}
			}
		}
		return n
	}
	state := func(version int64, s models.State, gone bool) {
		e := models.Event{Status: models.Status{Model: "ncf", Version: version, State: s}, Gone: gone}
		if s == models.Ready {
			e.LoadTime = time.Second
			m.loadDuration.WithLabelValues("ncf", fmt.Sprint(version)).Observe(1)
			m.warmUpDuration.WithLabelValues("ncf", fmt.Sprint(version)).Observe(1)
			m.qosTarget.WithLabelValues("ncf", fmt.Sprint(version)).Set(1)
			m.version("ncf", version).answered(1, 1, 1, 1, 1)
		}
		m.observe(e)
	}
	known := true
	forget := func(after time.Duration) {
		now = now.Add(after)
		m.forget(now, func(string) bool { return known })
	}
	for _, v := range []int64{1, 2, 3} {
		state(v, models.Loading, false)
		state(v, models.Ready, false)
	}
	m.failedWithoutVersion("ncf", errors.New("some"))
	m.failedWithoutVersion("", errors.New("some"))
	all := series("1")
	state(1, models.Unavailable, true)
	state(2, models.Unavailable, false)
	forget(0)
	forget(keepSeries - 1)
	if series("1") != all || series("2") != all || series("3") != all {
		t.Errorf("before their time %d, %d and %d series are left of %d", series("1"), series("2"), series("3"), all)
	}
	forget(1)
	if series("1") != 0 || series("2") != 5 || series("3") != all {
		t.Errorf("there are %d series of what is removed, %d of what is not served, %d of what is; want 0, 5 and %d",
			series("1"), series("2"), series("3"), all)
	}
	state(2, models.Loading, false)
	state(2, models.Ready, false)
	forget(keepSeries)
	if series("2") != all || total(m.version("ncf", 2).queries) != 1 {
		t.Errorf("served again it has %d series of %d", series("2"), all)
	}
	known = false
	forget(0)
	forget(keepSeries)
	if n := series(""); n != 1 {
		t.Errorf("of failures without a version there are %d series once nobody knows the model, want 1, of none", n)
	}
	const times = 50
	for v := range int64(times) {
		state(v+10, models.Ready, false)
		state(v+10, models.Unavailable, true)
		forget(time.Minute)
	}
	forget(keepSeries)
	if len(m.versions) != 2 || len(m.states) != 2 {
		t.Errorf("after %d more versions came and went %d are counted, and %d have a state, want 2", times, len(m.versions), len(m.states))
	}
}

// TestEstimatesForget: an agent keeps its estimates of versions that are held, and what it learned
// of the last ones.
func TestEstimatesForget(t *testing.T) {
	e := newEstimates(profiles.ShippedLibrary(), profiles.DefaultCatalogue(), func() *control.Member {
		return &control.Member{InstanceType: "box", Provider: "cpu", Lanes: 1, Cores: 1}
	})
	now, held := time.Unix(0, 0), map[string]bool{}
	const versions = 200
	for v := 1; v <= versions; v++ {
		clear(held)
		held[fmt.Sprintf("ncf/%d", v)] = true
		e.loaded(fmt.Sprintf("ncf/%d", v), fmt.Sprint(v))
		e.Observe(fmt.Sprintf("ncf/%d", v), 10, time.Duration(v)*time.Millisecond)
		now = now.Add(time.Minute)
		e.forget(now, held)
		if n, most := len(e.learned), int(members.KeepTold/time.Minute)+2; n > most {
			t.Fatalf("with version %d there are %d estimates, want at most %d", v, n, most)
		}
	}
	now = now.Add(members.KeepTold)
	e.forget(now, held)
	if len(e.learned) != 1 || len(e.book.Keys()) != 3 {
		t.Errorf("in the end there are %d estimates and %d keys, want 1 and 3", len(e.learned), len(e.book.Keys()))
	}
	if got := e.Estimate(fmt.Sprintf("ncf/%d", versions+1), 10); got < 190*time.Millisecond {
		t.Errorf("a new version starts from %v, want about 200 ms, as the last", got)
	}
}

// TestFrontForgets: a server that a higher limit has replaced is forgotten when its calls have
// ended.
func TestFrontForgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := func(int64) *grpc.Server { return grpc.NewServer() }
		f := newFront(bufconn.Listen(1), 1, server, slog.New(slog.DiscardHandler))
		for limit := range int64(200) {
			f.allow(limit)
		}
		synctest.Wait()
		if n := len(f.servers); n != 1 {
			t.Errorf("%d servers are left of 199, want 1", n)
		}
		if err := f.stop(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
