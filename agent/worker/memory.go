package worker

import (
	"math"

	"github.com/KimMachineGun/automemlimit/memlimit"
	"github.com/prometheus/procfs"
)

// memoryLimit is the most memory that this process may use: that of its cgroup, else the machine's;
// 0 if neither is known.
func memoryLimit() int64 {
	system, err := memlimit.FromSystem()
	if err != nil {
		system = 0
	}
	limit, err := memlimit.FromCgroup()
	if err != nil || limit == 0 || system > 0 && limit > system {
		limit = system
	}
	return int64(min(limit, math.MaxInt64))
}

// residentMemory is how much memory this process uses; 0 if it is not known.
func residentMemory() int64 {
	self, err := procfs.Self()
	if err != nil {
		return 0
	}
	stat, err := self.Stat()
	if err != nil {
		return 0
	}
	return int64(stat.ResidentMemory())
}
