package agent

import (
	"fmt"
	"os"

	"github.com/muster-serve/muster/agent/rent"
	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/cloud"
	"github.com/muster-serve/muster/cloud/policy"
)

// Rent has the agent rent machines while it leads, by the policy in the file Config.Rent. find
// returns an error if this machine lacks what the provider of a policy needs. open returns that
// provider, and the agent closes one that has a method Close; join is the gossip address by which
// what is rented joins this agent. Rent must be called before Run.
func (a *Agent) Rent(find func(*policy.Policy) error,
	open func(p *policy.Policy, join string) (cloud.Provider, error)) {
	a.findProvider, a.rents = find, open
}

// openRenting makes the part that rents, for an agent that may rent; for others, the part that
// remembers what is desired.
func (a *Agent) openRenting() (err error) {
	config := rent.Config{
		StateDir: a.config.StateDir, Registry: a.metrics.registry, Log: a.log,
		Changed: a.members.SelfChanged,
	}
	if a.config.Rent != "" {
		text, err := os.ReadFile(a.config.Rent)
		if err != nil {
			return fmt.Errorf("rent: %w", err)
		}
		if a.rents == nil {
			return fmt.Errorf("rent: %s: this program has no provider", a.config.Rent)
		}
		config.Policy, config.Find = string(text), a.findProvider
		config.Open = func(p *policy.Policy) (cloud.Provider, error) {
			return a.rents(p, a.gossip.Addr().String())
		}
	}
	a.renting, err = rent.New(config)
	return err
}

// SetRented tells the fleet what the provider says of this machine; nil: it was not rented. The
// caller must not change it afterwards.
func (a *Agent) setRented(r *control.Rented) {
	a.rented.Store(r)
	a.members.SelfChanged()
}
