package agent

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/feature/ec2/imds"

	"github.com/muster-serve/muster/agent/members"
	"github.com/muster-serve/muster/agent/worker"
	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/version"
	"github.com/muster-serve/muster/gossip"
	"github.com/muster-serve/muster/profiles"
)

// joinFleet opens gossip, through which the agents find each other. Gossip's first log line holds
// the address that other agents can join.
func (a *Agent) joinFleet(ctx context.Context, l *listeners) (err error) {
	keys, err := a.config.gossipKeys()
	if err != nil {
		return err // Validate has read the keys before, but a file may have changed
	}
	if a.advertised, err = a.config.advertisedGRPC(l.grpc.Addr().String()); err != nil {
		return err
	}
	a.advertisedHTTP = advertisedHTTP(l.http.Addr().String(), a.advertised)
	config := gossip.Config{
		Name:      string(a.name),
		Bind:      a.config.GossipAddress,
		Advertise: a.config.Advertise,
		Seeds:     a.config.Join,
		Keys:      keys,
		Insecure:  a.config.Insecure,
		Meta:      members.MetaOf(a.describeSelf()).Encode(),
		Accept:    func(m gossip.Member) error { return members.Acceptable(m.Meta, a.env.Spoken) },
		Logger:    a.log,

		MaxStrangers: members.MostStrangers,
	}
	if a.env.Network.Gossip != nil {
		a.env.Network.Gossip(&config)
	}
	if a.gossip, err = gossip.Open(ctx, config); err != nil {
		return fmt.Errorf("%w; choose another address with --gossip", err)
	}
	a.guard.ShareSessions(a.gossip.Keys)
	return nil
}

// advertisedGRPC returns the gRPC address that other agents and SDKs dial, for a server that
// listens on bound. Its host is that of Advertise, else bound's. If bound names no host, it is the
// address from which this machine reaches others.
func (c Config) advertisedGRPC(bound string) (string, error) {
	host, port, err := net.SplitHostPort(bound)
	if err != nil {
		return "", fmt.Errorf("grpc: %w", err)
	}
	if c.Advertise != "" {
		host, _ = c.splitAdvertise()
	} else if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		addr, err := gossip.Outbound()
		if err != nil {
			return "", fmt.Errorf(
				"find the address by which others reach this machine: %w; give it with --advertise",
				err)
		}
		host = addr.String()
	}
	return net.JoinHostPort(host, port), nil
}

// advertisedHTTP is the REST address at which others reach a server that listens on bound, where they
// reach its gRPC at grpc; "" if it listens on this machine alone.
func advertisedHTTP(bound, grpc string) string {
	boundHost, port, err := net.SplitHostPort(bound)
	host, _, err2 := net.SplitHostPort(grpc)
	if err != nil || err2 != nil {
		return ""
	}
	isLocal := func(host string) bool { return net.ParseIP(host).IsLoopback() || host == "localhost" }
	if isLocal(boundHost) && !isLocal(host) {
		return ""
	}
	return net.JoinHostPort(host, port)
}

// learnInstanceType finds out this machine's instance type, and tells the fleet. Run starts it on a
// goroutine of its own and serves without waiting for it.
func (a *Agent) learnInstanceType(ctx context.Context) {
	asking, cancel := context.WithTimeout(ctx, identityTimeout)
	defer cancel()
	ask := func(ctx context.Context) (profiles.InstanceType, error) {
		return askEC2(ctx, imds.Options{
			Endpoint: a.env.Network.Metadata, HTTPClient: a.env.Network.MetadataClient,
		})
	}
	if a.env.Pod {
		ask = nil // a pod reaches no metadata service, or that of another's machine
	}
	t := a.config.instanceType(asking, ask)
	a.host.instanceType.Store(t)
	a.log.Info("the agent found its instance type", "instance_type", string(t))
	a.members.SelfChanged()
}

// leaveGossip tells the other agents that this one leaves, and closes gossip. It blocks at most two
// seconds.
func (a *Agent) leaveGossip() {
	const timeout = 2 * time.Second
	if err := a.gossip.Leave(timeout); err != nil {
		// the other agents will find this one failed
		a.log.Debug("cannot leave gossip", "error", err)
	}
	if err := a.gossip.Close(); err != nil {
		a.log.Debug("cannot close gossip", "error", err)
	}
}

// A self is this agent, as its members tell the fleet of it.
type self struct {
	*worker.Worker
	agent *Agent
}

// Describe returns this agent's description, with revision 0: its name, addresses, type, price and
// models. apart says of models that name a family and do not fit into it why.
func (s self) Describe() (m *control.Member, apart map[string]string) {
	m, apart = s.Worker.Describe()
	m.Rank = uint32(s.agent.electionRank())
	s.agent.sign(m)
	return m, apart
}

// describeSelf returns this agent's description while it has no worker yet.
func (a *Agent) describeSelf() *control.Member {
	m := &control.Member{InstanceType: string(a.host.InstanceType())}
	a.sign(m)
	return m
}

// sign adds to a description what does not depend on the worker.
func (a *Agent) sign(m *control.Member) {
	m.Name, m.Address, m.Role = string(a.name), a.advertised, a.config.Leader
	m.DisplayName, m.HttpAddress = a.display, a.advertisedHTTP
	// Other agents refuse a description with a longer name, which a certificate may have.
	if name := a.guard.CertificateName(); len(name) <= control.MaxNameBytes {
		m.CertificateName = name
	}
	m.Software, m.Measures = version.Current(), true
	m.Protocol, m.NewestProtocol = a.env.Spoken.Oldest, a.env.Spoken.Newest
	m.Draining = a.host.Draining()
	m.Rented, m.Rents = a.rented.Load(), a.config.Rent != ""
	if a.renting != nil {
		m.Accuracies = a.renting.Accuracies()
	}
	m.Ready = a.health.Settled() && !a.host.Draining()
	m.Gpu, m.CpuWait = a.card.toMessage(), a.cpu.share()
	m.PriceUsdPerHour = a.priceUSDPerHour()
}

// priceUSDPerHour is what this machine costs; 0 if that is not known.
func (a *Agent) priceUSDPerHour() float64 {
	if a.config.Price > 0 {
		return a.config.Price
	}
	if known, err := a.catalogue.Lookup(a.host.InstanceType()); err == nil {
		return known.PriceUSDPerHour
	}
	return 0
}

// A host is what changes about this machine and process while the agent runs. Its methods may be
// called concurrently.
type host struct {
	draining     atomic.Bool
	instanceType atomic.Value // a profiles.InstanceType; unset until the agent has found it out
}

// Draining reports whether the agent drains.
func (h *host) Draining() bool { return h.draining.Load() }

// InstanceType is this machine's instance type; "" until learnInstanceType has found it.
func (h *host) InstanceType() profiles.InstanceType {
	if t, ok := h.instanceType.Load().(profiles.InstanceType); ok {
		return t
	}
	return ""
}
