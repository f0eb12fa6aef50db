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

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/api/secure"
	"github.com/muster-serve/muster/gossip"
)

const (
	// describeTimeout bounds one question to an agent what it is.
	describeTimeout = 2 * time.Second
	// An agent that did not answer is asked again after this, doubled up to
	// the longest.
	describeAgain, describeAgainLongest = 100 * time.Millisecond, 10 * time.Second
	// Agents that have not said yet what they are get asked by so many goroutines.
	describers = 8
	// Whoever names agents that are none must not have them ask all the time: so
	// many fail a second.
	failuresPerSecond = 50
	// One of those that fail to say it is logged this often.
	sayUndescribed = time.Minute
)

// meet notes a stranger, to be asked. ms.mu is held.
func (ms *Members) meet(name names.AgentName, said Meta) *other {
	o := &other{
		name: name, said: said, address: said.Address, wait: describeAgain,
		ask: make(chan struct{}, 1),
	}
	o.left, o.leave = context.WithCancel(ms.config.Closing)
	ms.strangers[name] = o
	ms.enqueue(o)
	return o
}

// refused has a member asked once what it is that gossip has no room for: if it says so, gossip
// makes room. It does not block.
func (ms *Members) refused(m gossip.Member) {
	said, err := DecodeMeta(m.Meta, ms.config.Spoken)
	if err != nil {
		return // gossip asks before whether it is acceptable
	}
	name := names.AgentName(m.Name)
	ms.mu.Lock()
	defer ms.mu.Unlock()
	if ms.others[name] != nil || ms.strangers[name] != nil || ms.config.Closing.Err() != nil {
		return
	}
	if len(ms.strangers) >= 2*MostStrangers {
		for _, o := range ms.strangers { // in random order: nobody can keep the others out for good
			if o.refused != nil {
				ms.forgetStranger(o)
				break
			}
		}
	}
	ms.meet(name, said).refused = &m
}

// forgetStranger forgets one that is not to be asked any more. ms.mu is held.
func (ms *Members) forgetStranger(o *other) {
	delete(ms.strangers, o.name)
	ms.unasked = slices.DeleteFunc(ms.unasked, func(u *other) bool { return u == o })
	o.leave()
}

// enqueue has a stranger asked when its turn comes. ms.mu is held.
func (ms *Members) enqueue(o *other) {
	ms.unasked = append(ms.unasked, o)
	if ms.asking < describers {
		ms.asking++
		ms.running.Go(ms.askStrangers)
	}
}

// askStrangers asks strangers what they are as long as some wait for it.
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
			// fails only at the end, when each ask does at once
			_ = ms.failures.Wait(ms.config.Closing)
		}
	}
}

// askStranger makes a member of a stranger that says at the address what it is, or
// has it asked again.
func (ms *Members) askStranger(o *other, address string) error {
	conn, err := ms.config.Connect(address)
	var m *control.Member
	if err == nil {
		m, err = ms.askDescription(o, conn)
	}
	ms.mu.Lock()
	defer ms.mu.Unlock()
	switch {
	case ms.strangers[o.name] != o: // it has gone
	case o.refused != nil:
		ms.forgetStranger(o)
		if err == nil {
			ms.config.Gossip.Vouch(*o.refused)
		}
	case err == nil && o.address == address:
		delete(ms.strangers, o.name)
		ms.others[o.name] = o
		o.described, o.shown, o.conn = m, nil, conn
		ms.config.Log.Info("agent joined", "agent", o.name, "address", address, "event", "joined")
		ms.replace(o)
		ms.touchMembers()
		ms.config.Gossip.Vouch(gossip.Member{Name: string(o.name)})
		ms.membersChanged.Tell()
		o.askAgain() // it may have changed meanwhile
		ms.running.Go(func() { ms.describe(o) })
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
				ms.enqueue(o)
			}
		})
		o.wait = min(2*o.wait, describeAgainLongest)
	}
	if conn != nil {
		ms.running.Go(func() { _ = conn.Close() }) // as in drop
	}
	return err
}

func (ms *Members) warnUndescribed(o *other, err error) {
	ms.config.Log.Warn(
		"agent gossips but does not say what it serves; it gets no queries until it does, asking "+
			"again",
		"agent", o.name, "address", o.address, "error", err, "event", "silent")
}

// describe asks o what it is whenever gossip says that it may be something else,
// until it leaves.
func (ms *Members) describe(o *other) {
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

// replace drops those whose address o has, where it has just been found: they must have ended,
// though gossip may not know yet, or have said so again. ms.mu is held.
func (ms *Members) replace(o *other) {
	for _, former := range ms.others {
		if former != o && former.address == o.address {
			ms.config.Log.Info("agent started anew", "agent", o.name, "former", former.name,
				"address", o.address, "event", "replaced")
			ms.drop(former)
		}
	}
}

// askDescription asks o by conn what it is. A stranger must be there, not come while
// it is waited for.
func (ms *Members) askDescription(o *other, conn *grpc.ClientConn) (*control.Member, error) {
	ctx, cancel := context.WithTimeout(o.left, describeTimeout)
	defer cancel()
	m, err := control.NewControlClient(conn).Describe(LocalOnly(ctx), &control.DescribeRequest{},
		grpc.WaitForReady(o.described != nil))
	if err != nil {
		return nil, err
	}
	return m, CheckDescription(m, o.name, ms.config.Spoken)
}

// mostLanes is more than any agent has.
const mostLanes = 1 << 12

// CheckDescription says what of a description cannot be true of the agent named, or what keeps it
// from being a member of one that speaks spoken; nil if nothing.
func CheckDescription(m *control.Member, name names.AgentName, spoken control.Versions) error {
	notNegative := func(x float64) bool { return x >= 0 && x <= math.MaxFloat64 } // nor NaN
	switch {
	case m.AgentName() != name:
		return fmt.Errorf("found agent %q at its address", m.GetName())
	case spoken.Understands(m.Versions()) != nil:
		return spoken.Understands(m.Versions())
	case m.GetLanes() > mostLanes:
		return fmt.Errorf("it says that it has %d lanes, want at most %d", m.GetLanes(), mostLanes)
	case !notNegative(m.GetPriceUsdPerHour()):
		return fmt.Errorf("it says that its price is %v $/hr, want a number >= 0",
			m.GetPriceUsdPerHour())
	}
	for _, model := range m.GetModels() {
		switch {
		case model.GetName() == "":
			return errors.New("it says that it holds a model without a name")
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
		}
	}
	return nil
}

// LocalOnly marks a call as one that is not to be passed on, and says for whom it is.
func LocalOnly(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(secure.ForCaller(ctx), control.LocalHeader, "1")
}

// IsLocalOnly reports whether a call is not to be passed on.
func IsLocalOnly(ctx context.Context) bool {
	return len(metadata.ValueFromIncomingContext(ctx, control.LocalHeader)) > 0
}
