// Package rent is the part of an agent that rents and returns machines while the agent leads.
//
// Input: the fleet's view and the leader's figures ([Term]), what is desired
// ([control.DesiredFleet], by SetFleet or from the leader before), and what a provider lists.
// Output: calls of the provider, drains of agents, and what people are shown ([Manager.State]).
//
// The package decides nothing of what to rent: the Renter of package leader/rent decides what is to
// be done so that the fleet becomes what is desired, and [choose.Chooser] what to desire. A Manager
// lives as long as the agent, and keeps what is desired. Its one goroutine is Run's, which lives as
// long as a term.
package rent
