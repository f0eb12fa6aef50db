package dashboard

import (
	"net/http"
	"strconv"
	"time"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/secure"
)

const (
	// maxViewers is how many streams to pages an agent has open at most. One client, or one address
	// of those without a name, has three quarters at most. Chosen: more people than operate a
	// fleet; a beat of 1,000 lanes for so many takes below 5 % of a core (BenchmarkBeat).
	maxViewers = 100
	// writeTimeout is how long a viewer may take to read an event. It is cut off then, and comes
	// back by itself. Chosen: TCP sends a lost packet again after 1, 2 and 4 s; beyond that the
	// viewer sees the past only.
	writeTimeout = 10 * time.Second
	// keepAlive is how often a stream without events has a comment, so that proxies keep it open.
	// Chosen: a quarter of the minute after which nginx closes one that says nothing.
	keepAlive = 15 * time.Second
	// streamTime is how long a stream lasts. Its viewer comes back, and is asked for its rights
	// anew. Chosen: who has lost a right sees the fleet no longer than this, and connecting anew
	// costs one message of the past.
	streamTime = 15 * time.Minute
)

// serveStream serves GET /dashboard/api/stream.
func (d *Dashboard) serveStream(w http.ResponseWriter, req *http.Request) {
	ctx := req.Context()
	done, ok := d.viewers.Take(ctx)
	if !ok {
		w.Header().Set("Retry-After", "15")
		writeError(w, http.StatusServiceUnavailable,
			"as many pages as this agent serves, or serves one client, are open: close some, or ask "+
				"another agent")
		return
	}
	defer done()
	watcher, first := d.hub.watch(true, lastSecond(req))
	defer d.hub.stopWatching(watcher)
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("X-Accel-Buffering", "no")
	out := http.NewResponseController(w)
	send := func(b []byte) bool {
		if len(b) == 0 {
			return true
		}
		// It fails in tests alone, whose writers have no deadline.
		_ = out.SetWriteDeadline(time.Now().Add(writeTimeout))
		if _, err := w.Write(b); err != nil {
			return false
		}
		return out.Flush() == nil
	}
	sees := d.visibilityOf(ctx)
	var told *control.Fleet // what the viewer knows
	var as viewerClass      // by which it was told
	// fleet appends the fleet if it is another than the viewer knows, or if what the viewer may see
	// has changed.
	fleet := func(b []byte, f *control.Fleet) []byte {
		c := classOf(f, sees, d.mayControl(ctx, secure.Events))
		if f != told || c != as {
			told, as = f, c
			b = appendFrame(b, "fleet", 0, fleetOf(f, c))
		}
		return b
	}
	b := appendFrame([]byte("retry: 1000\n"), "hello", 0, d.helloMessage())
	if first.fleet != nil {
		b = fleet(b, first.fleet)
		b = appendHistory(b, first.seconds, first.minutes, first.fleet, as)
	}
	if !send(b) {
		return
	}
	ended := time.NewTimer(streamTime)
	defer ended.Stop()
	idle := time.NewTicker(keepAlive)
	defer idle.Stop()
	for {
		b = nil
		select {
		case p, ok := <-watcher.out:
			if !ok {
				return
			}
			if p.fleet == nil {
				continue
			}
			b = fleet(b, p.fleet)
			b = append(b, p.frameFor(as)...)
			idle.Reset(keepAlive)
		case <-idle.C:
			b = []byte(": \n\n")
		case <-ended.C:
			return
		case <-ctx.Done():
			return
		case <-d.config.Closing.Done():
			return
		}
		if !send(b) {
			return
		}
	}
}

// lastSecond returns the last second that a viewer says it has; 0 if it says none.
func lastSecond(req *http.Request) uint64 {
	text := req.Header.Get("Last-Event-ID")
	if text == "" {
		text = req.URL.Query().Get("after")
	}
	second, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0
	}
	return second
}
