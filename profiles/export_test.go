package profiles

import "fmt"

// SetFalseAlarms sets how many suspicions an hour may be chance.
func (m *Monitor) SetFalseAlarms(perHour float64) { m.falseAlarms = perHour }

// Suspicious reports whether the monitor waits for what follows a block that differed.
func (m *Monitor) Suspicious() bool { return m.suspicion != nil }

// CheckKeys returns an error if the invariant of Book does not hold.
func (b *Book) CheckKeys() error {
	for key, l := range b.learners {
		if l.key != key || l.LatencyTable() == nil || l.LatencyTable().Key() != key {
			return fmt.Errorf("the learner of %v has the key %v", key, l.key)
		}
	}
	return nil
}
