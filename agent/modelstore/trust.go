package modelstore

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/models/store"
)

// trustedKeys are the keys of which one must have signed what is loaded; nil: nothing must be
// signed.
func (f *Follower) trustedKeys() store.Keys {
	if f == nil || f.config.Keys == nil {
		return nil
	}
	return f.config.Keys.Get()
}

// followKeys takes note of keys that have changed: all that was found to be signed is looked at
// again. What serves goes on, whoever has signed it, so that a mistake in a file does not end a
// fleet.
func (f *Follower) followKeys() (changed bool) {
	if f.config.Keys == nil || !f.config.Keys.Refresh(f.config.Log) {
		return false
	}
	f.rekeyed++
	if f.config.Rekeyed != nil {
		f.config.Rekeyed()
	}
	f.retryRefused()
	return true
}

// retryRefused has versions tried again that Admit has refused.
func (f *Follower) retryRefused() {
	if f.config.Keys != nil && f.config.Readmit != nil {
		f.config.Readmit()
	}
}

// Admit returns why a version may not be loaded from the model directory; nil if it may. Where
// signatures are required, a version of the store needs one, and the files that it names; a folder
// that is not from the store is its operator's, and the log says that nobody has signed it.
func (f *Follower) Admit(ctx context.Context, v *models.Version) error {
	keys := f.trustedKeys()
	if keys == nil {
		return nil
	}
	fromStore, err := f.cache.Check(ctx, v.Model, v.Number, keys)
	if fromStore {
		return err
	}
	f.config.Log.Warn("a model that is not from the store is loaded: nobody has signed it", "model",
		v.Model, "version", v.Number, "event", "store")
	return nil
}

// Note says of a version that serves why it does although no trusted key has signed it; "" if one
// has, or none must.
func (f *Follower) Note(model string, version int64) string {
	switch {
	case f.trustedKeys() == nil:
		return ""
	case !f.cache.Holds(model):
		return "not signed: its folder is not from the model store"
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.untrusted[versionOf{model, version}] != nil {
		return "not signed by a key of --require-signature: it serves until it is unloaded"
	}
	return ""
}

// A versionOf is a version of a model.
type versionOf struct {
	model  string
	number int64
}

// findUntrusted finds the versions that serve without a signature of a trusted key. The result has
// those of each model, of which those that are being fetched are as they were.
func (f *Follower) findUntrusted(statuses []models.Status) map[string]error {
	keys := f.trustedKeys()
	if keys == nil {
		return nil
	}
	serves := map[versionOf]bool{}
	for _, s := range statuses {
		serves[versionOf{s.Model, s.Version}] = s.State == models.Ready
	}
	all, faults := map[versionOf]error{}, map[string]error{}
	for name, m := range f.models {
		if m.begun.IsZero() && (m.judged == nil || m.judgedAs != f.rekeyed ||
			!slices.Equal(m.judgedOf, m.held)) {
			m.judged, m.judgedAs, m.judgedOf = map[int64]error{}, f.rekeyed, slices.Clone(m.held)
			for _, held := range m.held {
				m.judged[held.Version] = held.Verify(keys)
			}
		}
		for number, err := range m.judged {
			if err != nil && serves[versionOf{name, number}] {
				all[versionOf{name, number}] = err
				faults[name] = errors.Join(faults[name], fmt.Errorf("it keeps serving: %w", err))
			}
		}
	}
	f.mu.Lock()
	f.untrusted = all
	f.mu.Unlock()
	f.config.Metrics.untrusted.Set(float64(len(all)))
	return faults
}

// readRevocations reads the store's revocations, and sets which versions are revoked and which
// revocations do not count, with the errors. A model stays as it is while one of its revocations
// cannot be read. known are the revocations that were read before; again says whether to read them
// again.
func (f *Follower) readRevocations(ctx context.Context, s *store.Store, l *storeListing,
	known map[string]map[int64]bool, again bool) {
	l.revoked, l.odd = map[string]map[int64]bool{}, map[string]error{}
	ctx, cancel := context.WithTimeout(ctx, releaseTime)
	defer cancel()
	keys := f.trustedKeys()
	var mu sync.Mutex
	note := func(name string, number int64, err error) {
		mu.Lock()
		defer mu.Unlock()
		switch {
		case errors.Is(err, store.ErrSignature), errors.Is(err, store.ErrInvalid):
			l.odd[name] = errors.Join(l.odd[name], err)
			return
		case errors.Is(err, store.ErrNotFound): // removed since it was listed
			return
		case err != nil:
			l.unread[name] = errors.Join(l.unread[name], err)
			if !known[name][number] {
				return
			}
		}
		if l.revoked[name] == nil {
			l.revoked[name] = map[int64]bool{}
		}
		l.revoked[name][number] = true
	}
	var group errgroup.Group
	group.SetLimit(readers)
	for name, entry := range l.index {
		for _, number := range entry.Revoked {
			if known[name][number] && !again {
				note(name, number, nil)
				continue
			}
			group.Go(func() error {
				_, err := s.Revoked(ctx, name, number, keys, f.config.Fleet)
				note(name, number, err)
				return nil
			})
		}
	}
	_ = group.Wait() // no function returns an error
}

// cutAll begins to take versions out of the model directory that are revoked.
func (f *Follower) cutAll(ctx context.Context, running *sync.WaitGroup) {
	for _, name := range slices.Sorted(maps.Keys(f.models)) {
		m := f.models[name]
		revoked := f.revoked[name]
		is := func(h *store.Manifest) bool { return revoked[h.Version] }
		if !m.begun.IsZero() || !slices.ContainsFunc(m.held, is) {
			continue
		}
		m.begun = time.Now()
		m.moved.Store(m.begun.UnixMilli())
		running.Go(func() {
			err := f.removeRevoked(m, revoked)
			select {
			case f.brought <- fetchAttempt{m, err}:
			case <-ctx.Done():
			}
		})
	}
}

// removeRevoked takes revoked versions of a model out of the model directory, whatever becomes of
// the others: the model repository then unloads them.
func (f *Follower) removeRevoked(m *followedModel, revoked map[int64]bool) error {
	var left []*store.Manifest
	for _, held := range m.held {
		if !revoked[held.Version] {
			left = append(left, held)
		}
	}
	var err error
	if len(left) == 0 {
		err = f.cache.Remove(m.name)
	} else {
		_, err = f.cache.Install(m.name, left)
	}
	if err != nil {
		return fmt.Errorf("take revoked versions of %s out of the model directory: %w", m.name, err)
	}
	for _, held := range m.held {
		if revoked[held.Version] {
			f.config.Log.Warn("a version is revoked, and unloaded", "model", m.name, "version",
				held.Version, "event", "store")
		}
	}
	m.held, m.changed = left, true
	return nil
}
