// Package runtime runs models on this machine.
//
// An [Executor] loads a version of package models and returns a [Model]. There are two: [ONNX] runs
// models with the ONNX Runtime library, which release builds embed; [Emulated] runs nothing, waits
// for a given latency and answers zeros. [Warm] runs a newly loaded model until it is fast.
//
// [Lanes] decides when queries run. A caller hands a query to [Lanes.Do], which waits until a lane
// is free and returns the result. Each lane runs one query at a time, in the order of package
// queue. [Lanes.Stats] tells how long the lanes will be busy. [Lanes.Reserve] keeps time on a lane
// for a query that may come.
//
// A [Partition] is lanes on some of this machine's cores, with threads that stay there: package
// isolate knows the cores. [Partition.Place] gives a model sessions with as many threads.
//
// A query runs on its caller's goroutine. [Lanes] and models may be used concurrently. The package
// uses no network.
package runtime
