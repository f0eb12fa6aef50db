package worker

import (
	"context"
	"slices"
	"time"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/secure"
	"github.com/muster-serve/muster/runtime"
)

const (
	// keepPlace is how long a probe's answer holds: a gateway that has heard its
	// answers sends the query at once.
	keepPlace = 20 * time.Millisecond
	// mostPlaces bounds the places that are kept for one Probe stream.
	mostPlaces = 1024
)

// A placeID names a place: the gateway that asked, and its probe.
type placeID struct{ gateway, probe uint64 }

// take is the place kept under id, if there is one, which is then gone.
func (w *Worker) take(id placeID) *runtime.Reservation {
	w.mu.Lock()
	defer w.mu.Unlock()
	r := w.places[id]
	delete(w.places, id)
	return r
}

// Probe serves a Probe stream: each answer keeps a place for a while.
func (w *Worker) Probe(gateway Stream[control.ProbeAnswer, control.ProbeRequest]) error {
	var kept []placeID // in order of age
	defer func() {
		for _, id := range kept {
			w.lanes.Release(w.take(id))
		}
	}()
	for {
		req, err := gateway.Recv()
		if err != nil {
			return ended(err)
		}
		id := placeID{req.Gateway, req.Id}
		if req.Release {
			if slices.Contains(kept, id) { // another's is not given away
				w.lanes.Release(w.take(id))
			}
			continue
		}
		if len(kept) == mostPlaces {
			w.lanes.Release(w.take(kept[0]))
			kept = kept[1:]
		}
		kept = append(kept, id)
		if err := w.config.Callers.MayQuery(gateway.Context(), req.Model); err != nil {
			return err
		}
		if err := gateway.Send(w.answer(gateway.Context(), id, req)); err != nil {
			return ended(err)
		}
	}
}

// answer says when a query would be answered, and keeps its place if it is
// in time.
func (w *Worker) answer(ctx context.Context, id placeID, req *control.ProbeRequest) *control.ProbeAnswer {
	w.metrics.probes.Inc()
	answer := &control.ProbeAnswer{Id: req.Id, FinishNs: -1}
	loaded, err := w.repository.Acquire(req.Model, req.Version)
	if err != nil || w.config.Draining() {
		if err == nil {
			loaded.Release()
		}
		return answer
	}
	defer loaded.Release()
	answer.RemainingNs = int64(w.lanes.Remaining())
	if req.BatchSize < 1 || int(req.BatchSize) > loaded.Version.Config.LargestBatchSize || w.config.Full(ctx) != nil ||
		req.TimeLeftNs > 0 && answer.RemainingNs > req.TimeLeftNs {
		return answer
	}
	if w.config.Callers.Query(ctx, secure.Probed, 0) != nil {
		return answer
	}
	place := w.lanes.Reserve(loaded.Model.profile, int(req.BatchSize), keepPlace)
	w.mu.Lock()
	former := w.places[id]
	w.places[id] = place
	w.mu.Unlock()
	w.lanes.Release(former)
	answer.FinishNs = int64(place.Finish)
	return answer
}
