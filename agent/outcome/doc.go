// Package outcome maps an error to what an agent answers and counts: the gRPC code, the HTTP status
// and the reason in the metrics' label.
//
// All parts of the agent wrap the errors of this package, of package oip or of package runtime;
// servers call [Of] or [GRPC] at the end of a call. Codes are chosen here and nowhere else. The
// package imports no other part of the agent, has no state and starts no goroutine. All functions
// may be called concurrently.
package outcome
