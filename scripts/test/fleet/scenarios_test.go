//go:build fleet

package fleet

import "testing"

// The scenarios, with how long they take, long and short. More is said where each is written. Of
// tests that run beside each other, go test starts the last ones first, so these are the longest.

// TestAlone: one agent gets three times the queries that it can serve, from clients that wait for
// outcomes. 1 min, short 10 s.
func TestAlone(t *testing.T) { runScenario(t, (*run).testAlone) }

// TestChaos: at random agents are killed, frozen, cut off and drained, and keys are changed, under
// three kinds of clients. 10 min, short 20 s.
func TestChaos(t *testing.T) { runScenario(t, (*run).testChaos) }

// TestDemand: a leader proposes another plan after a change of batch sizes or rate. 5 min, short
// 15 s.
func TestDemand(t *testing.T) { runScenario(t, (*run).testDemand) }

// TestFailover: the leader is killed, and frozen, ten times each. 7 min, short 10 s.
func TestFailover(t *testing.T) { runScenario(t, (*run).testFailover) }

// TestFamilies: the accuracy of a family's answers, and what is late, at rising rates. 3 min, short
// 25 s.
func TestFamilies(t *testing.T) { runScenario(t, (*run).testFamilies) }

// TestGateway: a plain client's gateways are killed. 1 min, short 5 s.
func TestGateway(t *testing.T) { runScenario(t, (*run).testGateway) }

// TestGossip: the traffic of gossip, and the age of what it says. 1 min, short 10 s.
func TestGossip(t *testing.T) { runScenario(t, (*run).testGossip) }

// TestGPU: a card of a fake driver falls off the bus, or faults. 1 min, short 15 s.
func TestGPU(t *testing.T) { runScenario(t, (*run).testGPU) }

// TestLive: queries within QoS at 0.95 and 1.05 times the simulated allowable throughput. 5 min,
// short 5 s.
func TestLive(t *testing.T) { runScenario(t, (*run).testLive) }

// TestLoading: the latency of a model while another is loaded. 1 min, short 10 s.
func TestLoading(t *testing.T) { runScenario(t, (*run).testLoading) }

// TestMetrics: what a real Prometheus says of agents in an overload, against what clients count.
// 3 min, short 20 s.
func TestMetrics(t *testing.T) { runScenario(t, (*run).testMetrics) }

// TestMoving: the latency of a model while the agent changes another one for its variant. 3 min,
// short 15 s.
func TestMoving(t *testing.T) { runScenario(t, (*run).testMoving) }

// TestOverload: a fleet gets three times as many queries as it can serve. 2 min, short 10 s.
func TestOverload(t *testing.T) { runScenario(t, (*run).testOverload) }

// TestPartition: half of the agents are cut off and reconnected, in network namespaces (needs root).
// 1 min, short 15 s.
func TestPartition(t *testing.T) { runScenario(t, (*run).testPartition) }

// TestProxy: agents are drained behind an nginx that keeps connections to them (needs nginx).
// 2 min, short 25 s.
func TestProxy(t *testing.T) { runScenario(t, (*run).testProxy) }

// TestSharing: lanes move between two models of an agent when their loads swap. 2 min, short 5 s.
func TestSharing(t *testing.T) { runScenario(t, (*run).testSharing) }

// TestStore: the bytes that agents fetch of a model store, and the latency of a model meanwhile.
// 10 min, short 20 s.
func TestStore(t *testing.T) { runScenario(t, (*run).testStore) }

// TestUpgrade: agents are replaced one by one, from the oldest compatible version to this, and back.
// 2 min, short 20 s.
func TestUpgrade(t *testing.T) { runScenario(t, (*run).testUpgrade) }

// TestVersions: the memory of an agent whose model is replaced again and again. 15 min, short 10 s.
func TestVersions(t *testing.T) { runScenario(t, (*run).testVersions) }

// TestWorker: workers are killed, frozen and drained. 2 min, short 15 s.
func TestWorker(t *testing.T) { runScenario(t, (*run).testWorker) }

// TestUpgradeRented: agents that rent are replaced by this version, and back, with the machines that
// they have rented. 1 min, short 40 s.
func TestUpgradeRented(t *testing.T) { runScenario(t, (*run).testUpgradeRented) }

// TestTrap: a family whose accurate variant nobody holds any more gets its accuracy back under
// another leader. 1 min, short 40 s.
func TestTrap(t *testing.T) { runScenario(t, (*run).testTrap) }

// TestSlowCanary: a fleet tries a canary that is as good, and one that is slower. 3 min, short 1 min.
func TestSlowCanary(t *testing.T) { runScenario(t, (*run).testSlowCanary) }

// TestWrongCanary: fleets on a store try a canary that is as good, and one that answers wrongly.
// 5 min, short 1 min.
func TestWrongCanary(t *testing.T) { runScenario(t, (*run).testWrongCanary) }

// TestRented: machines are rented and returned as the load doubles and falls, and one is killed.
// 3 min, short 90 s.
func TestRented(t *testing.T) { runScenario(t, (*run).testRented) }

// TestPlacement: the accuracy of families while the leader changes what agents hold, and is killed.
// 5 min, short 90 s.
func TestPlacement(t *testing.T) { runScenario(t, (*run).testPlacement) }
