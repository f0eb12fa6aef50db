package models_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/models/zoo"
	"github.com/muster-serve/muster/runtime"
	"github.com/muster-serve/muster/runtime/runtimetest"
)

// A repository of real models: a version is followed by another with other
// weights, and that by a broken one.
func TestRepositoryWithONNXRuntime(t *testing.T) {
	ort := runtimetest.Open(t)
	dir := t.TempDir()
	generate := func(dir string, seed uint64) {
		t.Helper()
		if _, err := zoo.Generate(t.Context(), dir, "ncf",
			zoo.Options{Scale: zoo.Small, Seed: seed}); err != nil {
			t.Fatal(err)
		}
	}
	generate(dir, 1)

	events := make(chan models.VersionEvent, 100) // more than there will be
	r, err := models.Open(dir, func(ctx context.Context, v *models.Version) (runtime.Model, error) {
		return ort.Load(ctx, v)
	}, models.Options{
		PollInterval: 5 * time.Millisecond, OnEvent: func(e models.VersionEvent) { events <- e },
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	// await waits for the end of a version's load.
	await := func(version int64) models.VersionEvent {
		t.Helper()
		for e := range events {
			if e.Version == version && (e.LoadTime > 0 || e.Err != nil) {
				return e
			}
		}
		panic("events is never closed")
	}
	answer := func() []byte {
		t.Helper()
		l, err := r.Acquire("ncf", 0)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Release()
		ids, err := tensor.Of("ids", []int64{1, 2, 3, 4}, 1, 4)
		if err != nil {
			t.Fatal(err)
		}
		result, err := l.Model.Run(ctx, []tensor.Tensor{ids})
		if err != nil {
			t.Fatal(err)
		}
		defer result.Release()
		return bytes.Clone(result.Outputs[0].Data)
	}

	if e := await(1); e.Err != nil {
		t.Fatal(e.Err)
	}
	first := answer()

	other := t.TempDir()
	generate(other, 2)
	if err := os.Rename(filepath.Join(other, "ncf", "1"),
		filepath.Join(dir, "ncf", "2")); err != nil {
		t.Fatal(err)
	}
	if e := await(2); e.Err != nil {
		t.Fatal(e.Err)
	}
	second := answer()
	if bytes.Equal(first, second) {
		t.Error("the new version answers as the old one did")
	}

	broken := filepath.Join(other, "3")
	if err := os.Mkdir(broken, 0o755); err != nil {
		t.Fatal(err)
	}
	model, err := os.ReadFile(filepath.Join(dir, "ncf", "2", models.ModelFile))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(broken, models.ModelFile), model, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(broken, filepath.Join(dir, "ncf", "3")); err != nil {
		t.Fatal(err)
	}
	if e := await(3); e.Err == nil ||
		!strings.Contains(e.Err.Error(), filepath.Join(dir, "ncf", "3", models.ModelFile+".data")) {
		t.Errorf("a version without its data: got error %v", e.Err)
	}
	if !bytes.Equal(answer(), second) {
		t.Error("the version before no longer serves")
	}
}
