package worker

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

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
		sum, err := sums.versionChecksum(t.Context(), v, restWanted)
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

	link := filepath.Join(t.TempDir(), "1")
	if err := os.Symlink(filepath.Dir(one.Path), link); err != nil {
		t.Fatal(err)
	}
	linked := &models.Version{Model: "m", Number: 1, Path: filepath.Join(link, "model.onnx")}
	if other := of(linked); other != want {
		t.Errorf("the same files behind a link have %s and %s", want, other)
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
	changed := version(func(data []byte) { data[0] = 9 })
	if _, err := sums.versionChecksum(ctx, changed, restWanted); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: got error %v", err)
	}
}

// TestLateChecksum: while an agent starts alone, checksums wait until its first models are loaded,
// but not for long, and are those of the files that were loaded.
func TestLateChecksum(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		alone := true
		w := &Worker{config: Config{Fleet: &testFleet{alone: &alone}}}
		var err error
		if w.repository, err = models.Open[*LoadedModel](t.TempDir(), nil,
			models.Options{}); err != nil {
			t.Fatal(err)
		}
		begun := func() (*checksum, *models.Version) {
			v := &models.Version{
				Model: "m", Number: 1, Path: filepath.Join(t.TempDir(), "model.onnx"),
			}
			if err := os.WriteFile(v.Path, []byte("a model"), 0o644); err != nil {
				t.Fatal(err)
			}
			s := w.newChecksum(t.Context(), v, w.startsAlone())
			s.begin()
			synctest.Wait()
			return s, v
		}
		check := func(s *checksum, v *models.Version, when string) {
			t.Helper()
			if err := s.wait(t.Context()); err != nil {
				t.Errorf("%s: %v", when, err)
			}
			if want, err := Checksum(t.Context(), v); err != nil || s.knownSum() != want {
				t.Errorf("%s: got %q, want %q (%v)", when, s.knownSum(), want, err)
			}
		}
		alone = false
		s, v := begun()
		check(s, v, "in a fleet")
		alone = true
		s, v = begun()
		if s.knownSum() != "" {
			t.Error("alone: it did not wait for the loads")
		}
		time.Sleep(latest)
		check(s, v, "loads take long")

		s, v = begun()
		changed, other := begun()
		if err := os.WriteFile(other.Path, []byte("another model"), 0o644); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var run sync.WaitGroup
		run.Go(func() { _ = w.repository.Run(ctx) })
		check(s, v, "all is loaded")
		if err := changed.wait(t.Context()); err == nil || changed.knownSum() != "" {
			t.Errorf("the files have changed: got %q, error %v", changed.knownSum(), err)
		}
		if s, v = begun(); w.startsAlone() {
			t.Error("starts although all is loaded")
		}
		check(s, v, "after the start")
		cancel()
		run.Wait()
		w.summing.Wait()
	})
}

func BenchmarkChecksum(b *testing.B) {
	path := filepath.Join(b.TempDir(), "model.onnx")
	if err := os.WriteFile(path, make([]byte, 256<<20), 0o644); err != nil {
		b.Fatal(err)
	}
	b.SetBytes(256 << 20)
	for b.Loop() {
		var sums fileSums
		v := &models.Version{Model: "m", Number: 1, Path: path}
		if _, err := sums.versionChecksum(b.Context(), v, restWanted); err != nil {
			b.Fatal(err)
		}
	}
}
