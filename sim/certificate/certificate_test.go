package certificate_test

import (
	"context"
	"fmt"
	"iter"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/muster-serve/muster/profiles/workload"
	"github.com/muster-serve/muster/sim"
	"github.com/muster-serve/muster/sim/certificate"
)

// The true share is within nearly all intervals, also where late queries come together.
func TestIntervalCovers(t *testing.T) {
	const records, minutes, perMinute = 100, 600, 200
	random := rand.New(rand.NewPCG(1, 2))
	for _, test := range []struct {
		name       string
		stay, late float64 // of a minute in trouble: that the next is too; share of its queries late
		enter      float64
		want       float64 // of the intervals
	}{
		{"independent", 0, .01, 1, .93},
		// Trouble lasts four minutes in the mean: 5 % of minutes, each 20 % late. An interval of
		// independent queries would cover .5 of them.
		{"in bursts", .75, .2, .0132, .85},
	} {
		p := test.enter / (test.enter + 1 - test.stay)
		truth := 1 - p*test.late
		covered := 0
		for record := range records {
			bins := make([]certificate.Bin, minutes)
			trouble := random.Float64() < p
			for i := range bins {
				bins[i] = certificate.Bin{Queries: perMinute, InTime: perMinute}
				for range perMinute {
					if trouble && random.Float64() < test.late {
						bins[i].InTime--
					}
				}
				if trouble {
					trouble = random.Float64() < test.stay
				} else {
					trouble = random.Float64() < test.enter
				}
			}
			if in := certificate.IntervalOf(bins, uint64(record)); in.Low <= truth && truth <= in.High {
				covered++
			}
		}
		if got := float64(covered) / records; got < test.want {
			t.Errorf("%s: %.3f of the intervals cover the share, want %.2f", test.name, got, test.want)
		}
	}
}

// Without a late query the interval still has a width: 0 of 1,000 says below 3.7 in a thousand.
func TestIntervalWithoutLate(t *testing.T) {
	bins := make([]certificate.Bin, 100)
	for i := range bins {
		bins[i] = certificate.Bin{Queries: 10, InTime: 10}
	}
	in := certificate.IntervalOf(bins, 1)
	if want := math.Pow(.025, 1./1000); in.Share != 1 || in.High != 1 ||
		math.Abs(in.Low-want) > 1e-9 {
		t.Errorf("%+v, want from %v to 1", in, want)
	}
	if in := certificate.IntervalOf(nil, 1); in.Low != 0 || in.High != 1 {
		t.Errorf("%+v of nothing, want 0 to 1", in)
	}
}

// No simulated fleet that keeps the share costs less than the bound, with a policy that splits and
// merges; some come near it.
func TestBoundHolds(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	source := sim.NewSource(nil)
	types := []string{"g4dn.xlarge", "r5n.large", "c5n.2xlarge"}
	prices := []float64{.526, .149, .432}
	nearest := math.Inf(1)
	kept := 0
	for problem := range 12 {
		name := []string{"rm2", "wnd", "ncf"}[problem%3]
		share := []float64{.9, .99}[random.IntN(2)]
		// A rate that some machines serve, which swings, and sizes of a random spread.
		rate, swing := math.Exp(random.Float64()*3)*map[string]float64{"rm2": 4, "wnd": 40,
			"ncf": 60}[name], random.Float64()
		var queries []certificate.Query
		trace := workload.NewQueryTrace("drawn")
		for at := 0.; len(queries) < 4000; {
			at += random.ExpFloat64() / (rate * (1 + swing*math.Sin(at/20)))
			rows := 1 + int(math.Min(700, math.Exp(random.NormFloat64()+3.5)))
			q := certificate.Query{At: time.Duration(at * 1e9), Rows: rows}
			queries = append(queries, q)
			trace.Add(workload.Query{At: q.At, Model: name, BatchSize: rows})
		}
		m, err := source.Model(name, types, trace.BatchSizes(name), 0)
		if err != nil {
			t.Fatal(err)
		}
		m.Splits, m.QoSShare = true, share
		d := certificate.Demand{Queries: queries, QoSTarget: m.QoSTarget, Share: share,
			Largest: 1000}
		for _, name := range types {
			d.Latencies = append(d.Latencies, m.Latencies[name].Mean)
		}
		bound := certificate.BoundOf([]certificate.Demand{d}, prices)
		for range 6 {
			pool, price := sim.Pool{}, 0.
			for i, name := range types {
				n := random.IntN(4)
				pool = append(pool, sim.Instances{Type: name, Count: n})
				price += float64(n) * prices[i]
			}
			if price == 0 {
				continue
			}
			r, err := sim.Run(context.Background(), &sim.Config{
				Models: []sim.Model{m}, Pool: pool, Rate: trace.Rate(), Queries: len(queries),
				Merge: "deadline",
				Stream: func(*sim.Config) (iter.Seq[workload.Query], error) {
					return trace.Queries(), nil
				},
			})
			if err != nil {
				t.Fatal(err)
			}
			if r.QoSSatisfaction < share {
				continue
			}
			kept++
			nearest = min(nearest, price/bound.PriceUSDPerHour)
			if price < bound.PriceUSDPerHour-1e-9 {
				t.Errorf("%s at %.3g/s: %s keeps %.4f for $%.3f, the bound is $%.3f", name, trace.Rate(),
					pool, r.QoSSatisfaction, price, bound.PriceUSDPerHour)
			}
		}
	}
	if kept < 20 || nearest > 1.6 {
		t.Errorf("%d fleets keep their share, the nearest for %.2f of the bound; the test shows "+
			"nothing", kept, nearest)
	}
	t.Logf("%d fleets keep their share, the nearest for %.2f of the bound", kept, nearest)
}

// By hand: two types, one query a second of 10 rows, which must be done one by one.
func TestBoundByHand(t *testing.T) {
	var queries []certificate.Query
	for i := range 600 {
		queries = append(queries, certificate.Query{At: time.Duration(i) * time.Second, Rows: 10})
	}
	each := func(d time.Duration) func(int) time.Duration {
		return func(rows int) time.Duration { return time.Duration(rows) * d }
	}
	d := certificate.Demand{Queries: queries, QoSTarget: 500 * time.Millisecond, Share: .99,
		Largest: 100, Latencies: []func(int) time.Duration{
			each(30 * time.Millisecond), nil, each(20 * time.Millisecond), each(time.Second)}}
	for _, test := range []struct {
		prices    []float64
		low, high float64
		of        int
	}{
		// 10 rows/s: one machine of the first type runs 33, of the third 50.
		{[]float64{1, .1, 3, .1}, 1, 1, 0},
		{[]float64{3, .1, 1, .1}, 1, 1, 2},
	} {
		b := certificate.BoundOf([]certificate.Demand{d}, test.prices)
		if b.PriceUSDPerHour < test.low-1e-9 || b.PriceUSDPerHour > test.high+1e-9 ||
			b.Type != test.of {
			t.Errorf("%v: %+v, want %v..%v of %d", test.prices, b, test.low, test.high, test.of)
		}
	}
	// Nothing is fast enough.
	d.QoSTarget = 5 * time.Millisecond
	if b := certificate.BoundOf([]certificate.Demand{d}, []float64{1, 1, 1, 1}); !math.IsInf(
		b.PriceUSDPerHour, 1) {
		t.Errorf("%+v, want none", b)
	}
	// Of two models, each adds the mean of what it takes: a third and a fifth of a machine.
	d.QoSTarget = 500 * time.Millisecond
	b := certificate.BoundOf([]certificate.Demand{d, d}, []float64{1, 1, 9, 1})
	if want := 2 * .99 * 10 / (100. / 3); math.Abs(b.PriceUSDPerHour-want) > .01 {
		t.Errorf("%+v, want %.3f", b, want)
	}
}

func ExampleIntervalOf() {
	in := certificate.IntervalOf([]certificate.Bin{{1000, 998}, {1000, 1000}, {1000, 990}}, 1)
	fmt.Printf("%.4f\n", in.Share)
	// Output: 0.9960
}
