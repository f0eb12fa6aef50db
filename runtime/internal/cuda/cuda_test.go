package cuda

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/muster-serve/muster/runtime/gpu"
	"github.com/muster-serve/muster/runtime/gpu/fakenvidia"
)

// TestFake runs tests with drivers that are made up: one is whole, one lacks a function, and one has a
// cuBLAS beside it.
func TestFake(t *testing.T) {
	if os.Getenv("FAKE_CUDA") != "" {
		t.Skip("is what TestFake runs")
	}
	source, err := os.ReadFile("testdata/fakecuda.c")
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []string{"TestWithDriver", "TestWithOldDriver", "TestWorkspaces"} {
		dir, memory := t.TempDir(), "1000"
		code := source
		if test == "TestWorkspaces" {
			memory = "10485760"
			for name, library := range map[string]string{
				"fakecublas.c": "libcublas.so.13", "provider.c": "provider.so",
			} {
				code, err := os.ReadFile(filepath.Join("testdata", name))
				if err != nil {
					t.Fatal(err)
				}
				if err := fakenvidia.Compile(code, filepath.Join(dir, library)); err != nil {
					t.Fatal(err)
				}
			}
		}
		if test == "TestWithOldDriver" {
			code = bytes.Replace(code, []byte("cuGraphInstantiateWithFlags"),
				[]byte("cuGraphInstantiate"), 1)
		}
		if err := fakenvidia.Compile(code, filepath.Join(dir, "libcuda.so.1")); err != nil {
			t.Fatal(err)
		}
		command := exec.Command(os.Args[0], "-test.run", "^"+test+"$", "-test.v")
		command.Env = append(os.Environ(), "LD_LIBRARY_PATH="+dir, "FAKE_CUDA="+memory)
		out, err := command.CombinedOutput()
		if err != nil || !bytes.Contains(out, []byte("--- PASS: "+test)) ||
			bytes.Contains(out, []byte("--- FAIL")) ||
			test == "TestWorkspaces" && !bytes.Contains(out, []byte("cuBLAS has been called\n")) {
			t.Errorf("%v\n%s", err, out)
		}
	}
}

func inFake(t *testing.T) {
	if os.Getenv("FAKE_CUDA") == "" {
		t.Skip("TestFake runs it")
	}
}

func TestWithOldDriver(t *testing.T) {
	inFake(t)
	const want = "the NVIDIA driver lacks cuGraphInstantiateWithFlags"
	if err := Open(); err == nil || err.Error() != want {
		t.Errorf("opened with %v, want %s", err, want)
	}
}

// TestWorkspaces: what a library calls of cuBLAS are the functions of this package.
func TestWorkspaces(t *testing.T) {
	inFake(t)
	// The last one calls them, and says so.
	if err := gpu.Preload([]string{"libcublas.so.13", "provider.so"}); err != nil {
		t.Fatal(err)
	}
}

func TestWithDriver(t *testing.T) {
	inFake(t)
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	var full *Error
	memory := os.Getenv("FAKE_CUDA")
	t.Setenv("FAKE_CUDA", "0")
	if err := Open(); !errors.As(err, &full) || full.Code != 2 {
		t.Errorf("opened a card without memory: %v", err)
	}
	t.Setenv("FAKE_CUDA", memory)
	check(Open())
	s, err := NewStream()
	check(err)
	b, err := NewBuffer(600)
	check(err)
	if !bytes.Equal(b.Host, make([]byte, 600)) {
		t.Error("a new buffer is not zero")
	}
	if _, err := NewBuffer(600); !errors.As(err, &full) || full.Code != 2 ||
		full.Error() != "CUDA failure 2: out of memory (allocate memory)" {
		t.Errorf("allocated more than there is: %v", err)
	}

	copy(b.Host, "outside inside")
	check(s.ToDevice(b, 8, 6)) // "inside"
	check(s.Wait())
	clear(b.Host)
	check(s.ToHost(b, 14))
	if !bytes.Equal(b.Host[8:14], []byte("inside")) {
		t.Errorf("came back as %q", b.Host[:14])
	}

	g, err := s.Capture(func() error { return s.ToDevice(b, 0, 5) })
	check(err)
	for _, word := range []string{"first", "again"} { // what is there when it runs, not when it was made
		copy(b.Host, word)
		check(g.Run(s))
		clear(b.Host)
		check(s.ToHost(b, 5))
		if string(b.Host[:5]) != word {
			t.Errorf("the graph sent %q, want %q", b.Host[:5], word)
		}
	}
	broken := errors.New("broken")
	if _, err := s.Capture(func() error { return broken }); !errors.Is(err, broken) {
		t.Errorf("a graph of work that fails: %v", err)
	}
	check(s.Wait()) // it does not capture any more
	check(errors.Join(g.Free(), b.Free(), s.Free()))
	b, err = NewBuffer(1000)
	check(err) // all had been given back
	check(b.Free())
}
