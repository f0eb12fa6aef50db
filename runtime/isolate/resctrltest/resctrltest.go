// Package resctrltest is a fake of Linux's resctrl, which refuses what the kernel refuses, for
// tests of package isolate where no machine has the real one.
package resctrltest

import (
	"fmt"
	"io/fs"
	"math/bits"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/muster-serve/muster/runtime/isolate"
)

// A Kernel is the state of a fake resctrl. It implements [isolate.Files]. In one thing it is
// stricter than Linux, which moves a processor that is written to a second group: a processor that
// is in one must leave it before it enters another.
type Kernel struct {
	// Mask, Least and Classes are info/L3's cbm_mask, min_cbm_bits and num_closids; CPUs the online
	// processors, Caches the ids of the caches.
	Mask           uint64
	Least, Classes int
	CPUs, Caches   []int
	// ReadOnly refuses all writes for lack of rights. Counts says whether bandwidth is counted.
	ReadOnly, Counts bool
	// Busy makes that many of the next changes fail with EBUSY.
	Busy int
	// Groups are the groups by folder; the root, which is always there, is "".
	Groups map[string]*Group
	// Writes counts the changes that were made or refused.
	Writes int

	status string
}

// A Group is a folder.
type Group struct {
	CPUs  []int
	Masks map[int]uint64 // by cache
	Bytes uint64
}

// New returns a Kernel with a cache of 11 ways that 8 processors share, with 4 classes, 2 ways at
// least, and counts of bandwidth.
func New() *Kernel {
	k := &Kernel{
		Mask: 0x7ff, Least: 2, Classes: 4, Caches: []int{0}, CPUs: []int{0, 1, 2, 3, 4, 5, 6, 7},
		Counts: true,
	}
	k.Groups = map[string]*Group{"": {CPUs: slices.Clone(k.CPUs), Masks: map[int]uint64{0: k.Mask}}}
	return k
}

func (k *Kernel) refuse(op, name string, err error, format string, args ...any) error {
	k.status = fmt.Sprintf(format, args...)
	return &fs.PathError{Op: op, Path: name, Err: err}
}

// writable notes a change, and reports why there can be none.
func (k *Kernel) writable(op, name string) error {
	k.Writes++
	k.status = "ok"
	if k.ReadOnly {
		return &fs.PathError{Op: op, Path: name, Err: unix.EACCES}
	}
	if k.Busy > 0 {
		k.Busy--
		return k.refuse(op, name, unix.EBUSY, "resource is busy")
	}
	return nil
}

// ReadFile implements [isolate.Files].
func (k *Kernel) ReadFile(name string) ([]byte, error) {
	missing := &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	switch name {
	case "info/L3/cbm_mask":
		if k.Mask == 0 {
			return nil, missing
		}
		return fmt.Appendf(nil, "%x\n", k.Mask), nil
	case "info/L3/min_cbm_bits":
		return fmt.Appendln(nil, k.Least), nil
	case "info/L3/num_closids":
		return fmt.Appendln(nil, k.Classes), nil
	case "info/last_cmd_status":
		return []byte(k.status + "\n"), nil
	}
	dir, file := path.Split(name)
	if domain, ok := strings.CutSuffix(path.Clean(dir), "/mon_data/mon_L3_00"); ok {
		if g := k.Groups[domain]; g != nil && file == "mbm_total_bytes" && k.Counts {
			return fmt.Appendln(nil, g.Bytes), nil
		}
		return nil, missing
	}
	g := k.Groups[strings.TrimSuffix(dir, "/")]
	switch {
	case g == nil:
	case file == "cpus_list":
		return []byte(isolate.FormatCPUs(g.CPUs) + "\n"), nil
	case file == "schemata":
		line := ""
		if k.Mask != 0 {
			var each []string
			for _, id := range k.Caches {
				each = append(each, fmt.Sprintf("%d=%x", id, g.Masks[id]))
			}
			line = "    L3:" + strings.Join(each, ";") + "\n"
		}
		return []byte("    MB:0=100\n" + line), nil
	}
	return nil, missing
}

// WriteFile implements [isolate.Files].
func (k *Kernel) WriteFile(name string, data []byte) error {
	if err := k.writable("write", name); err != nil {
		return err
	}
	dir, file := path.Split(name)
	folder := strings.TrimSuffix(dir, "/")
	g := k.Groups[folder]
	text := strings.TrimSuffix(string(data), "\n")
	switch {
	case g == nil:
		return &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	case !strings.HasSuffix(string(data), "\n"):
		return k.refuse("write", name, unix.EINVAL, "no newline")
	case file == "cpus_list":
		return k.setCPUs(name, folder, g, text)
	case file == "schemata":
		return k.setMasks(name, g, text)
	}
	return &fs.PathError{Op: "write", Path: name, Err: unix.EACCES}
}

func (k *Kernel) setCPUs(name, folder string, g *Group, text string) error {
	cpus, err := isolate.ParseCPUs(text)
	if err != nil {
		return k.refuse("write", name, unix.EINVAL, "bad CPU list/mask")
	}
	for _, c := range cpus {
		if !slices.Contains(k.CPUs, c) {
			return k.refuse("write", name, unix.EINVAL, "can only assign online CPUs")
		}
		for other, o := range k.Groups {
			if other != "" && o != g && slices.Contains(o.CPUs, c) {
				return k.refuse("write", name, unix.EINVAL, "CPU %d is in group %s", c, other)
			}
		}
	}
	if folder == "" {
		return k.refuse("write", name, unix.EINVAL, "can't drop CPUs from default group")
	}
	root := k.Groups[""]
	root.CPUs = slices.Sorted(slices.Values(slices.Concat(root.CPUs, g.CPUs)))
	g.CPUs = cpus
	root.CPUs = slices.DeleteFunc(root.CPUs, func(c int) bool { return slices.Contains(cpus, c) })
	return nil
}

func (k *Kernel) setMasks(name string, g *Group, text string) error {
	list, ok := strings.CutPrefix(text, "L3:")
	if !ok {
		return k.refuse("write", name, unix.EINVAL, "unknown or unsupported resource name")
	}
	set := map[int]uint64{}
	for one := range strings.SplitSeq(list, ";") {
		id, value, _ := strings.Cut(one, "=")
		cache, err := strconv.Atoi(id)
		if err != nil || !slices.Contains(k.Caches, cache) {
			return k.refuse("write", name, unix.EINVAL, "unknown L3 domain %q", id)
		}
		mask, err := strconv.ParseUint(value, 16, 64)
		switch low := bits.TrailingZeros64(mask); {
		case err != nil:
			return k.refuse("write", name, unix.EINVAL, "non-hex character in the mask %s", value)
		case mask == 0 || mask&^k.Mask != 0:
			return k.refuse("write", name, unix.EINVAL, "mask out of range")
		case mask>>low&(mask>>low+1) != 0:
			return k.refuse("write", name, unix.EINVAL, "the mask %x has non-consecutive 1-bits",
				mask)
		case bits.OnesCount64(mask) < k.Least:
			return k.refuse("write", name, unix.EINVAL, "need at least %d bits in the mask",
				k.Least)
		}
		set[cache] = mask
	}
	for cache, mask := range set {
		g.Masks[cache] = mask
	}
	return nil
}

// Mkdir implements [isolate.Files].
func (k *Kernel) Mkdir(name string) error {
	if err := k.writable("mkdir", name); err != nil {
		return err
	}
	switch {
	case strings.Contains(name, "/"):
		return &fs.PathError{Op: "mkdir", Path: name, Err: unix.EPERM}
	case k.Groups[name] != nil:
		return &fs.PathError{Op: "mkdir", Path: name, Err: unix.EEXIST}
	case len(k.Groups) >= k.Classes:
		return k.refuse("mkdir", name, unix.ENOSPC, "out of CLOSIDs")
	}
	g := &Group{Masks: map[int]uint64{}}
	for _, id := range k.Caches {
		g.Masks[id] = k.Mask
	}
	k.Groups[name] = g
	return nil
}

// Rmdir implements [isolate.Files].
func (k *Kernel) Rmdir(name string) error {
	if err := k.writable("rmdir", name); err != nil {
		return err
	}
	g := k.Groups[name]
	if name == "" || g == nil {
		return &fs.PathError{Op: "rmdir", Path: name, Err: unix.ENOENT}
	}
	root := k.Groups[""]
	root.CPUs = slices.Sorted(slices.Values(slices.Concat(root.CPUs, g.CPUs)))
	delete(k.Groups, name)
	return nil
}

// ReadDir implements [isolate.Files].
func (k *Kernel) ReadDir(name string) (names []string, err error) {
	if name == "." {
		names = []string{"cpus_list", "info", "mon_data", "schemata"}
		for folder := range k.Groups {
			if folder != "" {
				names = append(names, folder)
			}
		}
		slices.Sort(names)
		return names, nil
	}
	if g := strings.TrimSuffix(name, "/mon_data"); k.Groups[g] != nil && g != name {
		return []string{"mon_L3_00"}, nil
	}
	return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
}
