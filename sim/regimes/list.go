package regimes

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/match"
	"github.com/muster-serve/muster/profiles/published"
	"github.com/muster-serve/muster/profiles/workload"
	"github.com/muster-serve/muster/sim"
	"github.com/muster-serve/muster/sim/fleet"
	"github.com/muster-serve/muster/sim/latency"
)

// usualDeadline is the usual deadline, in QoS targets: without one, no query is ever given up, so
// that in overload all lateness would be that of an ever longer queue.
const usualDeadline = 4

// List returns all regimes.
func List() ([]*Regime, error) {
	source, err := sim.OpenSource(published.Name)
	if err != nil {
		return nil, err
	}
	l := &lister{source: source}
	l.oneModel()
	l.twoModels()
	l.manyModels()
	l.manySpeeds()
	l.addArrivalRegimes()
	l.runTimes()
	l.wrongProfiles()
	l.addNetworkRegimes()
	l.comingAndGoing()
	l.addOddRegimes()
	l.addLargeRegimes()
	for _, r := range l.all {
		if slices.Contains(longOnly, r.Name) {
			r.ShortQueries = 0
		}
	}
	return l.all, l.err
}

// longOnly are regimes that the short form leaves out, because others there show the same, or
// because they take long.
var longOnly = []string{
	"rm2-0.3", "rm2-0.8", "rm2-1", "rm2-1.5",
	"wnd-whole-0.03", "wnd-whole-0.5", "wnd-whole-0.95", "wnd-whole-1.2", "wnd-whole-3",
	"rm2-whole-0.3", "rm2-whole-0.5", "rm2-whole-0.95", "rm2-whole-1", "rm2-whole-1.5",
	"wnd+rm2-6:1-0.3", "zipf50-0.3", "speeds-0.3", "speeds-1.2", "speeds-learned-0.8",
	"speeds-learned-1.2", "mmpp-0.6", "mmpp-whole-0.6", "diurnal-whole-0.7", "flash-crowd-0.5",
	"wrong-10-0.8", "wrong-5-0.8", "wrong-5-1.2", "wrong+10-0.8", "wrong+10-1.2", "wrong+20-1.2",
	"rtt1-1.2", "rtt5-0.3", "leaderless-0.6",
}

// A lister collects regimes.
type lister struct {
	source *sim.Source
	all    []*Regime
	err    error
}

func (l *lister) add(r Regime) { l.all = append(l.all, &r) }

// noteError notes an error, after which the list is of no use.
func (l *lister) noteError(err error) {
	if l.err == nil {
		l.err = err
	}
}

// loads are the multiples of the limit at which the simplest regimes are run.
var loads = []float64{.03, .3, .5, .8, .95, 1, 1.2, 1.5, 3}

// mixedPool is a pool of the two types of the papers' mixed pools.
func mixedPool(base, auxiliary int) []Lanes {
	return []Lanes{{Type: "g4dn.xlarge", Count: base}, {Type: "r5n.large", Count: auxiliary}}
}

// publishedModel returns a model with the latencies that were published, as production serves it unless
// it is to be whole: then its queries run whole, and one by one.
func (l *lister) publishedModel(name string, whole bool) Model {
	m, err := l.source.Model(name, []string{"g4dn.xlarge", "r5n.large"}, workload.Trace(), 0)
	l.noteError(err)
	if whole {
		return Model{Model: m}
	}
	m.Splits = true
	return Model{Model: m, Merge: names.MergeDeadline}
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
				Models: []Model{l.publishedModel(x.model, x.whole)}, Lanes: mixedPool(x.base, x.auxiliary),
				Load: load, Deadline: usualDeadline, Queries: 8000, ShortQueries: 1000,
			})
		}
	}
}

// fewSizes are the batch sizes of regimes with many models, whose fluid programs would else be
// large.
func (l *lister) fewSizes() *workload.BatchSizes {
	sizes, err := workload.Weighted("few", []workload.Probability{
		{BatchSize: 2, P: .3}, {BatchSize: 5, P: .4}, {BatchSize: 8, P: .3},
	})
	l.noteError(err)
	return sizes
}

// syntheticModel returns a model of which queries have 1 to 10 items, with a fixed latency on each type.
func (l *lister) syntheticModel(name string, target time.Duration, weight float64,
	latencies map[string]match.Latencies) Model {
	sizes, err := workload.Gaussian(5, 2, 10)
	l.noteError(err)
	return Model{Model: sim.Model{
		Name: name, QoSTarget: target, Weight: weight, BatchSizes: sizes, Latencies: latencies,
	}}
}

// byTarget are latencies of a model whose queries of the largest size take the given parts of its
// target on a fast and a slow type; half of that is for the run and half for the items.
func byTarget(target time.Duration, fast, slow float64) map[string]match.Latencies {
	of := func(part float64) match.Latencies {
		return latency.Fixed{Base: scaleDuration(target, part/2), PerItem: scaleDuration(target, part/20)}
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
						l.syntheticModel("short", apart.short, weight, byTarget(apart.short, .3, .8)),
						l.syntheticModel("long", apart.long, 1, byTarget(apart.long, .3, .8)),
					},
					Lanes: []Lanes{{Type: "fast", Count: 3}, {Type: "slow", Count: 6}},
					Load:  load, Deadline: usualDeadline, Queries: 8000, ShortQueries: 1500,
				})
			}
		}
	}
	for _, load := range []float64{.3, .8, 1.2} {
		wnd := l.publishedModel("wnd", false)
		wnd.Weight = 6
		l.add(Regime{
			Name:   fmt.Sprintf("wnd+rm2-6:1-%g", load),
			About:  fmt.Sprintf("wnd and rm2, 6:1 in queries, on 3 + 10 lanes at %g of the limit", load),
			Models: []Model{wnd, l.publishedModel("rm2", false)}, Lanes: mixedPool(3, 10),
			Load: load, Deadline: usualDeadline, Queries: 12000, ShortQueries: 1500,
		})
	}
	wnd := l.publishedModel("wnd", false)
	wnd.Weight = 6
	l.add(Regime{
		Name: "wnd+rm2-late-1.2",
		About: "the same at 1.2 of the limit, where all queries are dropped after 3 s: many targets " +
			"of the one model, few of the other",
		Models: []Model{wnd, l.publishedModel("rm2", false)}, Lanes: mixedPool(3, 10), Load: 1.2,
		DeadlineAfter: 3 * time.Second, Queries: 12000, ShortQueries: 3000,
	})
}

// warmUpShare is the share of the queries that leaders that learn may use up before queries count.
const warmUpShare = 0.25

// zipfWeights are weights of n models by Zipf's law.
func zipfWeights(n int) []float64 {
	all := make([]float64, n)
	for i := range all {
		all[i] = 1 / float64(i+1)
	}
	return all
}

// spreadModels gives each of the models of the weights to lanes, in proportion to the weights and to two
// at least, and each lane so many models at most. The lanes come one by one, of types in turn.
func spreadModels(weights []float64, types []string, lanes, each int) []Lanes {
	all := make([]Lanes, lanes)
	for i := range all {
		all[i] = Lanes{Type: types[i%len(types)], Count: 1}
	}
	sum := 0.0
	for _, w := range weights {
		sum += w
	}
	next := 0
	for i, w := range weights {
		const fewest = 2
		left := fewest * (len(weights) - i - 1) // places for those to come
		free := 0
		for k := range all {
			free += each - len(all[k].Models)
		}
		n := max(fewest, min(int(w/sum*float64(lanes*each)+.5), lanes, free-left))
		for range lanes {
			if n == 0 {
				break
			}
			if at := &all[next%lanes]; len(at.Models) < each {
				at.Models = append(at.Models, modelName(i))
				n--
			}
			next++
		}
	}
	return all
}

func modelName(i int) string { return fmt.Sprintf("m%d", i+1) }

func (l *lister) manyModels() {
	const models, lanes, each = 50, 30, 10
	const target = 100 * time.Millisecond
	for _, load := range []float64{.3, .8, 1.2} {
		r := Regime{
			Name: fmt.Sprintf("zipf50-%g", load),
			About: fmt.Sprintf("50 models by Zipf's law with a target of %v on 30 lanes of two "+
				"types, each of which holds 10, at %g of the limit", target, load),
			Lanes: spreadModels(zipfWeights(models), []string{"fast", "slow", "slow"}, lanes, each),
			Load:  load, Deadline: usualDeadline, Queries: 16000, ShortQueries: 2000,
		}
		for i, w := range zipfWeights(models) {
			m := l.syntheticModel(modelName(i), target, w, byTarget(target, .3, .8))
			m.BatchSizes = l.fewSizes()
			r.Models = append(r.Models, m)
		}
		l.add(r)
	}
}

func (l *lister) manySpeeds() {
	const types, each = 10, 10
	short, long := 100*time.Millisecond, 400*time.Millisecond
	// Speeds are between .7 and 1.4 times the usual, in an order like chance.
	slowdown := func(i int) float64 { return .7 + .7*float64(i*37%(types*each))/(types*each-1) }
	for _, learns := range []bool{false, true} {
		for _, load := range []float64{.3, .8, 1.2} {
			name, how := "speeds", "each lane's latencies are known"
			if learns {
				name, how = "speeds-learned", "those of its type are known, and leaders learn"
			}
			r := Regime{
				Name: fmt.Sprintf("%s-%g", name, load),
				About: fmt.Sprintf("models with targets of %v and %v, 4:1, on 10 lanes each of 10 "+
					"types, each of its own speed, at %g of the limit; %s", short, long, load, how),
				Load: load, Deadline: usualDeadline, Learns: learns, Queries: 16000,
				ShortQueries: 2000,
				Seeds:        1,
			}
			latencies := []map[string]match.Latencies{{}, {}}
			for i := range types {
				for k := range each {
					by := slowdown(i*each + k)
					lanes := Lanes{Type: fmt.Sprintf("type%d", i), Count: 1}
					part := .2 + .1*float64(i) // of the target, for the largest query
					if learns {
						r.WarmUp = warmUpShare
						lanes.Slowdown = func(int) float64 { return by }
					} else {
						lanes.Type = fmt.Sprintf("type%d-%d", i, k)
						part *= by
					}
					r.Lanes = append(r.Lanes, lanes)
					for m, target := range []time.Duration{short, long} {
						latencies[m][lanes.Type] = latency.Fixed{
							Base: scaleDuration(target, part/2), PerItem: scaleDuration(target, part/20),
						}
					}
				}
			}
			r.Models = []Model{
				l.syntheticModel("short", short, 4, latencies[0]),
				l.syntheticModel("long", long, 1, latencies[1]),
			}
			l.add(r)
		}
	}
	for _, load := range []float64{.3, .8} {
		r := Regime{
			Name: fmt.Sprintf("slow-on-large-%g", load),
			About: fmt.Sprintf("a model on 2 + 8 lanes at %g of the limit; on half of each type's, "+
				"queries of more than 5 items take 1.6 times as long as on the others, and leaders "+
				"learn", load),
			Models: []Model{l.syntheticModel("m", short, 1, byTarget(short, .3, .55))},
			Load:   load, Deadline: usualDeadline, Learns: true, WarmUp: warmUpShare,
			Queries:      16000,
			ShortQueries: 3000,
		}
		large := func(batch int) float64 {
			if batch > 5 {
				return 1.6
			}
			return 1
		}
		for _, x := range []Lanes{{Type: "fast", Count: 1}, {Type: "slow", Count: 4}} {
			bad := x
			bad.Slowdown = large
			r.Lanes = append(r.Lanes, x, bad)
		}
		l.add(r)
	}
}

func (l *lister) addArrivalRegimes() {
	heavy, err := workload.Weighted("heavy-tailed", paretoSizes(1.2, 1000))
	l.noteError(err)
	for _, load := range []float64{.3, .8, 1.2} {
		m, err := l.source.Model("wnd", []string{"g4dn.xlarge", "r5n.large"}, heavy, 0)
		l.noteError(err)
		m.Splits = true
		l.add(Regime{
			Name: fmt.Sprintf("heavy-tail-%g", load),
			About: fmt.Sprintf("wnd on 3 + 10 lanes at %g of the limit, batch sizes by a Pareto law "+
				"of shape 1.2", load),
			Models: []Model{{Model: m, Merge: names.MergeDeadline}}, Lanes: mixedPool(3, 10), Load: load,
			Deadline: usualDeadline, Queries: 8000, ShortQueries: 1500,
		})
	}
	for _, x := range []struct {
		name, about string
		load        float64
		phases      func(seed uint64) []sim.Phase
	}{
		{"mmpp", "the rate jumps between .4 and 1.6 times the mean, for .5 s in the mean", .6, mmpp},
		{"mmpp", "the rate jumps between .4 and 1.6 times the mean, for .5 s in the mean", .8, mmpp},
		{"diurnal", "the rate swings as a sine by .7 of the mean", .7, diurnal},
		{"flash-crowd", "a tenth of the time at four times the usual rate", .5, flashCrowd},
	} {
		for _, whole := range []bool{false, true} {
			name, how := x.name, "split and merged"
			if whole {
				name, how = name+"-whole", "whole"
			}
			l.add(Regime{
				Name: fmt.Sprintf("%s-%g", name, x.load),
				About: fmt.Sprintf("wnd, %s, on 3 + 10 lanes at %g of the limit in the mean; %s", how,
					x.load, x.about),
				Models: []Model{l.publishedModel("wnd", whole)}, Lanes: mixedPool(3, 10), Load: x.load,
				Phases: x.phases, Deadline: usualDeadline, Queries: 12000, ShortQueries: 2000,
			})
		}
	}
}

// paretoSizes are batch sizes with a tail that falls as their power.
func paretoSizes(shape float64, largest int) (all []workload.Probability) {
	beyond := func(size int) float64 { return math.Pow(float64(size), -shape) }
	rest := 1 - beyond(largest+1)
	for size := 1; size <= largest; size++ {
		all = append(all, workload.Probability{
			BatchSize: size, P: (beyond(size) - beyond(size+1)) / rest,
		})
	}
	return all
}

// mmpp is a Markov-modulated Poisson process of two states.
func mmpp(seed uint64) (phases []sim.Phase) {
	rng := rand.New(rand.NewPCG(seed, 13))
	const states, dwell = 200, 500 * time.Millisecond
	length, passes := 0.0, 0.0
	for i := range states {
		p := sim.Phase{Duration: max(1, scaleDuration(dwell, rng.ExpFloat64())), Factor: .4}
		if i%2 == 1 {
			p.Factor = 1.6
		}
		phases = append(phases, p)
		length += p.Duration.Seconds()
		passes += p.Duration.Seconds() * p.Factor
	}
	for i := range phases {
		phases[i].Factor *= length / passes
	}
	return phases
}

// diurnal is a sine, of which a run has some periods.
func diurnal(uint64) (phases []sim.Phase) {
	const steps, depth, period = 40, .7, 4 * time.Second
	for i := range steps {
		phases = append(phases, sim.Phase{
			Duration: period / steps,
			Factor:   1 + depth*math.Sin(2*math.Pi*(float64(i)+.5)/steps),
		})
	}
	return phases
}

// flashCrowd is a rate of four times the usual one in a tenth of the time.
func flashCrowd(uint64) []sim.Phase {
	const part, times = 0.1, 4
	const period = 3 * time.Second
	usual := 1 / (1 - part + part*times)
	return []sim.Phase{
		{Duration: scaleDuration(period, .4), Factor: usual},
		{Duration: scaleDuration(period, part), Factor: times * usual},
		{Duration: scaleDuration(period, .5), Factor: usual},
	}
}

func (l *lister) runTimes() {
	const target = 100 * time.Millisecond
	for _, law := range []struct {
		name, about string
		of          func(usual match.Latencies) match.Latencies
	}{
		{"log-normal", "run times are log-normal, with a deviation of .5", func(
			u match.Latencies) match.Latencies {
			return logNormal{u, .5}
		}},
		{"bimodal", "5 % of the runs take 8 times as long", func(
			u match.Latencies) match.Latencies {
			return bimodal{u, .05, 8}
		}},
	} {
		for _, learns := range []bool{false, true} {
			for _, load := range []float64{.3, .8, 1.2} {
				usual := byTarget(target, .05, .11)
				m := l.syntheticModel("m", target, 1, map[string]match.Latencies{})
				for laneType, u := range usual {
					m.Latencies[laneType] = law.of(u)
				}
				r := Regime{
					Name: fmt.Sprintf("%s-%g", law.name, load), Lanes: []Lanes{
						{Type: "fast", Count: 3}, {Type: "slow", Count: 8},
					},
					About: fmt.Sprintf("a model on 3 + 8 lanes at %g of the limit; %s, which is "+
						"known", load, law.about),
					Load: load, Deadline: usualDeadline, Queries: 16000, ShortQueries: 3000,
				}
				if learns {
					m.Known, r.Learns, r.WarmUp = usual, true, warmUpShare
					r.Name = fmt.Sprintf("%s-learned-%g", law.name, load)
					r.About = fmt.Sprintf("a model on 3 + 8 lanes at %g of the limit; %s, of which "+
						"the usual time is known, and leaders learn", load, law.about)
				}
				r.Models = []Model{m}
				l.add(r)
			}
		}
	}
}

// misjudgeModel lets the policy know a model's latencies times a factor.
func misjudgeModel(m Model, factor float64) Model {
	m.Known = map[string]match.Latencies{}
	for laneType, l := range m.Latencies {
		m.Known[laneType] = latency.Scaled(l, factor)
	}
	return m
}

func (l *lister) wrongProfiles() {
	for _, percent := range []float64{-50, -20, -10, -5, -3, 3, 5, 10, 20, 50} {
		for _, load := range []float64{.8, 1.2} {
			short := 1500
			if percent == -3 || percent == 3 || percent == 5 {
				short = 0
			}
			l.add(Regime{
				Name: fmt.Sprintf("wrong%+g-%g", percent, load),
				About: fmt.Sprintf("wnd, whole, on 2 + 9 lanes at %g of the limit; all latencies are "+
					"known %+g %% wrong, and nobody learns", load, percent),
				Models: []Model{misjudgeModel(l.publishedModel("wnd", true), 1+percent/100)},
				Lanes:  mixedPool(2, 9), Load: load, Deadline: usualDeadline, Queries: 8000,
				ShortQueries: short,
			})
		}
	}
	for _, percent := range []float64{-20, 20} {
		for _, load := range []float64{.8, 1.2} {
			l.add(Regime{
				Name: fmt.Sprintf("wrong%+g-learned-%g", percent, load),
				About: fmt.Sprintf("wnd, whole, on 2 + 9 lanes at %g of the limit; all latencies are "+
					"known %+g %% wrong at first, and leaders learn", load, percent),
				Models: []Model{misjudgeModel(l.publishedModel("wnd", true), 1+percent/100)},
				Lanes:  mixedPool(2, 9), Load: load, Deadline: usualDeadline, Learns: true, WarmUp: warmUpShare,
				Queries: 12000, ShortQueries: 2000,
			})
		}
	}
}

func (l *lister) addNetworkRegimes() {
	for _, percent := range []float64{1, 5, 10} {
		for _, load := range []float64{.3, .85, 1.2} {
			m := l.publishedModel("rm2", true)
			rtt := scaleDuration(m.QoSTarget, percent/100)
			l.add(Regime{
				Name: fmt.Sprintf("rtt%g-%g", percent, load),
				About: fmt.Sprintf("rm2, whole, on 3 + 10 lanes at %g of the limit; a round trip of "+
					"%g %% of the target, a query's way longer by half of that in the mean", load,
					percent),
				Models: []Model{m}, Lanes: mixedPool(3, 10), Load: load, RTT: rtt, Jitter: rtt / 2,
				Deadline: usualDeadline, Queries: 8000, ShortQueries: 1000,
			})
		}
	}
	for _, load := range []float64{.3, .85} {
		m := l.publishedModel("rm2", true)
		far := scaleDuration(m.QoSTarget, .05)
		l.add(Regime{
			Name: fmt.Sprintf("zones-%g", load),
			About: fmt.Sprintf("rm2, whole, on 4 + 12 lanes at %g of the limit; a round trip of 1 %% "+
				"of the target, and of 11 %% to half of the lanes, in another zone", load),
			Models: []Model{m}, Lanes: []Lanes{
				{Type: "g4dn.xlarge", Count: 2}, {Type: "g4dn.xlarge", Count: 2, Distance: far},
				{Type: "r5n.large", Count: 6}, {Type: "r5n.large", Count: 6, Distance: far},
			},
			Load: load, RTT: scaleDuration(m.QoSTarget, .01), Deadline: usualDeadline, Queries: 8000,
			ShortQueries: 1000,
		})
	}
}

func (l *lister) comingAndGoing() {
	for _, load := range []float64{.3, .8} {
		r := Regime{
			Name: fmt.Sprintf("come-and-go-%g", load),
			About: fmt.Sprintf("wnd on 3 + 12 lanes at %g of the limit; each second a lane drains and "+
				"leaves, and the one that left before joins", load),
			Models: []Model{l.publishedModel("wnd", false)}, Lanes: mixedPool(3, 12), Load: load,
			RTT: 200 * time.Microsecond, Deadline: usualDeadline, Queries: 12000, ShortQueries: 3000,
		}
		for i := range 30 {
			r.Faults = append(r.Faults, fleet.Fault{
				Verb: "drain", Target: names.AgentName(fmt.Sprintf("r5n.large-%d", 1+i*5%12)),
				At: time.Duration(i)*time.Second + 300*time.Millisecond, Duration: time.Second,
			})
		}
		l.add(r)
	}
	for _, load := range []float64{.5, .8} {
		l.add(Regime{
			Name: fmt.Sprintf("cancel-storm-%g", load),
			About: fmt.Sprintf("wnd on 3 + 10 lanes at %g of the limit; clients cancel 30 %% of the "+
				"queries after a fifth of the target", load),
			Models: []Model{l.publishedModel("wnd", false)}, Lanes: mixedPool(3, 10), Load: load,
			RTT: 200 * time.Microsecond, Deadline: usualDeadline, CancelShare: .3, CancelAfter: .2,
			Queries: 12000, ShortQueries: 2000,
		})
	}
	for _, load := range []float64{.8, 1.1, 1.5} {
		l.add(Regime{
			Name: fmt.Sprintf("retry-storm-%g", load),
			About: fmt.Sprintf("wnd, whole, on 2 + 9 lanes at %g of the limit; clients cancel after a "+
				"target, and try again after half a target, three times", load),
			Models: []Model{l.publishedModel("wnd", true)}, Lanes: mixedPool(2, 9), Load: load,
			RTT: 200 * time.Microsecond, Deadline: usualDeadline, CancelShare: 1, CancelAfter: 1,
			RetryAfter: .5, Retries: 3, Queries: 8000, ShortQueries: 2000,
		})
	}
}

func (l *lister) addOddRegimes() {
	const target = 100 * time.Millisecond
	for _, load := range []float64{.3, .8} {
		// The latencies are known to be above the target everywhere.
		never := l.syntheticModel("never", target, 1, byTarget(target, 2, 2.5))
		never.Infeasible = true
		l.add(Regime{
			Name: fmt.Sprintf("infeasible-%g", load),
			About: fmt.Sprintf("a model on 3 + 8 lanes at %g of the limit, and one with 1 %% of the "+
				"queries that no lane can answer in time; leaders learn prices", load),
			Models: []Model{l.syntheticModel("m", target, 99, byTarget(target, .3, .8)), never},
			Lanes:  []Lanes{{Type: "fast", Count: 3}, {Type: "slow", Count: 8}}, Load: load,
			Deadline: usualDeadline, Learns: true, WarmUp: warmUpShare,
			Queries: 12000, ShortQueries: 2000,
		})
	}
	for _, load := range []float64{.3, .8, 1.2} {
		l.add(Regime{
			Name: fmt.Sprintf("held-apart-%g", load),
			About: fmt.Sprintf("two models, 1:1, on 12 lanes of one type, of which 2 hold the one, 4 "+
				"the other and 6 both, at %g of the limit; leaders learn prices", load),
			Models: []Model{
				l.syntheticModel("a", target, 1, byTarget(target, .3, .5)),
				l.syntheticModel("b", target, 1, byTarget(target, .3, .5)),
			},
			Lanes: []Lanes{
				{Type: "slow", Count: 2, Models: []string{"a"}},
				{Type: "slow", Count: 4, Models: []string{"b"}}, {Type: "slow", Count: 6},
			},
			Load: load, Deadline: usualDeadline, Learns: true, WarmUp: warmUpShare, Queries: 12000,
			ShortQueries: 2000,
		})
	}
	const models, lanes, each = 20, 20, 6
	for _, load := range []float64{.3, .6, .8} {
		r := Regime{
			Name: fmt.Sprintf("leaderless-%g", load),
			About: fmt.Sprintf("20 models by Zipf's law on 20 lanes of two types, each of which holds "+
				"6, at %g of the limit; %s has no leader, the others have one", load, Subject),
			Lanes: spreadModels(zipfWeights(models), []string{"fast", "slow"}, lanes, each), Load: load,
			RTT: 500 * time.Microsecond, Deadline: usualDeadline, Leaderless: true, Queries: 12000,
			ShortQueries: 2000,
		}
		for i, w := range zipfWeights(models) {
			m := l.syntheticModel(modelName(i), target, w, byTarget(target, .3, .8))
			m.BatchSizes = l.fewSizes()
			r.Models = append(r.Models, m)
		}
		l.add(r)
	}
}

func (l *lister) addLargeRegimes() {
	for _, load := range []float64{.3, .8, 1.2} {
		l.add(Regime{
			Name:   fmt.Sprintf("lanes200-%g", load),
			About:  fmt.Sprintf("wnd on 40 + 160 lanes at %g of the limit", load),
			Models: []Model{l.publishedModel("wnd", false)}, Lanes: mixedPool(40, 160), Load: load,
			Deadline: usualDeadline, Queries: 20000, Seeds: 1,
		})
	}
	l.add(Regime{
		Name: "lanes2000-0.8", About: "wnd on 400 + 1600 lanes at 0.8 of the limit",
		Models: []Model{l.publishedModel("wnd", false)}, Lanes: mixedPool(400, 1600), Load: .8,
		Deadline: usualDeadline, Queries: 60000, Seeds: 1,
	})
}
