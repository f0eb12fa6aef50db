package agent

import (
	"context"
	"fmt"
	"math"
	"net"
	"slices"
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
		Name:      a.name,
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
		// Nothing is sent: this only asks the system for a route.
		conn, err := net.Dial("udp", "192.0.2.1:9")
		if err != nil {
			return "", fmt.Errorf("find the address by which others reach this machine: %w; say it with --advertise", err)
		}
		defer conn.Close()
		host, _, _ = net.SplitHostPort(conn.LocalAddr().String())
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

// followView keeps the gateway as the view of the fleet says, until ctx ends. Loads the gateway gets
// as they are heard; here only those of members that it may not have known when they were.
func (a *Agent) followView(ctx context.Context) {
	seen := map[*control.Member]bool{}
	for {
		changed, led := a.members.ViewChanged(), a.leading.changed()
		v := a.members.View()
		a.gateway.SetView(v)
		a.gateway.SetLoads(a.members.Loads())
		seen = a.allowLargest(v, seen)
		a.alone.Store(len(v.Members) == 1)
		select {
		case <-changed:
		case <-led:
		case <-ctx.Done():
			return
		}
	}
}

// allowLargest has queries accepted that are as large as those of any model in
// the fleet may be. It returns the members, and passes over those that it did last time.
func (a *Agent) allowLargest(v *control.View, seen map[*control.Member]bool) map[*control.Member]bool {
	now := make(map[*control.Member]bool, len(v.Members))
	for _, member := range v.Members {
		now[member] = true
		if seen[member] {
			continue
		}
		for _, m := range member.Models {
			a.front.allow(largestQuery(portsOf(m.Metadata.GetInputs()), int(m.LargestBatchSize), protobufElement, min(a.config.MaxWaitingBytes, math.MaxInt32)))
		}
	}
	return now
}

// describe is what the agent is and holds, at revision 0.
func (a *Agent) describe() *control.Member {
	m := &control.Member{InstanceType: string(a.instanceType())}
	if a.worker != nil { // it has been opened
		m = a.worker.Describe()
		m.Rank = uint32(a.rank())
	}
	m.Name, m.Address, m.Role, m.Software = a.name, a.advertised, a.config.Leader, Version()
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

// A controlService answers the calls of other agents and of SDKs that know the
// fleet.
type controlService struct {
	control.UnimplementedControlServer
	*Agent
}

// Describe says what this agent is and holds.
func (s controlService) Describe(context.Context, *control.DescribeRequest) (*control.Member, error) {
	return s.members.Own(), nil
}

// Watch streams the fleet as this agent sees it, and as the caller may.
func (s controlService) Watch(req *control.WatchRequest, stream control.Control_WatchServer) error {
	return s.members.Watch(req, stream, s.sees(stream.Context()))
}

// Keyring takes a step of a rotation.
func (s controlService) Keyring(ctx context.Context, req *control.KeyringRequest) (*control.AgentKeys, error) {
	before := s.keyring.Fingerprints()
	keys, err := s.keyring.Step(req)
	if err != nil {
		s.audit(ctx, "keys", "gossip keys not changed", err, "step", req.Step)
		return nil, err
	}
	if !slices.Equal(before, keys.Fingerprints) {
		s.audit(ctx, "keys", "gossip keys changed", nil, "step", req.Step, "in_use", keys.Fingerprints[0], "held", len(keys.Fingerprints), "in_file", keys.InFile)
	}
	return keys, nil
}

// RotateKeys changes the gossip key of the whole fleet.
func (s controlService) RotateKeys(req *control.RotateKeysRequest, stream control.Control_RotateKeysServer) error {
	// The call's context ends if what is reported does not reach who asked.
	r, err := s.keyring.NewRotation(req, func(p *control.KeysProgress) { _ = stream.Send(p) })
	if err != nil {
		return err
	}
	ctx, key := stream.Context(), r.Fingerprint()
	s.audit(ctx, "keys", "rotating the gossip key", nil, "key", key)
	if err := r.Run(ctx); err != nil {
		s.audit(ctx, "keys", "rotation of the gossip key stopped", err, "key", key)
		return err
	}
	s.audit(ctx, "keys", "gossip key rotated", nil, "key", key)
	return nil
}

// ListKeys says which keys each agent holds.
func (s controlService) ListKeys(ctx context.Context, _ *control.ListKeysRequest) (*control.ListKeysResponse, error) {
	return &control.ListKeysResponse{Agents: s.keyring.List(ctx)}, nil
}

// Match is a gateway's stream to this agent, if it leads.
func (s controlService) Match(stream control.Control_MatchServer) error {
	return s.leading.match(stream)
}

// Link is the stream of an agent that leads, or claims to.
func (s controlService) Link(stream control.Control_LinkServer) error { return s.worker.Link(stream) }

// Probe answers gateways that have no leader.
func (s controlService) Probe(stream control.Control_ProbeServer) error {
	return s.worker.Probe(stream)
}
