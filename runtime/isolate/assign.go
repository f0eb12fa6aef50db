package isolate

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// A Want is what a partition of a layout wants: lanes with so many cores each, a core being a
// logical processor, and ways of the last-level cache, of which 0 means to share it.
type Want struct{ Lanes, Cores, Ways int }

func (w Want) countCPUs() int { return w.Lanes * w.Cores }

// Assign returns the processors of each partition, by lane. Every processor has at most one lane. A
// partition stays within one last-level cache where it fits into the cores of one that no other
// partition has, and two partitions share a physical core only if there is no other way. The error
// says what is missing: fewer processors than wanted, or less of their time.
func (t *Topology) Assign(partitions []Want) ([][][]int, error) {
	total := 0
	for i, w := range partitions {
		if w.Lanes < 1 || w.Cores < 1 {
			return nil, fmt.Errorf("partition %d has %d lanes of %d cores, want at least 1 of each",
				i+1, w.Lanes, w.Cores)
		}
		total += w.countCPUs()
	}
	if total > len(t.CPUs) {
		return nil, fmt.Errorf("the layout wants %d cores, and this process may use %d: %s", total,
			len(t.CPUs), t)
	}
	if t.Quota > 0 && float64(total) > t.Quota {
		return nil, fmt.Errorf(
			"the layout wants %d cores, and the cgroup's limit is the time of %g",
			total, t.Quota)
	}
	f := newFreeCPUs(t)
	order := make([]int, len(partitions))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Compare(partitions[b].countCPUs(), partitions[a].countCPUs())
	})
	assigned := make([][][]int, len(partitions))
	for _, i := range order {
		w := partitions[i]
		cpus := f.takeCPUs(w.countCPUs())
		for lane := range w.Lanes {
			assigned[i] = append(assigned[i], cpus[lane*w.Cores:(lane+1)*w.Cores])
		}
	}
	return assigned, nil
}

// String lists the processors.
func (t *Topology) String() string {
	var cpus []int
	for _, c := range t.CPUs {
		cpus = append(cpus, c.Number)
	}
	slices.Sort(cpus)
	return "processors " + FormatCPUs(cpus)
}

// freeCPUs is the processors that no partition has, by cache and physical core.
type freeCPUs struct{ caches [][]*core }

type core struct {
	cpus []int // that are free
	used bool  // whether a partition has others of it
}

func newFreeCPUs(t *Topology) *freeCPUs {
	f := &freeCPUs{}
	var last CPU
	for i, c := range t.CPUs {
		sameCache := i > 0 && c.Cache == last.Cache && c.Package == last.Package &&
			c.Node == last.Node
		if !sameCache {
			f.caches = append(f.caches, nil)
		}
		cores := &f.caches[len(f.caches)-1]
		if !sameCache || c.Core != last.Core {
			*cores = append(*cores, &core{})
		}
		of := (*cores)[len(*cores)-1]
		of.cpus = append(of.cpus, c.Number)
		last = c
	}
	return f
}

// countFreeCores is how many processors of a cache's cores are free, in cores that no partition
// uses and in all.
func countFreeCores(cores []*core) (whole, all int) {
	for _, c := range cores {
		all += len(c.cpus)
		if !c.used {
			whole += len(c.cpus)
		}
	}
	return whole, all
}

// takeCPUs takes n processors, which must be free: of one cache if its unused cores are enough,
// else of the unused cores of all, else of one cache, else of all.
func (f *freeCPUs) takeCPUs(n int) []int {
	all := slices.Concat(f.caches...)
	whole, _ := countFreeCores(all)
	for _, shared := range []bool{false, true} {
		// The cache with the least room that is enough: the others then keep theirs for larger
		// ones.
		best, least := -1, 0
		for i, cores := range f.caches {
			fits, used := countFreeCores(cores)
			if shared {
				fits = used
			}
			if fits >= n && (best < 0 || fits < least) {
				best, least = i, fits
			}
		}
		switch {
		case best >= 0:
			return takeOf(f.caches[best], n)
		case whole >= n:
			return takeOf(all, n)
		}
	}
	return takeOf(all, n)
}

// takeOf takes n processors of cores that have as many: unused cores first.
func takeOf(cores []*core, n int) (cpus []int) {
	taken := map[*core]bool{}
	for _, used := range []bool{false, true} {
		for _, c := range cores {
			if c.used != used || taken[c] || len(cpus) == n {
				continue
			}
			k := min(n-len(cpus), len(c.cpus))
			cpus = append(cpus, c.cpus[:k]...)
			c.cpus = c.cpus[k:]
			taken[c] = true
		}
	}
	for c := range taken {
		c.used = true
	}
	return cpus
}

// Describe names the processors of each partition's lanes, as "rm2 on 0 1, wnd on 2-3", for logs.
func Describe(names []string, assigned [][][]int) string {
	var b strings.Builder
	for i, lanes := range assigned {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(names[i] + " on")
		for _, cpus := range lanes {
			b.WriteString(" " + FormatCPUs(slices.Sorted(slices.Values(cpus))))
		}
	}
	return b.String()
}
