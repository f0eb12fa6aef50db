// Package capture keeps a share of clients' queries with their answers: in files of recorded queries
// (package querytrace), compressed by Zstandard, in a folder or in a bucket of package store. Package
// serve hands it the queries, with the rule of their model that says how many are kept and which
// columns are left out or hashed.
//
// A query never waits for it. What waits to be written is bounded in bytes, and so is what is
// written; a query for which there is no room is dropped and counted, as are those that a full disk
// or a store which does not answer would keep waiting.
//
// A [Recorder] owns one goroutine, which ends with Close.
package capture
