package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/muster-serve/muster/agent/modelstore"
	"github.com/muster-serve/muster/agent/releasing"
	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/models/store"
	"github.com/muster-serve/muster/models/store/releases"
	"github.com/muster-serve/muster/runtime"
)

// OpenStore gives the agent the function that opens the store of Config.ModelStore, which needs
// libraries that not every program with an agent in it is to have. It must be called before Run.
func (a *Agent) OpenStore(open func(ctx context.Context, url string) (*store.Store, error)) {
	a.openStore = open
}

// follow makes the part that follows the model store, if there is one.
func (a *Agent) follow() error {
	metrics := modelstore.NewMetrics(a.metrics.registry)
	if a.config.ModelStore == "" {
		return nil
	}
	if a.openStore == nil {
		return errors.New("model-store: this program cannot open model stores")
	}
	var keys store.Keys
	if path := a.config.RequireSignature; path != "" {
		var err error
		if keys, err = store.ReadKeys(path); err != nil {
			return fmt.Errorf("require-signature: %w", err)
		}
	}
	var err error
	a.stored, err = modelstore.New(modelstore.Config{
		Open: func(ctx context.Context) (*store.Store, error) {
			return a.openStore(ctx, a.config.ModelStore)
		},
		Dir: a.config.ModelDir, CacheBytes: a.config.ModelCacheSize, Models: a.config.StoreModels,
		Keys: keys, BytesPerSecond: a.config.StoreRate, Poll: a.config.StorePoll,
		Peers: &modelstore.Peers{Fleet: a.members},
		Pause: func(ctx context.Context, d time.Duration) error {
			return runtime.Pause(a.worker.Lanes().Considerate(ctx), d)
		},
		Statuses: a.worker.Repository().Index,
		Released: func(model string) []int64 { return released(a.releases, model) },
		Release: func(ctx context.Context, s *store.Store, model string, number uint64) error {
			if a.releases.Kept(model) >= number {
				return nil
			}
			r, err := releases.Read(ctx, s, model, number)
			if err == nil {
				a.releases.Heard([]*control.Release{r})
			}
			return err
		},
		Metrics: metrics, Log: a.log,
	})
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
	a.stored.Run(ctx)
}

const (
	// joinStore is how long an agent that is to join a fleet waits for that before it asks the model
	// store, at most.
	joinStore = 10 * time.Second
	settled   = time.Second
)

// released are the versions of a model that are released, the current one first, and the one to
// which a rollback returns.
func released(releases *releasing.Releases, model string) (all []int64) {
	for _, r := range releases.All() {
		if r.GetModel() != model {
			continue
		}
		for _, number := range []int64{r.GetCurrent(), r.GetCanary(), r.GetPrevious()} {
			if number > 0 {
				all = append(all, number)
			}
		}
	}
	return all
}

// keeper is the agent's model store, as package releasing needs it.
type keeper struct{ a *Agent }

// open returns the store.
func (k keeper) open() (*store.Store, error) {
	if s := k.a.stored.Store(); s != nil {
		return s, nil
	}
	return nil, fmt.Errorf("the model store %s has not been opened yet", k.a.config.ModelStore)
}

func (k keeper) Versions(ctx context.Context, model string) ([]int64, error) {
	s, err := k.open()
	if err != nil {
		return nil, err
	}
	entry, err := s.Entry(ctx, model)
	if errors.Is(err, store.ErrNotFound) || store.CheckName(model) != nil {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return entry.Versions, nil
}

func (k keeper) Create(ctx context.Context, r *control.Release) error {
	s, err := k.open()
	if err == nil {
		err = releases.Create(ctx, s, r)
	}
	if !errors.Is(err, store.ErrExists) {
		return err
	}
	newest, entry, err := releases.NewestValid(ctx, s, r.GetModel())
	if err != nil {
		return err
	}
	if newest.GetNumber() < r.GetNumber() { // what has its number is not valid
		r.Number = entry.Release + 1
		r.Kept = r.Number
		if err := releases.Create(ctx, s, r); !errors.Is(err, store.ErrExists) {
			return err
		}
		return releasing.ErrNewer
	}
	k.a.releases.Heard([]*control.Release{newest})
	return fmt.Errorf("%w: in the model store is number %d, version %d, %s", releasing.ErrNewer,
		newest.GetNumber(), newest.GetCurrent(), newest.GetWhy())
}

// refresh fetches what the model store has of a model, if there is a store.
func (a *Agent) refresh(ctx context.Context, model string) error {
	if a.stored == nil {
		return nil
	}
	return a.stored.Refresh(ctx, model)
}
