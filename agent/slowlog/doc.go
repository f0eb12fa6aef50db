// Package slowlog writes a log of the queries of clients that were late, refused or failed: a line
// of JSON each, with the cause, where the time went, and the id by which the client's own logs know
// the query. The log is a sample and its size is bounded, so that an agent whose queries all are
// late writes little more than one with a few. Package serve hands it the queries.
package slowlog
