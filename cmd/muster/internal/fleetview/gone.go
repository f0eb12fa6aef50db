package fleetview

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// errUnreachable is wrapped by the error of an agent to which there is no connection.
var errUnreachable = errors.New("cannot be reached")

// goneInterval is the time between two questions of WaitGone.
const goneInterval = 200 * time.Millisecond

// WaitGone blocks until none of the agents is a member of the fleet. It calls gone for each that is
// not any more, and left at each question with those that still are. The caller must have asked f
// before the agents began to leave, so that f knows who is there. If no member is left that could
// say who has gone, the last ones have when they cannot be reached.
//
// If ctx ends first the error names those that are left.
func (f *Source) WaitGone(ctx context.Context, agents []string, gone func(agent string),
	left func(agents []string)) error {
	agents = slices.Clone(agents)
	tick := time.NewTicker(goneInterval)
	defer tick.Stop()
	for {
		s, err := f.Ask(ctx)
		if ctx.Err() == nil {
			alone := !f.hasOthers(agents)
			agents = slices.DeleteFunc(agents, func(name string) bool {
				away := err == nil && !slices.Contains(memberNames(s), name) ||
					errors.Is(err, errUnreachable) && alone
				if away {
					gone(name)
				}
				return away
			})
		}
		if len(agents) == 0 {
			return nil
		}
		left(agents)
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%w; not gone yet: %s", ctx.Err(), strings.Join(agents, ", "))
		}
	}
}

// hasOthers reports whether the fleet, when it was last asked, had members beside the agents.
func (f *Source) hasOthers(agents []string) bool {
	return slices.ContainsFunc(f.members, func(name string) bool {
		return !slices.Contains(agents, name)
	})
}
