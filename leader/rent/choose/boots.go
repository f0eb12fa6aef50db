package choose

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/muster-serve/muster/profiles"
)

// starting is about how long a new machine is paid for before it serves, where none of its type was
// seen to start. Chosen; EC2 and an agent take about so long.
const starting = time.Minute

// maxBoot is the longest time that counts as a boot: what takes longer has failed meanwhile.
const maxBoot = time.Hour

// bootTimes are how long machines take from their launch until they serve, by type.
type bootTimes map[profiles.InstanceType]time.Duration

// observe notes that a machine took so long. A boot that is longer than those before counts in
// full, for a fleet that launches too late serves too little; a shorter one for a fifth.
func (b bootTimes) observe(t profiles.InstanceType, took time.Duration) {
	if took <= 0 || took > maxBoot {
		return
	}
	if known := b[t]; took < known {
		took = known - (known-took)/5
	}
	b[t] = took
}

// of is how long a machine of a type is expected to take.
func (b bootTimes) of(t profiles.InstanceType) time.Duration { return cmp.Or(b[t], starting) }

// longest is that of the types.
func (b bootTimes) longest(types map[profiles.InstanceType]Limits) (most time.Duration) {
	for t := range types {
		if took, known := b[t]; known {
			most = max(most, took)
		}
	}
	return cmp.Or(most, starting)
}

// ObserveBoot notes how long a machine took from its launch until it served.
func (c *Chooser) ObserveBoot(t profiles.InstanceType, took time.Duration) {
	c.boots.observe(t, took)
}

// BootTimes returns how long machines take from their launch until they serve, by type.
func (c *Chooser) BootTimes() map[profiles.InstanceType]time.Duration { return maps.Clone(c.boots) }

// SetBootTimes takes over what another Chooser has learned.
func (c *Chooser) SetBootTimes(times map[profiles.InstanceType]time.Duration) {
	for _, t := range slices.Sorted(maps.Keys(times)) {
		c.boots.observe(t, times[t])
	}
}
