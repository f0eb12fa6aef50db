package figures

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"gonum.org/v1/gonum/stat"

	"github.com/muster-serve/muster/api/picture"
	"github.com/muster-serve/muster/leader/place"
	"github.com/muster-serve/muster/reproduce/placements"
	"github.com/muster-serve/muster/sim/colocate"
)

// The managers of a machine with two models, in the order of the pictures.
var managers = []string{"Hera", "PARTIES", "PARTIES, takes nothing"}

// node is a machine with two models, evenly parted at the start, under a manager.
func (t *tenancy) node(manager string, a, b *place.Profile, seed uint64) *colocate.Node {
	n := &colocate.Node{
		Machine: t.Machine, Profiles: [2]*place.Profile{a, b},
		Workers: [2]int{t.Cores / 2, t.Cores - t.Cores/2}, Ways: [2]int{
			t.Ways / 2, t.Ways - t.Ways/2,
		},
		Period: time.Second, Manager: t.Adjust, Seed: seed,
	}
	if manager != managers[0] {
		p := &placements.Parties{Machine: t.Machine, Keeps: manager == managers[2]}
		n.Period, n.Manager = time.Second/2, p.Adjust
	}
	return n
}

// How long a steady load is simulated, of which the first part is for the manager to settle.
const (
	settles, watched = 25 * time.Second, 10 * time.Second
	loadStep         = 0.05
)

// sustained is the highest load of b, in parts of its most, that the machine sustains beside a load
// of a, in steps of loadStep.
func (t *tenancy) sustained(manager string, a, b *place.Profile, loadA float64) float64 {
	most := t.BestSplit(a, b).Utilisation(a, b) + 0.2
	for load := math.Ceil((most-loadA)/loadStep) * loadStep; load > loadStep/2; load -= loadStep {
		n := t.node(manager, a, b, 1)
		n.MostRates = [2]float64{loadA * a.Most(), load * b.Most()}
		for i, rate := range n.MostRates {
			n.Rates[i] = colocate.Steady(rate)
		}
		if n.Simulate(settles+watched).Sustains(settles, settles+watched) {
			return load
		}
	}
	return 0
}

// byProfile is the highest load of b beside a load of a that any split has, by the profiles.
func (t *tenancy) byProfile(a, b *place.Profile, loadA float64) (most float64) {
	for _, s := range t.GoodSplits(a, b) {
		if s.QPS[0] >= loadA*a.Most() {
			most = max(most, s.QPS[1]/b.Most())
		}
	}
	return most
}

// heraFig12: what Hera's manager and PARTIES sustain of each model beside DLRM-D.
func heraFig12(ctx context.Context, l *lab) (*Figure, error) {
	t, err := newTenancy(l)
	if err != nil {
		return nil, err
	}
	d := t.named("DLRM-D")
	loads := []float64{.4, .6, .8}
	f := &Figure{Rows: [][]string{{"beside", "load_dlrm_d", "hera", "parties",
		"parties_takes_nothing",
		"by_profiles"}}}
	var charts []shown
	var gains [2][]float64
	var wins, losses [2]int
	for _, p := range t.profiles {
		if p == d {
			continue
		}
		c := picture.BarChart{
			Title: "DLRM-D and " + p.Model, YLabel: "load of " + p.Model,
			Series: []picture.Series{
				{Name: managers[0]}, {Name: managers[1]}, {Name: managers[2]},
				{Name: "by the profiles"},
			},
		}
		for _, load := range loads {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			l.progress("%s beside DLRM-D at %.0f %%", p.Model, 100*load)
			var values []float64
			for _, manager := range managers {
				values = append(values, t.sustained(manager, d, p, load))
			}
			values = append(values, t.byProfile(d, p, load))
			c.Groups = append(c.Groups, fmt.Sprintf("DLRM-D %.0f %%", 100*load))
			row := []string{p.Model, number(load)}
			for i, v := range values {
				c.Series[i].Values = append(c.Series[i].Values, math.Round(v*1000)/1000)
				row = append(row, number(v))
			}
			f.Rows = append(f.Rows, row)
			for k := range gains {
				gain := (load+values[0])/(load+values[1+k]) - 1
				gains[k] = append(gains[k], gain)
				if gain > 1e-9 {
					wins[k]++
				} else if gain < -1e-9 {
					losses[k]++
				}
			}
		}
		charts = append(charts, &c)
	}
	f.show(2, charts...)
	mean := func(k int) float64 { return 100 * stat.Mean(gains[k], nil) }
	f.Text = []string{
		fmt.Sprintf(
			"%s: beside DLRM-D Hera's manager sustains a utilisation that is %.0f %% above that "+
				"of PARTIES in the mean and %.0f %% at most (paper: 12 and 55), higher in %d "+
				"cases "+
				"of %d and "+
				"lower in %d.", outcome(mean(0) > 0 && wins[0] > losses[0]), mean(0),
			100*slices.Max(gains[0]), wins[0], len(gains[0]), losses[0]),
		fmt.Sprintf(
			"Most of that is because PARTIES takes cores and ways from models that have slack, "+
				"by trial. One that takes nothing comes near Hera, which is then %.0f %% above in "+
				"the mean, "+
				"higher in %d cases and lower in %d.", mean(1), wins[1], losses[1]),
		fmt.Sprintf("A machine with two queues is simulated, evenly parted at the start: %v for "+
			"the "+
			"manager to settle, then %v of which no more than one period in ten may be late. "+
			"Times "+
			"are log-normal, targets twenty mean times. PARTIES moves one core or way every half "+
			"second; it does not try disk and network here, which favours it.", settles, watched),
		t.note,
	}
	return f, nil
}

// heraFig14: DLRM-D and NCF under loads that change.
func heraFig14(ctx context.Context, l *lab) (*Figure, error) {
	t, err := newTenancy(l)
	if err != nil {
		return nil, err
	}
	d, ncf := t.named("DLRM-D"), t.named("NCF")
	const first, second, end = 60, 90, 120 // seconds
	ramp := func(from, to, at float64) float64 { return from + (to-from)*at/first }
	load := [2]func(at float64) float64{
		func(at float64) float64 {
			switch {
			case at < first:
				return ramp(.2, .7, at)
			case at < second:
				return .7
			}
			return .1
		},
		func(at float64) float64 {
			if at < first {
				return ramp(.1, .4, at)
			} else if at < second {
				return .2
			}
			return .6
		},
	}
	f := &Figure{Rows: [][]string{{
		"manager", "second", "load_dlrm_d", "load_ncf", "tail_dlrm_d", "tail_ncf",
		"workers_dlrm_d", "workers_ncf", "ways_dlrm_d", "ways_ncf",
	}}}
	var charts []shown
	late, row, unserved := map[string]int{}, map[string]int{}, 0
	for k, manager := range managers {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		l.progress("%s under loads that change", manager)
		n := t.node(manager, d, ncf, 1)
		for i, p := range n.Profiles {
			n.Rates[i] = func(at time.Duration) float64 { return p.Most() * load[i](at.Seconds()) }
			n.MostRates[i] = p.Most()
		}
		run := n.Simulate(end * time.Second)
		for i := range 2 {
			unserved += run.Arrived[i] - run.Served[i]
		}
		tails := lineChart{
			title: manager + ": tails", xLabel: "s", yLabel: "95 % quantile / target",
			series: []picture.Series{{Name: "DLRM-D"}, {Name: "NCF"}}, line: 1, lineName: "target",
		}
		parts := lineChart{
			title: manager + ": workers and ways", xLabel: "s", yLabel: "number",
			series: []picture.Series{
				{Name: "DLRM-D workers"}, {Name: "NCF workers"}, {Name: "DLRM-D ways"},
				{Name: "NCF ways"},
			},
		}
		inRow := 0
		for i, p := range run.Periods {
			if p.End > end*time.Second {
				break
			}
			if max(p.Tail[0], p.Tail[1]) > 1 {
				late[manager]++
				inRow++
			} else {
				inRow = 0
			}
			row[manager] = max(row[manager], inRow)
			if p.End%time.Second != 0 {
				continue
			}
			tail := p.Tail
			if n.Period < time.Second { // the higher one of the second
				for k := range tail {
					tail[k] = max(tail[k], run.Periods[i-1].Tail[k])
				}
			}
			at := p.End.Seconds()
			cells := []string{manager, number(at), number(load[0](at - 1)), number(load[1](at - 1))}
			for k := range tail {
				tails.series[k].Values = append(tails.series[k].Values, min(tail[k], 10))
				parts.series[k].Values = append(parts.series[k].Values, float64(p.Workers[k]))
				parts.series[2+k].Values = append(parts.series[2+k].Values, float64(p.Ways[k]))
			}
			cells = append(cells, number(tail[0]), number(tail[1]))
			for _, x := range []int{p.Workers[0], p.Workers[1], p.Ways[0], p.Ways[1]} {
				cells = append(cells, strconv.Itoa(x))
			}
			f.Rows = append(f.Rows, cells)
		}
		if k < 2 {
			charts = append(charts, &tails, &parts)
		}
	}
	f.show(2, charts...)
	span := func(manager string) time.Duration {
		return time.Duration(row[manager]) * t.node(manager, d, ncf, 1).Period
	}
	hera, parties, keeping := managers[0], managers[1], managers[2]
	f.Text = []string{
		fmt.Sprintf("%s: loads of DLRM-D and NCF rise for a minute, NCF's falls to 20 %% and, "+
			"half a "+
			"minute later, rises to 60 %% as DLRM-D's falls from 70 to 10 %%. Under Hera tails "+
			"are above "+
			"their targets in %d periods of a second, %v in a row at most; under PARTIES in %d "+
			"of half "+
			"a second, %v in a row, and if it takes nothing from models with slack in %d, %v in "+
			"a row. "+
			"Of all queries %d were not served.",
			outcome(span(hera) < span(parties)), late[hera], span(hera), late[parties],
			span(parties),
			late[keeping], span(keeping), unserved),
		fmt.Sprintf(
			"%s: under Hera no tail is above its target for longer than the period in which the "+
				"load jumps and the next one, in which what waits is served. (Tails above ten "+
				"are drawn "+
				"at ten.)", outcome(row[hera] <= 2)),
		t.note,
	}
	return f, nil
}
