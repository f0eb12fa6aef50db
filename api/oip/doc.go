// Package oip implements the Open Inference Protocol, version 2: its messages, its gRPC codec and
// its REST form.
//
// A query and its answer are plain structs ([Request], [Response]). A gRPC codec moves tensors
// between the wire and those structs with at most one copy. The REST form is JSON, with or without
// the binary tensor extension. Servers and clients both use it. The package checks the form of
// messages (lengths, types, counts), not their meaning: package worker checks whether a model has
// such an input. It starts no goroutine.
package oip
