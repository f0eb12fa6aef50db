// Package stored keeps a fleet's releases in its model store, follows those of the store, and knows
// which of them are signed by a key that counts.
package stored

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/muster-serve/muster/agent/release"
	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/secure"
	"github.com/muster-serve/muster/models/store"
	"github.com/muster-serve/muster/models/store/releases"
)

// A Trust knows which signatures count, and which releases of the store this process has found
// signed.
type Trust struct {
	Keys       *secure.File[store.Keys] // nil: none must be signed
	Fleet, URL string                   // of the fleet, and of the store

	mu sync.Mutex
	// signed are the numbers of the newest releases that were found to be signed, by model, and
	// newest those of the newest ones that the store has.
	signed, newest map[string]uint64
}

// OpenTrust reads the public keys in a file; "": nothing must be signed. An empty fleet has the
// store's name.
func OpenTrust(fleet, url, keys string) (*Trust, error) {
	t := &Trust{Fleet: cmp.Or(fleet, store.FleetName(url)), URL: url}
	if keys == "" {
		return t, nil
	}
	var err error
	t.Keys, err = secure.WatchFile("public keys of model stores", keys, store.ReadKeys)
	if err != nil {
		return nil, fmt.Errorf("require-signature: %w", err)
	}
	return t, nil
}

func (t *Trust) isRequired() bool { return t.Keys != nil }

// toReleasesTrust is the trust in the form in which package releases needs it.
func (t *Trust) toReleasesTrust() releases.Trust {
	r := releases.Trust{Fleet: t.Fleet, URL: t.URL}
	if t.Keys != nil {
		r.Keys = t.Keys.Get()
	}
	return r
}

// Forget forgets which releases are signed, because the keys have changed.
func (t *Trust) Forget() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.signed = nil
}

// noteNewest notes which release is the store's newest.
func (t *Trust) noteNewest(model string, number uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.newest == nil {
		t.newest = map[string]uint64{}
	}
	t.newest[model] = number
}

// noteSigned notes that a release is signed.
func (t *Trust) noteSigned(model string, number uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.signed == nil {
		t.signed = map[string]uint64{}
	}
	t.signed[model] = number
}

// Covers reports whether the release in the store that a release is, or follows, need not be signed
// or was found to be. A fleet's own release follows none of the store. One that is too far above
// what the store has comes from an agent of before, which took any number.
func (t *Trust) Covers(x *control.Release) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	newest, listed := t.newest[x.GetModel()]
	if listed && x.GetKept() > newest+store.MaxReleaseStep {
		return false
	}
	return t.Keys == nil || x.GetKept() == 0 || x.GetKept() <= t.signed[x.GetModel()]
}

// A Follower makes the fleet follow the releases of its model store.
type Follower struct {
	Trust    *Trust
	Releases *release.Releases
}

// Follow makes the fleet follow the newest release that the store has of a model.
func (f Follower) Follow(ctx context.Context, s *store.Store, model string,
	number uint64) error {
	f.Trust.noteNewest(model, number)
	kept := f.Releases.Kept(model)
	jumped := kept > number+store.MaxReleaseStep
	switch {
	case kept >= number && f.Trust.Covers(&control.Release{Model: model, Kept: kept}):
		return nil
	case kept > number && !jumped:
		return fmt.Errorf("%w: this agent knows release %d of %s, but %s no longer has it, so nobody "+
			"can tell whether it was signed; release a version under a higher number: muster models "+
			"promote %s VERSION --store %s --fleet-name %s --above %d --sign KEY",
			store.ErrSignature, kept, model, s, model, f.Trust.URL, f.Trust.Fleet, kept)
	}
	r, err := releases.ReadTrusted(ctx, s, model, number, f.Trust.toReleasesTrust())
	if err != nil {
		return err
	}
	f.Trust.noteSigned(model, number)
	f.Releases.Read(r, jumped)
	return nil
}

// Released are the versions of a model that are released, the current one first, and the one to
// which a rollback returns.
func (f Follower) Released(model string) (all []int64) {
	for _, r := range f.Releases.All() {
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

// A Store is the agent's model store, and implements [release.Store].
type Store struct {
	Trust *Trust
	Open  func() *store.Store // returns nil until the store is open
}

// open returns the store.
func (k Store) open() (*store.Store, error) {
	if s := k.Open(); s != nil {
		return s, nil
	}
	return nil, fmt.Errorf("the model store %s has not been opened yet", k.Trust.URL)
}

// Versions implements [release.Store].
func (k Store) Versions(ctx context.Context, model string) ([]int64, error) {
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

// Create implements [release.Store].
func (k Store) Create(ctx context.Context, r *control.Release) (*control.Release, error) {
	if k.Trust.isRequired() {
		do := fmt.Sprintf("promote %s %d", r.GetModel(), cmp.Or(r.GetCanary(), r.GetCurrent()))
		if r.GetCanary() != 0 && r.GetShare() == 0 {
			do = "rollback " + r.GetModel()
		}
		return nil,
			fmt.Errorf("%w, and agents have no key: muster models %s --store %s --fleet-name %s "+
				"--sign KEY", release.ErrUnsigned, do, k.Trust.URL, k.Trust.Fleet)
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
	if newest.GetNumber() < r.GetNumber() { // the store's release of this number is not valid
		r.Number = entry.Release + 1
		r.Kept = r.Number
		if err := releases.Create(ctx, s, r); !errors.Is(err, store.ErrExists) {
			return nil, err
		}
		return nil, release.ErrNewer
	}
	return newest, fmt.Errorf("%w: the model store has release %d, of version %d, %s",
		release.ErrNewer, newest.GetNumber(), newest.GetCurrent(), newest.GetWhy())
}
