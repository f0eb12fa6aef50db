package releasecmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/muster-serve/muster/agent/release"
	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/cmd/muster/internal/storecmd"
	"github.com/muster-serve/muster/models/store"
	"github.com/muster-serve/muster/models/store/releases"
)

// inStore keeps releases in a store, without a fleet.
type inStore struct {
	s      *store.Store
	signer *store.Signer // nil: releases are not signed
	fleet  string        // for which they are signed
	above  uint64        // the next release has a higher number
}

// releaseTrust is that of the releases from which signed ones follow: those that the same key has
// signed.
func (k inStore) releaseTrust() releases.Trust {
	if k.signer == nil {
		return releases.Trust{}
	}
	return releases.Trust{Keys: k.signer.Key, Fleet: k.fleet, URL: k.s.String()}
}

// write writes a release as the next one after those of entry.
func (k inStore) write(ctx context.Context, next *control.Release, entry *store.Entry) (
	*control.ReleaseResponse, error) {
	next.Number, next.TimeUnixNs = max(entry.Release, k.above)+1, time.Now().UnixNano()
	if next.Number > entry.Release+store.MaxReleaseStep {
		return nil,
			fmt.Errorf("number %d is more than %d above %d, the newest of %s in %s: agents would "+
				"pass it over", next.Number, store.MaxReleaseStep, entry.Release, next.Model, k.s)
	}
	if err := next.Validate(); err != nil {
		return nil, err
	}
	next = next.Bounded()
	var err error
	if k.signer != nil {
		err = releases.CreateSigned(ctx, k.s, next, k.signer, k.fleet)
	} else {
		err = releases.Create(ctx, k.s, next)
	}
	if errors.Is(err, store.ErrExists) {
		return nil, release.ErrNewer
	} else if err != nil {
		return nil, err
	}
	return toResponse(next), nil
}

// sign writes the newest release of a model as the next one, signed, unless it is.
func (k inStore) sign(ctx context.Context, model string) (*control.ReleaseResponse, error) {
	newest, entry, err := releases.Newest(ctx, k.s, model)
	if err != nil {
		return nil, err
	}
	if newest == nil {
		return nil, fmt.Errorf("no version of %.80q was released in %s", model, k.s)
	}
	err = releases.ReadSigned(ctx, k.s, newest, k.releaseTrust())
	switch {
	case err == nil:
		return toResponse(newest), nil
	case !errors.Is(err, store.ErrSignature):
		return nil, err
	}
	newest.By = storecmd.Self()
	return k.write(ctx, newest, entry)
}

func (k inStore) SetRelease(ctx context.Context, req *control.SetReleaseRequest,
	_ ...grpc.CallOption) (*control.ReleaseResponse, error) {
	newest, entry, err := releases.NewestValid(ctx, k.s, req.GetModel(), k.releaseTrust())
	if err != nil {
		return nil, err
	}
	if k.signer != nil && newest.GetNumber() < entry.Release &&
		(req.GetVersion() == 0 || req.GetShare() > 0) {
		// What it is signed for would follow from what somebody else wrote.
		return nil,
			fmt.Errorf("release %d of %s is not signed by this key: look at it (muster models "+
				"release %s --store URL), and sign it (muster models release %s --store URL --sign KEY) or "+
				"promote a version without --share", entry.Release, req.GetModel(), req.GetModel(),
				req.GetModel())
	}
	if v := req.GetVersion(); v > 0 && !slices.Contains(entry.Versions, v) {
		return nil, fmt.Errorf("%s has no version %d of %s, it has %v", k.s, v, req.GetModel(),
			entry.Versions)
	}
	next := &control.Release{}
	if newest != nil {
		next = proto.CloneOf(newest)
	}
	req.By = storecmd.Self()
	if err := release.Change(next, req, entry.Versions); err != nil {
		return nil, err
	}
	return k.write(ctx, next, entry)
}

func (k inStore) Release(ctx context.Context, req *control.ReleaseRequest, _ ...grpc.CallOption) (
	*control.ReleaseResponse, error) {
	if model := req.GetModel(); model != "" {
		newest, _, err := releases.Newest(ctx, k.s, model)
		switch {
		case errors.Is(err, store.ErrNotFound):
			if index, none := k.s.Index(ctx); none == nil {
				err = fmt.Errorf("%w, it has: %s", err,
					cmp.Or(strings.Join(slices.Sorted(maps.Keys(index)), ", "), "no model"))
			}
		case err == nil && newest == nil:
			err = fmt.Errorf("no version of %.80q was released in %s: its newest version serves",
				model, k.s)
		}
		return toResponse(newest), err
	}
	index, err := k.s.Index(ctx)
	if err != nil {
		return nil, err
	}
	out := &control.ReleaseResponse{}
	for _, model := range slices.Sorted(maps.Keys(index)) {
		if number := index[model].Release; number > 0 {
			r, err := releases.Read(ctx, k.s, model, number)
			switch {
			case errors.Is(err, store.ErrInvalid): // of the others there is something to show
				out.Releases = append(out.Releases, &control.ReleaseState{
					Release: &control.Release{Model: model, Number: number}, State: "not valid",
					Verdict: err.Error(),
				})
			case err != nil:
				return nil, err
			default:
				out.Releases = append(out.Releases, toResponse(r).Releases...)
			}
		}
	}
	return out, nil
}

// toResponse is the answer that has the releases, of whose trials a store knows nothing.
func toResponse(all ...*control.Release) *control.ReleaseResponse {
	out := &control.ReleaseResponse{}
	for _, r := range all {
		out.Releases = append(out.Releases, &control.ReleaseState{
			Release: r, State: release.StateOf(r), Verdict: r.GetWhy(),
		})
	}
	return out
}
