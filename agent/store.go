package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/muster-serve/muster/agent/modelstore"
	"github.com/muster-serve/muster/agent/release"
	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/secure"
	"github.com/muster-serve/muster/models/store"
	"github.com/muster-serve/muster/models/store/releases"
	"github.com/muster-serve/muster/runtime"
)

// OpenStore gives the agent the function that opens the store of Config.ModelStore, which needs
// libraries that not every program with an agent in it is to have. It must be called before Run.
func (a *Agent) OpenStore(open func(ctx context.Context, url string) (*store.Store, error)) {
	a.openStore = open
}

// openFollower makes the part that follows the model store, if there is one.
func (a *Agent) openFollower(t *trust) error {
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
		Keys: t.keys, Fleet: t.fleet, Rekeyed: t.forget,
		Readmit: a.worker.Repository().Readmit, BytesPerSecond: a.config.StoreRate, Poll: a.config.StorePoll,
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

// A trust knows which signatures count, and which releases of the store this process has found signed.
type trust struct {
	keys       *secure.File[store.Keys] // nil: none must be signed
	fleet, url string

	mu sync.Mutex
	// signed are the numbers of the newest releases that were found to be signed, by model, and newest
	// those of the newest ones that the store has.
	signed, newest map[string]uint64
}

// openTrust reads the public keys.
func openTrust(config Config) (*trust, error) {
	t := &trust{
		fleet: cmp.Or(config.FleetName, store.FleetName(config.ModelStore)), url: config.ModelStore,
	}
	if config.RequireSignature == "" {
		return t, nil
	}
	var err error
	t.keys, err = secure.WatchFile("public keys of model stores", config.RequireSignature,
		store.ReadKeys)
	if err != nil {
		return nil, fmt.Errorf("require-signature: %w", err)
	}
	return t, nil
}

func (t *trust) required() bool { return t.keys != nil }

// releases is the trust in the form in which package releases needs it.
func (t *trust) releases() releases.Trust {
	r := releases.Trust{Fleet: t.fleet, URL: t.url}
	if t.keys != nil {
		r.Keys = t.keys.Get()
	}
	return r
}

// forget forgets which releases are signed, because the keys have changed.
func (t *trust) forget() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.signed = nil
}

// has notes which release the store has as its newest.
func (t *trust) has(model string, number uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.newest == nil {
		t.newest = map[string]uint64{}
	}
	t.newest[model] = number
}

// found notes that a release is signed.
func (t *trust) found(model string, number uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.signed == nil {
		t.signed = map[string]uint64{}
	}
	t.signed[model] = number
}

// covers reports whether the release in the store that a release is, or follows, need not be signed or
// was found to be. A fleet's own release follows none of the store. One that is too far above what the
// store has comes from an agent of before, which took any number.
func (t *trust) covers(x *control.Release) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	newest, listed := t.newest[x.GetModel()]
	if listed && x.GetKept() > newest+store.MaxReleaseStep {
		return false
	}
	return t.keys == nil || x.GetKept() == 0 || x.GetKept() <= t.signed[x.GetModel()]
}

// storeReleases are the releases of the fleet and of its model store.
type storeReleases struct {
	trust    *trust
	releases *release.Releases
}

// Follow makes the fleet follow the newest release that the store has of a model.
func (f storeReleases) Follow(ctx context.Context, s *store.Store, model string,
	number uint64) error {
	f.trust.has(model, number)
	kept := f.releases.Kept(model)
	jumped := kept > number+store.MaxReleaseStep
	switch {
	case kept >= number && f.trust.covers(&control.Release{Model: model, Kept: kept}):
		return nil
	case kept > number && !jumped:
		return fmt.Errorf("%w: this agent knows release %d of %s, which %s has no longer, so that nobody "+
			"can tell whether it was signed; release a version under a higher number: muster models "+
			"promote %s VERSION --store %s --fleet-name %s --above %d --sign KEY", store.ErrSignature,
			kept, model, s, model, f.trust.url, f.trust.fleet, kept)
	}
	r, err := releases.ReadTrusted(ctx, s, model, number, f.trust.releases())
	if err != nil {
		return err
	}
	f.trust.found(model, number)
	f.releases.Read(r, jumped)
	return nil
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

// Released are the versions of a model that are released, the current one first, and the one to
// which a rollback returns.
func (f storeReleases) Released(model string) (all []int64) {
	for _, r := range f.releases.All() {
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

// keeper is the agent's model store, as package release needs it.
type keeper struct {
	trust  *trust
	stored *modelstore.Follower
}

// open returns the store.
func (k keeper) open() (*store.Store, error) {
	if s := k.stored.Store(); s != nil {
		return s, nil
	}
	return nil, fmt.Errorf("the model store %s has not been opened yet", k.trust.url)
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

func (k keeper) Create(ctx context.Context, r *control.Release) (*control.Release, error) {
	if k.trust.required() {
		do := fmt.Sprintf("promote %s %d", r.GetModel(), cmp.Or(r.GetCanary(), r.GetCurrent()))
		if r.GetCanary() != 0 && r.GetShare() == 0 {
			do = "rollback " + r.GetModel()
		}
		return nil, fmt.Errorf("%w, and agents have no key: muster models %s --store %s --fleet-name %s "+
			"--sign KEY", release.ErrUnsigned, do, k.trust.url, k.trust.fleet)
	}
	s, err := k.open()
	if err == nil {
		err = releases.Create(ctx, s, r)
	}
	if !errors.Is(err, store.ErrExists) {
		return nil, err
	}
	newest, entry, err := releases.NewestValid(ctx, s, r.GetModel(), releases.Trust{})
	if err != nil {
		return nil, err
	}
	if newest.GetNumber() < r.GetNumber() { // what has its number is not valid
		r.Number = entry.Release + 1
		r.Kept = r.Number
		if err := releases.Create(ctx, s, r); !errors.Is(err, store.ErrExists) {
			return nil, err
		}
		return nil, release.ErrNewer
	}
	return newest, fmt.Errorf("%w: in the model store is number %d, version %d, %s", release.ErrNewer,
		newest.GetNumber(), newest.GetCurrent(), newest.GetWhy())
}
