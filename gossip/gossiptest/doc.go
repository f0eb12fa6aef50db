// Package gossiptest is a network in memory for gossip. It loses, delays and duplicates packets as
// it is told, and can be cut and healed. In a testing/synctest bubble, whole fleets run on it in
// virtual time.
//
// memberlist's own mock transport blocks for ever once a peer has shut down.
package gossiptest
