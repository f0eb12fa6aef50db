package sim

import (
	"fmt"
	"slices"
	"strings"

	"github.com/muster-serve/muster/leader/match"
)

// A Policy is one from outside of production: a baseline, or a system to compare with.
type Policy struct {
	Name string
	// NewChooser makes the policy of one shard in a run.
	NewChooser func(c *Config) match.Chooser
	// Tune, if not nil, searches for the Config's Threshold with the highest throughput, which is a
	// batch size of 0..largest; throughput returns that of a threshold.
	Tune func(largest int, throughput func(threshold int) (float64, error)) (threshold int,
		best float64, err error)
}

// DefaultPolicy is the policy of a Config that names none.
const DefaultPolicy = match.DefaultPolicy

// The simulator's policies beside those of leader/match.
const (
	Priced  = "priced"
	Prequal = "prequal"
	ORCA    = "orca"
	Oracle  = "oracle"
)

// Policies lists the names that [Config.Policy] accepts in any Config: those of leader/match,
// priced, prequal and orca (gateways decide without a leader), and oracle (knows the future).
func Policies() []string {
	return append(match.Policies(), Priced, Prequal, ORCA, Oracle)
}

// other returns the policy of Others that Policy names, nil if it names none of them.
func (c *Config) other() *Policy {
	for i := range c.Others {
		if c.Others[i].Name == c.Policy {
			return &c.Others[i]
		}
	}
	return nil
}

// tunes reports whether the threshold of the policy is to be searched.
func (c *Config) tunes() bool {
	other := c.other()
	return other != nil && other.Tune != nil && c.Threshold == 0
}

func (c *Config) validatePolicy() error {
	if c.Policy == "" || slices.Contains(Policies(), c.Policy) || c.other() != nil {
		return nil
	}
	there := Policies()
	for _, other := range c.Others {
		there = append(there, other.Name)
	}
	if match.IsFormerPolicy(c.Policy) {
		return fmt.Errorf("policy %q is no policy of production any more, there are: %s; reproduce/ "+
			"in Muster's repository has it", c.Policy, strings.Join(there, ", "))
	}
	return fmt.Errorf("policy %q is unknown, there are: %s", c.Policy, strings.Join(there, ", "))
}

func (c *Config) policyOrDefault() string {
	if c.Policy == "" {
		return DefaultPolicy
	}
	return c.Policy
}
