package ortlib

import (
	"debug/elf"
	"errors"
	"os"
	"testing"

	"github.com/klauspost/compress/zstd"
)

// self is an ELF file that stands for the library: this test binary.
func self(t *testing.T) []byte {
	t.Helper()
	data, err := os.ReadFile(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func embed(t *testing.T, data []byte) {
	t.Helper()
	before := packed
	t.Cleanup(func() { packed = before })
	packed = data
}

func compress(t *testing.T, data []byte) []byte {
	t.Helper()
	enc, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	return enc.EncodeAll(data, nil)
}

func TestOpen(t *testing.T) {
	want := self(t)
	embed(t, compress(t, want))
	f, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	got, err := os.ReadFile(f.Name()) // as dlopen would
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != string(want) {
		t.Errorf("got %d bytes, other than the %d packed", len(got), len(want))
	}
	if e, err := elf.Open(f.Name()); err != nil {
		t.Error(err)
	} else {
		e.Close()
	}
}

func TestOpenNone(t *testing.T) {
	embed(t, nil)
	if _, err := Open(); !errors.Is(err, ErrNone) || Embedded() {
		t.Errorf("got error %v, embedded %v", err, Embedded())
	}
}

func TestOpenDamaged(t *testing.T) {
	good := compress(t, self(t))
	for name, data := range map[string][]byte{
		"cut short": good[:len(good)/2],
		"no ELF":    compress(t, []byte("something else")),
		"no zstd":   []byte("something else"),
		"tiny":      good[:3],
	} {
		embed(t, data)
		if f, err := Open(); err == nil {
			f.Close()
			t.Errorf("%s: got no error", name)
		}
	}
}
