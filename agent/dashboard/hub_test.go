package dashboard

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/api/secure"
)

// A frame is one event of a stream.
type frame struct {
	kind, id string
	data     map[string]any
}

// A viewer reads the stream of a page.
type viewer struct {
	t      testing.TB
	cancel context.CancelFunc
	frames chan frame
	ended  chan struct{} // closed when the stream has ended
	status int
}

// A pipeWriter is a ResponseWriter of which a viewer reads.
type pipeWriter struct {
	header   http.Header
	out      *io.PipeWriter
	status   chan int
	said     bool
	deadline time.Time
}

func (p *pipeWriter) Header() http.Header { return p.header }
func (p *pipeWriter) Flush()              {}
func (p *pipeWriter) WriteHeader(code int) {
	if !p.said {
		p.said = true
		p.status <- code
	}
}

func (p *pipeWriter) Write(b []byte) (int, error) {
	p.WriteHeader(http.StatusOK)
	if !p.deadline.IsZero() {
		timer := time.AfterFunc(time.Until(p.deadline), func() {
			_ = p.out.CloseWithError(io.ErrClosedPipe)
		})
		defer timer.Stop()
	}
	return p.out.Write(b)
}

// SetWriteDeadline makes writes fail from then on, as a connection does.
func (p *pipeWriter) SetWriteDeadline(at time.Time) error {
	p.deadline = at
	return nil
}

// look opens the stream of a page. The viewer reads only while it is asked for frames, but for some
// that are kept.
func look(t testing.TB, d http.Handler, header ...string) *viewer {
	ctx, cancel := context.WithCancel(t.Context())
	req := httptest.NewRequest("GET", "/dashboard/api/stream", nil).WithContext(ctx)
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	in, out := io.Pipe()
	w := &pipeWriter{header: http.Header{}, out: out, status: make(chan int, 1)}
	v := &viewer{t: t, cancel: cancel, frames: make(chan frame, 4), ended: make(chan struct{})}
	go func() {
		d.ServeHTTP(w, req)
		_ = out.Close()
		close(v.ended)
	}()
	go func() {
		defer close(v.frames)
		lines := bufio.NewScanner(in)
		lines.Buffer(nil, 1<<24)
		var f frame
		for lines.Scan() {
			key, value, _ := strings.Cut(lines.Text(), ": ")
			switch key {
			case "event":
				f.kind = value
			case "id":
				f.id = value
			case "data":
				if err := json.Unmarshal([]byte(value), &f.data); err != nil {
					f.kind = "no JSON: " + err.Error()
				}
			case "":
				if f.kind != "" {
					v.frames <- f
				}
				f = frame{}
			}
		}
	}()
	v.status = <-w.status
	return v
}

// next returns the next event of a kind, and drops those before; it fails after 5 s.
func (v *viewer) next(kind string) frame {
	v.t.Helper()
	timeout := time.After(5 * time.Second)
	for {
		select {
		case f, ok := <-v.frames:
			if !ok {
				v.t.Fatalf("the stream ended, want %s", kind)
			}
			if f.kind == kind {
				return f
			}
		case <-timeout:
			v.t.Fatalf("no %s within 5 s", kind)
		}
	}
}

func (v *viewer) close() {
	v.cancel()
	for range v.frames {
	}
	<-v.ended
}

func (f frame) number(key string) float64 {
	n, ok := f.data[key].(float64)
	if !ok {
		return math.NaN()
	}
	return n
}

// beats has the leader's term tell its hub a beat each second, until the test ends
// or stop is called.
func (w *world) beats(leader names.AgentName) (stop func()) {
	ctx, cancel := context.WithCancel(w.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for n := uint64(1); ; n++ {
			select {
			case <-tick.C:
				w.agents[leader].hub.Led(w.beat(n))
			case <-ctx.Done():
				return
			}
		}
	}()
	return func() { cancel(); <-done }
}

// end stops all agents, so that no goroutine of theirs is left in a bubble.
func (w *world) end() {
	for _, a := range w.agents {
		a.stop()
		<-a.done
	}
}

// TestEveryAgentShowsTheBeats: pages at the leader, at its successor and at a third agent show the
// same seconds; and the leader has one stream, whoever looks.
func TestEveryAgentShowsTheBeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "a", "b", "c")
		defer w.end()
		w.lead(1, "a", "b")
		defer w.beats("a")()
		time.Sleep(10*time.Second + time.Millisecond)
		if c := w.agents["c"]; c.hub.last != 0 {
			t.Errorf("c has heard of second %d, though nobody looks", c.hub.last)
		}
		for _, name := range w.names() {
			v := look(t, w.agents[name].page())
			defer v.close()
			if hello := v.next("hello"); hello.data["agent"] != string(name) {
				t.Errorf("%s says hello as %v", name, hello.data)
			}
			fleet, first := v.next("fleet"), v.next("history")
			if n := len(first.data["second"].([]any)); first.number("step") != 1 || n < 10 {
				t.Errorf("%s shows %d seconds of the past, want 10", name, n)
			}
			beat := v.next("beat")
			if beat.number("second") != float64(w.agents["a"].hub.last) ||
				beat.id != strconv.Itoa(int(beat.number("second"))) {
				t.Errorf("%s shows second %v as %s, the leader is at %d", name,
					beat.number("second"), beat.id, w.agents["a"].hub.last)
			}
			if beat.number("fleet") != fleet.number("revision") || beat.number("rate") != 100 ||
				fleet.number("leader") != 0 || fleet.number("successor") != 1 {
				t.Errorf("%s shows the beat %v of the fleet %v", name, beat.data, fleet.data)
			}
			lanes := beat.data["lanes"].(map[string]any)
			if n := len(lanes["remaining_ms"].([]any)); n != 6 {
				t.Errorf("%s shows %d lanes, want 6", name, n)
			}
		}
		if a := w.agents["a"]; a.streams != 1 {
			t.Errorf("%d streams were opened to the leader, want the successor's", a.streams)
		}
	})
}

// TestViewersCostTheLeaderNothing: the leader's streams and messages are the same with
// no viewer and with a hundred, at each agent.
func TestViewersCostTheLeaderNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "a", "b", "c")
		defer w.end()
		w.lead(1, "a", "b")
		defer w.beats("a")()
		time.Sleep(10*time.Second + time.Millisecond)
		a := w.agents["a"]
		cost := func() (streams, sent, tells int) {
			a.mu.Lock()
			defer a.mu.Unlock()
			streams, sent, tells = a.streams, a.sent, a.tells
			a.mu.Unlock()
			time.Sleep(10 * time.Second)
			a.mu.Lock()
			return a.streams - streams, a.sent - sent, a.tells - tells
		}
		streams, sent, tells := cost()
		for _, name := range w.names() {
			d := w.agents[name].page()
			for range maxViewers * 3 / 4 { // what one address may have
				v := look(t, d)
				go func() {
					for range v.frames {
					}
				}()
				defer v.close()
			}
		}
		s, n, c := cost()
		if s != streams || n != sent || c != tells || sent != 10 || a.open != 1 {
			t.Errorf("with 225 viewers %d streams, %d messages and %d calls in 10 s, without "+
				"%d, %d and %d; %d are open", s, n, c, streams, sent, tells, a.open)
		}
		v := look(t, w.agents["c"].page())
		v.close()
		if v.status != http.StatusOK {
			t.Errorf("the first viewer of another page gets %d", v.status)
		}
	})
}

// TestNobodyLooks: an agent that nobody looks at any more follows nobody.
func TestNobodyLooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "a", "b", "c")
		defer w.end()
		w.lead(1, "a", "b")
		defer w.beats("a")()
		v := look(t, w.agents["c"].page())
		v.next("beat")
		b := w.agents["b"]
		if b.open != 1 {
			t.Errorf("%d agents follow b, want c", b.open)
		}
		v.close() // as a page in a hidden tab does
		synctest.Wait()
		if b.open != 0 || len(w.agents["c"].hub.watchers) != 0 {
			t.Errorf("%d agents follow b, though nobody looks", b.open)
		}
	})
}

// TestMostViewers: one viewer more than an agent serves is told to ask elsewhere, and one client
// cannot have all.
func TestMostViewers(t *testing.T) {
	keys := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(keys, []byte("one: one-one-one-one-one\ntwo: two-two-two-two-two\n"+
		"three: three-three-three-three\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		guard, err := secure.Open(secure.Config{APIKeysFile: keys},
			secure.Options{Logger: quietLog})
		if err != nil {
			t.Fatal(err)
		}
		w := newWorld(t, "a")
		defer w.end()
		d := w.agents["a"].guarded(guard)
		all := 0
		for _, tt := range []struct {
			key  string
			most int
		}{{"one-one-one-one-one", 75}, {"two-two-two-two-two", 19}, {"three-three-three-three",
			5}} {
			n := 0
			for range maxViewers + 1 {
				v := look(t, d, "Authorization", "Bearer "+tt.key)
				defer v.close()
				if v.status == http.StatusOK {
					n++
				} else if v.status != http.StatusServiceUnavailable {
					t.Fatalf("viewer %d of %s gets %d", n+1, tt.key, v.status)
				}
			}
			if all += n; n != tt.most || all > maxViewers {
				t.Errorf("%s has %d streams, want %d", tt.key, n, tt.most)
			}
		}
	})
}

// TestSlowViewer: a viewer that reads nothing is cut off after writeTimeout, others are not; and
// when it comes back with the last second that it has, it gets all since.
func TestSlowViewer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "a")
		defer w.end()
		w.lead(1, "a", "")
		defer w.beats("a")()
		d := w.agents["a"].page()
		slow, quick := look(t, d), look(t, d)
		defer quick.close()
		last := slow.next("beat").number("second")
		for range 40 {
			quick.next("beat")
		}
		select {
		case <-slow.ended:
		default:
			t.Fatal("a viewer that has read nothing for 40 s is not cut off")
		}
		if n := len(w.agents["a"].hub.watchers); n != 1 {
			t.Errorf("%d watchers, want the quick one", n)
		}
		for f := range slow.frames { // what it had not read yet
			if f.kind == "beat" {
				last = f.number("second")
			}
		}
		again := look(t, d, "Last-Event-ID", strconv.Itoa(int(last)))
		defer again.close()
		past := again.next("history")
		seconds := past.data["second"].([]any)
		if past.number("step") != 1 || seconds[0].(float64) != last+1 {
			t.Errorf("it comes back with %v, and is told from %v on", last, seconds[0])
		}
		if next := again.next("beat").number("second"); next !=
			seconds[len(seconds)-1].(float64)+1 {
			t.Errorf("the past ends at %v, and goes on at %v", seconds[len(seconds)-1], next)
		}
	})
}

// TestTakeover: the leader is gone; its successor goes on with its seconds and its past, and so do
// pages at other agents, within 3 s.
func TestTakeover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "a", "b", "c")
		defer w.end()
		w.lead(1, "a", "b")
		stop := w.beats("a")
		time.Sleep(30*time.Second + time.Millisecond)
		v := look(t, w.agents["c"].page())
		defer v.close()
		last := v.next("beat").number("second")
		stop()
		w.agents["a"].mu.Lock()
		w.agents["a"].down = true
		w.agents["a"].mu.Unlock()
		w.lead(2, "b", "c")
		stop = w.beats("b")
		began := time.Now()
		beat := v.next("beat")
		if took := time.Since(began); took > 3*time.Second {
			t.Errorf("the page recovers after %v", took)
		}
		if s := beat.number("second"); s <= last || s > last+3 || beat.number("epoch") != 2 {
			t.Errorf("after second %v comes %v of epoch %v", last, s, beat.number("epoch"))
		}
		stop()
		// a page that opens now has the past of both leaders
		d := look(t, w.agents["b"].page())
		defer d.close()
		if n := len(d.next("history").data["second"].([]any)); n < 30 {
			t.Errorf("the new leader knows of %d seconds, want 30", n)
		}
	})
}

// TestLeaderWithoutPast: a leader that has not followed the former one, and whose clock is behind,
// counts on from what those who look have seen.
func TestLeaderWithoutPast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "a", "b", "c")
		defer w.end()
		w.lead(1, "a", "")
		stop := w.beats("a")
		w.agents["a"].hub.last = 5_000_000_000 // as if its clock were ahead
		v := look(t, w.agents["c"].page())
		defer v.close()
		last := v.next("beat").number("second")
		stop()
		w.lead(2, "b", "")
		defer w.beats("b")()
		for range 5 {
			if s := v.next("beat").number("second"); s <= last || s > last+3 {
				t.Fatalf("after second %v comes %v", last, s)
			} else {
				last = s
			}
		}
	})
}

// TestNoLeader: after a while without beats a page shows what gossip knows, says why, and goes on
// when there is a leader again.
func TestNoLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "a", "b")
		defer w.end()
		v := look(t, w.agents["b"].page())
		defer v.close()
		fleet := v.next("fleet")
		if fleet.data["leaderless"] != true || fleet.data["why"] != "no leader is elected" ||
			fleet.number("leader") != -1 {
			t.Errorf("without a leader the fleet is %v", fleet.data)
		}
		beat := v.next("beat")
		if beat.data["rate"] != nil || beat.data["limit"] != nil || beat.number("waiting") != 6 {
			t.Errorf("without a leader the beat is %v", beat.data)
		}
		lanes := beat.data["lanes"].(map[string]any)
		free := lanes["remaining_ms"].([]any)
		if len(free) != 4 || free[1].(float64) != 30 { // 40 ms said 10 ms ago
			t.Errorf("lanes are free in %v ms", free)
		}
		w.lead(1, "a", "b")
		defer w.beats("a")()
		for s := beat.number("second"); ; {
			next := v.next("beat")
			if next.number("second") <= s {
				t.Fatalf("after second %v comes %v", s, next.number("second"))
			}
			if s = next.number("second"); next.data["leaderless"] == false {
				break
			}
		}
		// a leader that is there and silent
		w.lead(2, "a", "")
		w.agents["a"].mu.Lock()
		w.agents["a"].down = true
		w.agents["a"].mu.Unlock()
		if why := v.next("fleet").data["why"]; why != "" && why != "a leads, and sends no beats" {
			t.Errorf("the page says %q", why)
		}
	})
}

// TestEventsOfOthers: what happens to any agent stands on all pages, once.
func TestEventsOfOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "a", "b", "c")
		defer w.end()
		w.lead(1, "a", "b")
		defer w.beats("a")()
		v := look(t, w.agents["c"].page())
		defer v.close()
		v.next("beat")
		for i, name := range w.names() {
			w.agents[name].happens(fmt.Sprint("event ", i))
		}
		var seen []string
		for range 6 {
			for _, e := range events(v.next("beat")) {
				seen = append(seen, e["agent"].(string)+": "+e["what"].(string))
			}
			if len(seen) == 2 {
				w.lead(2, "b", "c") // all tell the new leader again
				defer w.beats("b")()
			}
		}
		slices.Sort(seen)
		if got := strings.Join(seen, ", "); got != "a: event 0, b: event 1, c: event 2" {
			t.Errorf("the page shows %s", got)
		}
	})
}

// TestNewLeaderIsToldLately: a new leader is told again what happened a short time ago, and not all
// that has ever happened to every agent; and none is told anything twice.
func TestNewLeaderIsToldLately(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "a", "b", "c")
		defer w.end()
		w.lead(1, "a", "b")
		defer w.beats("a")()
		c := w.agents["c"]
		for range 50 {
			c.happens("long ago")
		}
		time.Sleep(time.Minute)
		c.happens("lately")
		time.Sleep(10 * time.Second)
		if heard := w.agents["a"].told(); heard != 51 {
			t.Errorf("the leader is told %d events, want 51", heard)
		}
		w.lead(2, "b", "c")
		time.Sleep(10 * time.Second)
		if heard := w.agents["b"].told(); heard != 1 {
			t.Errorf("the new leader is told %d events, want the last one", heard)
		}
	})
}

func events(f frame) (all []map[string]any) {
	list, _ := f.data["events"].([]any)
	for _, e := range list {
		all = append(all, e.(map[string]any))
	}
	return all
}

// TestClock: seconds count by what has passed, not by what a clock says.
func TestClock(t *testing.T) {
	h := NewHub(HubConfig{})
	now := time.Now()
	h.last, h.lastAt = 1000, now
	for _, tt := range []struct {
		now  time.Time
		want uint64
	}{
		{now.Add(time.Second), 1001}, {now.Add(3100 * time.Millisecond), 1003},
		{now, 1001}, {now.Add(-time.Hour), 1001},
		{now.Add(time.Second).Round(0).Add(-24 * time.Hour), 1001}, // without a monotonic clock
	} {
		if got := h.next(tt.now); got != tt.want {
			t.Errorf("%v later the second is %d, want %d", tt.now.Sub(now), got, tt.want)
		}
	}
	h.noteSecond(math.MaxUint64, now)
	if h.last != 1000 {
		t.Errorf("a foreign second is taken: %d", h.last)
	}
}

// TestForeignBeats: what makes no sense is refused, and changes nothing.
func TestForeignBeats(t *testing.T) {
	w := newWorld(t, "a", "b")
	w.lead(1, "a", "b")
	b := w.agents["b"]
	for name, spoil := range map[string]func(*control.PulseMessage){
		"no fleet":     func(m *control.PulseMessage) { m.Fleet = nil },
		"other fleet":  func(m *control.PulseMessage) { m.Beat.Fleet++ },
		"no row":       func(m *control.PulseMessage) { m.Beat.Row = nil },
		"lanes":        func(m *control.PulseMessage) { m.Beat.Lanes = m.Beat.Lanes[1:] },
		"many lanes":   func(m *control.PulseMessage) { m.Fleet.Agents[0].Lanes = math.MaxUint32 },
		"type":         func(m *control.PulseMessage) { m.Fleet.Agents[0].Type = 7 },
		"held model":   func(m *control.PulseMessage) { m.Fleet.Agents[0].Models = []uint32{2} },
		"model":        func(m *control.PulseMessage) { m.Beat.Models[0].Model = 2 },
		"heat's type":  func(m *control.PulseMessage) { m.Beat.Heat[0].Type = 1 },
		"heat's bins":  func(m *control.PulseMessage) { m.Beat.Heat[0].Bins = []uint32{1} },
		"shots":        func(m *control.PulseMessage) { m.Beat.Shots = []uint32{1, 2, 3} },
		"shot's model": func(m *control.PulseMessage) { m.Beat.Shots = []uint32{1, 0, 9, 0} },
		"leaderless":   func(m *control.PulseMessage) { m.Fleet.Leaderless = "why" },
	} {
		m := w.beat(1)
		m.Beat.Row.Second = 77
		spoil(m)
		if err := b.hub.deliverNew(m, false); err == nil || b.hub.last != 0 {
			t.Errorf("%s: taken, the second is %d now", name, b.hub.last)
		}
	}
}
