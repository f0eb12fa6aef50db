// Package beat counts what a leader decides and hears, for the dashboard's beat of each second.
//
// [Counts] are what the leader's loop adds to; once a second it hands them over and begins new
// ones. [Meter] takes them, beside the loop, and knows what needs more than a second: latencies'
// percentiles, and how busy lanes are. The package is pure: it starts no goroutine and reads no
// clock.
package beat
