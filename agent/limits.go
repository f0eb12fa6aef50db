package agent

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"runtime/debug"
	gometrics "runtime/metrics"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/muster-serve/muster/runtime/cgroup"
)

// ErrRestart is what Run returns after a drain when the agent is to be started anew: its CPU quota
// has changed, and lanes keep the cores that they were opened with.
var ErrRestart = errors.New("the CPU quota changed")

const (
	// limitsEvery is how often the limits of the process are read. Chosen: a look reads ten small
	// files, and who changes a limit expects no answer within seconds.
	limitsEvery = 10 * time.Second
	// coresSettle is how long a new quota must stand before the agent starts anew for it, and the
	// most by which agents whose quotas change together wait for each other. Chosen: a resize of
	// several steps is over by then, and a drain takes seconds.
	coresSettle = 30 * time.Second
)

// A coresWatch is what is known of the cores that the process may use.
type coresWatch struct {
	used    int       // by the lanes
	usable  int       // as read last
	changed time.Time // when usable became another number
	wait    time.Duration
}

// watchLimits follows the limits of the control groups of this process until ctx ends: the garbage
// collector minds the memory limit, and a CPU quota of another number of cores has the agent drain
// and start anew. An agent without another one that could serve meanwhile only says so.
func (a *Agent) watchLimits(ctx context.Context) {
	usable, _ := a.env.ReadCores()
	w := coresWatch{used: a.config.coresOrDefault(), usable: usable, changed: time.Now()}
	memory := heapLimit{set: func(limit int64) { debug.SetMemoryLimit(limit) }}
	for {
		if os.Getenv("GOMEMLIMIT") == "" {
			memory.follow(cgroup.MemoryLimit(os.DirFS("/")), foreignMemory())
		}
		if !pause(ctx, limitsEvery) {
			return
		}
		if a.followCores(&w) {
			a.askedToStop(ErrRestart)
			return
		}
	}
}

// followCores looks once, and reports whether the agent is to start anew.
func (a *Agent) followCores(w *coresWatch) bool {
	usable, why := a.env.ReadCores()
	if usable != w.usable {
		w.usable, w.changed = usable, time.Now()
		w.wait = coresSettle + rand.N(coresSettle)
		a.log.Warn("the CPU quota of this agent changed", "usable", usable, "cores", w.used,
			"reason", why, eventKey, "notice")
	}
	if a.config.Cores != 0 || a.config.Layout != "" || usable == w.used {
		return false
	}
	return time.Since(w.changed) >= w.wait && a.othersServe()
}

// othersServe reports whether the fleet has another agent that takes queries.
func (a *Agent) othersServe() bool {
	for _, m := range a.members.View().Members {
		if m.AgentName() != a.name && m.Ready && !m.Draining {
			return true
		}
	}
	return false
}

// watchCores registers metrics of the cores that the process may use.
func (m *metrics) watchCores(used int, read func() (int, string)) {
	m.registry.MustRegister(
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "muster_cores", Help: "Cores that the agent's lanes run on.",
		}, func() float64 { return float64(used) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "muster_usable_cores",
			Help: "Cores whose time affinity and CPU quota leave the agent now.",
		}, func() float64 { usable, _ := read(); return float64(usable) }))
}

// A heapLimit keeps Go's memory limit at what the control group's limit leaves beside the memory
// that Go does not manage: ONNX Runtime's, which has the models.
type heapLimit struct {
	set  func(bytes int64)
	last int64
}

// follow sets the limit. limit is the control group's, negative if there is none; foreign is the
// process's memory outside Go. A tenth stays free for what grows between two looks. Never less than
// a tenth of the limit is left for Go: a collector that cannot reach its limit takes half of the
// processors, and saves nothing.
func (h *heapLimit) follow(limit, foreign int64) {
	if limit < 0 {
		return
	}
	most := max(limit-limit/10-foreign, limit/10)
	if change := most - h.last; change > limit/50 || change < -limit/50 {
		h.last = most
		h.set(most)
	}
}

// foreignMemory is how many bytes of this process's memory are neither Go's nor files'; 0 if that
// is not known.
func foreignMemory() int64 {
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	held := []gometrics.Sample{
		{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"},
	}
	gometrics.Read(held)
	ours := int64(held[0].Value.Uint64() - held[1].Value.Uint64())
	return max(0, cgroup.NumberAfter(string(text), "RssAnon:")<<10-ours)
}
