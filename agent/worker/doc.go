// Package worker is the part of an agent that runs queries. It holds the models, the lanes, and the
// estimates of how long queries run on them.
//
// Input: the attempts of gateways ([Worker.Attempt]), the queries of an agent that is alone
// ([Worker.Infer]), the streams of leaders ([Worker.Link]), and the streams of gateways that ask
// when a query would be answered ([Worker.Probe]). The worker validates each query against the
// model's signature, queues it for a lane, and runs it. Output: the answers; for the leader that
// the agent follows, the end of each attempt; and for the fleet, a description of the lanes and
// models.
//
// Worker.Run owns the repository's goroutines, which load models, one for each checksum that is
// computed or waited for, and one that waits for the first of them. Attempts and streams run on their
// callers' goroutines; a Link has one more, which reads it.
package worker
