// Package gossip lets the agents of a fleet find each other. It tells each agent which other agents
// are members, a few bytes of description of each ([Member].Meta), and roughly how busy each is
// ([MemberLoad]).
//
// It wraps memberlist, which detects failed members and spreads messages. This package adds joining
// that never gives up, loads, a keyring that can be rotated, bounds on what unknown senders can
// make an agent read, and logs that name a fault once. Input: [Config], and the meta and load of
// this agent ([Gossip.SetMeta], [Gossip.SetLoad]). Output: members, loads, and [Gossip.Events].
// Meta and load are bytes that the caller encodes. An agent's view of the others is about a second
// old; the agents send each other on streams of their own what must be exact or immediate.
//
// [Open] starts memberlist's goroutines and a few of its own: those that read packets and accept
// streams, one that joins, and one that delivers events and loads. [Gossip.Close] ends them.
//
// # Joining
//
// An agent without seeds, or whose seeds do not answer, is a fleet of one. It tries its seeds for
// as long as it runs, at first often and then every 15 s, also after it has joined: memberlist
// forgets failed members, so the two sides of a network partition would otherwise never find each
// other again. The agent also tries members that failed within the last hour, so the two sides join
// if either knows an address of the other.
//
// # Loads
//
// memberlist sends a member's own messages to some members, and these do not forward them. So a
// member forwards each load that is new to it a few times, and drops loads that it knows. A member
// numbers its loads. A message carries the load's age, to which every agent that forwards it adds
// the time that it kept it, so that clocks of two machines are never compared.
//
// # Strangers
//
// Without encryption, anybody who can send packets can name members that do not exist. A member is
// a stranger until the caller has found out that it is an agent and has called [Gossip.Vouch].
// Config.MaxStrangers bounds the strangers.
//
// # Callbacks
//
// memberlist calls back with its locks held; calling it from there would deadlock. The callbacks
// copy their arguments into this package's own view. The lock of that view is never held while
// memberlist is called.
//
// # Why it is not serf
//
// serf 0.11 wraps memberlist too, and adds events to all members, queries with answers, and a file
// of known members. It lacks what most of this package is for: it bounds neither strangers nor the
// streams and packets of unknown senders; it tries failed members again, but not seeds; and one
// member that its Merge delegate refuses fails a whole exchange of state. Loads would have to be
// its events.
// An event has 56 bytes around the load, with a name of 20 bytes; a frame here has 14. A newer
// event does not replace an older one, an event has no age, and each exchange of state carries the
// last 512 event times, where it carries one load of each member here. serf limits a member's tags
// to the same 512 bytes as [MaxMeta], and an event, with its name, to 512 unless configured.
// It rotates keys by a query that any holder of a key can send. The features decided; there was no
// benchmark.
package gossip
