package agent

import (
	"log/slog"
	"os"
	"time"

	"github.com/muster-serve/muster/agent/lead"
	"github.com/muster-serve/muster/agent/serve"
	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/leader/place/replan"
	"github.com/muster-serve/muster/runtime"
	"github.com/muster-serve/muster/runtime/cgroup"
	"github.com/muster-serve/muster/runtime/isolate"
)

// An Environment is what an agent uses of the world around it. Tests replace parts of it before
// Run.
type Environment struct {
	// OpenExecutor opens the executor that runs the models.
	OpenExecutor func(Config, *slog.Logger) (runtime.Executor, error)
	// Network opens connections and listeners.
	Network Network
	// ReceiveTimeout and SendTimeout bound how long a client may take: [serve.ReceiveTimeout] and
	// [serve.SendTimeout].
	ReceiveTimeout, SendTimeout time.Duration
	// ReadCores returns how many cores the process may use now, and what limits them:
	// [isolate.ReadCores].
	ReadCores func() (int, string)
	// ReadThreadTimes returns for how long the process's threads have run, and have waited for a
	// processor: [cgroup.ThreadTimes].
	ReadThreadTimes func() (ran, waited time.Duration, err error)
	// NewReplanner is [lead.Config.Replanner]; nil: that of leader/place/replan.
	NewReplanner func(replan.Config, replan.Memory) (lead.Replanner, error)
	// Pod says that the agent runs in a pod of Kubernetes, where there is no metadata service.
	Pod bool
	// Spoken is the range of protocol versions that the agent speaks.
	Spoken control.Versions
}

func defaultEnvironment() Environment {
	return Environment{
		OpenExecutor: openExecutor, Network: newTCPNetwork(),
		ReceiveTimeout: serve.ReceiveTimeout, SendTimeout: serve.SendTimeout,
		Pod:       os.Getenv("KUBERNETES_SERVICE_HOST") != "",
		ReadCores: isolate.ReadCores, Spoken: control.Spoken,
		ReadThreadTimes: func() (ran, waited time.Duration, err error) {
			return cgroup.ThreadTimes(os.DirFS("/"))
		},
	}
}
