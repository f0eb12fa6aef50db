// Package members is the room of an agent that knows the fleet: who is there, what each holds, and
// how busy each is.
//
// In come the events of gossip, what other agents answer when they are asked what they are, what
// this agent is and how busy it is ([Config]), and what the leader says of prices and profiles
// ([Members.ToldByLeader]). Out go the fleet as one message, the view, which is the same message
// until it changes, to callers and to those who watch it; connections to the members; and word to
// gossip of what this agent is. The keys of gossip, and their rotation, are a [Keyring].
//
// Members.Run owns four goroutines: one each that follows gossip, feeds those who watch, and tells
// the fleet how busy this agent is and what it is. Beside them there is one for each other agent, which
// asks it what it is, a few that ask strangers, and one for each that has gone while its connection
// closes; Members.Close ends those.
package members
