package dashboard

import (
	"math"
	"slices"
	"unique"

	"github.com/muster-serve/muster/api/control"
)

const (
	// The rings hold ten minutes by the second, in which somebody who has just been called sees how
	// it began, and a day by the minute, with its peak.
	keptSeconds, keptMinutes = 600, 24 * 60
	minute                   = 60 // seconds
	// maxRowModels bounds the models of a row that another agent sends. Chosen: more than people
	// look at; 2,040 rows of them take some 17 MB.
	maxRowModels = 256
)

// A row is a [control.Row] that takes less memory: 2,040 of them with 20 models take 1.3 MB.
type row struct {
	second                               uint64
	rate, limit, allowable, price, busy  float32
	beats, waiting, waitingLate          uint32
	answered, late, failed               uint64
	models                               []modelRow
	rates, limits, allows, prices, busys uint16 // how many beats of a minute each mean is of
}

type modelRow struct {
	model                  unique.Handle[string]
	answered, late, failed uint32
	p50, p99               float32 // ns; NaN: not known
}

// rings hold the last 600 seconds and 24 hours of what beats say of the fleet as a whole. The zero
// value is empty.
type rings struct {
	seconds [keptSeconds]row
	minutes [keptMinutes]row
}

func rowOf(r *control.Row) row {
	of := row{
		second: r.GetSecond(), rate: float32(r.GetRate()), limit: float32(r.GetLimit()),
		allowable: float32(r.GetAllowable()), price: float32(r.GetPrice()),
		busy: float32(r.GetBusy()), beats: max(1, r.GetBeats()), waiting: r.GetWaiting(),
		waitingLate: r.GetWaitingLate(), answered: r.GetAnswered(), late: r.GetLate(),
		failed: r.GetFailed(),
	}
	n := uint16(min(of.beats, minute))
	of.rates, of.limits, of.allows, of.prices, of.busys = n, n, n, n, n
	models := r.GetModels()
	for _, m := range models[:min(len(models), maxRowModels)] {
		of.models = append(of.models, modelRow{
			unique.Make(m.GetModel()), uint32(m.GetAnswered()), uint32(m.GetLate()),
			uint32(m.GetFailed()), float32(m.GetP50Ns()), float32(m.GetP99Ns()),
		})
	}
	of.models = slices.Clip(of.models)
	return of
}

func (r *row) toMessage() *control.Row {
	m := &control.Row{
		Second: r.second, Beats: r.beats, Rate: float64(r.rate), Limit: float64(r.limit),
		Allowable: float64(r.allowable), Price: float64(r.price), Busy: float64(r.busy),
		Waiting: r.waiting, WaitingLate: r.waitingLate, Answered: r.answered, Late: r.late,
		Failed: r.failed,
	}
	for _, x := range r.models {
		m.Models = append(m.Models, &control.ModelRow{
			Model: x.model.Value(), Answered: uint64(x.answered), Late: uint64(x.late),
			Failed: uint64(x.failed), P50Ns: float64(x.p50), P99Ns: float64(x.p99),
		})
	}
	return m
}

// add adds the row of a second that is later than all before.
func (r *rings) add(of row) {
	r.seconds[of.second%keptSeconds] = of
	first := of.second - of.second%minute
	m := &r.minutes[first/minute%keptMinutes]
	if m.second != first || m.beats == 0 {
		models := slices.Clone(of.models)
		*m = of
		m.second, m.models = first, models
		return
	}
	m.addRow(&of)
}

// put stores rows of the past that another agent has sent, where nothing better is known, and
// returns those that are new.
func (r *rings) put(seconds, minutes []*control.Row) (newSeconds, newMinutes []row) {
	for _, m := range seconds {
		of := rowOf(m)
		if at := &r.seconds[of.second%keptSeconds]; at.beats == 0 || at.second < of.second {
			*at = of
			newSeconds = append(newSeconds, of)
		}
	}
	for _, m := range minutes {
		of := rowOf(m)
		of.second -= of.second % minute
		at := &r.minutes[of.second/minute%keptMinutes]
		if at.beats == 0 || at.second < of.second ||
			at.second == of.second && at.beats < of.beats {
			*at = of
			of.models = slices.Clone(of.models) // those of at change while the minute is not over
			newMinutes = append(newMinutes, of)
		}
	}
	return newSeconds, newMinutes
}

// rowsAfter returns the rows of the times after second, but none above second within the last row.
// The minute that has second in it is one of them: a viewer that knows second knew that minute in
// part.
func (r *rings) rowsAfter(second, last uint64) (seconds, minutes []row) {
	pick := func(ring []row, step, span uint64) (all []row) {
		for i := range ring {
			at := &ring[i]
			if at.beats > 0 && at.second+step-1 > second && at.second <= last &&
				last-at.second < span {
				kept := *at
				// as in put
				kept.models = slices.Clone(at.models)
				all = append(all, kept)
			}
		}
		slices.SortFunc(all, func(a, b row) int { return int(int64(a.second) - int64(b.second)) })
		return all
	}
	return pick(r.seconds[:], 1, keptSeconds), pick(r.minutes[:], minute, keptMinutes*minute)
}

// addRow adds a later row to that of a minute.
func (r *row) addRow(o *row) {
	mean := func(sum *float32, n *uint16, v float32) {
		switch {
		case math.IsNaN(float64(v)):
		case math.IsNaN(float64(*sum)):
			*sum, *n = v, 1
		default:
			*sum += (v - *sum) / float32(*n+1)
			*n++
		}
	}
	mean(&r.rate, &r.rates, o.rate)
	mean(&r.limit, &r.limits, o.limit)
	mean(&r.allowable, &r.allows, o.allowable)
	mean(&r.price, &r.prices, o.price)
	mean(&r.busy, &r.busys, o.busy)
	r.beats += o.beats
	r.waiting, r.waitingLate = max(r.waiting, o.waiting), max(r.waitingLate, o.waitingLate)
	r.answered, r.late, r.failed = r.answered+o.answered, r.late+o.late, r.failed+o.failed
	for _, x := range o.models {
		i := slices.IndexFunc(r.models, func(m modelRow) bool { return m.model == x.model })
		if i < 0 {
			if len(r.models) < maxRowModels {
				r.models = append(r.models, x)
			}
			continue
		}
		m := &r.models[i]
		m.answered, m.late, m.failed = m.answered+x.answered, m.late+x.late, m.failed+x.failed
		m.p50, m.p99 = maxKnown(m.p50, x.p50), maxKnown(m.p99, x.p99)
	}
}

// maxKnown is the higher of two numbers, either of which may be unknown.
func maxKnown(a, b float32) float32 {
	if math.IsNaN(float64(a)) || b > a {
		return b
	}
	return a
}
