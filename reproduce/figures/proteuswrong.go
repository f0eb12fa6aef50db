package figures

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/muster-serve/muster/api/picture"
	"github.com/muster-serve/muster/reproduce/scaling"
)

// wrongBy is how many times longer runs take than their profiles say.
const wrongBy = 1.5

// proteusWrong compares what wrong profiles cost: of all types, and of the one that can do most.
func proteusWrong(ctx context.Context, l *lab) (*Figure, error) {
	s, err := l.setting(scaling.Twitter)
	if err != nil {
		return nil, err
	}
	systems := func() []contender { // new ones for each run, as they keep a state
		all := onOurLanes("")
		all[len(all)-1].config.Learns = true
		blind := musterLine()
		blind.name += ", learns nothing"
		return append(all, blind)
	}
	strongest, slow := s.strongest(), make([]float64, len(s.fleet.Types))
	for t := range slow {
		slow[t] = 1
	}
	one := slices.Clone(slow)
	one[strongest] = wrongBy
	for t := range slow {
		slow[t] = wrongBy
	}
	cases := []struct {
		name string
		slow []float64
	}{
		{"right", nil}, {fmt.Sprintf("all %v x", wrongBy), slow},
		{fmt.Sprintf("%s %v x", s.fleet.Types[strongest].Name, wrongBy), one},
	}
	f := &Figure{Rows: [][]string{slices.Concat([]string{"profiles"}, scalingHeader)}}
	bars := [2]picture.BarChart{
		{Title: "profiles that are wrong", YLabel: "strict violations, %"},
		{YLabel: "accuracy below 100, points"},
	}
	for _, c := range cases {
		for i := range bars {
			bars[i].Series = append(bars[i].Series, picture.Series{Name: c.name})
		}
	}
	head := fmt.Sprintf("%-24s", "profiles")
	for _, c := range cases {
		head += fmt.Sprintf("  %-18s", c.name)
	}
	f.Text = append(f.Text, "Strict violations, % (accuracy, points):", strings.TrimSpace(head))
	const learned = 3 // periods
	late := ""
	for i, system := range systems() {
		line := fmt.Sprintf("%-24s", system.name)
		for k, c := range cases {
			its := systems()[i]
			its.config.Slow = c.slow
			r, err := l.simulate(ctx, s, &its)
			if err != nil {
				return nil, err
			}
			row := scalingRows(its.name, r)[0]
			f.Rows = append(f.Rows, slices.Concat([]string{c.name}, row))
			bars[0].Series[k].Values = append(bars[0].Series[k].Values, 100*r.Total.Violations())
			bars[1].Series[k].Values = append(bars[1].Series[k].Values, 100-r.Total.Accuracy())
			line += fmt.Sprintf("  %-18s", fmt.Sprintf("%5.2f (%.2f)", 100*r.Total.Violations(),
				r.Total.Accuracy()))
			if its.config.Learns {
				before, after := parts(r.Windows(), learned)
				late += fmt.Sprintf("; %s %.2f and %.2f", c.name, 100*before.Violations(),
					100*after.Violations())
			}
		}
		bars[0].Groups = append(bars[0].Groups, system.name)
		f.Text = append(f.Text, strings.TrimSpace(line))
	}
	bars[1].Groups = bars[0].Groups
	f.show(1, &bars[0], &bars[1])
	f.Text = append(f.Text, fmt.Sprintf("Muster's in the first %d periods of 10 s, and then, %%%s.",
		learned, late))
	f.Text = append(f.Text, "All run on Muster's lanes and merge as they do. Muster learns at "+
		"each "+
		"placement how long runs of a variant take on a type, as its leader does; the others keep "+
		"their profiles, as their papers have them.", s.from())
	return f, nil
}

// parts adds up the first windows, and the others.
func parts(windows []scaling.Second, first int) (before, after scaling.Second) {
	for i, w := range windows {
		if i < first {
			before.Add(w)
		} else {
			after.Add(w)
		}
	}
	return before, after
}

// strongest is the type whose agents could answer most queries.
func (s *setting) strongest() (best int) {
	most := 0.0
	for t, typ := range s.fleet.Types {
		can := 0.0
		for k := range s.fleet.Families {
			fastest := 0.0
			for v := range s.fleet.Variants {
				if s.fleet.Variants[v].Family == k {
					fastest = max(fastest, s.fleet.Rate(t, v))
				}
			}
			can += fastest * float64(typ.Count)
		}
		if can > most {
			best, most = t, can
		}
	}
	return best
}
