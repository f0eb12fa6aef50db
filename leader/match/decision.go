package match

import (
	"time"

	"github.com/muster-serve/muster/api/names"
)

// An Action is what a decision asks the caller to do.
type Action uint8

const (
	// Assign: the gateway sends the query to Lane, as the given attempt.
	Assign Action = iota
	// Reject: the query is not served; the matcher has forgotten it.
	Reject
	// OfferAgain: the attempt no longer counts, because the lane refused it, is lost or is overdue;
	// the query waits again.
	OfferAgain
	// Ask: Lane's answer is late by Waited. The caller asks the lane's agent what the lane holds,
	// and steps the matcher with LaneHas. The lane gets no query until it answers, or until it no
	// longer holds the attempt that was late. Attempt counts how often this was asked.
	Ask
	// Split: Query is split into as many parts as Rows has entries, of so many rows, in the
	// order of the query's rows. The matcher has forgotten Query. Its parts, [QueryID.Part] 1 and
	// up, wait as queries of their own, with the arrival and deadline of Query. They ask for Model,
	// so that one variant answers all rows.
	Split
)

// A Reason says why a decision was taken.
type Reason uint8

const (
	// Matched: the policy chose the lane and expects the query within its QoS target.
	Matched Reason = iota
	// Late: the query cannot meet its QoS target any more. It is served because the lane would
	// otherwise idle, or rejected because of its model's RejectLate.
	Late
	// DeadlinePassed: the query's deadline has passed, so nobody waits for the answer.
	DeadlinePassed
	// UnknownModel: no such model is configured.
	UnknownModel
	// BadBatchSize: the batch size is below 1 or above the model's largest.
	BadBatchSize
	// Overloaded: [Config.MaxWaiting] queries wait already.
	Overloaded
	// TooManyAttempts: [MaxAttempts] lanes have failed the query.
	TooManyAttempts
	// LaneRefused, LaneGone and LaneOverdue say why a query is offered again.
	LaneRefused
	LaneGone
	LaneOverdue
	// LeastAccuracy: no variant of the family is as accurate as the query demands.
	LeastAccuracy
	// Limit: the query's client is beyond its limits. Only package leader gives this reason: a
	// matcher does not know the limits.
	Limit
)

// MaxAttempts is how often a query is assigned at most: once and three retries.
const MaxAttempts = 4

// A Decision is what the matcher decided about one query, with the numbers
// behind it.
type Decision struct {
	Action  Action
	Reason  Reason
	Query   QueryID
	Attempt int    // number of the assignment; 1 for the first
	Rows    []int  // Split: the parts' rows
	Lane    LaneID // Assign, OfferAgain, Ask
	// Model is the model that Lane runs, or that the parts of a split query ask for: the one that
	// the query names, or a variant of the family that it names. Family is then that family, and
	// Accuracy the variant's, 1 if it is unknown. Assign, Split
	Model, Family names.ModelKey
	Accuracy      float64
	// Merge, if not 0, is the number of the run in which the lane runs the query together with
	// others that the same step assigns to the lane; Merged is the number of queries in the run.
	// Assign has both.
	Merge  uint64
	Merged int
	// Cost is the cost that the policy minimised, in the policy's own unit; 0 if it has none.
	Cost float64
	// Latency is the predicted mean execution latency on the lane.
	Latency time.Duration
	// Waited is how long the query has waited so far. Wait is how long it will still wait for the
	// lane or, with Reject, when its client is to try again; 0: not.
	Waited, Wait time.Duration
	// Slack is QoS target - Waited - Wait - Latency: negative if the query will be late.
	Slack time.Duration
}
