package renting

import (
	"math"
	"time"

	"github.com/muster-serve/muster/leader/rent"
)

// A Result tells of the day after its warm-up.
type Result struct {
	Totals
	// Changes is how often another fleet was desired, Launches and Returns how many machines were
	// rented and returned, SpotTaken how many spot machines the provider took.
	Changes   int `json:"changes"`
	Launches  int `json:"launches"`
	Returns   int `json:"returns"`
	SpotTaken int `json:"spot_taken"`
	// Windows are the parts of the day, each of length [Window].
	Windows []Totals `json:"windows"`
	Events  []Told   `json:"events"` // the first ones
}

// Totals are those of a part of the day. Queries are those of the run, by when they arrived.
type Totals struct {
	StartH float64 `json:"start_h"`
	Hours  float64 `json:"hours"`
	// Rate is the mean arrival rate, in queries/s.
	Rate float64 `json:"rate_qps"`
	// Dollars is what machines cost, those included that are not rented.
	Dollars float64 `json:"dollars"`
	// Machines is the mean number of machines that were paid for.
	Machines float64 `json:"machines"`
	Queries  int     `json:"queries"`
	Late     int     `json:"late"`
	Answered int     `json:"answered"`
	// InTime is the share of the queries that were answered in time, Accuracy the mean accuracy of
	// the answers, Use the share of the time of machines that is paid for in which they run
	// queries. Each is 1 or 0 if there were none.
	InTime   float64 `json:"in_time"`
	Accuracy float64 `json:"accuracy"`
	Use      float64 `json:"use"`
}

// Told is an event.
type Told struct {
	AtH  float64 `json:"at_h"`
	Text string  `json:"text"`
}

// maxEvents bounds the events of a result.
const maxEvents = 1000

// A window is what is counted of a part of the day.
type window struct {
	queries, late, answered int
	accuracy                float64 // sum
	dollars                 float64
	machines                float64 // h that are paid for
	busy                    float64 // h
	rate                    float64 // queries
	hours                   float64
}

// windowAt is that of a time of the day, nil if that does not count.
func (r *Rental) windowAt(now time.Duration) *window {
	at := now - r.cfg.WarmUp
	if at < 0 || at >= r.cfg.Length {
		return nil
	}
	for len(r.windows) <= int(at/Window) {
		r.windows = append(r.windows, window{})
	}
	return &r.windows[at/Window]
}

// account pays for the time since the last step.
func (r *Rental) account(now time.Duration) {
	hours := (now - r.now).Hours()
	w := r.windowAt(r.now)
	for i := range r.lanes {
		busy := r.fleet.BusySoFar(i)
		took := busy - r.busy[i]
		r.busy[i] = busy
		if w != nil {
			w.busy += took.Hours() * r.cfg.Speed
		}
		if !r.lanes[i].Kept {
			r.rented.busy += took.Seconds() * r.cfg.Speed
		}
	}
	for _, m := range r.machines {
		if m.State == rent.Running {
			r.rented.machines += (now - r.now).Seconds()
		}
	}
	if w == nil {
		return
	}
	w.hours += hours
	for f := range r.families {
		w.rate += r.cfg.Load(f, r.now-r.cfg.WarmUp) * hours
	}
	pay := func(kind rent.Kind) {
		w.dollars += r.cfg.Prices[kind] * hours
		w.machines += hours
	}
	for _, m := range r.machines {
		pay(m.Slot.Kind)
	}
	for i, l := range r.lanes {
		if l.Kept && !r.fleet.Agent(i).Ended {
			pay(rent.Kind{Type: l.Type})
		}
	}
}

// Ended counts the end of a query for a family that arrived at a time of the run: how accurate the
// answer was, 0 if there was none, and whether it was late.
func (r *Rental) Ended(family int, accuracy float64, late bool, arrival time.Duration) {
	r.ends[family] = append(r.ends[family], end{r.now, late})
	w := r.windowAt(time.Duration(float64(arrival) * r.cfg.Speed))
	if w == nil {
		return
	}
	w.queries++
	if late {
		w.late++
	}
	if accuracy > 0 {
		w.answered++
		w.accuracy += accuracy
	}
}

// Result is the result of a run that has ended.
func (r *Rental) Result() *Result {
	out := r.result
	var all window
	for i := range r.windows {
		w := &r.windows[i]
		out.Windows = append(out.Windows, w.totals(time.Duration(i)*Window))
		all.add(w)
	}
	out.Totals = all.totals(0)
	return &out
}

func (w *window) add(o *window) {
	w.queries, w.late, w.answered = w.queries+o.queries, w.late+o.late, w.answered+o.answered
	w.accuracy, w.dollars = w.accuracy+o.accuracy, w.dollars+o.dollars
	w.machines, w.busy = w.machines+o.machines, w.busy+o.busy
	w.rate, w.hours = w.rate+o.rate, w.hours+o.hours
}

func (w *window) totals(start time.Duration) Totals {
	t := Totals{
		StartH: round(start.Hours(), 4), Hours: round(w.hours, 4), Dollars: round(w.dollars, 6),
		Queries: w.queries, Late: w.late, Answered: w.answered, InTime: 1,
	}
	if w.hours > 0 {
		t.Rate, t.Machines = round(w.rate/w.hours, 3), round(w.machines/w.hours, 4)
	}
	if w.queries > 0 {
		t.InTime = round(float64(w.queries-w.late)/float64(w.queries), 6)
	}
	if w.answered > 0 {
		t.Accuracy = round(w.accuracy/float64(w.answered), 6)
	}
	if w.machines > 0 {
		t.Use = round(w.busy/w.machines, 4)
	}
	return t
}

// Hours adds up the windows of each hour.
func (r *Result) Hours() (all []Totals) {
	for i := 0; i < len(r.Windows); i += int(time.Hour / Window) {
		all = append(all, Sum(r.Windows[i:min(len(r.Windows), i+int(time.Hour/Window))]))
	}
	return all
}

// Sum adds up parts of a day, which must not be empty.
func Sum(parts []Totals) Totals {
	var all window
	for i := range parts {
		t := &parts[i]
		all.add(&window{
			queries: t.Queries, late: t.Late, answered: t.Answered,
			accuracy: t.Accuracy * float64(t.Answered), dollars: t.Dollars,
			machines: t.Machines * t.Hours, busy: t.Use * t.Machines * t.Hours,
			rate: t.Rate * t.Hours, hours: t.Hours,
		})
	}
	return all.totals(time.Duration(parts[0].StartH * float64(time.Hour)))
}

// round rounds to the given decimals, because processors differ in the last digits.
func round(x float64, decimals int) float64 {
	scale := math.Pow10(decimals)
	return math.Round(x*scale) / scale
}
