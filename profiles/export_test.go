package profiles

// SetAlarmRate sets how many false alarms a query are expected, so that a test can see some.
func (m *Monitor) SetAlarmRate(r float64) { m.alarmRate = r }
