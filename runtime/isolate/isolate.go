package isolate

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// A Group is some processors and the ways of the last-level cache that they may fill.
type Group struct {
	// Name tells the groups of an Isolator apart.
	Name string
	CPUs []int
	// Ways is how many ways the group has for itself, of each cache; 0 means that it shares those
	// that no group has, or all where every way has a group.
	Ways int
}

// Limits are what a machine's cache can be divided into.
type Limits struct {
	// Ways are those of each last-level cache, of which a group has LeastWays or more; 0: it cannot
	// be divided, for the reason Why.
	Ways, LeastWays int
	// Groups is how many groups with Ways there can be at most.
	Groups int
	Why    string
}

// An Isolator divides the last-level cache between groups. Its methods may not be called
// concurrently.
type Isolator interface {
	// Limits tells what Apply can do.
	Limits() Limits
	// Apply makes groups the only ones of this Isolator. It does all of it or nothing: after an
	// error the groups are as before. If that fails too, there is no group any more, and the error
	// says so. The same groups again do nothing.
	Apply(ctx context.Context, groups []Group) error
	// Bandwidth returns how many bytes the processors of a group have read from memory and written
	// to it since the group was made. ok is false if the machine does not count them.
	Bandwidth(group string) (bytes uint64, ok bool)
	// Close gives back what Apply took. Bandwidth and Apply must not follow.
	Close() error
}

// undividedCache is the Isolator of a machine whose cache cannot be divided.
type undividedCache struct{ why string }

func (u undividedCache) Limits() Limits { return Limits{Why: u.why} }

func (u undividedCache) Apply(_ context.Context, groups []Group) error {
	if err := checkGroups(groups); err != nil {
		return err
	}
	for _, g := range groups {
		if g.Ways > 0 {
			return fmt.Errorf("group %s wants %d ways of the cache, which cannot be divided: %s",
				g.Name, g.Ways, u.why)
		}
	}
	return nil
}

func (u undividedCache) Bandwidth(string) (bytes uint64, ok bool) { return 0, false }

func (u undividedCache) Close() error { return nil }

// checkGroups reports what no machine can do.
func checkGroups(groups []Group) error {
	var errs []error
	of := map[int]string{}
	for i, g := range groups {
		if slices.ContainsFunc(groups[:i], func(o Group) bool { return o.Name == g.Name }) {
			errs = append(errs, fmt.Errorf("two groups have the name %q", g.Name))
		}
		if g.Ways < 0 {
			errs = append(errs,
				fmt.Errorf("group %s: %d ways, want at least 1, or 0 to share", g.Name,
					g.Ways))
		}
		if len(g.CPUs) == 0 {
			errs = append(errs, fmt.Errorf("group %s has no processors", g.Name))
		}
		for _, c := range g.CPUs {
			if other, ok := of[c]; ok {
				errs = append(errs, fmt.Errorf("processor %d is in the groups %s and %s", c, other,
					g.Name))
			}
			of[c] = g.Name
		}
	}
	return errors.Join(errs...)
}
