package placement

import (
	"fmt"
	"io"
	"math"
	"strings"
	"time"
)

// A Result tells how the placement changed in a run, after the warm-up.
type Result struct {
	Versions int `json:"versions"` // the warm-up's included
	Solves   int `json:"solves"`   // the warm-up's included
	Steps    int `json:"solver_steps"`
	// Changes is how many times an instance changed, MostChanges the most within a minute.
	Changes          int     `json:"changes"`
	ChangesPerMinute float64 `json:"changes_per_minute"`
	MostChanges      int     `json:"most_changes_in_a_minute"`
	// AccuracyDrop is, in points, how far the window of the least accurate answers lies below that
	// of the most accurate ones.
	AccuracyDrop float64  `json:"accuracy_drop_points"`
	Windows      []Totals `json:"windows"`
	Events       []Told   `json:"events"` // the first ones
}

// Totals are those of all families in a window.
type Totals struct {
	StartS   float64 `json:"start_s"`
	Ended    int     `json:"ended"`
	Late     int     `json:"late"`
	Accuracy float64 `json:"accuracy"` // of the answers; 0 if there were none
}

// Told is an event.
type Told struct {
	AtS  float64 `json:"at_s"`
	Kind string  `json:"kind"`
	Text string  `json:"text"`
}

// maxEvents bounds the events of a result.
const maxEvents = 1000

// A window is ten seconds of a run.
type window struct{ counts []count } // by family

// A count counts a family's queries that arrived in a window.
type count struct {
	ended, late, answered int
	accuracy              float64 // sum
}

// meanAccuracy is the mean accuracy of the answers, 0 if there were none.
func (w *count) meanAccuracy() float64 {
	if w.answered == 0 {
		return 0
	}
	return math.Round(w.accuracy/float64(w.answered)*1e6) / 1e6
}

// countChange counts a change.
func (p *Planner) countChange(now time.Duration) {
	if now < WarmUp {
		return
	}
	p.result.Changes++
	p.minute = append(p.minute, now)
	for now-p.minute[0] >= time.Minute {
		p.minute = p.minute[1:]
	}
	p.result.MostChanges = max(p.result.MostChanges, len(p.minute))
}

// writeTimeline writes the windows, family by family.
func (p *Planner) writeTimeline(w io.Writer) error {
	var b strings.Builder
	b.WriteString("start_s,family,ended,late,accuracy\n")
	for i := range p.windows {
		for f := range p.families {
			c := &p.windows[i].counts[f]
			fmt.Fprintf(&b, "%.0f,%s,%d,%d,%.6f\n", start(i), p.families[f].Name, c.ended, c.late,
				c.meanAccuracy())
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// start is when window i begins, in s.
func start(i int) float64 { return (WarmUp + time.Duration(i)*Window).Seconds() }

// Result is the result of a run that ended at a time.
func (p *Planner) Result(now time.Duration) (*Result, error) {
	r := p.result
	if minutes := (now - WarmUp).Minutes(); minutes > 0 {
		r.ChangesPerMinute = math.Round(float64(r.Changes)/minutes*1e3) / 1e3
	}
	least, most := math.Inf(1), 0.0
	for i := range p.windows {
		var all count
		for _, c := range p.windows[i].counts {
			all.ended, all.late = all.ended+c.ended, all.late+c.late
			all.answered, all.accuracy = all.answered+c.answered, all.accuracy+c.accuracy
		}
		r.Windows = append(r.Windows, Totals{start(i), all.ended, all.late, all.meanAccuracy()})
		if all.answered >= 10 {
			least, most = min(least, all.meanAccuracy()), max(most, all.meanAccuracy())
		}
	}
	if most > 0 {
		r.AccuracyDrop = math.Round((most-least)*1e5) / 1e3
	}
	if p.cfg.Timeline != nil {
		return &r, p.writeTimeline(p.cfg.Timeline)
	}
	return &r, nil
}

// Text writes the result for people.
func (r *Result) Text(w io.Writer) error {
	_, err := fmt.Fprintf(
		w, "placement: %d versions, %d instances changed, %.2f a minute, at most %d "+
			"in one; accuracy fell by %.2f points between two windows of %v\n", r.Versions,
		r.Changes,
		r.ChangesPerMinute, r.MostChanges, r.AccuracyDrop, Window)
	return err
}
