// Package worker is the room of an agent that works for others: its models, its lanes and what is
// known of how long queries run on them.
//
// In come attempts of gateways, as requests of the Open Inference Protocol ([Worker.Attempt]), queries
// of an agent that is alone ([Worker.Infer]), and the streams of those who lead ([Worker.Link]) and of
// gateways that ask when a query would be answered ([Worker.Probe]). Every query takes one way:
// validate it against the model's signature, wait for a lane, run, answer. Out go answers, to the
// leader that the agent follows what became of each attempt, and to the fleet what this agent holds.
//
// Worker.Run owns the repository's goroutines, which load models. All others are those of the
// calls and streams that are served, and one each for a Link, which reads it.
package worker
