package agent

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/feature/ec2/imds"

	"github.com/muster-serve/muster/api/control"
)

// A metadataService answers as EC2's does, version 2, without a socket, so that it runs in virtual
// time.
type metadataService struct {
	mu     sync.Mutex
	values map[string]string // by path below meta-data
	broken bool              // it answers nothing
	asked  map[string]int
}

func newMetadataService(lifeCycle string) *metadataService {
	return &metadataService{asked: map[string]int{}, values: map[string]string{
		"instance-id": "i-0123456789abcdef0", "instance-type": "r5n.large",
		"instance-life-cycle":         lifeCycle,
		"placement/availability-zone": "us-east-1a",
		"tags/instance/muster:slot":   "r5n.large/" + lifeCycle + "/3/0",
	}}
}

func (s *metadataService) set(path, value string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.values[path] = value
}

func (s *metadataService) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	const token = "a-token"
	path, data := strings.CutPrefix(r.URL.Path, "/latest/meta-data/")
	switch {
	case r.Method == http.MethodPut && r.URL.Path == "/latest/api/token":
		w.Header().Set("X-Aws-Ec2-Metadata-Token-Ttl-Seconds", "21600")
		_, _ = io.WriteString(w, token)
	case r.Header.Get("X-Aws-Ec2-Metadata-Token") != token:
		w.WriteHeader(http.StatusUnauthorized)
	case data && s.values[path] != "":
		s.asked[path]++
		_, _ = io.WriteString(w, s.values[path])
	default:
		s.asked[path]++
		w.WriteHeader(http.StatusNotFound)
	}
}

// Do implements [imds.HTTPClient].
func (s *metadataService) Do(r *http.Request) (*http.Response, error) {
	s.mu.Lock()
	broken := s.broken
	s.mu.Unlock()
	if broken {
		return nil, fmt.Errorf("connection refused")
	}
	rec := httptest.NewRecorder()
	s.ServeHTTP(rec, r)
	return rec.Result(), nil
}

// rentedFrom makes an agent ask the service what machine it is on.
func rentedFrom(s *metadataService) func(*Agent) {
	return func(a *Agent) {
		a.config.Rented, a.network.metadataClient = rentedEC2, s
		a.config.Leader = "never"
	}
}

// member is what of sees of the agent called name; nil if it does not see it.
func member(of *fleetAgent, name string) *control.Member {
	for _, m := range of.members.View().Members {
		if m.Name == name {
			return m
		}
	}
	return nil
}

// TestSpotNotice: the fleet hears within seconds that a machine ends, the agent goes on serving,
// and it drains in time; no query is lost.
func TestSpotNotice(t *testing.T) {
	testInFleet(t, func(f *testFleet) {
		service := newMetadataService("spot")
		keeper, spot := f.start(), f.start(rentedFrom(service))
		f.settled(keeper, spot)
		f.eventually(10*time.Second, func() string {
			r := member(keeper, spot.Name()).GetRented()
			if r.GetInstance() != "i-0123456789abcdef0" || r.GetSlot() != "r5n.large/spot/3/0" ||
				r.GetZone() != "us-east-1a" || r.GetEndsNs() != 0 {
				return fmt.Sprintf("the fleet sees the machine %v", r)
			}
			return ""
		})
		told, ends := time.Now(), time.Now().Add(110*time.Second)
		service.set("spot/instance-action", fmt.Sprintf(`{"action": "terminate", "time": %q}`,
			ends.UTC().Format(time.RFC3339)))
		f.eventually(8*time.Second, func() string {
			r := member(keeper, spot.Name()).GetRented()
			if left := time.Duration(r.GetEndsNs()); left <= 0 || left > time.Until(told.Add(2*
				time.Minute)) || !r.GetAdvised() {
				return fmt.Sprintf("the fleet sees the machine %v", r)
			}
			return ""
		})
		for failure, n := range f.send(500, 300*time.Millisecond, keeper) {
			f.Errorf("%d queries failed: %s", n, failure)
		}
		log := spot.log.String()
		for _, want := range []string{
			"the provider takes this machine back", "draining", "drained",
		} {
			if !strings.Contains(log, want) {
				f.Errorf("the log lacks %q", want)
			}
		}
		if strings.Contains(log, "were cut off") {
			f.Error("queries were cut off")
		}
		if member(keeper, spot.Name()) != nil {
			f.Error("the machine's agent is still there after its end")
		}
		if err := spot.stop(); err != nil {
			f.Error(err)
		}
	})
}

// TestDrainsBeforeTheEnd: a notice comes late, and the drain has only what is left of the time.
func TestDrainsBeforeTheEnd(t *testing.T) {
	testInFleet(t, func(f *testFleet) {
		service := newMetadataService("spot")
		keeper, spot := f.start(), f.start(rentedFrom(service))
		f.settled(keeper, spot)
		service.set("spot/instance-action", fmt.Sprintf(`{"action": "terminate", "time": %q}`,
			time.Now().Add(12*time.Second).UTC().Format(time.RFC3339)))
		f.eventually(7*time.Second, func() string {
			if !spot.draining.Load() {
				return "it does not drain"
			}
			return ""
		})
		if timeout := spot.drainTimeout(); timeout > 9*time.Second || timeout < 2*time.Second {
			f.Errorf("the drain may take %v, and 12 s were left", timeout)
		}
	})
}

// TestMaintenance: maintenance next week is advice to leave; when it is near, the machine ends; a
// cancelled one is none. A machine that is no spot instance is asked once a minute.
func TestMaintenance(t *testing.T) {
	testInFleet(t, func(f *testFleet) {
		service := newMetadataService("on-demand")
		keeper, other := f.start(), f.start(rentedFrom(service))
		f.settled(keeper, other)
		const path = "events/maintenance/scheduled"
		event := func(in time.Duration, state string) string {
			return fmt.Sprintf(
				`[{"Code": "system-maintenance", "NotBefore": "1 Jan 2000 00:00:00 GMT",
				"State": "completed"}, {"Code": "instance-retirement", "NotBefore": %q, "State": %q}]`,
				time.Now().Add(in).UTC().Format("2 Jan 2006 15:04:05")+" GMT", state)
		}
		sees := func(what string, advised, ends bool) {
			f.Helper()
			time.Sleep(65 * time.Second)
			f.eventually(5*time.Second, func() string {
				r := member(keeper, other.Name()).GetRented()
				if r.GetAdvised() != advised || (r.GetEndsNs() > 0) != ends ||
					r.GetInstance() == "" {
					return fmt.Sprintf("%s: the fleet sees the machine %v", what, r)
				}
				return ""
			})
		}
		sees("nothing", false, false)
		service.set(path, event(7*24*time.Hour, "active"))
		sees("next week", true, false)
		service.set(path, event(7*24*time.Hour, "canceled"))
		sees("cancelled", false, false)
		near := 10 * time.Minute
		if testing.Short() {
			near = 4 * time.Minute
		}
		service.set(path, event(near, "active"))
		sees("in some minutes", true, true)
		service.mu.Lock()
		n := service.asked[path]
		service.mu.Unlock()
		if n < 2 || n > 6 {
			f.Errorf("asked %d times in some minutes", n)
		}
		time.Sleep(near - 2*time.Minute)
		f.eventually(time.Minute, func() string {
			if !other.draining.Load() {
				return "it does not drain"
			}
			return ""
		})
	})
}

// TestBadNotices: what the metadata service answers can be anything.
func TestBadNotices(t *testing.T) {
	now := time.Date(2026, 11, 23, 8, 0, 0, 0, time.UTC)
	in := func(d time.Duration) string {
		return `{"action":"terminate","time":"` + now.Add(d).Format(time.RFC3339) + `"}`
	}
	for text, want := range map[string]time.Duration{
		in(90 * time.Second):                  90 * time.Second,
		in(-time.Hour):                        spotWarning, // the clock of this machine is ahead
		in(5 * time.Hour):                     spotWarning, // or behind
		"":                                    spotWarning,
		"<html>":                              spotWarning,
		`{"action":"stop"}`:                   spotWarning,
		`{"action":"stop","time":"tomorrow"}`: spotWarning,
		`{"time":7}`:                          spotWarning,
	} {
		if got := interruption(text, now); got.ends.Sub(now) != want || !got.advised {
			t.Errorf("interruption(%q) ends in %v, want %v", text, got.ends.Sub(now), want)
		}
	}
	before := notice{advised: true, why: "before"}
	for text, says := range map[string]string{
		"": "scheduled maintenance", "{}": "scheduled maintenance",
		`[{"Code":"system-reboot","NotBefore":"soon"}]`: "system-reboot: NotBefore",
	} {
		got, err := maintenance(text, before, now)
		if err == nil || !strings.Contains(err.Error(), says) || got != before {
			t.Errorf("maintenance(%q) = %+v, %v", text, got, err)
		}
	}
	if got, err := maintenance("[]", before, now); err != nil || got != (notice{}) {
		t.Errorf("maintenance([]) = %+v, %v", got, err)
	}
}

// TestSpotAnswers: a recommendation is advice; a notice stays while the service does not answer;
// what is no machine of EC2's, or has a name that does not fit, is nothing.
func TestSpotAnswers(t *testing.T) {
	service := newMetadataService("spot")
	server := httptest.NewServer(service)
	defer server.Close()
	m := &machine{metadata: imds.New(imds.Options{
		Endpoint: server.URL, Retryer: aws.NopRetryer{}, EnableFallback: aws.FalseTernary,
	})}
	if err := m.identify(t.Context()); err != nil || !m.spot {
		t.Fatalf("identify: %v, spot %t", err, m.spot)
	}
	now := time.Now()
	ask := func(last, want notice, fails bool) notice {
		t.Helper()
		got, err := m.ask(t.Context(), last, now)
		if got != want || (err != nil) != fails {
			t.Errorf("got %+v, %v, want %+v", got, err, want)
		}
		return got
	}
	ask(notice{}, notice{}, false)
	service.set("events/recommendations/rebalance", `{"noticeTime":"2026-11-05T08:22:00Z"}`)
	advice := ask(notice{}, notice{advised: true, why: "rebalance recommendation"}, false)
	service.set("spot/instance-action", "{")
	end := ask(advice, notice{now.Add(spotWarning), true, "spot interruption"}, false)
	service.set("spot/instance-action", "")
	ask(end, end, false) // it is not taken back
	server.Close()
	ask(end, end, true)
	ask(advice, advice, true)

	service.set("instance-id", strings.Repeat("i", 500))
	service.set("tags/instance/muster:slot", "no slot")
	other := httptest.NewServer(service)
	defer other.Close()
	m = &machine{metadata: imds.New(imds.Options{
		Endpoint: other.URL, Retryer: aws.NopRetryer{}, EnableFallback: aws.FalseTernary,
	})}
	if err := m.identify(t.Context()); err == nil {
		t.Error("an instance with a name of 500 characters")
	}
	service.set("instance-id", "i-1")
	if err := m.identify(t.Context()); err != nil || m.rented.Slot != "" {
		t.Errorf("a machine that no fleet has rented: %v, %v", m.rented, err)
	}
}

// TestNoMetadataService: without one the agent serves; where it is told to be on EC2, it says so.
func TestNoMetadataService(t *testing.T) {
	testInFleet(t, func(f *testFleet) {
		service := newMetadataService("spot")
		service.broken = true
		keeper, spot := f.start(), f.start(rentedFrom(service))
		f.settled(keeper, spot)
		time.Sleep(time.Minute)
		if !strings.Contains(spot.log.String(), "notices of this machine's end are not heard of") {
			f.Error("the log does not say so")
		}
		service.mu.Lock()
		service.broken = false
		service.mu.Unlock()
		f.eventually(10*time.Second, func() string {
			if member(keeper, spot.Name()).GetRented() == nil {
				return "it does not ask again"
			}
			return ""
		})
		for failure, n := range f.send(50, 20*time.Millisecond, keeper, spot) {
			f.Errorf("%d queries failed: %s", n, failure)
		}
	})
}

// TestNoFleet: a rented machine that finds no fleet drains, since nobody may know of it; one that
// has found it once goes on without it, also after a restart.
func TestNoFleet(t *testing.T) {
	testInFleet(t, func(f *testFleet) {
		state := f.TempDir()
		rented := func(join string) func(*Agent) {
			return func(a *Agent) {
				rentedFrom(newMetadataService("on-demand"))(a)
				a.config.StateDir, a.config.Join = state, []string{join}
			}
		}
		// stays looks at the agent while it may look for its fleet, and after that.
		stays := func(a *fleetAgent, want bool) {
			f.Helper()
			time.Sleep(homeless - 2*time.Minute)
			if a.draining.Load() {
				f.Errorf("%s drains too early", a.host)
			}
			time.Sleep(4 * time.Minute)
			if a.draining.Load() == want {
				f.Errorf("%s stays: %t, want %t", a.host, !want, want)
			}
		}
		stays(f.start(rented("10.0.0.99:7946")), false)
		keeper := f.start(func(a *Agent) { a.config.Join = nil })
		found := f.start(rented(keeper.host + ":7946"))
		f.settled(keeper, found)
		time.Sleep(2 * time.Minute)
		if err := keeper.stop(); err != nil {
			f.Error(err)
		}
		stays(found, true)
		if err := found.stop(); err != nil {
			f.Error(err)
		}
		stays(f.start(rented(keeper.host+":7946")), true)
	})
}
