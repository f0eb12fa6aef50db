// Package gossip tells the agents of a cluster of each other: who is a member,
// a few bytes that each says about itself ([Member].Meta), and a coarse view of
// how busy each is ([Load]). It wraps memberlist, which finds failed members and
// spreads messages; what this package adds is joining that never gives up, loads,
// a keyring that can be rotated, and logs that name a fault once.
//
// It carries bytes; the agent, which calls it, knows what they mean. Nothing here
// is exact: a view is a second or so old, and what must be exact or at once
// travels on the agents' own streams.
//
// # Joining
//
// An agent without seeds, or whose seeds do not answer, is a cluster of one.
// Seeds are tried forever, at first often and then every 15 s, also once joined:
// memberlist forgets members that failed, so the halves of a partition would
// never find each other again. Members that failed within the last hour are
// tried as well, so the halves meet if either one knows an address of the other.
//
// # Loads
//
// memberlist sends a member's own messages to some members and no further. So
// who receives a load that is news passes it on a few times, and drops what is
// not: loads of a member are numbered. Each carries its age, which every agent
// adds to, so that no two clocks are compared.
//
// # Callbacks
//
// memberlist calls back with its locks held, so calling it from there would
// deadlock. Our callbacks copy what they are given into a view of our own,
// behind a lock that is never held while calling memberlist.
package gossip
