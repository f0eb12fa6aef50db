// Package rent decides what to rent and to return, so that a fleet becomes what is desired of it.
//
// In comes what is desired (how many instances of each type) and what is seen: the provider's
// list joined with the agents that are there. Out come actions (launch, drain, return), and
// everything that is wished for and not done, with the reason. It is pure: no clock, network or
// goroutine. What a Renter remembers makes it calmer, not more right: one that remembers nothing
// comes to the same fleet, later. The leader's loop in agent/lead lists, steps and acts; package
// cloud has the providers.
package rent
