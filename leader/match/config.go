package match

import (
	"errors"
	"fmt"
	"time"

	"github.com/muster-serve/muster/api/names"
)

// A Model describes a model to the matcher.
type Model struct {
	Name names.ModelKey
	// Family is the name of the model's family, which queries may ask for instead of the model; ""
	// if they may not. No model may have a family's name. The models of a family, its variants,
	// answer the same question.
	Family names.ModelKey
	// Accuracy is how good the answers are beside those of the family's best variant, in (0, 1]. 0
	// means that it is unknown, and counts as 1.
	Accuracy float64
	// QoSTarget is the latency within which a query should be answered, > 0.
	QoSTarget time.Duration
	// LargestBatchSize bounds the batch size of a query; 1..[MaxBatchSize].
	LargestBatchSize int
	// RejectLate says to reject a query as soon as no lane type can answer it within the QoS
	// target. Otherwise such a query is served when a lane would idle.
	RejectLate bool
	// Splits says that a query may run as several parts, because its rows are independent.
	Splits bool
	// Merge is how lanes run several waiting queries as one; "" means each query alone. The policy
	// horizon gives lanes queries to merge; other policies do not.
	Merge Merge
}

func (m *Model) validate() error {
	var errs []error
	if m.QoSTarget <= 0 {
		errs = append(errs, fmt.Errorf("model %q: QoS target is %v, want > 0", m.Name, m.QoSTarget))
	}
	if m.LargestBatchSize < 1 || m.LargestBatchSize > MaxBatchSize {
		errs = append(
			errs,
			fmt.Errorf("model %q: largest batch size is %d, want 1..%d", m.Name, m.LargestBatchSize,
				MaxBatchSize))
	}
	if !(m.Accuracy >= 0 && m.Accuracy <= 1) {
		errs = append(errs,
			fmt.Errorf("model %q: accuracy is %v, want in (0, 1]", m.Name, m.Accuracy))
	}
	if m.Family == m.Name {
		errs = append(errs, fmt.Errorf("model %q has the name of its family", m.Name))
	}
	if m.Merge != "" {
		if err := m.Merge.Check(); err != nil {
			errs = append(errs, fmt.Errorf("model %q: %w", m.Name, err))
		}
	}
	return errors.Join(errs...)
}

// MaxBatchSize bounds [Model.LargestBatchSize], because a [LatencyTable] has an entry for every
// batch size.
const MaxBatchSize = 1 << 16

// A Config says how a matcher decides.
type Config struct {
	// Models are the models that queries may name from the start, with unique names; ModelChanged
	// adds others.
	Models []Model
	// Policy is one of [Policies]; "" means [DefaultPolicy].
	Policy string
	// NewChooser, if not nil, makes a policy from outside for each shard, in place of Policy.
	NewChooser func() Chooser
	// DispatchAhead is how long before a lane is free the matcher may give it its next query, to
	// hide the time of the way there; 0 means only when it is free. A lane has at most two queries,
	// or up to [LaneDepth] as long as they take less than DispatchAhead together.
	DispatchAhead time.Duration
	// MaxWaiting bounds the queries that wait; beyond it a new one is rejected at
	// once. 0 means 100,000.
	MaxWaiting int
	// Settle is how long after the first step the matcher rejects no query for lack of spare time,
	// because a new leader does not know all lanes yet. 0 means that it may reject at once.
	Settle time.Duration
	// ShardLanes is how many lanes a shard should have. Shards are split when they would exceed 4/3
	// of it, and joined below 2/3 of it. 0 means 15; a negative value means one shard, however
	// large the pool.
	ShardLanes int
	// Seed starts the random source, by which queries are dealt to shards and which choosers share.
	Seed uint64
}

const defaultMaxWaiting = 100_000

// Validate reports everything that is wrong with c, or nil.
func (c *Config) Validate() error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("match config: "+format, args...))
	}
	seen := map[names.ModelKey]bool{}
	for _, m := range c.Models {
		switch {
		case m.Name == "":
			bad("a model has no name")
		case seen[m.Name]:
			bad("model %q is named twice", m.Name)
		}
		seen[m.Name] = true
		if err := m.validate(); err != nil {
			bad("%w", err)
		}
	}
	if c.Policy != "" {
		if err := CheckPolicy(c.Policy); err != nil {
			bad("%w", err)
		}
	}
	if c.MaxWaiting < 0 {
		bad("most waiting queries is %d, want >= 0", c.MaxWaiting)
	}
	if c.Settle < 0 {
		bad("time to settle is %v, want >= 0", c.Settle)
	}
	if c.DispatchAhead < 0 {
		bad("dispatch ahead is %v, want >= 0", c.DispatchAhead)
	}
	return errors.Join(errs...)
}
