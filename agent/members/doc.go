// Package members is the room of an agent that knows the fleet: who is in it, what each member
// holds, and how busy each is.
//
// In come the events of gossip, other agents' descriptions of themselves, what this agent is and
// how busy it is ([Config]), and the prices and profiles that the leader tells
// ([Members.ToldByLeader]). Out go the fleet as one message, the view, to callers and to those who
// watch it; connections to the members; and, to gossip, what this agent is. The view is the same
// message until it changes. A [Keyring] holds the keys of gossip and rotates them.
//
// Members.Run owns four goroutines. One follows gossip, one feeds those who watch, one tells the
// fleet how busy this agent is, and one tells it what this agent is. [Members.Close] ends the
// others: one for each other agent, which asks it what it is; a few that ask strangers; and one for
// each connection that is being closed.
package members
