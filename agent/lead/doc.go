// Package lead is the room of an agent that takes part in elections and leads when elected.
//
// In come the fleet's view ([Fleet]), what others say of elections ([Leader.Elect]) and on
// links that this agent opens, and the streams of gateways ([Leader.Match]). Out go election
// messages, links to all members while this agent leads, what gateways are told of their
// queries, status and demand.
//
// It decides nothing: who leads is package election's to say, and all that a leader decides is
// [leader.State]'s, and what it learns [learn.State]'s. While this agent leads there is a
// term, whose loop turns messages into the state's events and its actions into messages,
// records both, and has two loops beside it: one learns, and one plans, by [plan.React], when
// the demand has changed.
//
// Leader.Run owns the goroutines: one for the election's timers, one that follows the members, one
// for each link that was opened, the term's and its two loops', and for moments those that write
// the epoch, or look whether the leader is no more. Those of Match end with their streams.
package lead
