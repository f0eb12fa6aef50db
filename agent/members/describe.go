package members

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/api/secure"
	"github.com/muster-serve/muster/api/wakeup"
	"github.com/muster-serve/muster/client/stream"
	"github.com/muster-serve/muster/gossip"
)

const (
	// describeTimeout bounds one Describe call to another agent. Chosen: agents answer in
	// milliseconds, and one lost packet is sent again within a second.
	describeTimeout = 2 * time.Second
	// An agent whose Describe call failed is called again after describeAgain; the wait doubles at
	// each failure, up to describeAgainLongest. Chosen: an agent that is starting is known as soon
	// as it listens, and a fleet calls one that is unreachable six times a minute from each agent.
	describeAgain, describeAgainLongest = 100 * time.Millisecond, 10 * time.Second
	// describers is how many goroutines call Describe on strangers. Chosen: at some ms a call a new
	// agent knows a thousand others in a second, and eight that do not answer delay the rest by
	// describeTimeout.
	describers = 8
	// failuresPerSecond is how many calls to strangers may fail in a second. Anybody who can send
	// gossip can name agents that do not exist, and must not make this agent dial all the time.
	// Chosen: below what gossip.packetRate lets through, and above what an agent meets that joins a
	// fleet which loses machines.
	failuresPerSecond = 50
	// sayUndescribed is the least time between two log lines about strangers that fail to describe
	// themselves.
	sayUndescribed = time.Minute
)

// addStranger adds an agent to the strangers and queues its Describe call. ms.mu is held.
func (ms *Members) addStranger(name names.AgentName, said Meta) *other {
	o := &other{
		name: name, said: said, address: said.Address, wait: describeAgain,
		ask: wakeup.New(),
	}
	o.left, o.leave = context.WithCancel(ms.config.Closing)
	ms.strangers[name] = o
	ms.enqueueDescribe(o)
	return o
}

// noteRefused handles a member that gossip has refused because it has MostStrangers already. It
// queues one Describe call; if the agent describes itself, gossip accepts it. refused does not
// block.
func (ms *Members) noteRefused(m gossip.Member) {
	said, err := DecodeMeta(m.Meta, ms.config.Spoken)
	if err != nil {
		return // cannot happen: gossip has called Acceptable before
	}
	name := names.AgentName(m.Name)
	ms.mu.Lock()
	defer ms.mu.Unlock()
	if ms.others[name] != nil || ms.strangers[name] != nil || ms.config.Closing.Err() != nil {
		return
	}
	if len(ms.strangers) >= 2*MostStrangers {
		// in random order, so that no sender can keep the others out for good
		for _, o := range ms.strangers {
			if o.refused != nil {
				ms.forgetStranger(o)
				break
			}
		}
	}
	ms.addStranger(name, said).refused = &m
}

// forgetStranger removes a stranger, and cancels its Describe calls. ms.mu is held.
func (ms *Members) forgetStranger(o *other) {
	delete(ms.strangers, o.name)
	ms.unasked = slices.DeleteFunc(ms.unasked, func(u *other) bool { return u == o })
	o.leave()
}

// enqueueDescribe queues a Describe call to a stranger, and starts a goroutine for the queue if
// fewer than describers run. ms.mu is held.
func (ms *Members) enqueueDescribe(o *other) {
	ms.unasked = append(ms.unasked, o)
	if ms.asking < describers {
		ms.asking++
		ms.running.Go(ms.askStrangers)
	}
}

// askStrangers calls Describe on the queued strangers, one after the other, until the queue is
// empty.
func (ms *Members) askStrangers() {
	for {
		ms.mu.Lock()
		if len(ms.unasked) == 0 {
			ms.asking--
			ms.mu.Unlock()
			return
		}
		o := ms.unasked[0]
		ms.unasked = ms.unasked[1:]
		address := o.address
		ms.mu.Unlock()
		if err := ms.askStranger(o, address); err != nil {
			// Wait fails only while the agent closes. All calls fail at once then, so there is no
			// need to wait.
			_ = ms.failures.Wait(ms.config.Closing)
		}
	}
}

// askStranger calls Describe on the agent at address. If the agent there describes itself as o, o
// becomes a member; otherwise the call is queued again for later. It returns the call's error.
func (ms *Members) askStranger(o *other, address string) error {
	conn, err := ms.config.Connect(address)
	var m *control.Member
	if err == nil {
		m, err = ms.askDescription(o, conn)
	}
	ms.mu.Lock()
	defer ms.mu.Unlock()
	switch {
	case ms.strangers[o.name] != o: // it has left meanwhile
	case o.refused != nil:
		ms.forgetStranger(o)
		if err == nil {
			ms.config.Gossip.Vouch(*o.refused)
		}
	case err == nil && o.address == address:
		delete(ms.strangers, o.name)
		ms.others[o.name] = o
		o.described, o.shown = m, nil
		o.conn = stream.New(conn, ms.config.Queries.To(address))
		ms.config.Log.Info("agent joined", "agent", o.name, "address", address, "event", "joined")
		ms.replaceFormer(o)
		ms.touchMembers()
		ms.config.Gossip.Vouch(gossip.Member{Name: string(o.name)})
		ms.membersChanged.Tell()
		o.askAgain() // its description may have changed meanwhile
		ms.running.Go(func() { ms.describeStranger(o) })
		return nil
	default:
		if now := time.Now(); err != nil && !o.logged &&
			now.Sub(ms.lastUndescribed) > sayUndescribed {
			ms.lastUndescribed, o.logged = now, true
			ms.warnUndescribed(o, err)
		}
		time.AfterFunc(o.wait, func() {
			ms.mu.Lock()
			defer ms.mu.Unlock()
			if ms.strangers[o.name] == o {
				ms.enqueueDescribe(o)
			}
		})
		o.wait = min(2*o.wait, describeAgainLongest)
	}
	if conn != nil {
		ms.running.Go(func() { _ = conn.Close() }) // as in drop
	}
	return err
}

// warnUndescribed logs that an agent is in gossip but fails to describe itself.
// warnUndescribed logs that an agent is in gossip but fails to describe itself.
func (ms *Members) warnUndescribed(o *other, err error) {
	ms.config.Log.Warn(
		"agent gossips but does not say what it serves; it gets no queries until it does, asking "+
			"again",
		"agent", o.name, "address", o.address, "error", err, "event", "silent")
}

// describeStranger calls Describe on o whenever gossip says that o's description may have changed,
// until o leaves. It runs on a goroutine of its own.
func (ms *Members) describeStranger(o *other) {
	failing, wait := false, describeAgain
	for {
		select {
		case <-o.ask:
		case <-o.left.Done():
			return
		}
		ms.mu.Lock()
		known := o.described.Revision == o.said.Revision && o.described.Draining == o.said.Draining
		ms.mu.Unlock()
		if known {
			continue
		}
		m, err := ms.askDescription(o, o.conn)
		if err == nil {
			if failing {
				ms.config.Log.Info("agent answers", "agent", o.name, "address", o.address, "event",
					"answers")
			}
			failing, wait = false, describeAgain
			ms.mu.Lock()
			if ms.others[o.name] == o {
				o.described, o.shown = m, nil
				ms.touchMembers()
			}
			ms.mu.Unlock()
			ms.membersChanged.Tell()
			continue
		}
		if o.left.Err() != nil {
			return
		}
		if !failing {
			ms.warnUndescribed(o, err)
		}
		failing = true
		select {
		case <-time.After(wait):
		case <-o.left.Done():
			return
		}
		wait = min(2*wait, describeAgainLongest)
		o.askAgain()
	}
}

// replaceFormer removes the members that had o's address before o. Their processes must have ended,
// although gossip may not know it yet, or may have repeated an old message. ms.mu is held.
func (ms *Members) replaceFormer(o *other) {
	for _, former := range ms.others {
		if former != o && former.address == o.address {
			ms.config.Log.Info("agent started anew", "agent", o.name, "former", former.name,
				"address", o.address, "event", "replaced")
			ms.dropMember(former)
		}
	}
}

// askDescription calls Describe on o through conn, and checks the answer. For a stranger the call
// fails at once if nobody listens at the address; for a member it waits for the connection.
func (ms *Members) askDescription(o *other, conn grpc.ClientConnInterface) (*control.Member,
	error) {
	ctx, cancel := context.WithTimeout(o.left, describeTimeout)
	defer cancel()
	m, err := control.NewControlClient(conn).Describe(LocalOnly(ctx), &control.DescribeRequest{},
		grpc.WaitForReady(o.described != nil))
	if err != nil {
		return nil, err
	}
	return m, CheckDescription(m, o.name, ms.config.Spoken)
}

// maxDescriptionBytes bounds a description, of which every agent keeps those of all others: 10,000
// models of a few inputs each take half as much.
const maxDescriptionBytes = 16 << 20

// maxLength is the length of the longest of texts.
func maxLength(texts ...string) (n int) {
	for _, text := range texts {
		n = max(n, len(text))
	}
	return n
}

// maxLanes is the largest number of lanes that this agent accepts in a description. Chosen: numbers
// come from other machines.
const maxLanes = 1 << 12

// CheckDescription returns why this agent cannot accept m as the description of the agent called
// name: a value out of range, another agent's name, or a protocol version that spoken does not
// include. It returns nil if the description is acceptable.
func CheckDescription(m *control.Member, name names.AgentName, spoken control.Versions) error {
	notNegative := func(x float64) bool { return x >= 0 && x <= math.MaxFloat64 } // nor NaN
	switch {
	case m.AgentName() != name:
		return fmt.Errorf("found agent %q at its address", m.GetName())
	case spoken.Understands(m.Versions()) != nil:
		return spoken.Understands(m.Versions())
	case proto.Size(m) > maxDescriptionBytes:
		return fmt.Errorf("its description has %d bytes, want at most %d", proto.Size(m),
			maxDescriptionBytes)
	case maxLength(m.GetAddress(), m.GetInstanceType(), m.GetProvider(), m.GetExecutor(),
		m.GetRole(),
		m.GetSoftware(), m.GetRented().GetInstance(), m.GetRented().GetSlot(),
		m.GetRented().GetZone()) > control.MaxNameBytes:
		return fmt.Errorf("one of its address, type, provider, executor, role, version and machine has "+
			"more than %d bytes", control.MaxNameBytes)
	case m.GetLanes() > maxLanes:
		return fmt.Errorf("it says that it has %d lanes, want at most %d", m.GetLanes(), maxLanes)
	case !notNegative(m.GetPriceUsdPerHour()):
		return fmt.Errorf("it says that its price is %v $/hr, want a number >= 0",
			m.GetPriceUsdPerHour())
	}
	if longest := maxLength(m.GetDisplayName(), m.GetCertificateName()); longest > control.MaxNameBytes {
		return fmt.Errorf("its display name, or its certificate's, has %d bytes, want at most %d", longest,
			control.MaxNameBytes)
	}
	for _, model := range slices.Concat(m.GetModels(), m.GetLoadable()) {
		switch {
		case model.GetName() == "":
			return errors.New("it says that it holds a model without a name")
		case maxLength(model.GetName(), model.GetFamily(), model.GetChecksum(),
			model.GetMerge(), model.GetStatesFor()) > control.MaxNameBytes:
			return fmt.Errorf("it says that it holds model %.80q..., want names of at most %d bytes",
				model.GetName(), control.MaxNameBytes)
		case model.GetQosTargetNs() <= 0,
			!(model.GetQosPercentile() > 0 && model.GetQosPercentile() <= 1):
			return fmt.Errorf(
				"it says that %v of the queries of model %q should be answered within %v, want a "+
					"share above 0, at most 1, and a time > 0",
				model.GetQosPercentile(), model.GetName(), time.Duration(model.GetQosTargetNs()))
		case model.GetLargestBatchSize() < 1:
			return fmt.Errorf(
				"it says that the largest batch size of model %q is 0, want 1 or more",
				model.GetName())
		case !(model.GetAccuracy() >= 0 && model.GetAccuracy() <= 1):
			return fmt.Errorf(
				"it says that the accuracy of model %q is %v, want above 0, at most 1, or 0 for "+
					"unknown", model.GetName(), model.GetAccuracy())
		case model.GetFamily() == model.GetName():
			return fmt.Errorf("it says that model %q is of a family of the same name",
				model.GetName())
		}
	}
	return nil
}

// LocalOnly returns a context for a call to another agent that the other agent must answer itself,
// without passing it on. The context also names the client on whose behalf this agent calls.
func LocalOnly(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(secure.ForCaller(ctx), control.LocalHeader, "1")
}

// IsLocalOnly reports whether the call with this context must not be passed on to other agents.
func IsLocalOnly(ctx context.Context) bool {
	return len(metadata.ValueFromIncomingContext(ctx, control.LocalHeader)) > 0
}
