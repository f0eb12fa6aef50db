package match

import "time"

// An Action is what a decision asks the caller to do.
type Action uint8

const (
	// Assign: the gateway sends the query to Lane, as the given attempt.
	Assign Action = iota
	// Reject: the query is not served; the matcher has forgotten it.
	Reject
	// OfferAgain: the attempt is void (the lane refused, is lost or overdue); the
	// query waits again.
	OfferAgain
	// Ask: Lane should have answered long ago, by Waited. Whose it is should say what it has
	// (LaneHas); it gets nothing until it answers, or does not have any more what made it late.
	// Attempt counts how often this was asked.
	Ask
)

// A Reason says why a decision was taken.
type Reason uint8

const (
	// Matched: the policy chose the lane and expects the query within its QoS target.
	Matched Reason = iota
	// Late: the query cannot meet its QoS target any more; it is served because the
	// lane would otherwise idle, or rejected because its model is set so.
	Late
	// DeadlinePassed: nobody waits for the answer any more.
	DeadlinePassed
	// UnknownModel: no such model is configured.
	UnknownModel
	// BadBatchSize: below 1 or above the model's largest.
	BadBatchSize
	// Overloaded: [Config.MaxWaiting] queries wait already.
	Overloaded
	// TooManyAttempts: [MaxAttempts] lanes have failed the query.
	TooManyAttempts
	// LaneRefused, LaneGone and LaneOverdue tell why a query is offered again.
	LaneRefused
	LaneGone
	LaneOverdue
	// Limit: the query's client is beyond its limits, which its leader knows, not a matcher.
	Limit
)

// MaxAttempts is how often a query is assigned: once and three retries.
const MaxAttempts = 4

// A Decision is what the matcher decided about one query, with the numbers
// behind it.
type Decision struct {
	Action  Action
	Reason  Reason
	Query   QueryID
	Attempt int    // of an assignment; 1 for the first
	Lane    LaneID // Assign, OfferAgain, Ask
	// Cost is what the policy minimised; its unit is the policy's own. 0 where it has none.
	Cost float64
	// Latency is the predicted mean execution latency on the lane.
	Latency time.Duration
	// Waited is how long the query has waited so far, Wait how long it will still
	// wait for the lane.
	Waited, Wait time.Duration
	// Slack is QoS target - Waited - Wait - Latency: negative if the query will be late.
	Slack time.Duration
}
