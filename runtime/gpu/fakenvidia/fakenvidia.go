// Package fakenvidia builds an NVIDIA driver without a card, for tests: a libnvidia-ml.so.1 and a
// libcuda.so.1 that have the functions which Muster calls and answer from a text file, which the
// test rewrites. What is tested is then Muster's own binding to NVML and CUDA; the card is made up.
// No binary contains this package.
package fakenvidia

import (
	"bytes"
	_ "embed"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/muster-serve/muster/api/files"
)

//go:embed fakenvidia.c.txt
var source []byte

// Variable names the environment variable with the path of the file that the fake answers from.
const Variable = "FAKE_NVIDIA"

// A State is what the fake answers. Its zero value is a driver without a card.
type State struct {
	// Driver is the driver's version, "" for 580.95.05. CUDA is what it supports, as 13000 for 13.0,
	// which is the default.
	Driver string
	CUDA   int
	// Init, if not 0, is the code that cuInit returns.
	Init  int
	Cards []Card
}

// A Card is a card of a State.
type Card struct {
	UUID, Name string
	Memory     uint64 // bytes
	Used       uint64
	Percent    int // of the time that it computes
	Celsius    int
	Watts      int
	Throttled  uint64 // NVML's mask
	// Corrected and Uncorrected count errors of the memory.
	Corrected, Uncorrected uint64
	// Xid is told once for each new value of Event, of the slice numbered Instance, or of the whole
	// card if that is 0.
	Xid      uint64
	Event    int
	Instance int
	// Lost cards answer no question but this one.
	Lost bool
	// Slices are the UUIDs of its MIG slices, numbered from 1; without any it is not split.
	Slices []string
}

// A Driver is a fake that Build has made.
type Driver struct {
	// Dir holds the two libraries, for LD_LIBRARY_PATH.
	Dir string
	// NVML and CUDA are their paths.
	NVML, CUDA string
	state      string
}

// Build compiles the fake into dir, with the C compiler that Go uses, and has it answer from a file
// there, which is the zero State.
func Build(dir string) (*Driver, error) {
	d := &Driver{
		Dir: dir, NVML: filepath.Join(dir, "libnvidia-ml.so.1"),
		CUDA: filepath.Join(dir, "libcuda.so.1"), state: filepath.Join(dir, "state"),
	}
	if err := d.Set(State{}); err != nil {
		return nil, err
	}
	for _, library := range []string{d.NVML, d.CUDA} {
		if err := Compile(source, library); err != nil {
			return nil, err
		}
	}
	return d, nil
}

// Compile makes a shared library of a program in C, with the C compiler that Go uses. The library goes
// by the name of its file.
func Compile(source []byte, library string) error {
	cc, err := exec.Command("go", "env", "CC").Output()
	if err != nil {
		return fmt.Errorf("fake NVIDIA driver: go env CC: %w", err)
	}
	compiler := exec.Command(strings.TrimSpace(string(cc)), "-shared", "-fPIC", "-O1", "-Wall",
		"-Wl,-soname,"+filepath.Base(library), "-x", "c", "-", "-o", library)
	compiler.Stdin = bytes.NewReader(source)
	if out, err := compiler.CombinedOutput(); err != nil {
		return fmt.Errorf("fake NVIDIA driver: %w\n%s", err, out)
	}
	return nil
}

// Environment returns the variables by which a process finds the fake, as for exec.Cmd.
func (d *Driver) Environment() []string {
	return []string{"LD_LIBRARY_PATH=" + d.Dir, Variable + "=" + d.state}
}

// State returns the path of the file that the fake answers from.
func (d *Driver) State() string { return d.state }

// Set changes what the fake answers.
func (d *Driver) Set(s State) error {
	var b strings.Builder
	if s.Driver == "" {
		s.Driver = "580.95.05"
	}
	if s.CUDA == 0 {
		s.CUDA = 13000
	}
	fmt.Fprintf(&b, "driver %s\ncuda %d\ninit %d\n", s.Driver, s.CUDA, s.Init)
	for i, c := range s.Cards {
		fmt.Fprintf(&b, "card %d\nuuid %s\nname %s\nmemory %d\nused %d\npercent %d\ncelsius %d\n"+
			"watts %d\nthrottled %d\ncorrected %d\nuncorrected %d\nxid %d\nevent %d\ninstance %d\n",
			i, c.UUID, c.Name, c.Memory, c.Used, c.Percent, c.Celsius, c.Watts, c.Throttled,
			c.Corrected, c.Uncorrected, c.Xid, c.Event, c.Instance)
		if c.Lost {
			b.WriteString("lost 1\n")
		}
		for _, uuid := range c.Slices {
			fmt.Fprintf(&b, "slice %s\n", uuid)
		}
	}
	return files.Replace(d.state, []byte(b.String()), 0o644)
}
