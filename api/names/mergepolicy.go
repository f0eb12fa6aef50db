package names

import (
	"fmt"
	"slices"
)

// A MergePolicy names how a lane chooses the waiting queries that run as one. A model's
// configuration sets it, and package merge, which carries it out, takes it from there.
type MergePolicy string

// The policies.
const (
	// MergeNone runs each query alone. So does the empty policy.
	MergeNone MergePolicy = "none"
	// MergeDeadline never waits. It takes the most urgent query and then others, in order of
	// urgency, as long as that saves a tenth of the time that they would take one after the other,
	// all that run together are in time, and none that waits becomes late by it.
	MergeDeadline MergePolicy = "deadline"
)

// formerMergePolicies are those of others, which agents of protocol 7 may still have. They are rules
// of the module reproduce now.
var formerMergePolicies = []MergePolicy{"proteus", "nexus", "symphony", "aimd"}

// MergePolicies lists all policies, the default first.
func MergePolicies() []MergePolicy { return []MergePolicy{MergeDeadline, MergeNone} }

// IsFormer reports whether p is a policy that lanes no longer have.
func (p MergePolicy) IsFormer() bool { return slices.Contains(formerMergePolicies, p) }

// Current is the policy by which lanes carry out p: MergeDeadline for a former policy, else p.
func (p MergePolicy) Current() MergePolicy {
	if p.IsFormer() {
		return MergeDeadline
	}
	return p
}

// Check returns nil if p is one of [MergePolicies], else an error that lists them, and of a former
// policy says where it went.
func (p MergePolicy) Check() error {
	switch {
	case slices.Contains(MergePolicies(), p):
		return nil
	case p.IsFormer():
		return fmt.Errorf("merge is %q, which lanes no longer have, want one of %v; reproduce/ in "+
			"Muster's repository has it", p, MergePolicies())
	}
	return fmt.Errorf("merge is %q, want one of %v", p, MergePolicies())
}

// Merges reports whether the policy merges at all.
func (p MergePolicy) Merges() bool { return p != "" && p != MergeNone }
