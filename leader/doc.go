// Package leader decides all that a leader decides.
//
// A [State] is one term's: it is told what happened ([Event]) and when, and answers with what is to
// be done about it ([Action]). It starts no goroutine, reads no clock, opens no socket and writes
// no log, so the same events give the same actions, in an agent, in a replay and in a test.
//
// In come: what members say of themselves and of their lanes, links that break, gateways and
// their queries, the fleet's view, what the learning loop has found, and that time has passed.
// Out go: what gateways and members are told, what the learning loop is told, and facts for the
// log. Which lane gets which query is the matcher's to say (package match); a state keeps what is
// around it: who the members are, which models they hold, which queries a gateway has submitted,
// and what is counted.
//
// The learning loop is package learn. Package agent/lead feeds a state from the network and carries
// out what it says.
package leader
