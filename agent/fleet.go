package agent

import (
	"context"
	"fmt"
	"net"
	"time"

	"github.com/aws/aws-sdk-go-v2/feature/ec2/imds"

	"github.com/muster-serve/muster/agent/members"
	"github.com/muster-serve/muster/api/control"
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
	config := gossip.Config{
		Name:      string(a.name),
		Bind:      a.config.GossipAddress,
		Advertise: a.config.Advertise,
		Seeds:     a.config.Join,
		Keys:      keys,
		Insecure:  a.config.Insecure,
		Meta:      members.MetaOf(a.introduce()).Encode(),
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
		host, _ = c.advertised()
	} else if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		addr, err := gossip.Outbound()
		if err != nil {
			return "", fmt.Errorf(
				"find the address by which others reach this machine: %w; say it with --advertise",
				err)
		}
		host = addr.String()
	}
	return net.JoinHostPort(host, port), nil
}

// learnInstanceType finds out this machine's instance type, and tells the fleet. Run starts it on a
// goroutine of its own and serves without waiting for it.
func (a *Agent) learnInstanceType(ctx context.Context) {
	asking, cancel := context.WithTimeout(ctx, identityTimeout)
	defer cancel()
	t := a.config.instanceType(asking, imds.Options{
		Endpoint: a.env.Network.Metadata, HTTPClient: a.env.Network.MetadataClient,
	})
	a.typ.Store(t)
	a.log.Info("instance type", "instance_type", string(t))
	a.members.SelfChanged()
}

// leaveGossip tells the other agents that this one leaves, and closes gossip. It blocks at most two
// seconds.
func (a *Agent) leaveGossip() {
	const timeout = 2 * time.Second
	if err := a.gossip.Leave(timeout); err != nil {
		a.log.Debug("leave gossip", "error", err) // the other agents will find this one failed
	}
	if err := a.gossip.Close(); err != nil {
		a.log.Debug("close gossip", "error", err)
	}
}

// describe returns this agent's description, with revision 0: its name, addresses, type, price and
// models. apart says of models that name a family and do not fit into it why.
func (a *Agent) describe() (m *control.Member, apart map[string]string) {
	m, apart = a.worker.Describe()
	m.Rank = uint32(a.rank())
	a.sign(m)
	return m, apart
}

// introduce returns this agent's description while it has no worker yet.
func (a *Agent) introduce() *control.Member {
	m := &control.Member{InstanceType: string(a.instanceType())}
	a.sign(m)
	return m
}

// sign adds to a description what does not depend on the worker.
func (a *Agent) sign(m *control.Member) {
	m.Name, m.Address, m.Role, m.Software = string(a.name), a.advertised, a.config.Leader, Version()
	m.Protocol, m.NewestProtocol = a.env.Spoken.Oldest, a.env.Spoken.Newest
	m.Draining = a.draining.Load()
	m.Rented, m.Rents = a.rented.Load(), a.config.Rent != ""
	m.Ready = a.server != nil && a.server.Ready()
	m.Gpu = a.card.tell()
	if known, err := a.catalogue.Lookup(a.instanceType()); err == nil {
		m.PriceUsdPerHour = known.PriceUSDPerHour
	}
}

// instanceType is this machine's instance type; "" until learnInstanceType has found it.
func (a *Agent) instanceType() profiles.InstanceType {
	if t, ok := a.typ.Load().(profiles.InstanceType); ok {
		return t
	}
	return ""
}
