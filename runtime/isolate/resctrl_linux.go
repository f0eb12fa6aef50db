package isolate

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/bits"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Open returns this machine's Isolator. Where the cache cannot be divided, the reason is in its
// Limits, and Apply refuses groups with Ways. Groups that earlier processes have left are removed.
func Open() Isolator {
	r, err := openResctrl(realFiles(resctrlRoot), alive)
	if err != nil {
		return undividedCache{err.Error()}
	}
	return r
}

// resctrlRoot is where resctrl is mounted.
const resctrlRoot = "/sys/fs/resctrl"

// Files are the operations on the files of resctrl. Names are relative to its root, and errors are
// those of package os.
type Files interface {
	ReadFile(name string) ([]byte, error)
	WriteFile(name string, data []byte) error
	Mkdir(name string) error
	Rmdir(name string) error
	ReadDir(name string) (names []string, err error)
}

// realFiles are those of the kernel, below a directory.
type realFiles string

func (r realFiles) ReadFile(name string) ([]byte, error) {
	return os.ReadFile(filepath.Join(string(r), name))
}

func (r realFiles) WriteFile(name string, data []byte) error {
	f, err := os.OpenFile(filepath.Join(string(r), name), os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return err
	}
	_, err = f.Write(data) // one call: the kernel takes each as a whole
	return errors.Join(err, f.Close())
}

func (r realFiles) Mkdir(name string) error {
	return os.Mkdir(filepath.Join(string(r), name), 0o755)
}

func (r realFiles) Rmdir(name string) error { return unix.Rmdir(filepath.Join(string(r), name)) }

func (r realFiles) ReadDir(name string) (names []string, err error) {
	entries, err := os.ReadDir(filepath.Join(string(r), name))
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, err
}

// alive reports whether a process exists.
func alive(pid int) bool { return unix.Kill(pid, 0) != unix.ESRCH }

// resctrl divides the cache by Linux's resctrl: each group is a folder with its processors
// (cpus_list) and its mask of ways (schemata). Threads are not assigned; they are where their
// processors are.
type resctrl struct {
	files   Files
	limits  Limits
	caches  []int // ids of the last-level caches
	mask    uint64
	applied []Group
	made    int // groups ever, for their names
	folders map[string]string
}

// prefix of the names of this program's groups; the process's id and a number follow.
const prefix = "muster-"

// OpenResctrl returns the Isolator of a mounted resctrl. Groups of processes of which alive says
// that they do not exist are removed. The error says why the cache cannot be divided.
func OpenResctrl(files Files, alive func(pid int) bool) (Isolator, error) {
	return openResctrl(files, alive)
}

func openResctrl(files Files, alive func(pid int) bool) (*resctrl, error) {
	r := &resctrl{files: files, folders: map[string]string{}}
	mask, err := r.readInfo("cbm_mask", 16)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if _, err := files.ReadFile("info/L3CODE/cbm_mask"); err == nil {
			return nil, errors.New("resctrl is mounted with -o cdp, which Muster does not divide")
		}
		if _, err := files.ReadFile("schemata"); err == nil {
			return nil, errors.New("the processor cannot divide its last-level cache")
		}
		return nil, fmt.Errorf("resctrl is not mounted at %s", resctrlRoot)
	case err != nil:
		return nil, err
	}
	least, err := r.readInfo("min_cbm_bits", 10)
	if err != nil {
		return nil, err
	}
	closids, err := r.readInfo("num_closids", 10)
	if err != nil {
		return nil, err
	}
	r.mask = mask
	r.limits = Limits{
		Ways: bits.OnesCount64(mask), LeastWays: max(1, int(least)),
		Groups: max(0, int(closids)-1), // the root is one
	}
	if err := r.readCaches(); err != nil {
		return nil, err
	}
	if err := r.removeStale(alive); err != nil {
		return nil, err
	}
	return r, r.probeAccess()
}

func (r *resctrl) readInfo(name string, base int) (uint64, error) {
	text, err := r.files.ReadFile("info/L3/" + name)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(text)), base, 64)
	if err != nil {
		return 0, fmt.Errorf("%s/info/L3/%s: %w", resctrlRoot, name, err)
	}
	return n, nil
}

// readCaches reads the ids of the caches from the root's line "L3:0=7ff;1=7ff".
func (r *resctrl) readCaches() error {
	text, err := r.files.ReadFile("schemata")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(text)) {
		list, ok := strings.CutPrefix(strings.TrimSpace(line), "L3:")
		if !ok {
			continue
		}
		for one := range strings.SplitSeq(list, ";") {
			id, _, _ := strings.Cut(one, "=")
			n, err := strconv.Atoi(strings.TrimSpace(id))
			if err != nil {
				return fmt.Errorf("%s/schemata: cache %q is no number", resctrlRoot, id)
			}
			r.caches = append(r.caches, n)
		}
		return nil
	}
	return fmt.Errorf("%s/schemata names no last-level cache", resctrlRoot)
}

// removeStale removes the groups of processes that have ended.
func (r *resctrl) removeStale(alive func(pid int) bool) error {
	names, err := r.files.ReadDir(".")
	if err != nil {
		return err
	}
	for _, name := range names {
		id, _, _ := strings.Cut(strings.TrimPrefix(name, prefix), "-")
		pid, err := strconv.Atoi(id)
		if !strings.HasPrefix(name, prefix) || err != nil || pid != os.Getpid() && alive(pid) {
			continue
		}
		if err := r.files.Rmdir(name); err != nil {
			return fmt.Errorf("remove the group %s that a process has left: %w", name, err)
		}
	}
	return nil
}

// probeAccess makes a group and removes it, to learn whether this process may.
func (r *resctrl) probeAccess() error {
	name := r.newName()
	if err := r.files.Mkdir(name); err != nil {
		return r.explainFailure("make a group", err)
	}
	if err := r.files.Rmdir(name); err != nil {
		return r.explainFailure("remove a group", err)
	}
	return nil
}

func (r *resctrl) newName() string {
	r.made++
	return fmt.Sprintf("%s%d-%d", prefix, os.Getpid(), r.made)
}

// explainFailure adds what the kernel tells of its last refusal.
func (r *resctrl) explainFailure(what string, err error) error {
	switch {
	case errors.Is(err, fs.ErrPermission):
		err = fmt.Errorf("no rights to write to %s: %w", resctrlRoot, err)
	case errors.Is(err, unix.ENOSPC):
		err = fmt.Errorf("no class of service is free: %w", err)
	}
	if text, e := r.files.ReadFile("info/last_cmd_status"); e == nil {
		if said := strings.TrimSpace(string(text)); said != "" && said != "ok" {
			err = fmt.Errorf("%w (the kernel says: %s)", err, said)
		}
	}
	return fmt.Errorf("%s: %w", what, err)
}

func (r *resctrl) Limits() Limits { return r.limits }

// Apply implements [Isolator]. Groups without Ways stay in the root, whose mask is then what no
// group has.
func (r *resctrl) Apply(ctx context.Context, groups []Group) error {
	if err := r.check(groups); err != nil {
		return err
	}
	if slices.EqualFunc(groups, r.applied, equal) {
		return nil
	}
	before := r.applied
	err := r.changeGroups(ctx, groups)
	if err == nil {
		return nil
	}
	if undo := r.changeGroups(context.WithoutCancel(ctx), before); undo != nil {
		return errors.Join(err, fmt.Errorf("give back what was there before: %w", undo), r.clear())
	}
	return err
}

func equal(a, b Group) bool {
	return a.Name == b.Name && a.Ways == b.Ways && slices.Equal(a.CPUs, b.CPUs)
}

func (r *resctrl) check(groups []Group) error {
	errs := []error{checkGroups(groups)}
	ways, divided := 0, 0
	for _, g := range groups {
		if g.Ways == 0 {
			continue
		}
		divided++
		if g.Ways < r.limits.LeastWays {
			errs = append(errs,
				fmt.Errorf("group %s wants %d ways, want at least %d", g.Name, g.Ways,
					r.limits.LeastWays))
		}
		ways += g.Ways
	}
	if ways > r.limits.Ways {
		errs = append(errs, fmt.Errorf("the groups want %d ways, and the cache has %d", ways,
			r.limits.Ways))
	}
	if divided > r.limits.Groups {
		errs = append(errs, fmt.Errorf("%d groups with ways, and the machine has classes for %d",
			divided, r.limits.Groups))
	}
	return errors.Join(errs...)
}

// changeGroups makes groups of the present ones. After an error some of it may be done.
func (r *resctrl) changeGroups(ctx context.Context, groups []Group) error {
	wanted := func(name string) *Group {
		i := slices.IndexFunc(groups, func(g Group) bool { return g.Name == name && g.Ways > 0 })
		if i < 0 {
			return nil
		}
		return &groups[i]
	}
	r.applied = nil // unknown until all is done
	for _, name := range sortedKeys(r.folders) {
		folder := r.folders[name]
		if wanted(name) == nil {
			if err := r.files.Rmdir(folder); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return r.explainFailure("remove group "+name, err)
			}
			delete(r.folders, name)
			continue
		}
		// Its processors go back to the root, so that no processor is ever in two groups.
		if err := r.files.WriteFile(path.Join(folder, "cpus_list"), []byte("\n")); err != nil {
			return r.explainFailure("empty group "+name, err)
		}
	}
	at := 0 // the lowest way that no group has
	for _, g := range groups {
		if g.Ways == 0 {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := r.set(g, at); err != nil {
			return err
		}
		at += g.Ways
	}
	rest := r.mask
	if r.limits.Ways-at >= r.limits.LeastWays {
		rest = r.mask &^ takeWays(r.mask, 0, at)
	}
	if err := r.files.WriteFile("schemata", r.schemataLine(rest)); err != nil {
		return r.explainFailure("set the ways that all share", err)
	}
	r.applied = nil
	for _, g := range groups {
		g.CPUs = slices.Clone(g.CPUs)
		r.applied = append(r.applied, g)
	}
	return nil
}

// set makes a group, if it does not exist, with the ways from one on.
func (r *resctrl) set(g Group, from int) error {
	folder, ok := r.folders[g.Name]
	if !ok {
		folder = r.newName()
		if err := r.files.Mkdir(folder); err != nil {
			return r.explainFailure("make group "+g.Name, err)
		}
		r.folders[g.Name] = folder
	}
	mask := takeWays(r.mask, from, g.Ways)
	if err := r.files.WriteFile(path.Join(folder, "schemata"), r.schemataLine(mask)); err != nil {
		return r.explainFailure(fmt.Sprintf("give group %s the ways %x", g.Name, mask), err)
	}
	cpus := FormatCPUs(slices.Sorted(slices.Values(g.CPUs)))
	if err := r.files.WriteFile(path.Join(folder, "cpus_list"), []byte(cpus+"\n")); err != nil {
		return r.explainFailure(fmt.Sprintf("give group %s the processors %s", g.Name, cpus), err)
	}
	return nil
}

// takeWays returns n of the bits of mask, after skipping some. The kernel's mask has no gaps.
func takeWays(mask uint64, skip, n int) uint64 {
	first := bits.TrailingZeros64(mask)
	return (1<<n - 1) << (first + skip)
}

// schemataLine is a line with the same mask for each cache.
func (r *resctrl) schemataLine(mask uint64) []byte {
	var each []string
	for _, id := range r.caches {
		each = append(each, fmt.Sprintf("%d=%x", id, mask))
	}
	return []byte("L3:" + strings.Join(each, ";") + "\n")
}

// Bandwidth implements [Isolator] by memory bandwidth monitoring (MBM). Groups without Ways have no
// count of their own.
func (r *resctrl) Bandwidth(group string) (bytes uint64, ok bool) {
	folder, ok := r.folders[group]
	if !ok {
		return 0, false
	}
	domains, err := r.files.ReadDir(path.Join(folder, "mon_data"))
	if err != nil {
		return 0, false
	}
	ok = false
	for _, domain := range domains {
		if !strings.HasPrefix(domain, "mon_L3_") {
			continue
		}
		text, err := r.files.ReadFile(path.Join(folder, "mon_data", domain, "mbm_total_bytes"))
		if err != nil {
			return 0, false
		}
		n, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
		if err != nil { // "Unavailable": the hardware did not count
			return 0, false
		}
		bytes, ok = bytes+n, true
	}
	return bytes, ok
}

// Close implements [Isolator].
func (r *resctrl) Close() error {
	r.applied = nil
	return r.clear()
}

// clear removes all groups and gives the root all ways.
func (r *resctrl) clear() error {
	var errs []error
	for _, name := range sortedKeys(r.folders) {
		if err := r.files.Rmdir(r.folders[name]); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, r.explainFailure("remove group "+name, err))
			continue
		}
		delete(r.folders, name)
	}
	if err := r.files.WriteFile("schemata", r.schemataLine(r.mask)); err != nil {
		errs = append(errs, r.explainFailure("give back all ways", err))
	}
	return errors.Join(errs...)
}

func sortedKeys(m map[string]string) []string {
	var keys []string
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
