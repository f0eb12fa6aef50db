// Package causes tests that `muster why` names why queries are late. Each cause is seeded in a fleet
// of real agents, each a process, which was healthy under the same load before; within 30 s the right
// cause must be the first, with the right agent. Before the seed there must have been none, and no
// alert of another cause may fire; that holds in rounds in which no other program took CPU time from
// the agents. They are tests with the build tag fleet:
//
//	make build
//	go test -tags fleet -v ./scripts/test/causes                         one round of each cause
//	go test -tags fleet -v ./scripts/test/causes -short                  those that need no quiet machine
//	go test -tags fleet -v ./scripts/test/causes -causes hog,quota -rounds 10
//
// Agents have CPUs of their own, and a control group whose weight keeps other programs off them; that
// needs root. On a busy machine the agents lack CPU in truth, and then that is what is named: a line
// says how much of the CPUs others took.
package causes
