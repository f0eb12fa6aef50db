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

	"github.com/muster-serve/muster/agent/releasing"
	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/cmd/muster/internal/storecmd"
	"github.com/muster-serve/muster/models/store"
	"github.com/muster-serve/muster/models/store/releases"
)

// inStore keeps releases in a store, without a fleet.
type inStore struct{ s *store.Store }

func (k inStore) SetRelease(ctx context.Context, req *control.SetReleaseRequest,
	_ ...grpc.CallOption) (*control.ReleaseResponse, error) {
	newest, entry, err := releases.NewestValid(ctx, k.s, req.GetModel())
	if err != nil {
		return nil, err
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
	if err := releasing.Change(next, req, entry.Versions); err != nil {
		return nil, err
	}
	next.Number, next.TimeUnixNs = entry.Release+1, time.Now().UnixNano()
	if err := next.Validate(); err != nil {
		return nil, err
	}
	next = next.Bounded()
	if err := releases.Create(ctx, k.s, next); errors.Is(err, store.ErrExists) {
		return nil, releasing.ErrNewer
	} else if err != nil {
		return nil, err
	}
	return shown(next), nil
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
		return shown(newest), err
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
				out.Releases = append(out.Releases, shown(r).Releases...)
			}
		}
	}
	return out, nil
}

// shown is the answer that has the releases, of whose trials a store knows nothing.
func shown(all ...*control.Release) *control.ReleaseResponse {
	out := &control.ReleaseResponse{}
	for _, r := range all {
		out.Releases = append(out.Releases, &control.ReleaseState{
			Release: r, State: releasing.StateOf(r), Verdict: r.GetWhy(),
		})
	}
	return out
}
