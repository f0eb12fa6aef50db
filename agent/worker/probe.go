package worker

import (
	"context"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/roles"
	"github.com/muster-serve/muster/api/secure"
	"github.com/muster-serve/muster/runtime"
)

const (
	// keepReservation is how long a lane stays reserved after an answer to a probe. A gateway sends
	// its query as soon as it has chosen among the answers.
	keepReservation = 20 * time.Millisecond
	// maxReservations is how many reservations one Probe stream may hold; the oldest is released
	// first.
	maxReservations = 1024
)

// A reservationID names a reservation: the gateway's id and the number of the gateway's probe, both
// of which the gateway chooses, and who the gateway is. So nobody can take another's reservation.
type reservationID struct {
	owner          string // by Callers.Identity
	gateway, probe uint64
}

// takeReservation removes and returns the reservation id; nil if there is none.
func (w *Worker) takeReservation(id reservationID) *runtime.Reservation {
	w.mu.Lock()
	defer w.mu.Unlock()
	r := w.reservations[id]
	delete(w.reservations, id)
	return r
}

// Probe serves a Probe stream, and blocks until it ends. Each answer that is in time reserves a
// lane for keepReservation. The end of the stream releases what is still reserved. full returns an
// error if there is no room for another query of the stream's client; nil if there is.
func (w *Worker) Probe(gateway control.Stream[control.ProbeAnswer, control.ProbeRequest],
	full func(context.Context) error) error {
	var kept []reservationID // in order of age
	owner := w.config.Callers.Identity(gateway.Context())
	defer func() {
		for _, id := range kept {
			w.lanes.Release(w.takeReservation(id))
		}
	}()
	for {
		req, err := gateway.Recv()
		if err != nil {
			return streamError(err)
		}
		id := reservationID{owner, req.Gateway, req.Id}
		if req.Release {
			// a gateway can release only reservations of its own stream
			if slices.Contains(kept, id) {
				w.lanes.Release(w.takeReservation(id))
			}
			continue
		}
		if len(kept) == maxReservations {
			w.lanes.Release(w.takeReservation(kept[0]))
			kept = kept[1:]
		}
		kept = append(kept, id)
		if err := w.config.Callers.MayQuery(gateway.Context(), req.Model); err != nil {
			return err
		}
		if err := gateway.Send(w.answerProbe(gateway.Context(), id, req, full)); err != nil {
			return streamError(err)
		}
	}
}

// answerProbe returns how long until this agent would finish the query, -1 if it would not run it,
// and reserves a lane for it.
func (w *Worker) answerProbe(ctx context.Context, id reservationID, req *control.ProbeRequest,
	full func(context.Context) error) *control.ProbeAnswer {
	w.metrics.probes.Inc()
	answer := &control.ProbeAnswer{Id: req.Id, FinishNs: -1}
	version := ""
	if req.Version > 0 {
		version = strconv.FormatInt(req.Version, 10)
	}
	loaded, err := w.Acquire(req.Model, version)
	if err != nil || w.config.Host.Draining() {
		if err == nil {
			loaded.Release()
		}
		return answer
	}
	defer loaded.Release()
	answer.RemainingNs = int64(w.lanes.Remaining(loaded.Version.Model))
	if req.BatchSize < 1 || int(req.BatchSize) > loaded.Version.Config.LargestBatchSize ||
		full(ctx) != nil ||
		req.TimeLeftNs > 0 && answer.RemainingNs > req.TimeLeftNs {
		return answer
	}
	if w.config.Callers.Query(ctx, secure.Probed, 0) != nil {
		return answer
	}
	size := w.estimates.sizeOf(loaded, int(req.BatchSize), roles.QuerySize{
		Users: int(req.GetUsers()), Values: int(min(req.GetValues(), math.MaxInt32)),
	})
	reservation := w.lanes.Reserve(loaded.Model.profile, size, keepReservation)
	w.mu.Lock()
	former := w.reservations[id]
	w.reservations[id] = reservation
	w.mu.Unlock()
	w.lanes.Release(former)
	answer.FinishNs = int64(reservation.Finish)
	return answer
}
