package election

import (
	"cmp"
	"slices"
	"time"

	"github.com/muster-serve/muster/api/names"
)

// A Node is one agent's part in the election; see the package comment. It is not
// safe for concurrent use.
type Node struct {
	cfg  Config
	rank Rank
	now  time.Time
	next time.Time // what the last Step asked for

	members []*member // others, in the order of their ids
	seen    uint64    // the highest epoch heard of or persisted

	// top is the highest known claim. leading says that this agent made it; following says that
	// this agent believes that the claimant, perhaps itself, leads.
	top       Claim
	leading   bool
	following bool
	heardAt   time.Time       // when top's leader was last heard under top; zero: never
	brokenAt  time.Time       // when its stream broke after that; zero: it did not
	successor names.AgentName // announced by top's leader; may be ourselves

	// base is the time from which agents may claim, those of higher rank first.
	base time.Time
	// listenUntil is the time until which a silent leader may still be there: we were not stepped
	// for a while, and messages to us may lie unread.
	listenUntil time.Time

	spokeAt time.Time // when a member was last heard; zero: never
	ledAt   time.Time // when we began to lead

	claiming  bool // claim is ours and not decided yet
	claim     Claim
	persisted bool   // claim.Epoch is on disk
	kept      uint64 // the epoch persisted last by this node
	unasked   bool   // the leader has resigned in our favour: no member is asked
	claimedAt time.Time
	claimEnd  time.Time
	sendAt    time.Time // when leading: the next heartbeat; claiming: the next Propose
	// allAt is when a leader next sends a heartbeat to all members. They get it at the same time so
	// that they miss the leader at the same time: only then do they claim in order, the successor
	// first.
	allAt time.Time

	resigned bool
	resignBy time.Time // leading and resigned: when to stop, with or without a successor

	out []Action
}

// A member is another agent.
type member struct {
	id      names.AgentName
	rank    Rank
	ackedAt time.Time       // when it last acknowledged a heartbeat of our term; zero: never
	toldAt  time.Time       // when we last sent it a heartbeat, and
	told    names.AgentName // the successor that the heartbeat announced
	granted bool            // it has granted our claim
	broken  bool            // its stream broke, and neither we nor the leader have heard it since
}

// Waits, in heartbeats; see [Node.heartbeatTime].
const (
	proposeWait  = 3 // until a proposal that nobody refuses holds
	staggerWait  = 2 // between the claims of two agents next to each other in rank
	brokenWait   = 2 // after the leader's stream broke
	restWait     = 4 // from a heartbeat to all members to the next
	freshWait    = 6 // a leader heard within this time is certainly there
	listenWait   = 2 // after a freeze
	freezeWait   = 4 // a step that is this late means that we were frozen
	maxStaggered = 5 // agents that claim one after the other; those of lower rank claim together
)

// heartbeatSlack is how late the heartbeat of a living leader may come.
const heartbeatSlack = 20 * time.Millisecond

// New returns a node that knows no members and no leader.
func New(cfg Config) (*Node, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Node{cfg: cfg.withDefaults(), rank: cfg.Rank, seen: cfg.Epoch}, nil
}

// Leading reports whether the node leads.
func (n *Node) Leading() bool { return n.leading }

// Successor is the agent that the current leader, or the last one lost, has announced as its
// successor; empty if there is none. When the leader's stream breaks, a gateway should submit again
// there first.
func (n *Node) Successor() names.AgentName { return n.successor }

// hasFollower reports whether the node leads and the member has acknowledged a heartbeat lately.
func (n *Node) hasFollower(m *member) bool {
	return n.leading && !m.broken && !m.ackedAt.IsZero() && n.now.Sub(m.ackedAt) < n.cfg.Silence
}

// Step takes an event that happened at now. It returns the actions to carry out, in order, and when
// to call it again if nothing happens before (zero: never). The actions are valid until the next
// call. Time must not run backwards; an earlier now counts as the latest one seen.
//
// An event that makes no sense, such as the loss of an unknown member, does nothing.
func (n *Node) Step(now time.Time, e *Event) (actions []Action, next time.Time) {
	clear(n.out)
	n.out = n.out[:0]
	if n.now.IsZero() {
		n.now, n.base = now, now.Add(n.cfg.JoinWait)
	}
	n.now = laterOf(n.now, now)
	n.checkFreeze()
	n.apply(e)
	n.doDueWork()
	n.next = n.nextStepAt()
	return n.out, n.next
}

func (n *Node) heartbeatTime(heartbeats int) time.Duration {
	return time.Duration(heartbeats) * n.cfg.Heartbeat
}

// checkFreeze checks whether this step is so late that the process or the machine must have been
// stopped. The others may then have a new leader whose messages come only after this step, so the
// node listens before it decides.
func (n *Node) checkFreeze() {
	if n.next.IsZero() || len(n.members) == 0 {
		return
	}
	late := n.now.Sub(n.next)
	if late < n.heartbeatTime(freezeWait) {
		return
	}
	n.listenUntil = n.now.Add(n.heartbeatTime(listenWait))
	n.base = laterOf(n.base, n.listenUntil)
	n.claiming = false
	if n.leading && late >= n.cfg.Silence-n.heartbeatTime(2) {
		n.stepDown(Frozen)
		n.loseLeader(Frozen)
		n.base = n.listenUntil
	}
}

func (n *Node) apply(e *Event) {
	switch e.Kind {
	case MemberUp:
		n.memberUp(e.ID, e.Rank)
	case MemberDown:
		if i, ok := n.memberIndex(e.ID); ok {
			n.members = slices.Delete(n.members, i, i+1)
		}
		if n.following && !n.leading && e.ID == n.top.Leader && !n.hearsLeader() {
			n.loseLeader(Gone)
		}
	case StreamBroken:
		if m := n.findMember(e.ID); m != nil {
			m.broken, m.ackedAt = true, time.Time{}
		}
		if n.following && !n.leading && e.ID == n.top.Leader && n.brokenAt.IsZero() {
			n.brokenAt = n.now
			if n.successor == n.cfg.ID {
				n.out = append(n.out, Action{Kind: Look, To: e.ID})
			}
		}
	case ProcessEnded:
		// Only the successor claims at once; the others go on waiting.
		if n.following && !n.leading && e.ID == n.top.Leader && !n.brokenAt.IsZero() &&
			n.successor == n.cfg.ID {
			n.loseLeader(Ended)
		}
	case Received:
		if e.ID != n.cfg.ID {
			n.handleMessage(e.ID, &e.Message)
		}
	case Persisted:
		n.kept = e.Epoch
		if n.claiming && !n.persisted && e.Epoch == n.claim.Epoch {
			n.claimKept()
		}
	case Resigned:
		if !n.resigned {
			n.resigned, n.claiming = true, false
			n.resignBy, n.sendAt = n.now.Add(n.cfg.Silence), n.now
		}
	}
}

func (n *Node) memberIndex(id names.AgentName) (int, bool) {
	return slices.BinarySearchFunc(n.members, id,
		func(m *member, id names.AgentName) int { return cmp.Compare(m.id, id) })
}

// findMember is nil if the id is unknown.
func (n *Node) findMember(id names.AgentName) *member {
	if i, ok := n.memberIndex(id); ok {
		return n.members[i]
	}
	return nil
}

func (n *Node) memberUp(id names.AgentName, rank Rank) {
	if id == n.cfg.ID {
		n.rank = rank
		n.claiming = n.claiming && n.mayLead()
		return
	}
	i, known := n.memberIndex(id)
	if known {
		n.members[i].rank = rank
		return
	}
	n.members = slices.Insert(n.members, i, &member{id: id, rank: rank})
	switch {
	case n.leading:
		n.sendHeartbeat(n.members[i])
	case n.claiming && n.persisted:
		n.send(id, Message{Kind: Propose, Claim: n.claim})
	}
}

func (n *Node) handleMessage(from names.AgentName, msg *Message) {
	c := msg.Claim
	switch {
	case c.Epoch >= endOfEpochs, Beyond(c.Epoch, n.seen) && (n.following || c.Epoch > maxTrusted):
		return
	case c.Epoch > 0 && Beyond(n.seen, c.Epoch):
		n.disownLies(c.Epoch)
	}
	n.seen = max(n.seen, c.Epoch)
	if m := n.findMember(from); m != nil {
		m.broken, n.spokeAt = false, n.now
	}
	switch msg.Kind {
	case Heartbeat:
		switch {
		case c.Leader == n.cfg.ID:
		case c.Compare(n.top) < 0:
			n.send(from, Message{Kind: Refuse, Claim: n.top, Heard: n.hearsLeader()})
		default:
			n.followLeader(c, msg.Successor)
			n.send(from, Message{Kind: Ack, Claim: c})
		}
	case Ack:
		if m := n.findMember(from); m != nil && n.leading && c == n.top {
			m.ackedAt = n.now
		}
	case Propose:
		n.answerProposal(from, c)
	case Grant:
		if m := n.findMember(from); m != nil && n.claiming && c == n.claim {
			m.granted = true
		}
	case Refuse:
		n.handleRefusal(c, msg.Heard)
	case Resign:
		if n.following && !n.leading && c == n.top {
			switch msg.Successor {
			case "":
				n.loseLeader(HandedOver)
			case n.cfg.ID:
				if n.mayLead() && !(n.claiming && n.unasked) {
					n.startClaim(true)
				}
			}
		}
	}
}

// disownLies gives up claims and epochs that are so far above a heard epoch that they were lies.
func (n *Node) disownLies(epoch uint64) {
	if Beyond(n.top.Epoch, epoch) {
		if n.leading {
			n.stepDown(Disowned)
		}
		if n.following {
			n.loseLeader(Disowned)
		}
		n.top, n.heardAt, n.brokenAt, n.successor = Claim{}, time.Time{}, time.Time{}, ""
	}
	n.claiming = n.claiming && !Beyond(n.claim.Epoch, epoch)
	n.seen = n.top.Epoch
	for _, own := range [...]uint64{n.cfg.Epoch, n.claim.Epoch} {
		if !Beyond(own, epoch) {
			n.seen = max(n.seen, own)
		}
	}
}

// hearsLeader reports whether the leader of the highest claim is certainly there.
func (n *Node) hearsLeader() bool {
	if n.leading {
		return !n.resigned
	}
	return n.following && n.brokenAt.IsZero() && n.now.Sub(n.heardAt) < n.heartbeatTime(freshWait)
}

// outranks reports whether an agent of rank claim takes over from a living leader.
func outranks(claim, leader Rank) bool { return claim.Role() == Must && leader.Role() != Must }

// followLeader takes a leader's heartbeat whose claim is at least the highest known.
func (n *Node) followLeader(c Claim, successor names.AgentName) {
	if n.leading {
		reason := HigherClaim
		if n.resigned {
			reason = HandedOver
		}
		n.stepDown(reason)
	}
	known := n.following && c == n.top
	n.claiming = n.claiming && c.Compare(n.claim) < 0 && (outranks(n.claim.Rank, c.Rank) ||
		n.unasked && known)
	if !known {
		n.following, n.top, n.base = true, c, n.now
		n.out = append(n.out, Action{Kind: Follow, Claim: c})
	}
	if successor == n.cfg.ID && n.mayLead() && !(known && successor == n.successor) {
		// The coming claim then need not wait for the disk.
		n.out = append(n.out, Action{Kind: Persist, Claim: n.nextClaim()})
	}
	n.successor, n.brokenAt, n.heardAt = successor, time.Time{}, n.now
	if m := n.findMember(successor); m != nil {
		m.broken = false // the leader hears the successor, even if we do not
	}
}

// answerProposal answers an agent that wants to lead.
func (n *Node) answerProposal(from names.AgentName, c Claim) {
	if n.following && !n.leading && c.Leader == n.top.Leader && c.Epoch > n.top.Epoch {
		n.loseLeader(Restarted)
	}
	switch {
	case c.Leader == n.cfg.ID:
	case c.Epoch <= n.top.Epoch, n.hearsLeader() && !outranks(c.Rank, n.top.Rank):
		n.send(from, Message{Kind: Refuse, Claim: n.top, Heard: n.hearsLeader()})
	case n.claiming && n.claim.Compare(c) > 0:
		// The other agent will hear of our claim and give way.
	default:
		n.claiming = false
		n.base = laterOf(n.base, n.now.Add(n.heartbeatTime(proposeWait+2)))
		n.send(from, Message{Kind: Grant, Claim: c})
	}
}

// handleRefusal takes the news of a claim c and whether its leader is heard.
func (n *Node) handleRefusal(c Claim, heard bool) {
	heard = heard && c.Leader != n.cfg.ID && !outranks(n.rank, c.Rank)
	higher, led := c.Compare(n.top) > 0, n.leading
	if higher {
		if led {
			n.stepDown(HigherClaim)
		}
		if n.following {
			n.loseLeader(HigherClaim)
		}
		n.top, n.heardAt, n.brokenAt, n.successor = c, time.Time{}, time.Time{}, ""
	}
	switch {
	case heard && !higher && n.claiming && n.now.Sub(n.heardAt) < n.heartbeatTime(freshWait):
		// The sender may hear of the leader's end a little later than we did. We ask again, and
		// give it the full time to refuse.
		n.claimEnd = laterOf(n.claimEnd, n.now.Add(n.heartbeatTime(proposeWait)))
		n.sendAt = earlierOf(n.sendAt, n.now.Add(n.cfg.Heartbeat/5))
	case heard && (higher || n.claiming):
		n.claiming = false
		n.base = laterOf(n.base, n.now.Add(n.cfg.Silence/2))
	case (n.claiming && c.Epoch >= n.claim.Epoch || higher && led) && n.mayLead():
		n.startClaim(false) // with a higher epoch
	}
}

func (n *Node) stepDown(why Reason) {
	n.leading = false
	n.out = append(n.out, Action{Kind: StepDown, Claim: n.top, Reason: why})
}

// loseLeader gives up the leader that we follow.
func (n *Node) loseLeader(why Reason) {
	n.following = false
	n.base = laterOf(n.base, n.now) // base is later if we have granted another's claim
	n.out = append(n.out, Action{Kind: NoLeader, Reason: why})
}

// doDueWork does the work that is due by now.
func (n *Node) doDueWork() {
	if n.leading {
		n.leadOn()
		return
	}
	if n.following {
		switch {
		case !n.now.Before(n.lostAt()) && !n.brokenAt.IsZero():
			n.loseLeader(Broken)
		case !n.now.Before(n.lostAt()):
			n.loseLeader(Silent)
		}
	}
	switch {
	case n.claiming && n.isClaimDecided() && !n.isDeaf():
		n.takeOver()
	case n.claiming && !n.now.Before(n.claimEnd): // nobody answers, or the epoch was not persisted
		n.claiming = false
		n.base = n.now.Add(n.cfg.Silence)
	case n.claiming && n.persisted && !n.now.Before(n.sendAt):
		n.proposeClaim()
	case n.wantsToLead() && !n.now.Before(n.claimAt()):
		n.startClaim(false)
	}
}

// leadOn sends a heartbeat if one is due, and hands over if the agent has resigned.
func (n *Node) leadOn() {
	if n.now.Before(n.sendAt) {
		return
	}
	n.sendAt = n.now.Add(n.cfg.Heartbeat)
	n.successor = n.chooseSuccessor()
	if n.resigned && (n.successor == "" || !n.now.Before(n.resignBy)) {
		n.tellAll(Message{Kind: Resign, Claim: n.top})
		n.stepDown(HandedOver)
		n.loseLeader(HandedOver)
		return
	}
	if n.hearsNobody() {
		n.tellAll(Message{Kind: Resign, Claim: n.top})
		n.stepDown(HearsNobody)
		n.loseLeader(HearsNobody)
		n.base = n.now.Add(n.cfg.Silence)
		return
	}
	all := n.resigned || !n.now.Before(n.allAt)
	if all {
		n.allAt = n.now.Add(n.heartbeatTime(restWait))
	}
	for _, m := range n.members {
		if all || !n.needsNoHeartbeat(m) {
			n.sendHeartbeat(m)
		}
	}
	if n.resigned {
		n.send(n.successor, Message{Kind: Resign, Claim: n.top, Successor: n.successor})
	}
}

// needsNoHeartbeat reports whether the member needs no heartbeat before the next one to all
// members: it has acknowledged the last one, and nothing has changed since.
func (n *Node) needsNoHeartbeat(m *member) bool {
	return !m.broken && !m.toldAt.IsZero() && !m.ackedAt.Before(m.toldAt) && m.told == n.successor
}

// sendHeartbeat sends a member a heartbeat.
func (n *Node) sendHeartbeat(m *member) {
	m.toldAt, m.told = n.now, n.successor
	n.send(m.id, Message{Kind: Heartbeat, Claim: n.top, Successor: n.successor})
}

// chooseSuccessor is the member of the highest rank among those that may lead and that we reach,
// empty if there is none.
func (n *Node) chooseSuccessor() names.AgentName {
	var best *member
	for _, m := range n.members {
		// members are in the order of ids
		if m.rank != 0 && n.hasFollower(m) && (best == nil || m.rank >= best.rank) {
			best = m
		}
	}
	if best == nil {
		return ""
	}
	return best.id
}

func (n *Node) mayLead() bool { return n.rank != 0 && !n.resigned && n.seen+1 < endOfEpochs }

// wantsToLead reports whether the node should claim when its time has come.
func (n *Node) wantsToLead() bool {
	return n.mayLead() && !n.claiming && (!n.following || outranks(n.rank, n.top.Rank))
}

// claimAt is when the node should claim if it wants to lead.
func (n *Node) claimAt() time.Time {
	return n.base.Add(time.Duration(n.claimPosition()) * n.heartbeatTime(staggerWait))
}

// claimPosition is how many agents should claim before us: the successor that the last leader
// announced, and all of higher rank.
func (n *Node) claimPosition() int {
	if n.successor == n.cfg.ID || n.following {
		return 0
	}
	before := 0
	for _, m := range n.members {
		if m.rank == 0 || m.broken || m.id == n.top.Leader {
			continue
		}
		if m.id == n.successor ||
			cmp.Or(cmp.Compare(m.rank, n.rank), cmp.Compare(m.id, n.cfg.ID)) > 0 {
			before++
		}
	}
	return min(before, maxStaggered)
}

// nextClaim is the claim that the node would make next.
func (n *Node) nextClaim() Claim { return Claim{Epoch: n.seen + 1, Rank: n.rank, Leader: n.cfg.ID} }

// startClaim begins a claim. A successor's epoch is usually persisted already. unasked says that
// the leader has resigned in our favour.
func (n *Node) startClaim(unasked bool) {
	n.claim = n.nextClaim()
	n.seen = n.claim.Epoch
	n.claiming, n.persisted, n.unasked = true, false, unasked
	n.claimedAt, n.claimEnd = n.now, n.now.Add(n.cfg.Silence)
	for _, m := range n.members {
		m.granted = false
	}
	if n.kept == n.claim.Epoch {
		n.claimKept()
		return
	}
	n.out = append(n.out, Action{Kind: Persist, Claim: n.claim})
}

// claimKept goes on with the claim once its epoch is persisted.
func (n *Node) claimKept() {
	n.persisted = true
	n.claimEnd = n.now.Add(n.heartbeatTime(proposeWait))
	n.proposeClaim()
}

// proposeClaim asks the members whether they object. It asks twice a heartbeat, because messages
// may be lost.
func (n *Node) proposeClaim() {
	n.sendAt = n.now.Add(n.cfg.Heartbeat / 2)
	if n.unasked {
		return
	}
	for _, m := range n.members {
		if !m.granted {
			n.send(m.id, Message{Kind: Propose, Claim: n.claim})
		}
	}
}

// isClaimDecided reports whether our claim holds: all members that we can reach have granted it, or
// the time to refuse has passed.
func (n *Node) isClaimDecided() bool {
	if !n.persisted || n.unasked || !n.now.Before(n.claimEnd) {
		return n.persisted
	}
	for _, m := range n.members {
		lost := m.broken || m.id == n.top.Leader && !n.hearsLeader()
		if !m.granted && !lost {
			return false
		}
	}
	return true
}

// isDeaf reports whether our claim may have been refused without our hearing it: streams to members
// stand, and nobody has said a word since we claimed. Otherwise an agent that no packet reaches,
// while its own get through, would depose a leader that all others hear, and nobody could tell it
// anything. Such an agent claims again after a while, with pauses in which others can. It ends when
// the kernel breaks the connections, on which nothing is acknowledged, after 3 s, or when gossip
// gives the members up, after 5 s. If really nobody else is left, nobody misses a leader meanwhile.
// The leader that we have lost does not count: who is alone without it leads at once.
func (n *Node) isDeaf() bool {
	return !n.spokeAt.IsZero() && n.spokeAt.Before(n.claimedAt) &&
		slices.ContainsFunc(n.members, func(m *member) bool {
			return !m.broken && m.id != n.top.Leader
		})
}

// hearsNobody reports whether our agent leads, and no other has said a word for Silence though the
// streams to two or more stand. Such a leader gets no queries and no answers, perhaps because only
// what it sends gets through; others can lead. In a fleet of two it goes on: the other agent has
// probably lost its power, and the stream to it breaks soon.
func (n *Node) hearsNobody() bool {
	if n.now.Sub(laterOf(n.spokeAt, n.ledAt)) < n.cfg.Silence {
		return false
	}
	standing := 0
	for _, m := range n.members {
		if !m.broken {
			standing++
		}
	}
	return standing >= 2
}

// takeOver makes our agent the leader.
func (n *Node) takeOver() {
	n.claiming, n.leading, n.following, n.ledAt = false, true, true, n.now
	n.top, n.successor = n.claim, ""
	n.heardAt, n.brokenAt = time.Time{}, time.Time{}
	for _, m := range n.members {
		m.ackedAt, m.toldAt = time.Time{}, time.Time{}
	}
	n.out = append(n.out, Action{Kind: Lead, Claim: n.top}, Action{Kind: Follow, Claim: n.top})
	n.sendAt = n.now
	n.leadOn()
}

// lostAt is when we give up the leader that we follow unless we hear it before.
func (n *Node) lostAt() time.Time {
	t := n.heardAt.Add(n.cfg.Silence)
	if !n.brokenAt.IsZero() {
		wait := n.heartbeatTime(brokenWait)
		if n.successor == n.cfg.ID {
			// If the leader lives and only one of its streams broke, its next heartbeat comes
			// within this time.
			wait = n.cfg.Heartbeat + heartbeatSlack
		}
		t = earlierOf(t, n.brokenAt.Add(wait))
	}
	return laterOf(t, n.listenUntil)
}

// nextStepAt is when the node wants to be stepped next.
func (n *Node) nextStepAt() time.Time {
	if n.leading {
		return n.sendAt
	}
	var t time.Time
	if n.following {
		// A freeze must be noticed before the leader counts as lost, so the node is stepped at
		// least this often.
		t = earlierOf(n.lostAt(), n.now.Add(n.heartbeatTime(freezeWait)))
	}
	if n.claiming {
		t = earlierOf(t, n.claimEnd)
		if n.persisted {
			t = earlierOf(t, n.sendAt)
		}
	} else if n.wantsToLead() {
		t = earlierOf(t, n.claimAt())
	}
	return t
}

func (n *Node) tellAll(msg Message) {
	for _, m := range n.members {
		n.send(m.id, msg)
	}
}

func (n *Node) send(to names.AgentName, msg Message) {
	n.out = append(n.out, Action{Kind: Send, To: to, Message: msg})
}

func laterOf(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// earlierOf is the earlier of two times, where the zero time means never.
func earlierOf(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
