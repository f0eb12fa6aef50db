package regimes

import (
	"fmt"
	"time"

	"github.com/muster-serve/muster/leader/match"
	"github.com/muster-serve/muster/profiles/published"
	"github.com/muster-serve/muster/runtime/queue/merge"
	"github.com/muster-serve/muster/sim"
	"github.com/muster-serve/muster/sim/latency"
	"github.com/muster-serve/muster/sim/workload"
)

// patience is the usual deadline, in QoS targets: without one, no query is ever given up, so that
// in overload all lateness would be that of an ever longer queue.
const patience = 4

// List returns all regimes.
func List() ([]*Regime, error) {
	source, err := sim.OpenSource(published.Name)
	if err != nil {
		return nil, err
	}
	l := &lister{source: source}
	l.oneModel()
	l.twoModels()
	l.wrongProfiles()
	l.network()
	return l.all, l.err
}

// A lister collects regimes.
type lister struct {
	source *sim.Source
	all    []*Regime
	err    error
}

func (l *lister) add(r Regime) { l.all = append(l.all, &r) }

// must notes an error, after which the list is of no use.
func (l *lister) must(err error) {
	if l.err == nil {
		l.err = err
	}
}

// loads are the multiples of the limit at which the simplest regimes are run.
var loads = []float64{.03, .3, .5, .8, .95, 1, 1.2, 1.5, 3}

// pool is a pool of the two types of the papers' mixed pools.
func pool(base, auxiliary int) []Lanes {
	return []Lanes{{Type: "g4dn.xlarge", Count: base}, {Type: "r5n.large", Count: auxiliary}}
}

// published returns a model with the latencies that were published, as production serves it unless
// it is to be whole: then its queries run whole, and one by one.
func (l *lister) published(name string, whole bool) Model {
	m, err := l.source.Model(name, []string{"g4dn.xlarge", "r5n.large"}, workload.Trace(), 0)
	l.must(err)
	if whole {
		return Model{Model: m}
	}
	m.Splits = true
	return Model{Model: m, Merge: merge.Deadline}
}

func (l *lister) oneModel() {
	for _, x := range []struct {
		model           string
		whole           bool
		base, auxiliary int
	}{
		{"wnd", false, 3, 10}, {"rm2", false, 1, 13}, {"wnd", true, 2, 9}, {"rm2", true, 3, 10},
	} {
		for _, load := range loads {
			name, how := x.model, "queries split and merged"
			if x.whole {
				name, how = name+"-whole", "whole queries, one by one"
			}
			l.add(Regime{
				Name: fmt.Sprintf("%s-%g", name, load),
				About: fmt.Sprintf("%s on %d + %d lanes at %g of the limit, %s", x.model, x.base,
					x.auxiliary, load, how),
				Models: []Model{l.published(x.model, x.whole)}, Lanes: pool(x.base, x.auxiliary),
				Load: load, Deadline: patience, Queries: 8000, ShortQueries: 1000,
			})
		}
	}
}

// synthetic returns a model of which queries have 1 to 10 items, with a fixed latency on each type.
func (l *lister) synthetic(name string, target time.Duration, weight float64,
	latencies map[string]match.Latencies) Model {
	sizes, err := workload.Gaussian(5, 2, 10)
	l.must(err)
	return Model{Model: sim.Model{
		Name: name, QoSTarget: target, Weight: weight, BatchSizes: sizes, Latencies: latencies,
	}}
}

// byTarget are latencies of a model whose queries of the largest size take the given parts of its
// target on a fast and a slow type; half of that is for the run and half for the items.
func byTarget(target time.Duration, fast, slow float64) map[string]match.Latencies {
	of := func(part float64) match.Latencies {
		return latency.Fixed{Base: scale(target, part/2), PerItem: scale(target, part/20)}
	}
	return map[string]match.Latencies{"fast": of(fast), "slow": of(slow)}
}

func (l *lister) twoModels() {
	for _, apart := range []struct {
		name        string
		short, long time.Duration
	}{
		{"4x", 100 * time.Millisecond, 400 * time.Millisecond},
		{"400x", 5 * time.Millisecond, 2 * time.Second},
	} {
		for _, weight := range []float64{8, 1} {
			for _, load := range []float64{.3, .8, 1.2} {
				l.add(Regime{
					Name: fmt.Sprintf("two-%s-%g:1-%g", apart.name, weight, load),
					About: fmt.Sprintf("models with targets of %v and %v, %g:1 in queries, on 3 + 6 "+
						"lanes at %g of the limit", apart.short, apart.long, weight, load),
					Models: []Model{
						l.synthetic("short", apart.short, weight, byTarget(apart.short, .3, .8)),
						l.synthetic("long", apart.long, 1, byTarget(apart.long, .3, .8)),
					},
					Lanes: []Lanes{{Type: "fast", Count: 3}, {Type: "slow", Count: 6}},
					Load:  load, Deadline: patience, Queries: 8000, ShortQueries: 1500,
				})
			}
		}
	}
	for _, load := range []float64{.3, .8, 1.2} {
		wnd := l.published("wnd", false)
		wnd.Weight = 6
		l.add(Regime{
			Name:   fmt.Sprintf("wnd+rm2-6:1-%g", load),
			About:  fmt.Sprintf("wnd and rm2, 6:1 in queries, on 3 + 10 lanes at %g of the limit", load),
			Models: []Model{wnd, l.published("rm2", false)}, Lanes: pool(3, 10),
			Load: load, Deadline: patience, Queries: 12000, ShortQueries: 1500,
		})
	}
}

// misjudge lets the policy know a model's latencies times a factor.
func misjudge(m Model, factor float64) Model {
	m.Known = map[string]match.Latencies{}
	for laneType, l := range m.Latencies {
		m.Known[laneType] = latency.Scaled(l, factor)
	}
	return m
}

func (l *lister) wrongProfiles() {
	for _, percent := range []float64{-20, -10, 10, 20} {
		for _, load := range []float64{.8, 1.2} {
			l.add(Regime{
				Name: fmt.Sprintf("wrong%+g-%g", percent, load),
				About: fmt.Sprintf("wnd, whole, on 2 + 9 lanes at %g of the limit; all latencies are "+
					"known %+g %% wrong, and nobody learns", load, percent),
				Models: []Model{misjudge(l.published("wnd", true), 1+percent/100)},
				Lanes:  pool(2, 9), Load: load, Deadline: patience, Queries: 8000,
				ShortQueries: 1500,
			})
		}
	}
}

func (l *lister) network() {
	for _, percent := range []float64{1, 5, 10} {
		for _, load := range []float64{.3, .85} {
			m := l.published("rm2", true)
			rtt := scale(m.QoSTarget, percent/100)
			l.add(Regime{
				Name: fmt.Sprintf("rtt%g-%g", percent, load),
				About: fmt.Sprintf("rm2, whole, on 3 + 10 lanes at %g of the limit; a round trip of "+
					"%g %% of the target, a query's way longer by half of that in the mean", load,
					percent),
				Models: []Model{m}, Lanes: pool(3, 10), Load: load, RTT: rtt, Jitter: rtt / 2,
				Deadline: patience, Queries: 8000, ShortQueries: 1000,
			})
		}
	}
}
