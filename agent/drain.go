package agent

import (
	"context"
	"errors"
	"time"
)

// handOver is how long a draining agent in a fleet goes on taking queries, so that the other agents
// hear of the drain before it refuses any. Chosen: two heartbeats of a leader.
const handOver = 100 * time.Millisecond

// lastShare is the part of the drain's time, as a divisor, that is left for the answers to queries
// that come just before the servers close: 3 s of the default 30. Chosen: most answers take
// milliseconds, and the lanes keep nine tenths of the time for what they hold.
const lastShare = 10

// What makes an agent drain beside a signal and the failure of a server.
var (
	errDrainCall   = errors.New("a call")
	errNoFleet     = errors.New("a rented machine without a fleet")
	errMachineEnds = errors.New("the end of the machine")
)

// drainAll resigns the leadership, lets the queries that the agent holds finish, and closes the
// servers, all within drainTimeout. It blocks until then. why is the reason, for the log. In a
// fleet the agent goes on serving meanwhile: its gateway sends new queries to other agents.
func (a *Agent) drainAll(ctx context.Context, why error) {
	start := time.Now()
	a.host.draining.Store(true)
	a.members.SelfChanged() // tells the fleet
	a.health.Shutdown()
	delay, timeout := a.drainTimes()
	timeout += delay
	a.log.Info("draining", "why", why, "timeout_ms", timeout.Milliseconds(), "alone",
		a.server.Alone(), eventKey, "draining")
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
	defer cancel()

	wait := time.Duration(0)
	if !a.server.Alone() {
		a.leading.Resign(ctx)
		wait = handOver
	}
	if wait = max(wait, delay-time.Since(start)); wait > 0 {
		pause(ctx, wait)
	}
	// While the lanes drain, the servers still answer. In a fleet other agents run the new queries;
	// an agent that is alone answers new queries with UNAVAILABLE. Health checks report "not
	// ready".
	if err := a.worker.Lanes().Drain(ctx); err != nil {
		a.log.Warn("the drain timed out: the agent ended queries that still ran", "error", err)
	}
	// What comes in the last moment is answered before ctx ends.
	lingering, stop := context.WithDeadline(ctx, start.Add(timeout-timeout/lastShare))
	defer stop()
	if left := a.server.AwaitClients(lingering, func(conns int) {
		a.log.Info("the agent waits until HTTP clients send no more queries; a second signal ends "+
			"it at once", "connections", conns)
	}); left > 0 {
		a.log.Info("the agent closes HTTP connections that clients may still use", "connections",
			left)
	}
	a.close()
	a.server.Stop(ctx)
	a.log.Info("drained", "took_ms", time.Since(start).Milliseconds(), eventKey, "drained")
}
