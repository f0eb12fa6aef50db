// Package plugin runs a provider in a process of its own: the side of the agent, which starts the
// program muster-NAME and asks it ([Open]), and that of the program ([Serve]).
//
// docs/internals/providers.md says how they find, start, trust and end each other. Both sides are
// the whole of what an agent knows of such a provider: none of its libraries is in the agent.
//
// A [Provider] owns, while its process runs, one goroutine that waits for the process, one that
// reads its log, and those of gRPC. Close ends the process and waits for them.
package plugin

import (
	"time"

	"github.com/muster-serve/muster/profiles"
)

const (
	// protocol is the version of the messages and of what they mean. New fields and calls need no
	// new one.
	protocol = 1
	// variable holds what a parent says first: the cookie, its protocol and its version. The cookie
	// tells a program that was started by hand; it is no secret.
	variable = "MUSTER_PROVIDER"
	cookie   = "0b6f9a54d7c1"
	// greeting begins the line with which a provider answers.
	greeting = "muster-provider"
	// maxMessage bounds a message in bytes: a list of 100,000 instances has some 20 MB.
	maxMessage = 64 << 20
	// maxMargin is how much before a call's deadline a provider ends its work, so that its own
	// words arrive. It is small beside the 30 s of a call, and large beside the time that an answer
	// takes from one process to another.
	maxMargin = time.Second
)

// programName is the name of the program of a provider.
func programName(name string) string { return "muster-" + name }

// A Fleet is what a provider is told of the fleet that it rents for.
type Fleet struct {
	Name string
	// Types are those that the fleet may rent.
	Types []profiles.InstanceType
	// Settings is the provider's section of fleet.yaml, as JSON.
	Settings []byte
	// StateDir is where the provider may keep files over a restart; "" is nowhere.
	StateDir string
	// Prices are the catalogue's in $/hr, for when the provider does not tell them.
	Prices map[profiles.InstanceType]float64
}
