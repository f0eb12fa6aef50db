package agent

import (
	"context"
	"errors"
	"time"

	"github.com/muster-serve/muster/agent/modelstore"
	"github.com/muster-serve/muster/agent/release/stored"
	"github.com/muster-serve/muster/models/store"
	"github.com/muster-serve/muster/runtime"
)

// OpenStore gives the agent the function that opens the store of Config.ModelStore, which needs
// libraries that not every program with an agent in it is to have. It must be called before Run.
func (a *Agent) OpenStore(open func(ctx context.Context, url string) (*store.Store, error)) {
	a.openStore = open
}

// openFollower makes the part that follows the model store, if there is one.
func (a *Agent) openFollower(t *stored.Trust) error {
	metrics := modelstore.NewMetrics(a.metrics.registry)
	if a.config.ModelStore == "" {
		return nil
	}
	if a.openStore == nil {
		return errors.New("model-store: this program cannot open model stores")
	}
	var err error
	a.stored, err = modelstore.New(modelstore.Config{
		Open: func(ctx context.Context) (*store.Store, error) {
			return a.openStore(ctx, a.config.ModelStore)
		},
		Dir: a.config.ModelDir, CacheBytes: a.config.ModelCacheSize, Models: a.config.StoreModels,
		Keys: t.Keys, Fleet: t.Fleet, Rekeyed: t.Forget,
		Readmit: a.worker.Repository().Readmit, BytesPerSecond: a.config.StoreRate,
		Poll:  a.config.StorePoll,
		Peers: &modelstore.Peers{Fleet: a.members},
		Pause: func(ctx context.Context, d time.Duration) error {
			return runtime.Pause(a.worker.Lanes().Considerate(ctx), d)
		},
		Statuses: a.worker.Repository().Index,
		Metrics:  metrics, Log: a.log,
	})
	a.worker.AdmitBy(a.stored)
	return err
}

// runStore follows the model store until ctx ends. An agent that is to join a fleet first waits
// until it knows of no further agents for settled, for they may have what the store has, or are to
// fetch it as well.
func (a *Agent) runStore(ctx context.Context) {
	if len(a.config.Join) > 0 {
		joining, stop := context.WithTimeout(ctx, joinStore)
		defer stop()
		for joining.Err() == nil {
			changed, alone := a.members.Changed(), len(a.members.View().GetMembers()) < 2
			timer := time.NewTimer(settled)
			select {
			case <-changed:
			case <-timer.C:
				if !alone {
					stop()
				}
			case <-joining.Done():
			}
			timer.Stop()
		}
	}
	a.stored.FollowStore(ctx)
}

const (
	// joinStore is how long an agent that is to join a fleet waits for that before it asks the
	// model store, at most.
	joinStore = 10 * time.Second
	settled   = time.Second
)
