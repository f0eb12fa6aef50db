// Package election decides who leads.
//
// A [Node] is a pure state machine; each agent has one. In come events ([Event]) and the time:
// messages of other nodes, members that come and go, streams that break. Out go actions ([Action]):
// what to send, what to write to disk, that this agent leads or no longer leads, whom it follows;
// and when the node wants to be stepped next. It starts no goroutine, reads no clock, opens no
// connection and draws no randomness.
//
// # How an election goes
//
// The leader sends a heartbeat to all members each 200 ms, and to each of them each 50 ms until it has
// acknowledged one that says the same. An agent that may lead and believes that there is no leader
// chooses an epoch above all that it has ever seen. It has the epoch written to
// disk and asks the members ([Propose]). A member that hears a leader refuses, so an agent that has
// merely lost sight of the leader does not depose it. For 300 ms after it heard the leader itself
// the agent continues to ask, because others may hear of a leader's end a little later. If all
// members grant the claim, or nobody refuses within 150 ms, the agent leads, and its first
// heartbeats say so. Of two claims the higher wins everywhere: by epoch, then rank, then id.
// Whoever hears the lower one tells its leader of the higher, and that leader steps down.
//
// An agent believes that there is no leader
//
//   - 1 s after it last heard the leader. Agents then claim in the order of their ranks, 100 ms
//     apart, so that usually one does.
//   - if the leader's stream broke: the successor that the leader had announced waits 70 ms, or
//     does not wait if the leader's process has ended. The other agents wait 100 ms longer, so that
//     the successor claims first.
//   - at once, if the leader resigned without a successor, if the leader itself asks to be elected
//     (it has restarted), or if gossip has declared it dead and it is not heard.
//
// A leader that resigns leads until its successor does, so that there is always a leader. An agent
// of the role [Must] claims as soon as it hears a leader that only may lead. A leader that was not
// stepped for almost 1 s (its process was stopped, its machine slept) steps down before it does
// anything else.
//
// # The caller
//
// One goroutine owns the node. It steps the node with each event, and at the time for which the
// node asked, and does the actions in order. Sending must not block. Streams keep the order of
// messages, so a member obeys what a leader sends after its first heartbeat. The caller tells at
// once that a stream broke or cannot be opened (StreamBroken), and then, if the node asks for it
// ([Look]) and the host refuses a connection, that the process has ended (ProcessEnded). Without
// either event the fleet is without a leader for 1 s, with StreamBroken for 80 ms, and with both
// for 20 ms. Either event may be wrong: a leader that the other members hear stays.
//
// # What is guaranteed
//
//   - Lead and StepDown alternate. Every Lead has an epoch above all that the agent has led or seen
//     before, also over restarts if [Config.Epoch] is the epoch that was written to disk.
//   - The claim that a node follows never falls. So a worker follows one leader at a time, and
//     never a former one because of a message that arrives late. (These two do not hold for claims
//     that are lies; see below.)
//   - Every change of the leader that a node follows is told (Follow), also when the same agent
//     leads again. A gateway that submits its queries again on every Follow loses nothing.
//   - If messages arrive within some 50 ms, nobody crashes or is frozen, and gossip knows the
//     members, then within 2 s exactly one agent leads, if any may, and all follow it. This stays
//     so even if one message in ten is lost.
//
// # What is not guaranteed
//
// There is no quorum. In a network that is cut in two, each side has a leader, and for moments
// there may be two without a cut. When they hear of each other, the higher claim wins. This is
// intended: a fleet of two must survive the loss of one. Epochs fence control (plans, loads,
// prices, whom a worker reports to), never queries. Two leaders for a while cost efficiency, not
// correctness, because a lane's own queue is the truth. A caller must not rely on there being one
// leader for anything that must not be done twice.
//
// An agent that is cut off from the leader, but not from members that hear it, has no leader while
// that lasts: its gateway chooses workers itself. So does one that no message reaches though its own
// get through: nobody's refusal gets to it, so it does not lead while streams to others stand. If it
// leads when that begins, it steps down after 1 s in which it heard nobody. In a fleet of two neither
// holds: who loses the other leads, and so the leader may be one who hears nobody.
//
// Members are believed. An agent that lies about its epoch is followed, but not for good, and the
// fleet can elect a leader afterwards. Of two epochs that are more than 2^20 apart, the higher one
// does not come from elections ([Beyond]). A node that follows a leader, or leads, ignores claims
// so far above what it knows. A node that follows nobody, because it has just started or was away
// for long, accepts any epoch up to 2^62: it cannot tell how far its fleet has come. A node that
// hears of an epoch so far below its own gives its own up; so a node that was lied to returns to
// its fleet.
package election
