package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/muster-serve/muster/cmd/muster/internal/load"
	"github.com/muster-serve/muster/cmd/muster/internal/misuse"
	"github.com/muster-serve/muster/cmd/muster/internal/plancmd"
	"github.com/muster-serve/muster/cmd/muster/internal/terminal"
	"github.com/muster-serve/muster/profiles/workload"
	"github.com/muster-serve/muster/sim"
	"github.com/muster-serve/muster/sim/certificate"
)

// errNotCertified ends a command whose fleet does not keep the target.
var errNotCertified = errors.New("not certified")

// liveError says how far live runs have been from simulated ones, as docs/internals/policies.md has
// it.
const liveError = "live agents have kept 99.1 % at .95 and 97.6 % at 1.05 of the rate at which " +
	"simulated ones keep 99 %"

// certifyOptions are the flags of `muster plan certify`.
type certifyOptions struct {
	simPoolOptions
	target    float64 // percent of queries within QoS, in (0, 100)
	catalogue string
}

// A certified is what a replay says of one model.
type certified struct {
	Model   string               `json:"model"`
	Queries int                  `json:"queries"`
	InTime  certificate.Interval `json:"in_time"`
	Holds   bool                 `json:"certified"`
}

// A certificateReport is what `muster plan certify` prints.
type certificateReport struct {
	Trace        string      `json:"trace"`
	Queries      int         `json:"queries"`
	Seconds      float64     `json:"seconds"`
	MeanRate     float64     `json:"mean_rate_qps"`
	BusiestRate  float64     `json:"busiest_rate_qps"` // of one bin
	BinSeconds   float64     `json:"bin_seconds"`
	Fleet        string      `json:"fleet"`
	Policy       string      `json:"policy"`
	Source       string      `json:"source"`
	Price        float64     `json:"price_usd_per_hour"`
	Target       float64     `json:"target"`
	Models       []certified `json:"models"`
	BoundPrice   *float64    `json:"bound_usd_per_hour"` // null: no fleet of these types can
	BoundOnlyFor string      `json:"bound_type,omitempty"`
	Holds        bool        `json:"certified"`
}

func newPlanCertifyCommand() *cobra.Command {
	var o certifyOptions
	cmd := &cobra.Command{
		Use:   "certify",
		Short: "Certify that a fleet keeps its QoS target on recorded queries",
		Long: `Replay recorded queries through the code of the production leader, in virtual time,
on a fleet of --pool, and say which share of them is in time, with a 95 % interval.
The fleet is certified if the whole interval of each model is at --target or above;
the command fails if it is not, so that CI can hold a fleet to its traffic.

It also prints a price below which no fleet that stays the same can keep the target,
however it distributes, splits or merges these queries.

` + latenciesHelp,
		Example: `  muster plan certify --from queries.jsonl --pool g4dn.xlarge=1,r5n.large=3
  muster plan certify --from queries.jsonl --pool g4dn.xlarge=2 --target 99.5 --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.certify(cmd) },
	}
	flags := cmd.Flags()
	o.addModels(flags)
	flags.StringVar(&o.pool, "pool", "", "instances, as TYPE=COUNT,TYPE=COUNT")
	flags.StringVar(&o.policy, "policy", "",
		"how queries are distributed (default "+sim.DefaultPolicy+")")
	flags.StringVar(&o.from, "from", "", load.FromHelp)
	flags.StringVar(&o.samples, "samples", "",
		"CSV file of measured latencies (model,instance_type,batch_size,sample_ms), which may be "+
			"gzipped, or \"published\" for those of the papers (default: the shipped profiles)")
	flags.Float64Var(&o.qosMS, "qos-ms", 0, "QoS target in ms, instead of the models' own")
	flags.Float64Var(&o.target, "target", 99,
		"percent of each model's queries that must meet their QoS target")
	flags.StringVar(&o.catalogue, "catalogue", "",
		"YAML file with more instance types and prices than the built-in ones")
	flags.Uint64Var(&o.seed, "seed", 1, "seed of the replay and of the interval")
	flags.BoolVar(&o.json, "json", false, "print as JSON")
	o.addConditions(flags)
	return cmd
}

// certify replays, prints the certificate, and fails if the fleet does not keep the target.
func (o *certifyOptions) certify(cmd *cobra.Command) error {
	o.seeds, o.queries, o.arrivals = 1, math.MaxInt32, load.Process
	switch {
	case o.from == "":
		return misuse.Errorf("from: give --from FILE, the recorded queries; \"muster bench --log\" " +
			"records some")
	case !(o.target > 0 && o.target < 100):
		return misuse.Errorf("target: %v %%, want within 0..100, such as 99", o.target)
	}
	r, err := o.openReplay()
	if err != nil {
		return misuse.Wrap(err)
	}
	line := terminal.NewStatusLine(cmd.ErrOrStderr())
	defer line.Done()
	if _, err := sim.RunSeeds(cmd.Context(), r.cfg, 1, func(arrived int) {
		line.Show("%d of %d queries", arrived, r.cfg.Queries)
	}); err != nil {
		return err
	}
	line.Done()
	report := o.makeReport(r)
	if o.json {
		err = terminal.PrintJSON(cmd.OutOrStdout(), report)
	} else {
		err = report.writeText(cmd.OutOrStdout())
	}
	if err == nil && !report.Holds {
		return errNotCertified
	}
	return err
}

// A replay is a simulation of recorded queries, and what it finds.
type replay struct {
	cfg     *sim.Config
	source  *sim.Source
	trace   *workload.QueryTrace
	price   float64
	demands []certificate.Demand // by model, on all types with profiles
	prices  []sim.Price          // of these types
	bin     time.Duration
	bins    [][]certificate.Bin // by model
}

// openReplay makes the replay that the flags describe.
func (o *certifyOptions) openReplay() (*replay, error) {
	r := &replay{}
	var err error
	if r.cfg, r.source, err = o.open(); err != nil {
		return nil, err
	}
	poolPrices, err := readPrices(o.catalogue, r.cfg.Pool.Types())
	if err != nil {
		return nil, err
	}
	r.price = r.cfg.Pool.Cost(poolPrices)
	if r.trace, err = load.OpenTrace(o.from, nil); err != nil {
		return nil, err
	}
	names := make([]string, len(r.cfg.Models))
	for i := range r.cfg.Models {
		names[i] = r.cfg.Models[i].Name
	}
	types := plancmd.ProfiledTypes(r.source, names)
	every, _, err := o.makeConfig(types)
	if err != nil {
		return nil, err
	}
	if r.prices, err = readPrices(o.catalogue, types); err != nil {
		return nil, err
	}
	r.observe(every, o.target/100)
	return r, r.cfg.Validate()
}

// observe has the simulation count into bins, and notes the demands. every is the configuration with
// all types.
func (r *replay) observe(every *sim.Config, share float64) {
	r.bin = certificate.BinLength(r.trace.Duration())
	n := int(r.trace.Duration()/r.bin) + 1
	indices := map[string]int{}
	for i := range r.cfg.Models {
		m := &r.cfg.Models[i]
		m.QoSShare = share
		indices[m.Name] = i
		d := certificate.Demand{
			QoSTarget: m.QoSTarget, Share: share, Largest: r.trace.Largest(m.Name),
		}
		for _, price := range r.prices {
			var mean func(int) time.Duration
			if l := every.Models[i].Latencies[price.Type]; l != nil {
				mean = l.Mean
			}
			d.Latencies = append(d.Latencies, mean)
		}
		r.demands = append(r.demands, d)
		r.bins = append(r.bins, make([]certificate.Bin, n))
	}
	start := time.Duration(-1)
	for q := range r.trace.Queries() {
		if start < 0 {
			start = q.At
		}
		if i, ok := indices[q.Model]; ok {
			r.demands[i].Queries = append(r.demands[i].Queries,
				certificate.Query{At: q.At, Rows: q.BatchSize})
		}
	}
	r.cfg.OnOutcome = func(model int, arrival time.Duration, inTime bool) {
		b := &r.bins[model][min(int(max(0, arrival-start)/r.bin), n-1)]
		b.Queries++
		if inTime {
			b.InTime++
		}
	}
}

// makeReport reports on a replay that has run.
func (o *certifyOptions) makeReport(r *replay) *certificateReport {
	report := &certificateReport{
		Trace: o.from, Queries: r.cfg.Queries, Seconds: r.trace.Duration().Seconds(),
		MeanRate: r.trace.Rate(), BinSeconds: r.bin.Seconds(), Fleet: r.cfg.Pool.String(),
		Policy: cmp.Or(o.policy, sim.DefaultPolicy), Source: r.source.String(), Price: r.price,
		Target: o.target / 100, Holds: true,
	}
	for i := range r.bins[0] {
		n := 0
		for _, bins := range r.bins {
			n += bins[i].Queries
		}
		report.BusiestRate = max(report.BusiestRate, float64(n)/r.bin.Seconds())
	}
	for i := range r.cfg.Models {
		c := certified{Model: r.cfg.Models[i].Name, Queries: len(r.demands[i].Queries),
			InTime: certificate.IntervalOf(r.bins[i], o.seed)}
		c.Holds = c.InTime.Low >= report.Target
		report.Holds = report.Holds && c.Holds
		report.Models = append(report.Models, c)
	}
	prices := make([]float64, len(r.prices))
	for i, price := range r.prices {
		prices[i] = price.PriceUSDPerHour
	}
	if b := certificate.BoundOf(r.demands, prices); !math.IsInf(b.PriceUSDPerHour, 1) {
		report.BoundPrice = &b.PriceUSDPerHour
		if b.Type >= 0 {
			report.BoundOnlyFor = r.prices[b.Type].Type
		}
	}
	return report
}

// writeText writes the report for people.
func (r *certificateReport) writeText(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "trace     %s: %d queries in %v, %.4g/s in the mean, %.4g/s in the busiest %v\n",
		r.Trace, r.Queries, seconds(r.Seconds), r.MeanRate, r.BusiestRate, seconds(r.BinSeconds))
	fmt.Fprintf(&b, "fleet     %s: $%.3f/hr, simulated under %s, %s\n", r.Fleet, r.Price, r.Policy,
		r.Source)
	for _, m := range r.Models {
		fmt.Fprintf(&b, "in time   %.3f %% of %d queries for %s, between %.3f and %.3f %% "+
			"(95 %% interval); wanted %.6g %%\n", 100*m.InTime.Share, m.Queries, m.Model,
			100*m.InTime.Low, 100*m.InTime.High, 100*r.Target)
	}
	fmt.Fprintf(&b, "live      %s\n", liveError)
	switch {
	case r.BoundPrice == nil:
		fmt.Fprintf(&b, "bound     no fleet of the types with profiles can keep %.6g %% of these queries in time\n",
			100*r.Target)
	default:
		fmt.Fprintf(&b, "bound     no fleet below $%.3f/hr that stays the same can keep %.6g %% of "+
			"these queries in time\n", *r.BoundPrice, 100*r.Target)
	}
	if r.Holds {
		fmt.Fprintf(&b, "\nCertified: %s keeps %.6g %% of these queries in time at $%.3f/hr.\n", r.Fleet,
			100*r.Target, r.Price)
	} else {
		fmt.Fprintf(&b, "\nNot certified: the interval of a model begins below %.6g %%. Add machines, "+
			"or find a fleet with \"muster plan --from %s --rate %.4g\".\n", 100*r.Target, r.Trace,
			r.MeanRate)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// seconds prints a time to the second.
func seconds(s float64) time.Duration {
	return time.Duration(s * float64(time.Second)).Round(time.Second)
}
