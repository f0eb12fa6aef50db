// Package starvation measures for how much of its time this process did not get what it needed:
// CPUs that other processes had, the quota of its control group, or pages that had to be read from
// disk. It reads what the kernel counts anyway. Where the kernel does not say, nothing is missing.
package starvation
