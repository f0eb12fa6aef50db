// Package lead is the part of an agent that takes part in elections and, while the agent is
// elected, runs the leader.
//
// Input: the fleet's view ([AgentDirectory]), election messages from other agents ([Leader.Elect]),
// the messages on links that this agent opens, and the streams of gateways ([Leader.Match]).
// Output: election messages, links to all members while this agent leads, decisions for gateways,
// and the leader's share of status and demand.
//
// The package itself decides nothing. Package election decides who leads, [leader.State] makes all
// decisions of a leader, and [learn.State] learns. A term is the time for which this agent leads.
// The term's loop turns messages into events for the state and the state's actions into messages,
// and records both on request. Two loops run beside it: one learns, and one plans, as
// [propose.Proposer] decides.
//
// Leader.Run owns the goroutines: one for the election's timers, one that follows the members, one
// for each open link, the term's loop, its learning loop and its planning loop. Short-lived
// goroutines write the epoch, solve plans, or find out whether the leader's process has ended. The
// goroutines of Match end with their streams.
package lead
