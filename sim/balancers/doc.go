// Package balancers has load balancers of other systems that need no leader, as rivals for the
// simulator: Prequal (Wydrowski et al., "Load is not what you should balance", NSDI 2024) and
// gRPC's weighted round robin by ORCA reports (gRFC A58). Each gateway has a balancer of its own
// for each model. Balancers see what they would see in production, such as latencies and requests
// in flight, and none of Muster's profiles and prices.
//
// Servers are numbered from 0. Times count from any origin and do not decrease. Nothing here is
// safe for concurrent use.
package balancers
