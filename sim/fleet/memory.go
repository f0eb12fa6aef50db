package fleet

import "github.com/muster-serve/muster/client/queries"

// newQuery returns a query that has arrived.
func (f *Fleet) newQuery(of ArrivingQuery) *gatewayQuery {
	var q *gatewayQuery
	if n := len(f.queries); n > 0 {
		q, f.queries = f.queries[n-1], f.queries[:n-1]
		*q = gatewayQuery{ArrivingQuery: of, calls: q.calls[:0]}
	} else {
		q = &gatewayQuery{ArrivingQuery: of}
	}
	q.state = queries.Query{Arrival: of.Arrival, Tag: q}
	return q
}

// newCall returns a call, of unknown content.
func (f *Fleet) newCall() *call {
	n := len(f.calls)
	if n == 0 {
		return &call{}
	}
	c := f.calls[n-1]
	f.calls = f.calls[:n-1]
	return c
}

// recycleCall lets the memory of a query's only call, which has answered it, be used again, and
// that of the query. Where something can fail, other messages may still name them.
func (f *Fleet) recycleCall(c *call) {
	q := c.of
	if !f.cfg.Settled || !q.done || q.by != c || q.sent > 1 || q.timed ||
		f.cfg.Models[q.Model].RejectLate ||
		q.whole != nil || q.state.Parts() != nil || len(q.calls) > 0 ||
		len(c.gateway.inquired) > 0 {
		return
	}
	f.calls, f.queries = append(f.calls, c), append(f.queries, q)
}
