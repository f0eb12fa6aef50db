// Package oip implements the Open Inference Protocol, version 2: its messages, its gRPC codec and
// its REST form.
//
// A query and its answer are plain structs ([Request], [Response]). A gRPC codec moves tensors
// between the wire and those structs with at most one copy. The REST form is JSON, with or without
// the binary tensor extension. Servers and clients both use it. The package checks the form of
// messages (lengths, types, counts), not their meaning: package worker checks whether a model has
// such an input. It starts no goroutine.
//
// # Why it has a JSON reader of its own
//
// A prototype with jsontext (go-json-experiment 1.27.2) read the same queries into the same tensors
// as [DecodeRequest], with Go 1.26 on two cores of an EPYC; medians of 7 interleaved runs. A query
// of 8 x 4 INT64 took 2.6 us and 8 allocations with jsontext, and takes 2.9 us and 15 here. One of
// 1000 x 64 takes 7.3 ms here as FP32 and 3.7 ms as INT64; with jsontext 8.2 and 3.4 ms, or 6.3 and
// 2.9 ms if the data was decoded where it stands. That single pass needs shape and datatype before
// the data, which the protocol does not promise, and the sizes of all inputs are not known yet when
// it allocates memory for the first. jsontext would replace the part of json.go that splits text
// into tokens; nested shapes, the ranges of types, BYTES, binary data, limits on keys and depth,
// and errors that say what was expected at which byte would stay ours. It is an experiment until Go
// 1.27, so the reader stays; from then on it is in the standard library, and may replace that part.
package oip
