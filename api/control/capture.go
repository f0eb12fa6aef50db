package control

import "slices"

// Stricter returns what both c and other allow to be kept, if both say something: while a model's
// settings change, its members may say different things. Either may be nil. It changes neither.
func (c *Capture) Stricter(other *Capture) *Capture {
	if c == nil || c == other {
		return other
	}
	if other == nil || c.GetShare() == other.GetShare() && slices.Equal(c.GetLeaveOut(),
		other.GetLeaveOut()) && slices.Equal(c.GetHash(), other.GetHash()) {
		return c
	}
	return &Capture{
		Share:    min(c.GetShare(), other.GetShare()),
		LeaveOut: union(c.GetLeaveOut(), other.GetLeaveOut()),
		Hash:     union(c.GetHash(), other.GetHash()), // a name that is left out, too, is left out
	}
}

func union(a, b []string) []string {
	all := slices.Concat(a, b)
	slices.Sort(all)
	return slices.Compact(all)
}
