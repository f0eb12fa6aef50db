package agent

import (
	"bufio"
	"context"
	"encoding/json"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/muster-serve/muster/api/control"
)

// A shown is what a page has read: the last fleet and beat, and all that is known of the past.
type shown struct {
	fleet struct {
		Leader, Successor int
		Leaderless        bool
		Agents            []struct {
			Name  string
			Lanes int
		}
	}
	beat struct {
		Second uint64
		Rate   float64
		Price  float64
		Lanes  struct {
			Busy []float64 `json:"busy"`
		}
		Heat   []struct{ Type int }
		Events []struct{ Agent, Kind, What string }
	}
	seconds map[uint64]bool
	events  []string
}

// watchPage reads the stream of an agent's page until the test ends, and calls see after each beat,
// in turn, with what it has read. It opens the stream again when it ends.
func watchPage(f *testFleet, a *fleetAgent, see func(*shown)) (stop func()) {
	ctx, cancel := context.WithCancel(f.Context())
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn,
		error) {
		return f.network.dial(ctx, "client", a.host+":8000")
	}}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer transport.CloseIdleConnections()
		s := &shown{seconds: map[uint64]bool{}}
		for ; ctx.Err() == nil; time.Sleep(100 * time.Millisecond) {
			req, err := http.NewRequestWithContext(ctx, "GET",
				"http://"+a.host+":8000/dashboard/api/stream", nil)
			if err != nil {
				f.Error(err)
				return
			}
			r, err := transport.RoundTrip(req)
			if err != nil {
				continue
			}
			lines := bufio.NewScanner(r.Body)
			lines.Buffer(nil, 1<<22)
			kind := ""
			for lines.Scan() {
				key, value, _ := strings.Cut(lines.Text(), ": ")
				switch {
				case key == "event":
					kind = value
				case key == "data":
					s.take(f, kind, value, see)
				}
			}
			_ = r.Body.Close()
		}
	}()
	return func() { cancel(); <-done }
}

func (s *shown) take(f *testFleet, kind, data string, see func(*shown)) {
	var into any = &struct{}{}
	var past struct{ Second []uint64 }
	switch kind {
	case "fleet":
		s.fleet.Agents = nil
		into = &s.fleet
	case "beat":
		s.beat.Events, s.beat.Heat, s.beat.Lanes.Busy = nil, nil, nil
		into = &s.beat
	case "history":
		into = &past
	}
	if err := json.Unmarshal([]byte(data), into); err != nil {
		f.Errorf("%s: %v", kind, err)
	}
	for _, second := range past.Second {
		s.seconds[second] = true
	}
	if kind == "beat" {
		s.seconds[s.beat.Second] = true
		for _, e := range s.beat.Events {
			s.events = append(s.events, e.Agent+": "+e.What)
		}
		see(s)
	}
}

// TestDashboard: three agents under load; each one's page shows what a status says; an agent that
// is killed goes from it, and the leader, which is followed without a gap in the seconds.
func TestDashboard(t *testing.T) {
	testInFleet(t, func(f *testFleet) {
		agents := []*fleetAgent{f.start(), f.start(), f.start()}
		f.settled(agents...)
		leadership := f.leadership(agents...)
		leader, successor, third := f.split(agents, leadership)
		ended, rate := make(chan struct{}), 200.
		if testing.Short() {
			rate = 40
		}
		go func() {
			defer close(ended)
			f.send(int(30*rate), time.Duration(float64(time.Second)/rate), third)
		}()
		beats := make(chan shown, 100)
		defer watchPage(f, third, func(s *shown) {
			now := *s
			now.events, now.fleet.Agents = slices.Clone(s.events), slices.Clone(s.fleet.Agents)
			now.seconds = maps.Clone(s.seconds)
			beats <- now
		})()
		var last shown
		until := func(limit time.Duration, what string, good func(*shown) bool) {
			f.Helper()
			for timeout := time.After(limit); ; {
				select {
				case last = <-beats:
					if good(&last) {
						return
					}
				case <-timeout:
					f.Fatalf("no beat %s within %v: %+v", what, limit, last.fleet)
				}
			}
		}
		until(15*time.Second, "at the full rate",
			func(s *shown) bool { return s.beat.Rate > .97*rate })
		status, err := third.ctl.Status(f.Context(), &control.StatusRequest{})
		if err != nil {
			f.Fatal(err)
		}
		if r := last.beat.Rate / status.GetRate(); r < 0.95 || r > 1.05 {
			f.Errorf("the page shows %v queries/s, the status %v", last.beat.Rate, status.GetRate())
		}
		if len(last.beat.Lanes.Busy) != 3 || len(last.fleet.Agents) != 3 ||
			len(last.beat.Heat) == 0 {
			f.Errorf("the page shows %+v of the fleet %+v", last.beat, last.fleet)
		}
		if n := leader.counted("muster_leader_queries_by_type_total", "r5n.large"); n < 2.5*rate {
			f.Errorf("the leader has counted %v queries by type", n)
		}
		first := last.beat.Second

		f.kill(leader)
		until(3*time.Second, "of the new leader", func(s *shown) bool {
			return !s.fleet.Leaderless && s.fleet.Leader >= 0 &&
				s.fleet.Agents[s.fleet.Leader].Name == successor.Name()
		})
		until(7*time.Second, "without the one killed", func(s *shown) bool {
			return len(s.fleet.Agents) == 2 && slices.ContainsFunc(s.events, func(e string) bool {
				return strings.Contains(e, "agent failed") || strings.Contains(e, "agent lost") ||
					strings.Contains(e, "lanes are lost")
			})
		})
		missing := 0
		for second := first - 5; second <= last.beat.Second; second++ {
			if !last.seconds[second] {
				missing++
			}
		}
		if missing > 3 {
			f.Errorf("%d of the seconds from %d to %d are missing", missing, first-5,
				last.beat.Second)
		}
		<-ended
	})
}

// leadership waits until all agents follow one leader with a successor.
func (f *testFleet) leadership(agents ...*fleetAgent) (l *control.Leadership) {
	f.eventually(time.Minute, func() string {
		l = agents[0].follows()
		for _, a := range agents {
			if o := a.follows(); o.Leader == "" || o.Successor == "" ||
				o.Leader != l.Leader || o.Successor != l.Successor {
				return "no leader and successor that all follow"
			}
		}
		return ""
	})
	return l
}

// split returns the leader, its successor and the third agent.
func (f *testFleet) split(agents []*fleetAgent, l *control.Leadership) (leader, successor,
	third *fleetAgent) {
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
		config := testConfig(t)
		config.Dashboard = wanted
		a := startAgent(t, config, emulated())
		for path, want := range map[string]string{
			"/dashboard/": "<!doctype html>", "/dashboard/api/session": `"in":true`,
			"/": `"dashboard":"/dashboard/"`,
		} {
			code, body := a.do("GET", path, "")
			if strings.Contains(strings.ToLower(body), want) != wanted ||
				(code == 200) != (wanted || path == "/") {
				t.Errorf("dashboard %v: %s: %d, %.200s", wanted, path, code, body)
			}
		}
	}
}
