package worker

import (
	"os"

	"github.com/prometheus/procfs"

	"github.com/muster-serve/muster/runtime/cgroup"
)

// memoryLimit is the most memory that this process may use: that of its cgroup, else the machine's;
// 0 if neither is known.
func memoryLimit() int64 {
	system := int64(0)
	if text, err := os.ReadFile("/proc/meminfo"); err == nil {
		system = max(0, cgroup.NumberAfter(string(text), "MemTotal:")) << 10
	}
	limit := cgroup.MemoryLimit(os.DirFS("/"))
	if limit < 0 || system > 0 && limit > system {
		return system
	}
	return limit
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
