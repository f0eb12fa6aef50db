// Package bench puts a server under load and says how it held: an open-loop
// generator that sends each query when its arrival is due, whether or not
// earlier ones are answered, and counts latency from that moment, so that a
// server that stalls cannot hide the queries it kept from being sent
// (coordinated omission). It also searches the allowable throughput.
//
// What arrives when is package workload's; how it is sent, package client's.
package bench
