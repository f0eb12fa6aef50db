// Package fleet tests fleets of agents, each a process of its own, on this machine. A scenario puts
// load on a fleet, and most of them disturb it: agents are killed, frozen, cut off, replaced or
// sent more queries than they can serve. Each prints what it found beside what is wanted, and fails
// if something wanted was not found. They are tests with the build tag fleet:
//
//	make build
//	go test -tags fleet -v ./scripts/test/fleet -run Failover         one scenario, in minutes
//	go test -tags fleet -v ./scripts/test/fleet -run Failover -short  the same in seconds
//	make scenarios                                                    all of them, short
//
// The short form needs no quiet machine, and runs beside others. TestChaos, TestStore and
// TestVersions take ten minutes and more, for which go test needs -timeout 30m.
//
// All traffic stays on loopback, or in the network namespaces that some scenarios make as root.
// Models, states and logs of a scenario stay in build/fleet until it runs again.
package fleet
