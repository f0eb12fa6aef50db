package sim

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"iter"
	"strings"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/match"
	"github.com/muster-serve/muster/profiles/work"
	"github.com/muster-serve/muster/profiles/workload"
	"github.com/muster-serve/muster/runtime/queue/merge"
	"github.com/muster-serve/muster/sim/colocate"
	"github.com/muster-serve/muster/sim/fleet"
	"github.com/muster-serve/muster/sim/placement"
	"github.com/muster-serve/muster/sim/renting"
)

// A Model is a model for which queries arrive.
type Model struct {
	Name string
	// QoSTarget is the latency within which a query should be answered, > 0.
	QoSTarget time.Duration
	// QoSShare is the share of the model's queries that must meet the QoS target, in (0, 1); 0
	// means 0.99.
	QoSShare float64
	// Weight is the model's part of the arrivals, relative to the weights of the other models; 0
	// means 1.
	Weight float64
	// BatchSizes is the distribution of the batch sizes of its queries.
	BatchSizes *workload.BatchSizes
	// LargestRun is the largest batch size of queries that run merged; 0 means 1000.
	LargestRun int
	// Latencies are the execution latencies by instance type, for all types of the pool on which
	// the model can run.
	Latencies map[string]match.Latencies
	// Known are the latencies that the policy assumes; nil means that it knows Latencies.
	Known map[string]match.Latencies
	// Law says how many rows a user and a value of a query take as long as in Latencies, and the policy
	// knows it; the zero Law: rows alone.
	Law work.Law
	// RejectLate says to reject queries that no type can serve in time any more, and queries that
	// become late while they wait at a lane.
	RejectLate bool
	// Splits says that a query may run as several parts. Only the policy horizon splits queries.
	Splits bool
	// Variants, if there are any, make this a family: each may answer its queries. Then Latencies
	// and Known are those of the fastest, as [Model.SetVariants] sets them.
	Variants []Variant
	// TargetAccuracy is the mean accuracy of the answers for which machines are rented, where what
	// they hold is placed; 0: that of the best variant.
	TargetAccuracy float64
}

// Instances is a number of instances of one type in a pool.
type Instances struct {
	Type  string
	Count int
}

// A Pool is a configuration: the number of instances of each type.
type Pool []Instances

func (p Pool) String() string {
	var b strings.Builder
	for _, in := range p {
		if in.Count > 0 {
			if b.Len() > 0 {
				b.WriteByte(',')
			}
			fmt.Fprintf(&b, "%s=%d", in.Type, in.Count)
		}
	}
	return b.String()
}

// Count is the number of instances of all types.
func (p Pool) Count() int {
	n := 0
	for _, in := range p {
		n += in.Count
	}
	return n
}

// MaxInstances bounds the size of a simulated pool.
const MaxInstances = 100_000

// A Config describes one run. A run only reads it, so concurrent runs may share one.
type Config struct {
	Models []Model
	Pool   Pool
	// Holds says which models instances hold; instances that it does not list hold all.
	Holds []HeldModels
	// Placement, if not nil, is how the models that instances hold are decided while queries
	// arrive; Holds are those at the start.
	Placement *placement.Config
	// Renting, if not nil, is how machines are rented and returned while queries arrive: Pool is
	// then the most that there may be of each type, and Kept those that are there from the start
	// and stay, whose agents alone may lead.
	Renting *renting.Config
	Kept    Pool
	// Bind is how a query for a family is bound to a variant: by the policy when it starts
	// ("matcher", or ""), or drawn at its gateway when it arrives ("drawn"), in proportion to the
	// fluid limits of the instances that hold the variants.
	Bind string
	// Policy is one of [Policies], or the name of one of Others; "" means [DefaultPolicy].
	Policy string
	// Others are policies from outside of production that Policy may name, too.
	Others []Policy
	// Threshold is the parameter of a policy of Others that has one. If it is 0, [FindThroughput]
	// searches for the best value.
	Threshold int
	// Rate is the mean arrival rate of all models together in queries/s.
	Rate float64
	// Stream makes the stream of arriving queries, in order, at the mean rate Rate. nil means
	// Poisson arrivals for the models by their weights. The stream may end before Queries queries
	// have arrived.
	Stream func(c *Config) (iter.Seq[workload.Query], error)
	// Queries is the number of queries that arrive, >= 1.
	Queries int
	// Seed seeds all randomness of the run.
	Seed uint64
	// PredictionNoise is the standard deviation of a Gaussian error of prediction (KAIROS, Fig.
	// 16b): the latency that the policy knows at each batch size on each type is multiplied by 1 +
	// PredictionNoise*N(0, 1). The true latency does not change.
	PredictionNoise float64
	// LatencyNoise is the standard deviation of a Gaussian noise of the true latency: each service
	// time is multiplied by 1 + LatencyNoise*N(0, 1), which the policy cannot predict.
	LatencyNoise float64
	// RTT is the network's round trip between any two machines. The submit to the leader, the
	// assignment back, the payload to the worker and the answer back take half a round trip each.
	// The leader hears of a completion half a round trip after it.
	RTT time.Duration
	// Jitter is how much longer, in the mean, the payload's way takes than half a round trip, with
	// an exponential distribution.
	Jitter time.Duration
	// Merge is how lanes run several waiting queries as one, and the leader gives them such. ""
	// means each query alone.
	Merge names.MergePolicy
	// Sharing, if not nil, says which instances are lanes of one machine, where runs slow each
	// other down. The policy knows what it is told by [Model.Known].
	Sharing *colocate.Sharing
	// Deadline is how long after its arrival a query is dropped; 0 means never. A lane refuses a
	// query that it would start later.
	Deadline time.Duration

	// Faults are the faults of the run. If there are any, elections are simulated, too, and
	// gateways that go on without a leader.
	Faults []fleet.Fault
	// Gateways is the number of gateways, which share the queries equally; 0 means 4.
	Gateways int

	// GossipDelay and Probes count only for the policy priced, and with faults.

	// GossipDelay is the time between two reports of a lane's load to the gateways, and so the age
	// that their view may have; 0 means that the view is always up to date.
	GossipDelay time.Duration
	// Probes is how many lanes a gateway compares for a query; it asks at most twice as many in
	// all. 0 means inquire.DefaultProbes; a negative value means that it asks none.
	Probes int

	// Log, if not nil, receives a CSV line for each query when its outcome is known.
	Log io.Writer
	// OnOutcome, if not nil, is called when the outcome of a query is known, with its model's index
	// in Models, when it arrived, and whether it was in time.
	OnOutcome func(model int, arrival time.Duration, inTime bool)
	// Record, if not nil, receives a recording of the leaders' events and actions, in the form of
	// [leader.Recorder].
	Record io.Writer
	// Clock, if not nil, is a wall clock, with which the run measures Result.DecisionCost.
	Clock func() time.Duration
	// Progress, if not nil, is called from time to time with the number of queries that have
	// arrived.
	Progress func(arrived int)
}

// MaxRate bounds [Config.Rate], in queries/s; it is the fastest rate of package workload.
const MaxRate = 1e6

// Validate reports everything that is wrong with c, or nil.
func (c *Config) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if err := c.validatePolicy(); err != nil {
		errs = append(errs, err)
	}
	if !(c.Rate > 0 && c.Rate <= MaxRate) {
		bad("rate is %v queries/s, want above 0 and up to %v", c.Rate, float64(MaxRate))
	}
	if c.Queries < 1 {
		bad("number of queries is %d, want at least 1", c.Queries)
	}
	if !(c.LatencyNoise >= 0 && c.LatencyNoise <= 1) {
		bad("latency noise is %v, want a standard deviation in 0..1", c.LatencyNoise)
	}
	if !(c.PredictionNoise >= 0 && c.PredictionNoise <= 1) {
		bad("prediction noise is %v, want a standard deviation in 0..1", c.PredictionNoise)
	}
	for name, d := range map[string]time.Duration{
		"round trip": c.RTT, "jitter": c.Jitter, "gossip delay": c.GossipDelay,
		"deadline": c.Deadline,
	} {
		if d < 0 || d > MaxLatency {
			bad("%s is %v, want 0..%v", name, d, MaxLatency)
		}
	}
	if c.Merge != "" {
		if err := c.Merge.Check(); err != nil {
			errs = append(errs, err)
		}
	}
	if c.Gateways < 0 || c.Gateways > 10_000 {
		bad("number of gateways is %d, want 0..10000", c.Gateways)
	}
	errs = append(errs, c.validatePool()...)
	errs = append(errs, c.validateModels()...)
	errs = append(errs, c.validateFaults()...)
	errs = append(errs, c.validateFamilies()...)
	errs = append(errs, c.validatePlacement()...)
	errs = append(errs, c.validateRenting()...)
	return errors.Join(errs...)
}

func (c *Config) validatePool() (errs []error) {
	seen := map[string]bool{}
	for _, in := range c.Pool {
		if in.Count < 0 {
			errs = append(errs,
				fmt.Errorf("pool: %s has %d instances, want 0 or more", in.Type, in.Count))
		}
		if seen[in.Type] {
			errs = append(errs, fmt.Errorf("pool: %s is named twice", in.Type))
		}
		seen[in.Type] = true
	}
	if n := c.Pool.Count(); n < 1 || n > MaxInstances {
		errs = append(errs, fmt.Errorf("pool has %d instances, want 1..%d", n, MaxInstances))
	}
	return errs
}

func (c *Config) validateModels() (errs []error) {
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if len(c.Models) == 0 {
		bad("no models")
	}
	for _, m := range c.Models {
		if m.QoSTarget <= 0 || m.QoSTarget > MaxLatency {
			bad("model %s: QoS target is %v, want above 0 and up to %v", m.Name, m.QoSTarget,
				MaxLatency)
		}
		if !(m.QoSShare >= 0 && m.QoSShare < 1) {
			bad("model %s: QoS share is %v, want in (0, 1)", m.Name, m.QoSShare)
		}
		if !(m.Weight >= 0 && m.Weight <= 1e9) {
			bad("model %s: weight is %v, want 0..1e9", m.Name, m.Weight)
		}
		if m.BatchSizes == nil {
			bad("model %s: no batch sizes", m.Name)
		}
		if m.BatchSizes != nil && m.BatchSizes.Largest() > match.MaxBatchSize {
			bad("model %s: largest batch size is %d, want 1..%d", m.Name, m.BatchSizes.Largest(),
				match.MaxBatchSize)
		}
		runs := false
		for _, in := range c.Pool {
			runs = runs || in.Count > 0 && m.Latencies[in.Type] != nil
		}
		if !runs {
			bad("model %s: no instance of the pool %s can run it", m.Name, c.Pool)
		}
	}
	return errs
}

func (c *Config) gatewaysOrDefault() int { return cmp.Or(c.Gateways, 4) }

// defaultLargest is the largest batch size of a model that does not say another.
const defaultLargest = 1000

// largestRun is the largest batch size of a run: that of a query, unless queries are merged.
func (c *Config) largestRun(m *Model) int {
	if c.Merge.Merges() {
		return max(m.BatchSizes.Largest(), cmp.Or(m.LargestRun, defaultLargest))
	}
	return m.BatchSizes.Largest()
}

// mergeKinds returns, by model, what the queries share that one lane may merge.
func (c *Config) mergeKinds(predicted []*match.LatencyTable) []*merge.Kind {
	kinds := make([]*merge.Kind, len(predicted))
	for i, table := range predicted {
		if c.Merge.Merges() && table != nil {
			kinds[i] = &merge.Kind{Policy: c.Merge, Latency: table, Largest: table.Largest()}
		}
	}
	return kinds
}

func (m *Model) assumedLatencies(instanceType string) match.Latencies {
	if m.Known != nil {
		return m.Known[instanceType]
	}
	return m.Latencies[instanceType]
}

func (m *Model) qosShare() float64 {
	if m.QoSShare == 0 {
		return 0.99
	}
	return m.QoSShare
}

func (m *Model) weightOrDefault() float64 {
	if m.Weight == 0 {
		return 1
	}
	return m.Weight
}

// queryStream returns the stream of arriving queries.
func (c *Config) queryStream() (iter.Seq[workload.Query], error) {
	if c.Stream != nil {
		return c.Stream(c)
	}
	return StreamOf("poisson")(c)
}

// MaxLatency bounds all durations of a Config.
const MaxLatency = time.Hour
