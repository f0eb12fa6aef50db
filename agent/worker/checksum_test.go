package worker

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/muster-serve/muster/models"
)

// TestChecksum: it is of all that is in the files, which are read once.
func TestChecksum(t *testing.T) {
	const size = 3*sumPiece + 5
	version := func(change func(data []byte)) *models.Version {
		t.Helper()
		dir := t.TempDir()
		data := make([]byte, size)
		if change != nil {
			change(data)
		}
		for name, content := range map[string][]byte{
			"model.onnx": []byte("a model"), "model.onnx.data": data,
		} {
			if err := os.WriteFile(filepath.Join(dir, name), content, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		return &models.Version{Model: "m", Number: 1, Path: filepath.Join(dir, "model.onnx")}
	}
	var sums fileSums
	of := func(v *models.Version) string {
		t.Helper()
		sum, err := sums.checksum(t.Context(), v)
		if err != nil {
			t.Fatal(err)
		}
		return sum
	}
	one := version(nil)
	want := of(one)
	if other := of(version(nil)); other != want {
		t.Errorf("the same files have %s and %s", want, other)
	}
	if other := of(version(func(data []byte) { data[size/2] = 1 })); other == want {
		t.Error("files that differ in the middle have the same checksum")
	}

	before := sums.read
	if again := of(one); again != want || sums.read != before {
		t.Errorf("again: got %s, want %s, and %d bytes read", again, want, sums.read-before)
	}
	// Written in place, with the size as before.
	if err := os.WriteFile(filepath.Join(filepath.Dir(one.Path), "model.onnx.data"),
		bytes.Repeat([]byte{2}, size), 0o644); err != nil {
		t.Fatal(err)
	}
	if again := of(one); again == want {
		t.Error("a file that has changed keeps its checksum")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := sums.checksum(ctx, version(func(data []byte) { data[0] = 9 })); !errors.Is(err,
		context.Canceled) {
		t.Errorf("cancelled: got error %v", err)
	}
}

func BenchmarkChecksum(b *testing.B) {
	path := filepath.Join(b.TempDir(), "model.onnx")
	if err := os.WriteFile(path, make([]byte, 256<<20), 0o644); err != nil {
		b.Fatal(err)
	}
	b.SetBytes(256 << 20)
	for b.Loop() {
		var sums fileSums
		if _, err := sums.checksum(b.Context(),
			&models.Version{Model: "m", Number: 1, Path: path}); err != nil {
			b.Fatal(err)
		}
	}
}
