package certificate

import (
	"math"
	"slices"
	"sort"
	"time"
)

// A Demand is what is asked of a fleet for one model.
type Demand struct {
	// Queries are in the order of their arrival.
	Queries   []Query
	QoSTarget time.Duration
	// Share is the share of the queries that must be in time, in (0, 1).
	Share float64
	// Largest is the largest batch size of a run, >= 1.
	Largest int
	// Latencies are, by type, the mean latency by batch size; nil where the type cannot run the
	// model.
	Latencies []func(batchSize int) time.Duration
}

// A Query has the rows of one query and its arrival, since the start of the record.
type Query struct {
	At   time.Duration
	Rows int
}

// A Bound is a price below which no fleet that stays the same can keep the demands' shares, in $/hr.
// Type is the type that would do so at this price; -1 if it takes several, or none can.
type Bound struct {
	PriceUSDPerHour float64
	Type            int
}

// BoundOf returns the bound for the demands on types of these prices, in $/hr; +Inf if no fleet can.
//
// It holds for every way to distribute, split and merge queries. A run of B rows that is in time has
// a latency L(B) of at most the target, and its rows have arrived within target - L(B) before it
// began, so that B is at most the rows that ever arrive in so short a time. A machine thus runs
// B/L(B) rows a second at best, of all such B. Of one model, a fleet whose machines together run C
// rows a second has at most as many queries of a stretch of time in time as have, the smallest
// first, no more rows than it runs in the stretch and one target more. The bound is the price of the
// smallest C with which enough are, on whole machines. Several models share machines from moment to
// moment, and so their bound is the sum of what each takes in the mean of the record.
func BoundOf(demands []Demand, pricesUSDPerHour []float64) Bound {
	if len(demands) == 1 {
		d := &demands[0]
		rates := d.bestRates()
		return cheapest(d.neededRate(BinLength(d.length())), rates, pricesUSDPerHour)
	}
	sum := Bound{Type: -1}
	for i := range demands {
		d := &demands[i]
		rates, need, best := d.bestRates(), d.neededRate(d.length()), math.Inf(1)
		for t, rate := range rates {
			if rate > 0 {
				best = min(best, need/rate*pricesUSDPerHour[t])
			}
		}
		sum.PriceUSDPerHour += best
	}
	return sum
}

// length is the time from the first arrival to the last.
func (d *Demand) length() time.Duration {
	if len(d.Queries) == 0 {
		return 0
	}
	return d.Queries[len(d.Queries)-1].At - d.Queries[0].At
}

// bestRates returns, by type, how many rows a second a machine runs at best; 0 if it runs none in
// time.
func (d *Demand) bestRates() []float64 {
	rates := make([]float64, len(d.Latencies))
	for t, latency := range d.Latencies {
		if latency == nil {
			continue
		}
		// As a run grows, it leaves less time for its rows to arrive in: above the largest run that
		// can be full, none can.
		full := sort.Search(d.Largest, func(i int) bool {
			left := d.QoSTarget - latency(i+1)
			return left < 0 || d.mostRowsWithin(left) < i+1
		})
		for rows := 1; rows <= full; rows++ {
			if l := latency(rows); l > 0 {
				rates[t] = max(rates[t], float64(rows)/l.Seconds())
			}
		}
	}
	return rates
}

// mostRowsWithin returns the most rows that arrive within a time.
func (d *Demand) mostRowsWithin(window time.Duration) (most int) {
	first, rows := 0, 0
	for _, q := range d.Queries {
		rows += q.Rows
		for q.At-d.Queries[first].At > window {
			rows -= d.Queries[first].Rows
			first++
		}
		most = max(most, rows)
	}
	return most
}

// neededRate returns the smallest rate in rows a second, with which enough queries can be in time,
// by stretches of this length.
func (d *Demand) neededRate(stretch time.Duration) float64 {
	if len(d.Queries) == 0 {
		return 0
	}
	// The rows of the queries of each stretch, the smallest first.
	var stretches [][]int
	start := d.Queries[0].At
	for _, q := range d.Queries {
		i := 0
		if stretch > 0 {
			i = int((q.At - start) / stretch)
		}
		for len(stretches) <= i {
			stretches = append(stretches, nil)
		}
		stretches[i] = append(stretches[i], q.Rows)
	}
	for _, s := range stretches {
		slices.Sort(s)
		for i := 1; i < len(s); i++ {
			s[i] += s[i-1]
		}
	}
	seconds := (stretch + d.QoSTarget).Seconds()
	wanted := int(math.Ceil(d.Share * float64(len(d.Queries))))
	reaches := func(rate float64) bool {
		n := 0
		for _, s := range stretches {
			n += sort.Search(len(s), func(i int) bool { return float64(s[i]) > rate*seconds })
		}
		return n >= wanted
	}
	low, high := 0.0, 1.0
	for !reaches(high) {
		low, high = high, 2*high
	}
	// 50 halvings leave less than the error of a float64.
	for range 50 {
		if middle := (low + high) / 2; reaches(middle) {
			high = middle
		} else {
			low = middle
		}
	}
	return low
}

// millsExact is the price in 1/1000 $/hr up to which whole machines are counted; above, a part of a
// machine no longer matters.
const millsExact = 100_000

// cheapest returns the lowest price of whole machines that together run as many rows a second.
func cheapest(need float64, rates, prices []float64) Bound {
	b := Bound{math.Inf(1), -1}
	for t, rate := range rates {
		if rate > 0 && need/rate*prices[t] < b.PriceUSDPerHour {
			b = Bound{need / rate * prices[t], t}
		}
	}
	if need == 0 || b.PriceUSDPerHour*1000 >= millsExact {
		return b
	}
	// most[p] is the highest rate for p mills. Prices are rounded down, so that it stays a bound.
	limit := 0
	mills := make([]int, len(prices))
	for t, price := range prices {
		mills[t] = max(1, int(price*1000))
		if rates[t] > 0 {
			limit = max(limit, mills[t])
		}
	}
	limit += int(b.PriceUSDPerHour * 1000)
	most, one := make([]float64, limit+1), make([]int, limit+1)
	for p := range most {
		one[p] = -2 // no machine
		for t, rate := range rates {
			if rate > 0 && p >= mills[t] && most[p-mills[t]]+rate > most[p] {
				most[p] = most[p-mills[t]] + rate
				if before := one[p-mills[t]]; before == -2 || before == t {
					one[p] = t
				} else {
					one[p] = -1
				}
			}
		}
		if most[p] >= need {
			return Bound{max(b.PriceUSDPerHour, float64(p)/1000), one[p]}
		}
	}
	return b
}
