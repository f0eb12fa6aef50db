package isolate

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/muster-serve/muster/runtime/cgroup"
)

// A CPU is a logical processor.
type CPU struct {
	Number int
	// Core numbers the physical core within its package: processors with the same Core and Package
	// are threads of one core.
	Core, Package int
	// Cache is the lowest number of a processor that shares the last-level cache, Node the NUMA
	// node.
	Cache, Node int
}

// A Topology is the processors that this process may use, in order of node, package, cache, core
// and number.
type Topology struct {
	CPUs []CPU
	// Quota is how many processors' time the process gets, by the limits of its cgroups; 0 is no
	// limit.
	Quota float64
}

// Cores returns how many cores lanes share by default: as many as the processors that this process
// may use or, if that is less, as its quota is worth, without fractions and at least one. Threads
// beyond a quota only have all of them stand still for the rest of each period. why says what
// limits them. Both are those of the process's start.
func Cores() (cores int, why string) { return atStart() }

var atStart = sync.OnceValues(ReadCores)

// ReadCores returns what Cores would return of a process that started now: the quota may have
// changed.
func ReadCores() (cores int, why string) {
	return coresOf(runtime.NumCPU(), cgroup.CPUQuota(os.DirFS("/")))
}

func coresOf(processors int, quota float64) (cores int, why string) {
	if quota == 0 || quota >= float64(processors) {
		return processors, "the processors that this process may use"
	}
	return max(1, int(quota)), fmt.Sprintf("the CPU quota of its cgroup, %g of %d processors",
		quota,
		processors)
}

// Read returns the topology of this machine. It reads /sys and /proc; processors that are offline,
// or that the process's affinity or cpuset excludes, are left out.
func Read() (*Topology, error) {
	allowed, err := readAllowed()
	if err != nil {
		return nil, err
	}
	return read(os.DirFS("/"), allowed)
}

func read(root fs.FS, allowed func(cpu int) bool) (*Topology, error) {
	const dir = "sys/devices/system/cpu"
	online, err := readCPUs(root, dir+"/online")
	if err != nil {
		return nil, err
	}
	t := &Topology{Quota: cgroup.CPUQuota(root)}
	nodes := nodesOf(root)
	for _, n := range online {
		if !allowed(n) {
			continue
		}
		at := fmt.Sprintf("%s/cpu%d", dir, n)
		// Not every machine tells all of it: what is missing counts as one package, a core for each
		// processor and a cache that all share.
		c := CPU{Number: n, Core: n, Node: nodes[n]}
		if core, err := readInt(root, at+"/topology/core_id"); err == nil {
			c.Core = core
		}
		if p, err := readInt(root, at+"/topology/physical_package_id"); err == nil {
			c.Package = max(0, p)
		}
		c.Cache = lastCache(root, at, c.Package)
		t.CPUs = append(t.CPUs, c)
	}
	if len(t.CPUs) == 0 {
		return nil, errors.New("no processor is both online and allowed to this process")
	}
	slices.SortFunc(t.CPUs, func(a, b CPU) int {
		return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Package, b.Package),
			cmp.Compare(a.Cache, b.Cache), cmp.Compare(a.Core, b.Core),
			cmp.Compare(a.Number, b.Number))
	})
	return t, nil
}

// lastCache returns the lowest number of a processor that shares the last-level cache with the one
// whose folder is at; without caches the package's number.
func lastCache(root fs.FS, at string, otherwise int) int {
	found, level := otherwise, -1
	indexes, _ := fs.Glob(root, at+"/cache/index*")
	for _, index := range indexes {
		l, err := readInt(root, index+"/level")
		if err != nil || l <= level {
			continue
		}
		if shared, err := readCPUs(root, index+"/shared_cpu_list"); err == nil && len(shared) > 0 {
			found, level = shared[0], l
		}
	}
	return found
}

// nodesOf returns the NUMA node of each processor that has one.
func nodesOf(root fs.FS) map[int]int {
	nodes := map[int]int{}
	dirs, _ := fs.Glob(root, "sys/devices/system/node/node[0-9]*")
	for _, dir := range dirs {
		n, err := strconv.Atoi(strings.TrimPrefix(path.Base(dir), "node"))
		if err != nil {
			continue
		}
		cpus, _ := readCPUs(root, dir+"/cpulist")
		for _, c := range cpus {
			nodes[c] = n
		}
	}
	return nodes
}

func readInt(root fs.FS, name string) (int, error) {
	text, err := fs.ReadFile(root, name)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(text)))
}

func readCPUs(root fs.FS, name string) ([]int, error) {
	text, err := fs.ReadFile(root, name)
	if err != nil {
		return nil, err
	}
	cpus, err := ParseCPUs(strings.TrimSpace(string(text)))
	if err != nil {
		return nil, fmt.Errorf("/%s: %w", name, err)
	}
	return cpus, nil
}

// maxCPUs bounds the numbers of processors: it is the size of the kernel's masks here.
const maxCPUs = 1024

// ParseCPUs reads a list of processors in the kernel's form, such as "0-3,8". It returns them in
// order, each once.
func ParseCPUs(list string) ([]int, error) {
	var cpus []int
	if list == "" {
		return nil, nil
	}
	for part := range strings.SplitSeq(list, ",") {
		first, last, isRange := strings.Cut(part, "-")
		from, err := strconv.Atoi(first)
		to := from
		if isRange && err == nil {
			to, err = strconv.Atoi(last)
		}
		if err != nil || from < 0 || to < from || to >= maxCPUs {
			return nil, fmt.Errorf(
				"processors %q: %q is no number or range of numbers below %d, as 0-3", list, part,
				maxCPUs)
		}
		for n := from; n <= to; n++ {
			cpus = append(cpus, n)
		}
	}
	slices.Sort(cpus)
	return slices.Compact(cpus), nil
}

// FormatCPUs writes a list of processors in the kernel's form. The list is in order.
func FormatCPUs(cpus []int) string {
	var b strings.Builder
	for i := 0; i < len(cpus); {
		end := i
		for end+1 < len(cpus) && cpus[end+1] == cpus[end]+1 {
			end++
		}
		if b.Len() > 0 {
			b.WriteByte(',')
		}
		fmt.Fprint(&b, cpus[i])
		if end > i {
			fmt.Fprintf(&b, "-%d", cpus[end])
		}
		i = end + 1
	}
	return b.String()
}
