// Package agenttest runs whole agents in tests: one on loopback ([Start]), or fleets in virtual time
// on a network in memory ([InFleet]). It has what tests of several rooms of agent need: queries,
// executors, certificates and keys. No product code imports it.
package agenttest
