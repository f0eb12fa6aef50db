// Package bench puts a server under load and measures how it keeps its QoS targets.
//
// Its load generator is open-loop: it sends each query when its arrival is due, whether or not
// earlier queries are answered, and counts latency from the due time. So the queries that a stalled
// server delays count as late (no coordinated omission). [FindThroughput] searches for the
// allowable throughput.
//
// In come arrivals from package workload; queries go out through package client. [Run] owns one
// goroutine for each query in flight and one for the progress; all have ended when it returns.
package bench
