//go:build fleet

package causes

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/muster-serve/muster/scripts/test/harness"
)

// pin has this thread, and the processes that it starts, run on one CPU until unpin is called.
func pin(cpu int) (unpin func(), err error) {
	var before, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		return nil, err
	}
	one.Set(cpu % runtime.NumCPU())
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		return nil, err
	}
	return func() { _ = unix.SchedSetaffinity(0, &before) }, nil
}

// A group is a control group of this test, of version 1 or 2.
type group struct {
	dir    string
	second bool
}

// newGroup makes a control group that gets far more CPU time than others. Where that is not possible
// it returns a group that does nothing.
func newGroup() (*group, error) {
	name := fmt.Sprintf("muster-causes-%d", os.Getpid())
	if g := (&group{dir: filepath.Join("/sys/fs/cgroup/cpu", name)}); os.MkdirAll(g.dir, 0o755) == nil {
		if writeFile(g.dir, "cpu.shares", "262144") == nil {
			return g, nil
		}
		g.remove()
	}
	if g := (&group{filepath.Join("/sys/fs/cgroup", name), true}); os.Mkdir(g.dir, 0o755) == nil {
		if writeFile(g.dir, "cpu.weight", "10000") == nil &&
			writeFile(g.dir, "cgroup.subtree_control", "+cpu") == nil {
			return g, nil
		}
		g.remove()
	}
	return &group{}, nil
}

// add puts a process into the group.
func (g *group) add(pid int) error {
	if g.dir == "" {
		return nil
	}
	return g.move(pid, "processes")
}

// move puts a process into a group below. Of version 2, processes are in the leaves only.
func (g *group) move(pid int, below string) error {
	dir := filepath.Join(g.dir, below)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return writeFile(dir, "cgroup.procs", strconv.Itoa(pid))
}

// limit puts a process into a group of its own with half a CPU.
func (g *group) limit(pid int) (func(), error) {
	if g.dir == "" {
		return nil, skip{errors.New("control groups cannot be made here")}
	}
	if err := g.move(pid, "half"); err != nil {
		return nil, err
	}
	dir := filepath.Join(g.dir, "half")
	set := func(us string) error {
		if g.second {
			return writeFile(dir, "cpu.max", us+" 100000")
		}
		return writeFile(dir, "cpu.cfs_quota_us", us)
	}
	none := map[bool]string{true: "max", false: "-1"}[g.second]
	return func() { _ = set(none) }, set("50000")
}

// remove removes the group, once its processes have ended.
func (g *group) remove() {
	if g.dir == "" {
		return
	}
	_ = writeFile(filepath.Dir(g.dir), "cgroup.procs", strconv.Itoa(os.Getpid()))
	for range 20 {
		for _, below := range []string{"processes", "half", ""} {
			_ = os.Remove(filepath.Join(g.dir, below))
		}
		if _, err := os.Stat(g.dir); errors.Is(err, os.ErrNotExist) {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// startHogs starts programs that compute on a CPU.
func startHogs(g *group, cpu, programs int) (func(), error) {
	unpin, err := pin(cpu)
	if err != nil {
		return nil, err
	}
	defer unpin()
	var all []*exec.Cmd
	end := func() {
		for _, cmd := range all {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	}
	for range programs {
		cmd := exec.Command("sh", "-c", "while :; do :; done")
		cmd.SysProcAttr = harness.ChildAttributes()
		if err := cmd.Start(); err != nil {
			end()
			return nil, err
		}
		all = append(all, cmd)
		if err := g.add(cmd.Process.Pid); err != nil {
			end()
			return nil, err
		}
	}
	return end, nil
}

// pageOut has the kernel drop from memory what a process maps of files whose names end so.
func pageOut(pid int, suffix string) error {
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return err
	}
	process, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return err
	}
	defer unix.Close(process)
	found := false
	for line := range strings.Lines(string(maps)) {
		var from, to uint64
		if !strings.HasSuffix(strings.TrimSpace(line), suffix) {
			continue
		}
		if _, err := fmt.Sscanf(line, "%x-%x ", &from, &to); err != nil {
			return err
		}
		found = true
		// An iovec, and not pointers: the addresses are the other process's.
		ranges := [2]uint64{from, to - from}
		if _, _, code := unix.Syscall6(unix.SYS_PROCESS_MADVISE, uintptr(process),
			uintptr(unsafe.Pointer(&ranges)), 1, unix.MADV_PAGEOUT, 0, 0); code != 0 {
			return fmt.Errorf("process_madvise: %w", code)
		}
	}
	if !found {
		return fmt.Errorf("process %d maps no file *%s", pid, suffix)
	}
	return nil
}

// A relay passes connections on, and what comes on them after a delay, each way.
type relay struct {
	listener net.Listener
	delay    atomic.Int64 // ns
}

func newRelay(from, to string) (*relay, error) {
	l, err := net.Listen("tcp", from)
	if err != nil {
		return nil, skip{err}
	}
	r := &relay{listener: l}
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", to)
			if err != nil {
				in.Close()
				continue
			}
			go r.pass(in, out)
			go r.pass(out, in)
		}
	}()
	return r, nil
}

func (r *relay) close() { r.listener.Close() }

// pass copies what comes from a connection to another one, each piece later by the delay.
func (r *relay) pass(from, to net.Conn) {
	type piece struct {
		at   time.Time
		data []byte
	}
	pieces := make(chan piece, 4096)
	go func() {
		defer close(pieces)
		for {
			buf := make([]byte, 32<<10)
			n, err := from.Read(buf)
			if n > 0 {
				pieces <- piece{time.Now().Add(time.Duration(r.delay.Load())), buf[:n]}
			}
			if err != nil {
				return
			}
		}
	}()
	defer to.Close()
	defer from.Close()
	for p := range pieces {
		if wait := time.Until(p.at); wait > 0 {
			time.Sleep(wait)
		}
		if _, err := to.Write(p.data); err != nil {
			go func() { // the reader must not block
				for range pieces {
				}
			}()
			return
		}
	}
}
