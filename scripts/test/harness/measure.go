package harness

import (
	"regexp"
	"slices"
	"strings"
)

var targets = regexp.MustCompile(`(?m)^(qos_target_ms|deadline_ms): .*$`)

// Unhurried returns a model.yaml of the zoo with targets so long that an agent serves queries in the
// order in which they come and refuses none, as measurements beside other servers want it.
func Unhurried(config []byte) []byte {
	long := map[string]string{"qos_target_ms": "1000", "deadline_ms": "60000"}
	return targets.ReplaceAllFunc(config, func(line []byte) []byte {
		name, _, _ := strings.Cut(string(line), ":")
		return []byte(name + ": " + long[name])
	})
}

// Median returns the median of values, which it leaves as they are.
func Median(values []float64) float64 {
	values = slices.Sorted(slices.Values(values))
	return (values[(len(values)-1)/2] + values[len(values)/2]) / 2
}

// Quantile returns a quantile of values, which it sorts; 0 if there are none.
func Quantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return 0
	}
	slices.Sort(values)
	return values[int(q*float64(len(values)-1))]
}
