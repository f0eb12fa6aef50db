// Package roles says what the dimensions of a model's inputs and outputs stand for in a ranking
// query: one user, many candidates, and features of several values. Gateways and workers count,
// split, repeat and join the tensors of queries by it.
//
// The package is pure: it starts no goroutine and reads no clock. It takes tensors as they came from
// a client: what does not fit is an error that names the input, the row and the value.
package roles
