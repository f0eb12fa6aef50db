package members

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/muster-serve/muster/agent/outcome"
	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/api/secure"
	"github.com/muster-serve/muster/gossip"
)

// keyringTimeout bounds the call for one step at one agent. Twice this must be less than
// rotationPause: between two of its steps an agent may wait for another agent that takes the full
// time. Chosen: a step takes milliseconds, and writing a file on a busy disk a second or two.
const keyringTimeout = 5 * time.Second

// rotationSteps lists the steps of a rotation. Each begins when all agents have completed the one
// before.
var rotationSteps = []struct {
	step string
	// stopped tells the state of the fleet's keys after a rotation has stopped in this step.
	stopped string
}{
	{listKeys, "nothing has been changed"},
	{addKey,
		"all agents use the key that they used before, and some understand the new one as well, " +
			"which does no harm"},
	{useKey, "all agents understand both the key that was used before and the new one"},
	{onlyKey, "all agents use the new key, and some understand the one before as well"},
}

// A Rotation changes the gossip key of all agents of the fleet. One goroutine may use it.
type Rotation struct {
	members *Members
	gossip  *gossip.Gossip
	id      uint64
	key     []byte
	made    bool // no person has the key: this agent generated it
	// without names the agents that may keep the old key.
	without map[names.AgentName]bool
	// expected is the number of agents that the fleet must have; 0: any.
	expected uint32
	// report sends progress to the caller. If that fails, the call's context ends.
	report func(*control.KeysProgress)

	done map[names.AgentName]int  // how many steps each agent has completed
	left map[names.AgentName]bool // agents of without that have failed a step
	// Agents that may come back or that only other agents know, by name, with the reason for
	// believing so.
	lost map[names.AgentName]string
}

// NewRotation prepares a change of the gossip key of the whole fleet, which Run performs from this
// agent. It generates a key if req has none. It calls report with each answer of an agent; report
// is called by one goroutine at a time.
func (k *Keyring) NewRotation(req *control.RotateKeysRequest,
	report func(*control.KeysProgress)) (*Rotation, error) {
	r := &Rotation{
		members: k.members, gossip: k.gossip, id: rand.Uint64(), key: req.Key,
		made: len(req.Key) == 0, expected: req.Expected, report: report,
		without: map[names.AgentName]bool{}, done: map[names.AgentName]int{},
		left: map[names.AgentName]bool{}, lost: map[names.AgentName]string{},
	}
	if r.made {
		r.key = gossip.NewKey()
	} else if len(r.key) != gossip.KeySize {
		return nil, outcome.Invalid("gossip key has %d bytes, want %d", len(r.key), gossip.KeySize)
	}
	for _, name := range req.Without {
		r.without[names.AgentName(name)] = true
	}
	return r, nil
}

// Fingerprint returns the fingerprint of the new key.
func (r *Rotation) Fingerprint() string { return gossip.Fingerprint(r.key) }

// Run performs all steps on all agents. It blocks until they have completed, one agent has failed
// or ctx ends. If it stops early, it tells the agents to stop, and returns an error that says which
// key they use now.
func (r *Rotation) Run(ctx context.Context) error {
	err := r.run(ctx)
	if err != nil {
		r.endRotation(ctx)
	}
	return err
}

// List returns the keys that each agent of the fleet holds, by their fingerprints, sorted by agent.
// An agent that does not answer has a Fault. List blocks for at most keyringTimeout.
func (k *Keyring) List(ctx context.Context) []*control.AgentKeys {
	var all []*control.AgentKeys
	list := []*control.KeyringRequest{{Step: listKeys}}
	k.members.askKeyrings(ctx, k.members.Names(),
		func(names.AgentName) []*control.KeyringRequest { return list },
		func(p *control.KeysProgress) { all = append(all, p.Keys) })
	slices.SortFunc(all, func(a, b *control.AgentKeys) int { return cmp.Compare(a.Agent, b.Agent) })
	return all
}

// run performs the steps in order, and stops at the first step that an agent fails.
func (r *Rotation) run(ctx context.Context) error {
	if err := r.checkFleet(ctx); err != nil {
		return err
	}
	for i, s := range rotationSteps {
		faults, err := r.performOnAll(ctx, i)
		if err != nil {
			return err
		}
		if len(faults) > 0 {
			return fmt.Errorf(
				"%w: stopped at step %q: %s; %s. Run it again when they can be reached, or "+
					"--without them",
				outcome.ErrRotation, s.step, strings.Join(faults, "; "), s.stopped)
		}
	}
	return nil
}

// checkFleet returns an error if this agent does not see the whole fleet, as far as it can tell.
func (r *Rotation) checkFleet(ctx context.Context) error {
	members := r.members.Names()
	if r.expected > 0 {
		if len(members) != int(r.expected) {
			return fmt.Errorf("%w: %s sees %d agents (%s), expected %d; nothing has been changed",
				outcome.ErrRotation, r.members.Self(), len(members),
				strings.Join(names.Strings(members), ", "),
				r.expected)
		}
		return nil
	}
	if unseen := r.gossip.Unseen(ctx); len(members) == 1 && len(unseen) > 0 {
		return fmt.Errorf(
			"%w: %s sees no other agent, though it is to join by %s; nothing has been changed. "+
				"Ask an agent that sees the fleet, or confirm with --expect 1 that there is no other",
			outcome.ErrRotation, r.members.Self(), strings.Join(unseen, ", "))
	}
	return nil
}

// performOnAll performs the steps up to rotationSteps[last] on every agent, including agents that
// join meanwhile. It returns one fault for each agent that failed and may not be left behind.
func (r *Rotation) performOnAll(ctx context.Context, last int) ([]string, error) {
	failed := map[names.AgentName]string{}
	var members []names.AgentName
	for {
		members = r.members.Names()
		behind := slices.DeleteFunc(slices.Clone(members), func(name names.AgentName) bool {
			return r.done[name] > last || r.left[name] || failed[name] != ""
		})
		if len(behind) == 0 {
			break
		}
		r.members.askKeyrings(ctx, behind, r.makeRequests(behind, last),
			func(p *control.KeysProgress) {
				name := names.AgentName(p.Keys.Agent)
				switch {
				case p.Keys.Fault != "":
					failed[name] = p.Keys.Fault
				case p.Step == listKeys && r.made && !p.Keys.InFile:
					failed[name] = "its key is in its settings, where a new one cannot be kept: name " +
						"the new key, so that you can change them"
					p.Keys.Fault = failed[name]
				default:
					r.done[name]++
				}
				for _, lost := range p.Keys.Lost {
					r.lost[names.AgentName(lost)] = "it has not said that it leaves, and " +
						string(name) + " does not hear it"
				}
				for _, known := range p.Keys.Members {
					if known := names.AgentName(known); !slices.Contains(members, known) {
						r.lost[known] = "it is known to " + string(name) + " alone"
					}
				}
				r.report(p)
			})
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
	for _, name := range r.members.lostAgents() {
		r.lost[name] = "it has not said that it leaves, and " + string(r.members.Self()) +
			" does not hear it"
	}
	for name, why := range r.lost {
		if !slices.Contains(members, name) && r.done[name] <= last && !r.left[name] {
			failed[name] = why
			r.report(&control.KeysProgress{
				Step: rotationSteps[last].step, Keys: &control.AgentKeys{
					Agent: string(name), Fault: failed[name],
				},
			})
		}
	}
	var faults []string
	for name, fault := range failed {
		switch {
		// it has left the fleet in order
		case !slices.Contains(members, name) && r.lost[name] == "":
		case r.without[name]:
			r.left[name] = true
		default:
			faults = append(faults, string(name)+": "+fault)
		}
	}
	slices.Sort(faults)
	return faults, nil
}

// makeRequests returns, for each of the agents, the requests that it still needs, up to
// rotationSteps[last].
func (r *Rotation) makeRequests(agents []names.AgentName,
	last int) func(names.AgentName) []*control.KeyringRequest {
	todo := map[names.AgentName][]*control.KeyringRequest{}
	for _, name := range agents {
		for _, s := range rotationSteps[r.done[name] : last+1] {
			todo[name] = append(todo[name], &control.KeyringRequest{
				Step: s.step, Key: r.key, Rotation: r.id,
			})
		}
	}
	return func(name names.AgentName) []*control.KeyringRequest { return todo[name] }
}

// endRotation tells the agents that this rotation has stopped. An agent that does not receive this
// accepts another rotation after rotationPause.
func (r *Rotation) endRotation(ctx context.Context) {
	end := []*control.KeyringRequest{{Step: endKeys, Rotation: r.id}}
	r.members.askKeyrings(context.WithoutCancel(ctx), r.members.Names(),
		func(names.AgentName) []*control.KeyringRequest { return end },
		func(*control.KeysProgress) {})
}

// lostAgents returns agents that may come back with their old keys: agents that gossip has lost,
// and agents that gossip still lists although they are not members and no member has their address.
func (ms *Members) lostAgents() (lost []names.AgentName) {
	for _, name := range ms.config.Gossip.Lost() {
		lost = append(lost, names.AgentName(name))
	}
	taken, there := map[string]bool{}, map[names.AgentName]bool{}
	for _, m := range ms.View().Members {
		taken[m.Address], there[m.AgentName()] = true, true
	}
	for _, m := range ms.config.Gossip.Members() {
		name := names.AgentName(m.Name)
		if said, err := DecodeMeta(m.Meta, ms.config.Spoken); err == nil && !there[name] &&
			!taken[said.Address] {
			lost = append(lost, name)
		}
	}
	return lost
}

// askKeyrings sends the agents called names their requests, to all agents at once and to each agent
// one after the other, until one of its requests fails. It calls each with every answer, never
// concurrently; an agent that fails gets an answer with a Fault. It blocks until all have finished.
func (ms *Members) askKeyrings(ctx context.Context, agents []names.AgentName,
	requests func(names.AgentName) []*control.KeyringRequest, each func(*control.KeysProgress)) {
	var mu sync.Mutex
	var asking sync.WaitGroup
	for _, name := range agents {
		requests := requests(name)
		asking.Go(func() {
			for _, req := range requests {
				keys := ms.askKeyring(ctx, name, req)
				mu.Lock()
				each(&control.KeysProgress{Step: req.Step, Keys: keys})
				mu.Unlock()
				if keys.Fault != "" {
					return
				}
			}
		})
	}
	asking.Wait()
}

// askKeyring sends one request to the agent called name. A failure is an answer with a Fault.
func (ms *Members) askKeyring(ctx context.Context, name names.AgentName,
	req *control.KeyringRequest) *control.AgentKeys {
	ctx, cancel := context.WithTimeout(ctx, keyringTimeout)
	defer cancel()
	conn, err := ms.Dial(name)
	var keys *control.AgentKeys
	if err == nil {
		keys, err = control.NewControlClient(conn).Keyring(secure.ForCaller(ctx), req,
			grpc.WaitForReady(true))
	}
	switch s := status.Convert(err); {
	case err == nil && keys.Agent == string(name):
		return keys
	case err == nil:
		return &control.AgentKeys{
			Agent: string(name), Fault: fmt.Sprintf("found agent %q at its address", keys.Agent),
		}
	case s.Code() == codes.DeadlineExceeded:
		return &control.AgentKeys{
			Agent: string(name), Fault: fmt.Sprintf("it does not answer within %v", keyringTimeout),
		}
	default:
		return &control.AgentKeys{Agent: string(name), Fault: s.Message()}
	}
}
