package picture

import (
	"fmt"
	"math"
	"strconv"
)

// An Axis is one of a panel's.
type Axis struct {
	Label    string
	Min, Max float64
	Log      bool // distances are those of logarithms
	// Ticks are the marks for a range; by default RoundTicks, or LogTicks if Log is set.
	Ticks      func(low, high float64) []Tick
	TickLength float64
}

// A Tick is a mark on an axis. One without a label is short.
type Tick struct {
	Value float64
	Label string
}

// place is where a value is on the axis: 0 at its beginning, 1 at its end.
func (a *Axis) place(v float64) float64 {
	if a.Log {
		return math.Log(v/a.Min) / math.Log(a.Max/a.Min)
	}
	return (v - a.Min) / (a.Max - a.Min)
}

// ticks are those in the range.
func (a *Axis) ticks() (seen []Tick) {
	marks := a.Ticks
	if marks == nil {
		if marks = RoundTicks; a.Log {
			marks = LogTicks
		}
	}
	for _, t := range marks(a.Min, a.Max) {
		if at := a.place(t.Value); at >= -1e-9 && at <= 1+1e-9 {
			seen = append(seen, t)
		}
	}
	return seen
}

// contain widens the range to a value.
func (a *Axis) contain(v float64) { a.Min, a.Max = min(a.Min, v), max(a.Max, v) }

// settle makes a range of one that has no data, or a single value.
func (a *Axis) settle() {
	if math.IsInf(a.Min, 0) {
		a.Min = 0
	}
	if math.IsInf(a.Max, 0) {
		a.Max = 0
	}
	if a.Min > a.Max {
		a.Min, a.Max = a.Max, a.Min
	}
	switch {
	case a.Log && a.Max <= 0:
		a.Min, a.Max = 1, 10
	case a.Log && a.Min <= 0:
		a.Min = a.Max / 1000
	}
	switch {
	case a.Min < a.Max:
	case a.Log:
		a.Min, a.Max = a.Min/2, a.Max*2
	default:
		a.Min, a.Max = a.Min-1, a.Max+1
	}
}

// name labels 0, 1, 2 and so on.
func (a *Axis) name(names []string) {
	a.TickLength = 0
	a.Ticks = func(float64, float64) []Tick {
		ticks := make([]Tick, len(names))
		for i, name := range names {
			ticks[i] = Tick{float64(i), name}
		}
		return ticks
	}
}

// RoundTicks are five to ten labelled steps of 1, 2 or 5 times a power of ten.
func RoundTicks(low, high float64) []Tick {
	step := math.Pow10(int(math.Floor(math.Log10((high - low) / 5))))
	for _, times := range []float64{5, 2} {
		if (high-low)/(step*times) >= 5 {
			step *= times
			break
		}
	}
	var ticks []Tick
	for i := math.Ceil(low / step); i*step <= high; i++ {
		ticks = append(ticks, Tick{
			i * step, strconv.FormatFloat(math.Round(i*step*1e6)/1e6+0, 'g', -1, 64),
		})
	}
	return ticks
}

// LogTicks label 1, 2 and 5 times the powers of ten, and mark the others below ten.
func LogTicks(low, high float64) []Tick {
	var ticks []Tick
	for decade := math.Pow(10, math.Floor(math.Log10(low))); decade <= high; decade *= 10 {
		for i := 1; i < 10; i++ {
			t := Tick{Value: float64(i) * decade}
			if t.Value < low || t.Value > high {
				continue
			}
			if i == 1 || i == 2 || i == 5 {
				t.Label = fmt.Sprintf("%.6g", t.Value)
			}
			ticks = append(ticks, t)
		}
	}
	return ticks
}
