package agent

import (
	"context"
	"time"
)

// handOver is how long an agent that is not alone goes on taking queries after it has
// said that it drains, so that others have heard of it when it takes no more.
const handOver = 100 * time.Millisecond

// drain hands over, lets what the agent holds finish, and closes the servers,
// all within the drain timeout. In a fleet the agent goes on serving meanwhile: leadership goes to
// another agent, queries that come to it run on others.
func (a *Agent) drain(ctx context.Context) {
	start := time.Now()
	a.draining.Store(true)
	a.members.SelfChanged() // tells the fleet
	a.health.Shutdown()
	a.log.Info("draining", "timeout_ms", a.config.DrainTimeout.Milliseconds(), "alone",
		a.server.Alone(), eventKey, "draining")
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), a.config.DrainTimeout)
	defer cancel()

	if !a.server.Alone() {
		a.leading.Resign(ctx)
		select {
		case <-time.After(handOver):
		case <-ctx.Done():
		}
	}
	// While the lanes drain the servers answer: the queries of a fleet, by other
	// agents; UNAVAILABLE to new ones of an agent that is alone, and "not ready" to those who ask.
	if err := a.worker.Lanes().Drain(ctx); err != nil {
		a.log.Warn("queries were cut off", "error", err)
	}
	a.close()
	a.server.Stop(ctx)
	a.log.Info("drained", "took_ms", time.Since(start).Milliseconds(), eventKey, "drained")
}
