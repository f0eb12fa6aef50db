// Package runtime runs models on this machine.
//
// It finds and loads the ONNX Runtime library, which release builds embed, and turns a version of
// package models into a session. In come queries, by [Lanes.Do]: [Lanes] decides which query runs
// when, one at a time on each lane, in the order of package queue. Out go results, and how long
// lanes are busy. [Lanes.Reserve] keeps time on a lane for a query that may come.
//
// An [Executor] loads versions. [ONNX] is the real one. [Emulated] waits as long as it is told and
// answers zeros. [Warm] runs a new model until it is fast, without disturbing what is served.
//
// Queries run on their callers' goroutines; the package starts none. [Lanes] and models may be used
// concurrently. The package knows nothing of networks.
package runtime
