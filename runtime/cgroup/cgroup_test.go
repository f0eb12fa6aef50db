package cgroup

import (
	"errors"
	"io/fs"
	"os"
	goruntime "runtime"
	"testing"
	"testing/fstest"
	"time"
)

// root is a file system with the files.
func root(files map[string]string) fs.FS {
	root := fstest.MapFS{}
	for name, text := range files {
		root[name] = &fstest.MapFile{Data: []byte(text)}
	}
	return root
}

func TestCPUQuota(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]string
		want  float64
	}{
		"none": {map[string]string{"proc/self/cgroup": "0::/\n"}, 0},
		"version 2, of a parent": {map[string]string{
			"proc/self/cgroup":            "0::/a/b\n",
			"sys/fs/cgroup/a/b/cpu.max":   "max 100000\n",
			"sys/fs/cgroup/a/cpu.max":     "150000 100000\n",
			"sys/fs/cgroup/other/cpu.max": "10000 100000\n",
		}, 1.5},
		"version 1": {map[string]string{
			"proc/self/cgroup": "4:memory:/m\n3:cpu,cpuacct:/a\n",
			"sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us":  "200000\n",
			"sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us": "100000\n",
			"sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us":    "-1\n",
			"sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us":   "100000\n",
		}, 2},
		"version 1, in a container, whose group is mounted at the root": {map[string]string{
			"proc/self/cgroup":                            "3:cpu,cpuacct:/docker/f00\n",
			"sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us":  "50000\n",
			"sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
		}, .5},
	} {
		if got := CPUQuota(root(c.files)); got != c.want {
			t.Errorf("%s: got %v, want %v", name, got, c.want)
		}
	}
}

func TestMemoryLimit(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]string
		want  int64
	}{
		"none": {map[string]string{"proc/self/cgroup": "0::/\n"}, -1},
		"version 2, the least of several": {map[string]string{
			"proc/self/cgroup":               "0::/a/b/c\n",
			"sys/fs/cgroup/a/b/c/memory.max": "max\n",
			"sys/fs/cgroup/a/b/memory.max":   "2000\n",
			"sys/fs/cgroup/a/memory.max":     "1000\n",
		}, 1000},
		"version 1": {map[string]string{
			"proc/self/cgroup": "4:memory:/m\n0::/\n",
			"sys/fs/cgroup/memory/m/memory.limit_in_bytes": "1000\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes":   "9223372036854771712\n",
		}, 1000},
		"version 1 without a limit": {map[string]string{
			"proc/self/cgroup":                           "4:memory:/\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
		}, -1},
	} {
		if got := MemoryLimit(root(c.files)); got != c.want {
			t.Errorf("%s: got %v, want %v", name, got, c.want)
		}
	}
}

func TestAvailableMemory(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]string
		want  int64
	}{
		"none": {map[string]string{"proc/self/cgroup": "0::/\n"}, -1},
		"version 2, of a parent": {map[string]string{
			"proc/self/cgroup":               "0::/a/b\n",
			"sys/fs/cgroup/a/b/memory.max":   "max\n",
			"sys/fs/cgroup/a/memory.max":     "1000\n",
			"sys/fs/cgroup/a/memory.current": "700\n",
			"sys/fs/cgroup/a/memory.stat":    "anon 400\nfile 300\nfile_mapped 100\n",
		}, 600},
		"version 1": {map[string]string{
			"proc/self/cgroup": "4:memory:/m\n0::/\n",
			"sys/fs/cgroup/memory/m/memory.limit_in_bytes": "1000\n",
			"sys/fs/cgroup/memory/m/memory.usage_in_bytes": "900\n",
			"sys/fs/cgroup/memory/m/memory.stat": "cache 9\ninactive_file 1\n" +
				"total_inactive_file 200\ntotal_active_file 100\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
			"sys/fs/cgroup/memory/memory.usage_in_bytes": "900\n",
		}, 400},
		"more is used than allowed": {map[string]string{
			"proc/self/cgroup":             "0::/\n",
			"sys/fs/cgroup/memory.max":     "1000\n",
			"sys/fs/cgroup/memory.current": "1100\n",
		}, 0},
	} {
		if got := AvailableMemory(root(c.files)); got != c.want {
			t.Errorf("%s: got %v, want %v", name, got, c.want)
		}
	}
}

// TestThreadTimes: times of threads are added up; a thread that ends meanwhile counts for nothing;
// a system that does not say them is an error, and so is a file in another form.
func TestThreadTimes(t *testing.T) {
	const task = "proc/self/task/"
	root := fstest.MapFS{
		task + "7/schedstat": {Data: []byte("1500000000 20000000 12\n")},
		task + "8/schedstat": {Data: []byte("500000000 30000000 2\n")},
		task + "9/status":    {Data: []byte("of a thread that ends")},
	}
	if ran, waited, err := ThreadTimes(root); ran != 2*time.Second || waited != 50*time.Millisecond ||
		err != nil {
		t.Errorf("got %v, %v, %v", ran, waited, err)
	}
	if _, _, err := ThreadTimes(fstest.MapFS{}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without files: %v", err)
	}
	root[task+"8/schedstat"].Data = []byte("-\n")
	if _, _, err := ThreadTimes(root); err == nil {
		t.Error("a file in another form is no error")
	}
	ran, _, err := ThreadTimes(os.DirFS("/"))
	if goruntime.GOOS == "linux" && err == nil && ran <= 0 {
		t.Errorf("this process has run for %v", ran)
	}
}
