// Package members is the part of an agent that knows the fleet: its members, the models that each
// member holds, and each one's load.
//
// Input: the events of gossip, other agents' descriptions of themselves, this agent's own
// description and load ([Config]), and the prices and profiles that the leader sends
// ([Members.ToldByLeader]). Output: the view, which is the fleet in one message, for callers and
// for streams of watchers; connections to the members; and this agent's description and load, for
// gossip. The view is the same message until it changes. A [Keyring] holds the keys of gossip and
// rotates them.
//
// Members.Run owns four goroutines. One handles the events of gossip, one updates the watchers'
// streams, one gossips this agent's load, and one gossips changes of its description.
// [Members.Close] ends the others: one for each other agent, which calls Describe on it; up to
// eight that call Describe on strangers, the agents that have not described themselves yet; and one
// for each connection that is being closed.
package members
