// Package gossip tells the agents of a fleet about each other: who is a member, a few bytes that
// each says about itself ([Member].Meta), and roughly how busy each is ([Load]).
//
// It wraps memberlist, which finds failed members and spreads messages. This package adds joining
// that never gives up, loads, a keyring that can be rotated, bounds on what strangers can make it
// read, and logs that name a fault once. In come [Config], and the meta and load of this agent
// ([Gossip.SetMeta], [Gossip.SetLoad]). Out come members, loads, and [Gossip.Events]. It carries
// bytes; the agent knows what they mean. A view is about a second old. What must be exact or
// immediate goes over the agents' own streams.
//
// [Open] starts memberlist's goroutines and a few of its own: those that read packets and accept
// streams, one that joins, and one that delivers events and loads. [Gossip.Close] ends them.
//
// # Joining
//
// An agent without seeds, or whose seeds do not answer, is a fleet of one. Seeds are tried for
// ever, at first often and then every 15 s, also after the agent has joined: memberlist forgets
// members that failed, so the halves of a partition would never find each other again. Members that
// failed within the last hour are tried as well, so the halves meet if either knows an address of
// the other.
//
// # Loads
//
// memberlist sends a member's own messages to some members and no further. So a member passes on a
// load that is new to it a few times, and drops one that is not. Loads of a member are numbered.
// Each carries its age, to which every agent adds, so that no two clocks are compared.
//
// # Callbacks
//
// memberlist calls back with its locks held; calling it from there would deadlock. The callbacks
// copy what they are given into a view of our own. The lock of that view is never held while
// memberlist is called.
package gossip
