package profiles

// SetFalseAlarms sets how many suspicions an hour may be chance.
func (m *Monitor) SetFalseAlarms(perHour float64) { m.falseAlarms = perHour }

// Suspicious reports whether the monitor waits for what follows a block that differed.
func (m *Monitor) Suspicious() bool { return m.suspicion != nil }
