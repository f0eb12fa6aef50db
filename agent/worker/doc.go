// Package worker is the room of an agent that works for others. It holds the models, the lanes, and
// the estimates of how long queries run on them.
//
// In come the attempts of gateways ([Worker.Attempt]), the queries of an agent that is alone
// ([Worker.Infer]), the streams of leaders ([Worker.Link]), and the streams of gateways that ask
// when a query would be answered ([Worker.Probe]). Each query is validated against the model's
// signature, waits for a lane, and runs. Out go the answers; the leader that the agent follows is
// told what became of each attempt, and the fleet is told what this agent holds.
//
// Worker.Run owns the repository's goroutines, which load models. Attempts and streams run on their
// callers' goroutines; a Link has one more, which reads it.
package worker
