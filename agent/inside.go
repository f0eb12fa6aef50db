package agent

import (
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	"github.com/muster-serve/muster/agent/lead"
	"github.com/muster-serve/muster/agent/members"
	"github.com/muster-serve/muster/agent/release"
	"github.com/muster-serve/muster/agent/rent"
	"github.com/muster-serve/muster/agent/serve"
	"github.com/muster-serve/muster/agent/worker"
	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/api/secure"
	"github.com/muster-serve/muster/client"
	"github.com/muster-serve/muster/gossip"
	"github.com/muster-serve/muster/profiles"
)

// An Inside shows tests of whole agents the rooms of an agent, and lets them change its settings
// and its environment before Run. Only package agenttest and tests use it. Rooms and addresses are
// there once Listening is closed.
type Inside struct{ *Agent }

// Config returns the settings, which may be changed before Run.
func (i Inside) Config() *Config { return &i.Agent.config }

// Environment returns what Run uses, which may be changed before Run.
func (i Inside) Environment() *Environment { return &i.Agent.env }

// SetLog replaces the log before Run.
func (i Inside) SetLog(log *slog.Logger) { i.Agent.log = log }

// Listening returns a channel that is closed when the agent listens.
func (i Inside) Listening() <-chan struct{} { return i.Agent.listening }

// Addresses are those on which the agent listens.
func (i Inside) Addresses() Addresses { return i.Agent.addresses }

// AgentName is the agent's name.
func (i Inside) AgentName() names.AgentName { return i.Agent.name }

// Members is the part that knows the members of the fleet.
func (i Inside) Members() *members.Members { return i.Agent.members }

// Worker is the room that runs models.
func (i Inside) Worker() *worker.Worker { return i.Agent.worker }

// Server is the room that clients speak to.
func (i Inside) Server() *serve.Server { return i.Agent.server }

// Local is the connection of the agent to itself.
func (i Inside) Local() grpc.ClientConnInterface { return i.Agent.local }

// Gateway forwards the agent's queries.
func (i Inside) Gateway() *client.Gateway { return i.Agent.gateway }

// Counts are those of clients' queries.
func (i Inside) Counts() *serve.QueryCounters { return i.Agent.counts }

// Followed is the leadership that the agent follows; an empty one until the agent has started.
func (i Inside) Followed() *control.Leadership { return i.Agent.leadership.Leadership() }

// Leading is the room of elections and terms.
func (i Inside) Leading() *lead.Leader { return i.Agent.leading }

// Renter is the room that rents machines.
func (i Inside) Renter() *rent.Manager { return i.Agent.renting }

// Releases is the part that knows the releases.
func (i Inside) Releases() *release.Releases { return i.Agent.releases }

// Gossip is the membership.
func (i Inside) Gossip() *gossip.Gossip { return i.Agent.gossip }

// Guard is what refuses callers.
func (i Inside) Guard() *secure.Guard { return i.Agent.guard }

// Events are what the agent has recorded.
func (i Inside) Events() *serve.Events { return i.Agent.events }

// Registry has the agent's metrics.
func (i Inside) Registry() *prometheus.Registry { return i.Agent.metrics.registry }

// Catalogue lists the instance types that the agent knows.
func (i Inside) Catalogue() *profiles.Catalogue { return i.Agent.catalogue }

// Slowdowns are those measured on this machine.
func (i Inside) Slowdowns() profiles.Slowdowns { return i.Agent.slow }

// Draining reports whether the agent drains.
func (i Inside) Draining() bool { return i.Agent.host.Draining() }

// Rented is what the provider says of this machine; nil: it was not rented.
func (i Inside) Rented() *control.Rented { return i.Agent.rented.Load() }

// SetRented replaces what the provider says of this machine. Once the agent runs, the fleet hears
// of it with the next change of its description.
func (i Inside) SetRented(r *control.Rented) { i.Agent.rented.Store(r) }

// KeptKeys are the keys of gossip that the settings or their file have.
func (i Inside) KeptKeys() ([][]byte, error) { return i.Agent.config.gossipKeys() }

// Abandon lets go of the state directory, as the kernel does for a process that has been killed.
func (i Inside) Abandon() { _ = i.Agent.stateLock.Close() }
