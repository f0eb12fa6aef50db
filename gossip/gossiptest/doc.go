// Package gossiptest is an in-memory network for tests of gossip. It loses, delays and duplicates
// packets as a test asks, and can be partitioned. In a testing/synctest bubble, whole fleets run on
// it in virtual time.
//
// memberlist's own mock transport is of no use here: it blocks for ever once a peer has shut down.
package gossiptest
