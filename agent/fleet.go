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

// joinFleet opens gossip, by which the agents find each other. The address that others
// need to join is in its first line of log.
func (a *Agent) joinFleet(ctx context.Context, l *listeners) (err error) {
	keys, err := a.config.gossipKeys()
	if err != nil {
		return err // Validate has read them before
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
		Meta:      members.MetaOf(a.describe()).Encode(),
		Accept:    func(m gossip.Member) error { return members.Acceptable(m.Meta, a.spoken) },
		Logger:    a.log,

		MaxStrangers: members.MostStrangers,
	}
	if a.network.gossip != nil {
		a.network.gossip(&config)
	}
	if a.gossip, err = gossip.Open(ctx, config); err != nil {
		return fmt.Errorf("%w; choose another address with --gossip", err)
	}
	return nil
}

// advertisedGRPC is the gRPC address that others reach the agent by, which
// listens at bound: its host is that of Advertise, else the one it listens on, else the
// address of this machine from which it reaches others.
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

// learnInstanceType finds out what the agent runs on. It runs beside the
// start, which does not wait for it.
func (a *Agent) learnInstanceType(ctx context.Context) {
	asking, cancel := context.WithTimeout(ctx, identityTimeout)
	defer cancel()
	t := a.config.instanceType(asking, imds.Options{Endpoint: a.network.metadata})
	a.typ.Store(t)
	a.log.Info("instance type", "instance_type", string(t))
	a.members.SelfChanged()
}

// leaveGossip tells the others that this agent goes.
func (a *Agent) leaveGossip() {
	const timeout = 2 * time.Second
	if err := a.gossip.Leave(timeout); err != nil {
		a.log.Debug("leave gossip", "error", err) // the others find out
	}
	if err := a.gossip.Close(); err != nil {
		a.log.Debug("close gossip", "error", err)
	}
}

// describe is what the agent is and holds, at revision 0.
func (a *Agent) describe() *control.Member {
	m := &control.Member{InstanceType: string(a.instanceType())}
	if a.worker != nil { // it has been opened
		m = a.worker.Describe()
		m.Rank = uint32(a.rank())
	}
	m.Name, m.Address, m.Role, m.Software = string(a.name), a.advertised, a.config.Leader, Version()
	m.Protocol, m.NewestProtocol = a.spoken.Oldest, a.spoken.Newest
	m.Draining = a.draining.Load()
	if known, err := a.catalogue.Lookup(a.instanceType()); err == nil {
		m.PriceUsdPerHour = known.PriceUSDPerHour
	}
	return m
}

// instanceType is what the agent runs on, "" as long as that is not known.
func (a *Agent) instanceType() profiles.InstanceType {
	if t, ok := a.typ.Load().(profiles.InstanceType); ok {
		return t
	}
	return ""
}
