// Package bench puts a server under load and measures how it keeps its QoS targets.
//
// Its generator is open: it sends each query when its arrival is due, whether or not earlier ones
// are answered, and counts latency from that moment. So a server that stalls cannot hide the
// queries that it kept from being sent (coordinated omission). [FindThroughput] searches the
// allowable throughput.
//
// In come arrivals from package workload; queries go out by package client. A run owns its
// goroutines, which have ended when it returns.
package bench
