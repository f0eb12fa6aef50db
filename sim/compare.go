package sim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"runtime"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"

	"golang.org/x/sync/errgroup"

	"github.com/muster-serve/muster/profiles"
)

// A Price is the price of one instance of a type in $/hr, > 0.
type Price struct {
	Type            string
	PriceUSDPerHour float64
}

// PaperTypes are the instance types of KAIROS's experiments.
func PaperTypes() []string {
	return []string{
		"g4dn.xlarge", "c5n.2xlarge", "r5n.large", "t3.xlarge",
	}
}

// Prices looks up the prices of the types. The error for an unknown type lists the known ones.
func Prices(c *profiles.Catalogue, types []string) ([]Price, error) {
	prices := make([]Price, len(types))
	for i, t := range types {
		in, err := c.Lookup(profiles.InstanceType(t))
		if err != nil {
			return nil, err
		}
		prices[i] = Price{t, in.PriceUSDPerHour}
	}
	return prices, nil
}

// Cost is the price of the pool in $/hr; types without a price are free.
func (p Pool) Cost(prices []Price) float64 {
	var sum float64
	for _, in := range p {
		for _, price := range prices {
			if price.Type == in.Type {
				sum += float64(in.Count) * price.PriceUSDPerHour
			}
		}
	}
	return sum
}

// maxConfigurations bounds the configurations of a search.
const maxConfigurations = 1_000_000

// Configurations returns all pools within the budget, in $/hr, that have at least one instance of a
// base type, in the order of their counts.
func Configurations(models []Model, prices []Price, budget float64) ([]Pool, error) {
	if !(budget > 0) || math.IsInf(budget, 0) {
		return nil, fmt.Errorf("budget is %v $/hr, want above 0", budget)
	}
	total := 1.0
	for _, p := range prices {
		if !(p.PriceUSDPerHour > 0) {
			return nil, fmt.Errorf("price of %s is %v $/hr, want above 0", p.Type,
				p.PriceUSDPerHour)
		}
		total *= 1 + math.Floor(budget/p.PriceUSDPerHour)
	}
	if total > 100*maxConfigurations {
		return nil, fmt.Errorf("budget of %v $/hr allows about %.0g pools, too many to search",
			budget, total)
	}
	var all []Pool
	pool := make(Pool, len(prices))
	var add func(i int, left float64)
	add = func(i int, left float64) {
		if i == len(prices) {
			if slices.ContainsFunc(pool,
				func(in Instances) bool { return in.Count > 0 && isBase(models, in.Type) }) {
				all = append(all, slices.Clone(pool))
			}
			return
		}
		pool[i].Type = prices[i].Type
		const rounding = 1e-9 // rounding error of a sum of prices, $/hr
		for pool[i].Count = 0; left > -rounding; pool[i].Count++ {
			add(i+1, left)
			left -= prices[i].PriceUSDPerHour
		}
		pool[i].Count = 0
	}
	add(0, budget)
	if len(all) == 0 {
		return nil, fmt.Errorf(
			"no pool within %v $/hr has an instance that serves every query of %s within its QoS "+
				"target", budget, modelNames(models))
	}
	return all, nil
}

func modelNames(models []Model) string {
	s := ""
	for i, m := range models {
		if i > 0 {
			s += ", "
		}
		s += m.Name
	}
	return s
}

// BestPool returns the pool with the highest allowable throughput for cfg.Policy among pools. It
// does not read cfg.Pool and cfg.Rate. With one seed it tries the pools by falling fluid limit; it
// skips those whose limit is no higher than the best throughput so far, and rejects others by one
// probe just above it. It measures the last few pools that were each the best so far with all
// seeds, and returns the best of them. progress, if not nil, is called with the number of pools
// done.
func BestPool(ctx context.Context, cfg *Config, pools []Pool, seeds int,
	progress func(done, of int)) (Pool, *Throughput, error) {
	type candidate struct {
		pool      Pool
		limit     float64
		threshold int
	}
	candidates := make([]candidate, len(pools))
	for i, pool := range pools {
		limit, err := FluidLimit(cfg.Models, pool)
		if err != nil {
			return nil, nil, err
		}
		candidates[i] = candidate{pool: pool, limit: roundTo(limit.Rate, 6)}
	}
	slices.SortStableFunc(candidates,
		func(a, b candidate) int { return cmp.Compare(b.limit, a.limit) })
	var best float64
	var final []candidate
	for i, c := range candidates {
		if progress != nil {
			progress(i, len(candidates))
		}
		if c.limit <= best && cfg.Policy != Oracle {
			break // the limits of all pools after it are no higher
		}
		one := *cfg
		one.Pool = c.pool
		s, err := newRateSearch(&one)
		if err != nil {
			return nil, nil, err
		}
		var rate float64
		if cfg.tunes() {
			rate, err = s.tuneThreshold(ctx, best)
		} else {
			rate, err = s.find(ctx, cfg.Seed, best)
		}
		if err != nil {
			return nil, nil, fmt.Errorf("pool %s: %w", c.pool, err)
		}
		if rate > best {
			best = rate
			c.threshold = s.cfg.Threshold
			final = append(final, c)
		}
	}
	if progress != nil {
		progress(len(candidates), len(candidates))
	}
	if len(final) == 0 {
		return nil, nil, errors.New("no pool meets the QoS target at any rate")
	}
	const finalists = 3
	var pool Pool
	var throughput *Throughput
	for _, c := range final[max(0, len(final)-finalists):] {
		one := *cfg
		one.Pool, one.Threshold = c.pool, c.threshold
		t, err := FindThroughput(ctx, &one, seeds, nil)
		if err != nil {
			return nil, nil, err
		}
		if throughput == nil || t.Rate > throughput.Rate {
			pool, throughput = c.pool, t
		}
	}
	return pool, throughput, nil
}

// An Entry is the throughput of one policy on one pool.
type Entry struct {
	Policy          string  `json:"policy"`
	Pool            string  `json:"pool"`
	PriceUSDPerHour float64 `json:"price_usd_per_hour"`
	*Throughput
	// Ratio is the throughput divided by the homogeneous pool's, scaled to the budget.
	Ratio float64 `json:"ratio_to_homogeneous"`
}

// A Comparison compares policies for one model.
type Comparison struct {
	Model string `json:"model"`
	// Source says where the latencies come from.
	Source string  `json:"source"`
	Budget float64 `json:"budget_usd_per_hour"`
	// Homogeneous is the best pool of one base type alone under fcfs. HomogeneousScaled is its
	// throughput times budget / price, as in KAIROS's comparisons.
	Homogeneous       Entry   `json:"homogeneous"`
	HomogeneousScaled float64 `json:"homogeneous_scaled_qps"`
	Policies          []Entry `json:"policies"`
	// Notes say where the policies are not compared on equal terms.
	Notes []string `json:"notes,omitempty"`
}

// Compare finds each policy's allowable throughput: on pool, or, if pool is nil, on the policy's
// best pool within the budget. The policies are simulated concurrently. progress, if not nil, is
// called with the progress of each policy's search, one call at a time.
func Compare(ctx context.Context, cfg *Config, policies []string, prices []Price, budget float64,
	pool Pool, seeds int, progress func(policy string, done, of int)) (*Comparison, error) {
	all, err := Configurations(cfg.Models, prices, budget)
	if err != nil {
		return nil, err
	}
	homogeneous, err := bestHomogeneous(ctx, cfg, prices, budget, seeds)
	if err != nil {
		return nil, err
	}
	c := &Comparison{
		Model:             modelNames(cfg.Models),
		Budget:            budget,
		Homogeneous:       homogeneous,
		HomogeneousScaled: roundTo(homogeneous.Rate*budget/homogeneous.PriceUSDPerHour, 6),
		Policies:          make([]Entry, len(policies)),
	}
	if slices.Contains(policies, Oracle) {
		c.Notes = append(c.Notes,
			"the oracle is that of KAIROS's paper: it runs whole queries one by "+
				"one, the largest first on base types and the smallest first on others. It is no bound: "+
				"other policies may exceed it, above all where they split or merge queries")
	}
	c.Homogeneous.Ratio = roundTo(homogeneous.Rate/c.HomogeneousScaled, 6)
	candidates := all
	if pool != nil {
		candidates = []Pool{pool}
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(runtime.GOMAXPROCS(0))
	var mu sync.Mutex // guards progress
	for i, policy := range policies {
		g.Go(func() error {
			one := *cfg
			one.Policy = policy
			best, t, err := BestPool(ctx, &one, candidates, seeds, func(done, of int) {
				if progress != nil {
					mu.Lock()
					defer mu.Unlock()
					progress(policy, done, of)
				}
			})
			if err != nil {
				return fmt.Errorf("policy %s: %w", policy, err)
			}
			c.Policies[i] = Entry{
				policy, best.String(), roundTo(best.Cost(prices), 6), t,
				roundTo(t.Rate/c.HomogeneousScaled, 6),
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	return c, nil
}

// bestHomogeneous returns the best pool of one base type alone, with as many instances as the
// budget buys, by throughput scaled to the budget.
func bestHomogeneous(ctx context.Context, cfg *Config, prices []Price, budget float64,
	seeds int) (Entry, error) {
	var best Entry
	for _, p := range prices {
		pool := Pool{{p.Type, int(math.Floor(budget/p.PriceUSDPerHour + 1e-9))}}
		if !isBase(cfg.Models, p.Type) || pool.Count() == 0 {
			continue
		}
		one := *cfg
		one.Policy, one.Pool = "fcfs", pool
		t, err := FindThroughput(ctx, &one, seeds, nil)
		if err != nil {
			return Entry{}, fmt.Errorf("homogeneous pool %s: %w", pool, err)
		}
		cost := roundTo(pool.Cost(prices), 6)
		if best.Throughput == nil || t.Rate/cost > best.Rate/best.PriceUSDPerHour {
			best = Entry{Policy: "fcfs", Pool: pool.String(), PriceUSDPerHour: cost, Throughput: t}
		}
	}
	if best.Throughput == nil || best.Rate == 0 {
		return Entry{}, fmt.Errorf("no homogeneous pool within %v $/hr meets the QoS target",
			budget)
	}
	return best, nil
}

// WriteText writes the comparison for people.
func (c *Comparison) WriteText(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s within %v $/hr, %s\n", c.Model, c.Budget, c.Source)
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "policy\tqueries/s\tstd err\tof fluid limit\tratio\t$/hr\tpool")
	fmt.Fprintf(t, "homogeneous\t%.2f\t%.2f\t%.1f %%\t%.3f\t%.3f\t%s\n", c.Homogeneous.Rate,
		c.Homogeneous.StandardError, 100*c.Homogeneous.Share, c.Homogeneous.Ratio,
		c.Homogeneous.PriceUSDPerHour, c.Homogeneous.Pool)
	fmt.Fprintf(t, "  scaled to budget\t%.2f\t\t\t1.000\t%.3f\t\n", c.HomogeneousScaled, c.Budget)
	for _, e := range c.Policies {
		fmt.Fprintf(t, "%s\t%.2f\t%.2f\t%.1f %%\t%.3f\t%.3f\t%s\n", e.Policy, e.Rate,
			e.StandardError, 100*e.Share, e.Ratio, e.PriceUSDPerHour, e.Pool)
	}
	t.Flush()
	for _, note := range c.Notes {
		fmt.Fprintf(&b, "Note: %s.\n", note)
	}
	b.WriteByte('\n')
	_, err := io.WriteString(w, b.String())
	return err
}
