package plan

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// DefaultTop is how many plans a planner returns if its field Top is 0.
const DefaultTop = 10

func topOr(n int) int {
	if n <= 0 {
		return DefaultTop
	}
	return n
}

// A boundedConfiguration configuration is one with an upper bound on its throughput, queries/s.
type boundedConfiguration struct {
	c            Configuration
	price, bound float64
}

// roundBound rounds a bound before it is compared, because processors differ in the last digits.
func roundBound(x float64) float64 { return math.Round(x*1e6) / 1e6 }

// byBound orders by falling bound, and equal bounds by rising price.
func byBound(a, b boundedConfiguration) int {
	return cmp.Or(cmp.Compare(b.bound, a.bound), cmp.Compare(a.price, b.price),
		slices.Compare(a.c, b.c))
}

// byPrice orders by rising price, and equal prices by falling bound.
func byPrice(a, b boundedConfiguration) int {
	return cmp.Or(cmp.Compare(a.price, b.price), cmp.Compare(b.bound, a.bound),
		slices.Compare(a.c, b.c))
}

// A relaxation bounds the fluid limits of many configurations by solving the program of a few. The
// feasible region of the dual program does not depend on the counts, so the prices y of one solved
// configuration bound the limit of every configuration c: limit(c) <= sum of c_i y_i.
type relaxation struct {
	a     *Analysis
	limit []float64 // by configuration: its fluid limit if solved, else a bound on it
	done  []bool
	space []Configuration
	// configurations that next has solved and not returned, by falling limit
	found []boundedConfiguration
}

func newRelaxation(a *Analysis, space []Configuration) *relaxation {
	r := &relaxation{
		a: a, space: space, limit: make([]float64, len(space)), done: make([]bool, len(space)),
	}
	for i := range r.limit {
		r.limit[i] = math.Inf(1)
	}
	return r
}

// solveFluidLimit finds the fluid limit of configuration i and lowers the bounds of all.
func (r *relaxation) solveFluidLimit(i int) (float64, error) {
	if r.done[i] {
		return r.limit[i], nil
	}
	sol, err := r.a.Fluid(r.space[i])
	if err != nil {
		return 0, fmt.Errorf("fluid limit of %s: %w", r.a.Problem.Name(r.space[i]), err)
	}
	r.limit[i], r.done[i] = roundBound(sol.Rate), true
	if sol.Rate == 0 {
		return 0, nil // it has no prices
	}
	y := make([]float64, len(sol.Prices))
	for t, p := range sol.Prices {
		y[t] = 1000 * p.PerMs
	}
	for j, c := range r.space {
		if r.done[j] {
			continue
		}
		bound := 0.0
		for t, n := range c {
			bound += y[t] * float64(n)
		}
		r.limit[j] = min(r.limit[j], bound*(1+1e-9)+1e-6) // rounding errors, and digits
	}
	return r.limit[i], nil
}

// next returns the configuration with the next lower fluid limit at each call, and a nil one after
// the last.
func (r *relaxation) next() (boundedConfiguration, error) {
	for {
		best := -1
		for i := range r.space {
			if !r.done[i] && (best < 0 || r.limit[i] > r.limit[best]) {
				best = i
			}
		}
		if len(r.found) > 0 && (best < 0 || r.found[0].bound > r.limit[best]) {
			b := r.found[0]
			r.found = r.found[1:]
			return b, nil
		}
		if best < 0 {
			return boundedConfiguration{}, nil
		}
		limit, err := r.solveFluidLimit(best)
		if err != nil {
			return boundedConfiguration{}, err
		}
		b := boundedConfiguration{r.space[best], r.a.Problem.Price(r.space[best]), limit}
		at, _ := slices.BinarySearchFunc(r.found, b, byBound)
		r.found = slices.Insert(r.found, at, b)
	}
}

// highestLimits returns the n configurations of the highest fluid limits, the best first.
func (r *relaxation) highestLimits(n int) ([]boundedConfiguration, error) {
	var highest []boundedConfiguration
	for len(highest) < n {
		b, err := r.next()
		if err != nil {
			return nil, err
		}
		if b.c == nil {
			break
		}
		highest = append(highest, b)
	}
	return highest, nil
}

// byPrice returns the indices of the configurations by rising price, and the price of each
// configuration.
func (r *relaxation) byPrice() (order []int, price []float64) {
	price = make([]float64, len(r.space))
	order = make([]int, len(r.space))
	for i, c := range r.space {
		price[i], order[i] = roundBound(r.a.Problem.Price(c)), i
	}
	slices.SortFunc(
		order, func(i, j int) int { return cmp.Or(cmp.Compare(price[i], price[j]), i-j) })
	return order, price
}

// cheapestReaching returns the n cheapest configurations with a fluid limit of at least what is
// needed of them; of equally cheap ones, those of the highest limit.
func (r *relaxation) cheapestReaching(n int,
	needed func(Configuration) float64) ([]boundedConfiguration, error) {
	order, price := r.byPrice()
	var found []boundedConfiguration
	for _, i := range order {
		if len(found) >= n && price[i] > found[len(found)-1].price {
			break
		}
		need := roundBound(needed(r.space[i])) // as limits are
		if r.limit[i] < need {
			continue
		}
		limit, err := r.solveFluidLimit(i)
		if err != nil {
			return nil, err
		}
		if limit >= need {
			found = append(found, boundedConfiguration{r.space[i], price[i], limit})
		}
	}
	slices.SortFunc(found, byPrice)
	return found[:min(n, len(found))], nil
}

// priceFrontier returns, by rising price, the configurations whose fluid limit is at least need and
// higher than that of all cheaper ones.
func (r *relaxation) priceFrontier(need float64) ([]boundedConfiguration, error) {
	order, price := r.byPrice()
	var frontier []boundedConfiguration
	highest := math.Nextafter(need, 0)
	for _, i := range order {
		if r.limit[i] <= highest {
			continue
		}
		limit, err := r.solveFluidLimit(i)
		if err != nil {
			return nil, err
		}
		if limit > highest {
			highest = limit
			b := boundedConfiguration{r.space[i], price[i], limit}
			if n := len(frontier); n > 0 && frontier[n-1].price == price[i] {
				frontier[n-1] = b
			} else {
				frontier = append(frontier, b)
			}
		}
	}
	return frontier, nil
}
