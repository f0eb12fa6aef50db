// Package certificate says what a simulated replay of recorded queries proves of a fleet: the share
// of its queries that were in time, with an interval, and a price below which no fleet can keep that
// share. It is pure.
package certificate
