package dashboard_test

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/muster-serve/muster/agent/agenttest"
	"github.com/muster-serve/muster/api/control"
)

// TestDashboard: three agents under load; each one's page shows what a status says; an agent that
// is killed goes from it, and the leader, which is followed without a gap in the seconds.
func TestDashboard(t *testing.T) {
	agenttest.InFleet(t, func(f *agenttest.Fleet) {
		agents := []*agenttest.Member{f.Start(), f.Start(), f.Start()}
		f.Settled(agents...)
		leadership := leadership(f, agents...)
		leader, successor, third := split(f, agents, leadership)
		ended, rate := make(chan struct{}), 200.
		if testing.Short() {
			rate = 40
		}
		go func() {
			defer close(ended)
			f.Send(int(30*rate), time.Duration(float64(time.Second)/rate), third)
		}()
		beats := make(chan agenttest.Shown, 100)
		defer agenttest.WatchPage(f, third, func(s *agenttest.Shown) {
			now := *s
			now.Events, now.Fleet.Agents = slices.Clone(s.Events), slices.Clone(s.Fleet.Agents)
			now.Seconds = maps.Clone(s.Seconds)
			beats <- now
		})()
		var last agenttest.Shown
		until := func(limit time.Duration, what string, good func(*agenttest.Shown) bool) {
			f.Helper()
			for timeout := time.After(limit); ; {
				select {
				case last = <-beats:
					if good(&last) {
						return
					}
				case <-timeout:
					f.Fatalf("no beat %s within %v: %+v", what, limit, last.Fleet)
				}
			}
		}
		until(15*time.Second, "at the full rate",
			func(s *agenttest.Shown) bool { return s.Beat.Rate > .97*rate })
		status, err := third.Control.Status(f.Context(), &control.StatusRequest{})
		if err != nil {
			f.Fatal(err)
		}
		if r := last.Beat.Rate / status.GetRate(); r < 0.95 || r > 1.05 {
			f.Errorf("the page shows %v queries/s, the status %v", last.Beat.Rate, status.GetRate())
		}
		if len(last.Beat.Lanes.Busy) != 3 || len(last.Fleet.Agents) != 3 ||
			len(last.Beat.Heat) == 0 {
			f.Errorf("the page shows %+v of the fleet %+v", last.Beat, last.Fleet)
		}
		if n := agenttest.Counted(leader.Inside, "muster_leader_queries_by_type_total", "r5n.large"); n < 2.5*rate {
			f.Errorf("the leader has counted %v queries by type", n)
		}
		first := last.Beat.Second

		f.Kill(leader)
		until(3*time.Second, "of the new leader", func(s *agenttest.Shown) bool {
			return !s.Fleet.Leaderless && s.Fleet.Leader >= 0 &&
				s.Fleet.Agents[s.Fleet.Leader].Name == successor.Name()
		})
		until(7*time.Second, "without the one killed", func(s *agenttest.Shown) bool {
			return len(s.Fleet.Agents) == 2 && slices.ContainsFunc(s.Events, func(e string) bool {
				return strings.Contains(e, "agent failed") || strings.Contains(e, "agent lost") ||
					strings.Contains(e, "lanes are lost")
			})
		})
		missing := 0
		for second := first - 5; second <= last.Beat.Second; second++ {
			if !last.Seconds[second] {
				missing++
			}
		}
		if missing > 3 {
			f.Errorf("%d of the seconds from %d to %d are missing", missing, first-5,
				last.Beat.Second)
		}
		<-ended
	})
}

// leadership waits until all agents follow one leader with a successor.
func leadership(f *agenttest.Fleet, agents ...*agenttest.Member) (l *control.Leadership) {
	f.Eventually(time.Minute, func() string {
		l = agents[0].Follows()
		for _, a := range agents {
			if o := a.Follows(); o.Leader == "" || o.Successor == "" ||
				o.Leader != l.Leader || o.Successor != l.Successor {
				return "no leader and successor that all follow"
			}
		}
		return ""
	})
	return l
}

// split returns the leader, its successor and the third agent.
func split(f *agenttest.Fleet, agents []*agenttest.Member, l *control.Leadership) (leader, successor,
	third *agenttest.Member) {
	for _, a := range agents {
		switch a.Name() {
		case l.Leader:
			leader = a
		case l.Successor:
			successor = a
		default:
			third = a
		}
	}
	return leader, successor, third
}

// TestNoDashboard: the setting leaves the page out; without it the page is there, and GET / says
// where.
func TestNoDashboard(t *testing.T) {
	for _, wanted := range []bool{true, false} {
		config := agenttest.Config(t)
		config.Dashboard = wanted
		a := agenttest.Start(t, config, agenttest.Emulated())
		for path, want := range map[string]string{
			"/dashboard/": "<!doctype html>", "/dashboard/api/session": `"in":true`,
			"/": `"dashboard":"/dashboard/"`,
		} {
			code, body := a.Do("GET", path, "")
			if strings.Contains(strings.ToLower(body), want) != wanted ||
				(code == 200) != (wanted || path == "/") {
				t.Errorf("dashboard %v: %s: %d, %.200s", wanted, path, code, body)
			}
		}
	}
}
