package agenttest

import (
	"bufio"
	"context"
	"encoding/json"
	"net"
	"net/http"
	"strings"
	"time"
)

// A Shown is what a page has read: the last fleet and beat, and all that is known of the past.
type Shown struct {
	Fleet struct {
		Leader, Successor int
		Leaderless        bool
		Agents            []struct {
			Name  string
			Lanes int
		}
	}
	Beat struct {
		Second uint64
		Rate   float64
		Price  float64
		Lanes  struct {
			Busy []float64 `json:"busy"`
		}
		Heat   []struct{ Type int }
		Events []struct{ Agent, Kind, What string }
	}
	Seconds map[uint64]bool
	Events  []string
}

// WatchPage reads the stream of an agent's page until the test ends, and calls see after each beat,
// in turn, with what it has read. It opens the stream again when it ends.
func WatchPage(f *Fleet, a *Member, see func(*Shown)) (stop func()) {
	ctx, cancel := context.WithCancel(f.Context())
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn,
		error) {
		return f.Network.Dial(ctx, "client", a.Host+":8000")
	}}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer transport.CloseIdleConnections()
		s := &Shown{Seconds: map[uint64]bool{}}
		for ; ctx.Err() == nil; time.Sleep(100 * time.Millisecond) {
			req, err := http.NewRequestWithContext(ctx, "GET",
				"http://"+a.Host+":8000/dashboard/api/stream", nil)
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

func (s *Shown) take(f *Fleet, kind, data string, see func(*Shown)) {
	var into any = &struct{}{}
	var past struct{ Second []uint64 }
	switch kind {
	case "fleet":
		s.Fleet.Agents = nil
		into = &s.Fleet
	case "beat":
		s.Beat.Events, s.Beat.Heat, s.Beat.Lanes.Busy = nil, nil, nil
		into = &s.Beat
	case "history":
		into = &past
	}
	if err := json.Unmarshal([]byte(data), into); err != nil {
		f.Errorf("%s: %v", kind, err)
	}
	for _, second := range past.Second {
		s.Seconds[second] = true
	}
	if kind == "beat" {
		s.Seconds[s.Beat.Second] = true
		for _, e := range s.Beat.Events {
			s.Events = append(s.Events, e.Agent+": "+e.What)
		}
		see(s)
	}
}
