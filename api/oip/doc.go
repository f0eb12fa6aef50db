// Package oip is the Open Inference Protocol (version 2) as Muster reads and writes it.
//
// It has a query and its answer as plain structs ([Request], [Response]); a gRPC codec that moves
// tensors between the wire and those structs without a copy of its own; and the REST form, in JSON
// and with the binary tensor extension. Servers and clients call it. It validates form (lengths,
// types, counts) and never meaning: whether a model has such an input is for the agent to say. It
// starts no goroutine.
package oip
