// Package election decides who leads.
//
// A [Node] is a pure state machine: one stands in every agent, is told what
// happened and what time it is, and answers with what to do and when it wants to
// be stepped next. It starts no goroutine, reads no clock, opens no connection
// and draws no randomness.
//
// # How it goes
//
// The leader sends a heartbeat to every member each 50 ms. An agent that may
// lead and believes that there is no leader picks an epoch above all it has ever
// seen, has it persisted, and asks the members ([Propose]). A member that hears a
// leader refuses, so an agent that has merely lost sight of the leader does not
// depose it; for 200 ms after it heard the leader itself it goes on asking, as others
// may hear of a leader's end a little later. If all grant it, or nobody refuses within
// 150 ms, the agent leads, and its first heartbeats say so. Of two claims the higher
// (epoch, then rank, then id) wins everywhere: whoever hears a lower one tells its leader
// of the higher, and that leader steps down.
//
// An agent believes that there is no leader
//   - 1 s after it last heard it; the agents then claim in the order of their
//     ranks, 100 ms apart, so that usually one does;
//   - if the leader's stream broke: 70 ms later for the successor that the leader had
//     announced, or at once if its process has ended; 100 ms later for the others, which
//     so leave the successor the first claim;
//   - at once, if the leader resigned without a successor, asks to be elected
//     itself (it has restarted), or gossip has given it up and nothing is heard.
//
// A leader that resigns leads until its successor does, so nothing is silent. An
// agent of the role [Must] claims as soon as it hears a leader that only may.
// A leader that was not stepped for almost 1 s (its process was stopped, its
// machine slept) steps down before it does anything else.
//
// # The caller
//
// One goroutine owns the node. It steps it with what happens and at the time the
// node asked for, and does the actions in order; sending must not wait. Streams keep
// the order, so control that a leader sends a member after its first heartbeat is
// obeyed. A stream that breaks or cannot be opened is told at once (StreamBroken), and
// then, if the node asks for it ([Look]) and the host refuses a connection, that the process
// has ended (ProcessEnded): that makes the difference between 1 s, 80 ms and 20 ms without a leader. Either may be wrong:
// a leader that the others hear stays.
//
// # What is guaranteed
//
//   - Lead and StepDown alternate, and every Lead has an epoch above all that
//     the agent has led before or seen, also over restarts if [Config.Epoch] is
//     what was persisted.
//   - The claim a node follows never falls. So a worker follows one leader at a time
//     and no stale one, whatever arrives late. (The two above hold but for claims that
//     are lies; see below.)
//   - Every change of whom a node follows is told (Follow), also when the same agent
//     leads again. A gateway that re-submits there on every Follow loses nothing.
//   - When messages get through within some 50 ms, nobody crashes or is frozen and
//     gossip knows the members, then within 2 s exactly one agent leads, if any may,
//     and all follow it; and it stays so, also if one message in ten is lost.
//
// # What is not
//
// There is no quorum. In a network cut in two, each side has a leader, and for
// moments there may be two without any cut; when they hear of each other, the
// higher claim wins. That is meant: a fleet of two must survive the loss of one,
// and the epochs fence control (plans, loads, prices, whom a worker reports to),
// never queries. Two leaders for a while cost efficiency, not correctness, since a
// lane's own queue is the truth.
//
// An agent that is cut off from the leader, but not from members that hear it,
// has no leader while that lasts: its gateway decides alone.
//
// Members are believed. An agent that lies about its epoch is followed, but not for good, and
// the fleet can elect a leader afterwards: of two epochs that are more than 2^20 apart the higher does
// not come from elections ([Beyond]). A node that follows a leader, or leads, does not listen to claims so
// far above what it knows. One that follows nobody, such as one that has just started, or was away for long,
// takes any up to 2^62: it cannot tell what its fleet has come to. Whoever hears of an epoch so far below its
// own gives its own up, and so returns to the fleet if it was the one that was lied to.
package election
