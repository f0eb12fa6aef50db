package names

// A MergePolicy names how a lane chooses the waiting queries that run as one. A model's
// configuration sets it, and package merge, which carries it out, takes it from there.
type MergePolicy string

// The policies. All but MergeDeadline and MergeNone are those of others, to compare with.
const (
	// MergeNone runs each query alone. So does the empty policy.
	MergeNone MergePolicy = "none"
	// MergeDeadline never waits. It takes the most urgent query and then others, in order of
	// urgency, as long as that saves a tenth of the time that they would take one after the other,
	// all that run together are in time, and none that waits becomes late by it.
	MergeDeadline MergePolicy = "deadline"
	// MergeProteus waits until the most urgent query would be late if one more came and ran with it
	// (Proteus, ASPLOS 2024, section 5).
	MergeProteus MergePolicy = "proteus"
	// MergeNexus never waits. It takes as many as let the most urgent one be in time (Nexus, SOSP
	// 2019). Queries that are late already run when none is in time, or are rejected, by the order
	// of the queue.
	MergeNexus MergePolicy = "nexus"
	// MergeSymphony waits as long as the most urgent query permits, so that other lanes stay idle
	// and can be given back (deferred batching; Symphony, 2023).
	MergeSymphony MergePolicy = "symphony"
	// MergeAIMD takes up to a number of items that grows by one after a run of that size in which
	// nothing was late, and shrinks by a tenth after one in which something was (Clipper, NSDI
	// 2017).
	MergeAIMD MergePolicy = "aimd"
)

// MergePolicies lists all policies, the default first.
func MergePolicies() []MergePolicy {
	return []MergePolicy{
		MergeDeadline, MergeProteus, MergeNexus, MergeSymphony, MergeAIMD, MergeNone,
	}
}

// Merges reports whether the policy merges at all.
func (p MergePolicy) Merges() bool { return p != "" && p != MergeNone }

// Waits reports whether the policy may leave a lane idle although queries wait.
func (p MergePolicy) Waits() bool { return p == MergeProteus || p == MergeSymphony }
