package release

import (
	"context"
	"errors"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/muster-serve/muster/api/control"
)

const (
	// patience bounds each call of the store. Chosen: clouds answer in tenths of a second, and
	// somebody waits for the outcome of a release.
	patience = 5 * time.Second
	// again is the time between two attempts to write what the store lacks. Chosen: a store that is
	// back has all releases soon, and four calls a minute cost nothing.
	again = 15 * time.Second
)

// needsStoring reports whether a release is to be written to the store, which lacks it.
func needsStoring(x *control.Release) bool { return x.GetKept() > 0 && x.GetKept() < x.GetNumber() }

// asKept returns the release as the store is to have it: under the number that follows there.
func asKept(x *control.Release) *control.Release {
	kept := proto.CloneOf(x)
	kept.Kept++
	kept.Number = kept.Kept
	return kept
}

// storeRelease writes a release that is about to be made to the store, and returns it as it then
// is. A release of a model that is not of the store is the fleet's own. So is, for a time, one that
// takes a version back: that must not wait for a store that fails. So is, where the store's must be
// signed, one that the rule makes: whoever signed the canary's release has signed its terms.
func (r *Releases) storeRelease(ctx context.Context, next *control.Release,
	byRule bool) (*control.Release,
	error) {
	if r.config.Store == nil {
		return next, nil
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var err error
	if next.GetKept() == 0 {
		var stored []int64
		stored, err = r.config.Store.Versions(ctx, next.GetModel())
		if err == nil && !slices.Contains(stored, next.GetCurrent()) {
			return next, nil
		}
	}
	kept := asKept(next)
	if err == nil {
		err = r.createInStore(ctx, kept)
	}
	switch takesBack := next.GetCanary() != 0 && next.GetShare() == 0; {
	case err == nil:
		return kept, nil
	case errors.Is(err, ErrNewer):
		return nil, status.Error(codes.Aborted, err.Error())
	case takesBack || byRule && errors.Is(err, ErrUnsigned):
		r.logUnstored(next.GetModel(), err)
		return next, nil
	}
	return nil, status.Errorf(codes.Aborted,
		"the release is not made: it cannot be written to the model store: %v", err)
}

// createInStore writes a release to the store. If that has a newer one, the fleet now follows that.
func (r *Releases) createInStore(ctx context.Context, kept *control.Release) error {
	newest, err := r.config.Store.Create(ctx, kept)
	if newest != nil {
		r.Read(newest, false)
	}
	return err
}

func (r *Releases) logUnstored(model string, err error) {
	r.log.Error("a release holds in this fleet only: the model store cannot be written", "model",
		model, "error", err, eventKey, "broken")
}

// keepAll writes what the store lacks, until ctx ends.
func (r *Releases) keepAll(ctx context.Context, term *Term) {
	ticker := time.NewTicker(again)
	defer ticker.Stop()
	last := ""
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		for _, x := range r.All() {
			if !needsStoring(x) {
				continue
			}
			err := r.keepLater(ctx, term, x)
			if err == nil {
				continue
			}
			if text := err.Error(); text != last && ctx.Err() == nil {
				last = text
				r.logUnstored(x.GetModel(), err)
			}
			break // the store has failed: it would for the others too
		}
	}
}

// keepLater writes a release that the fleet follows already. If the store has a newer one, the
// fleet now follows that.
func (r *Releases) keepLater(ctx context.Context, term *Term, x *control.Release) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	kept := asKept(x)
	switch err := r.createInStore(ctx, kept); {
	case errors.Is(err, ErrNewer):
		return nil
	case err != nil:
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	known := r.known[x.GetModel()]
	if r.term != term || !isNewer(kept, known) {
		return nil
	}
	next := kept
	if isNewer(known, x) { // made meanwhile for this fleet: it follows what the store has now
		next = proto.CloneOf(known)
		next.Kept, next.Number = kept.GetKept(), max(known.GetNumber(), kept.GetKept()+1)
	}
	r.known[x.GetModel()] = next
	r.applyChange()
	r.reportRelease("kept in the model store", kept)
	return nil
}
