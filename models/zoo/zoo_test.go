package zoo_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/models/zoo"
)

// hash is the SHA-256 of a folder's files, their names and contents.
func hash(t *testing.T, folder string) string {
	t.Helper()
	h := sha256.New()
	err := filepath.WalkDir(folder, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		fmt.Fprintln(h, strings.TrimPrefix(path, folder), len(data))
		h.Write(data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%x", h.Sum(nil))
}

func generate(t *testing.T, dir, model string, options zoo.Options) bool {
	t.Helper()
	written, err := zoo.Generate(t.Context(), dir, model, options)
	if err != nil {
		t.Fatal(err)
	}
	return written
}

// names lists a folder.
func names(t *testing.T, folder string) []string {
	t.Helper()
	entries, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return all
}

// The bytes of a model are part of what the zoo promises: they depend on nothing
// but the options. When they are meant to change, so must the version in the
// constant generator.
func TestSameBytes(t *testing.T) {
	want := map[string]string{
		"ncf":   "941011bbad32a4cba567c3380d3a4ee90e6260d4bc57088269926133078e1160",
		"rm1":   "da9d30b8fa5693c55a194eb9e93ae09a5a22fca9a81138365e0de7afe108c7d9",
		"rm3":   "6156cabc67214a1ed65b5b21d1590b18ec7a38a5471cd87acda23e5d6239a6da",
		"din":   "6397e86da2dc34798c9d7c78e5f2f177082bd57cce2050843391c48f83b0fbfb",
		"rm2":   "84e1ce4595b3dcf412bc3bfda3df325927e2285ba7b0ecf2083862ddc1c04a2e",
		"wnd":   "fa2d11ce809f16978448b177a28f3fa080527f9d86c1c3fd8f40c25e45f9b60e",
		"mtwnd": "723fcf84945be458192f45172f21276fd9772e00829690d418e846b764529511",
		"dien":  "4d112e5f980548c5f6bd0343b0875f81628d86335f4c9be400313e288f500f9a",

		"ranker-din":         "8685b1d3861064ef0b4399222cc77a0fa1d29e049259afeabe0503025703fd80",
		"ranker-dien":        "5ebe50cb22a6f8ad44f8c64a82f403805aeba1f0b064ab9e916cea6ba76092e8",
		"ranker-transformer": "f6fff2eeafa3f7884c0c2234cd51d1cec5036d41b79deaa9a9d4bc12cc9f1b53",
		"ranker-dlrm":        "05803d5d45f6fac3381018959b6b1d060acf4e54ae168566faffb8c817297519",
	}
	for _, model := range slices.Concat(zoo.Names(), zoo.Rankers()) {
		dir := t.TempDir()
		generate(t, dir, model, zoo.Options{Scale: zoo.Small, Seed: 7})
		got := hash(t, filepath.Join(dir, model, "1"))
		if got != want[model] {
			t.Errorf("%s: got bytes with hash %s, want %s", model, got, want[model])
		}
	}
}

func TestBytesDependOnSeedAlone(t *testing.T) {
	var hashes []string
	for _, seed := range []uint64{7, 7, 8} {
		dir := t.TempDir()
		generate(t, dir, "ncf", zoo.Options{Scale: "1/10", Seed: seed})
		hashes = append(hashes, hash(t, filepath.Join(dir, "ncf", "1")))
	}
	defer goruntime.GOMAXPROCS(goruntime.GOMAXPROCS(5))
	dir := t.TempDir()
	generate(t, dir, "ncf", zoo.Options{Scale: "0.1", Seed: 7})
	hashes = append(hashes, hash(t, filepath.Join(dir, "ncf", "1")))
	if hashes[0] != hashes[1] {
		t.Error("the same seed gives different bytes")
	}
	if hashes[0] != hashes[3] {
		t.Error("the bytes depend on the number of cores")
	}
	if hashes[0] == hashes[2] {
		t.Error("different seeds give the same bytes")
	}
}

func TestManifest(t *testing.T) {
	targets := map[string]time.Duration{"ncf": 5, "rm1": 100, "rm2": 350, "rm3": 100, "wnd": 25,
		"mtwnd": 25, "din": 100, "dien": 35}
	for _, model := range zoo.Names() {
		dir := t.TempDir()
		generate(t, dir, model, zoo.Options{Scale: zoo.Small, Seed: 3})
		v, err := models.ReadVersion(dir, model, 1)
		if err != nil {
			t.Fatal(err)
		}
		c := v.Config
		if got, want := c.QoSTarget, targets[model]*time.Millisecond; got != want {
			t.Errorf("%s: QoS target %v, want %v", model, got, want)
		}
		if c.LargestBatchSize != 1000 || !c.RowsIndependent {
			t.Errorf("%s: largest batch size %d, rows independent %v, want 1000, true", model,
				c.LargestBatchSize, c.RowsIndependent)
		}
		source := "paper"
		if model == "din" {
			source = "reference"
		}
		if got, want := *c.Generated, (models.Provenance{
			Generator: "muster zoo 1", Architecture: source, Scale: "1/1000", Seed: 3,
		}); got != want {
			t.Errorf("%s: generated %+v, want %+v", model, got, want)
		}
		var rows []int64
		for _, table := range c.Tables {
			rows = append(rows, table.Rows)
		}
		ids := v.Inputs[slices.IndexFunc(v.Inputs,
			func(p models.TensorSpec) bool { return p.Name == "ids" })]
		if len(rows) == 0 || !slices.Equal(rows, ids.IDBounds) || ids.Shape[1] != int64(len(rows)) {
			t.Errorf("%s: tables have rows %v, input ids has shape %v and bounds %v", model, rows,
				ids.Shape, ids.IDBounds)
		}
	}
}

// TestRankers: a ranker's users and items have inputs of their own, and the ids of each are bounded
// by the tables in which they are looked up.
func TestRankers(t *testing.T) {
	tables := map[string]int{"ranker-din": 8, "ranker-dien": 8, "ranker-transformer": 8,
		"ranker-dlrm": 26}
	for _, model := range zoo.Rankers() {
		dir := t.TempDir()
		generate(t, dir, model, zoo.Options{Scale: zoo.Small, Seed: 3})
		v, err := models.ReadVersion(dir, model, 1)
		if err != nil {
			t.Fatal(err)
		}
		if !v.Config.RowsIndependent || v.Roles == nil || !v.Roles.HasUsers() ||
			strings.Contains(strings.Join(v.Config.Notes, ""), "depend") ||
			len(v.Config.Tables) != tables[model] {
			t.Errorf("%s: rows independent %v, roles %v, notes %q, %d tables, want %d", model,
				v.Config.RowsIndependent, v.Roles, v.Config.Notes, len(v.Config.Tables),
				tables[model])
		}
		bounds, users := 0, 0
		for _, in := range v.Inputs {
			bounds += len(in.IDBounds)
			if strings.HasPrefix(in.Name, "user_") {
				users++
			} else if !strings.HasPrefix(in.Name, "item_") {
				t.Errorf("%s: input %q is neither of users nor of items", model, in.Name)
			}
		}
		if bounds != tables[model] || users == 0 || users == len(v.Inputs) {
			t.Errorf("%s: %d bounds for %d tables, %d of %d inputs are of users", model, bounds,
				tables[model], users, len(v.Inputs))
		}
	}
}

// The tables at full scale are as large as published.
func TestFullScale(t *testing.T) {
	for model, want := range map[string]float64{
		"ncf": 0.086, "rm1": 4.10, "rm2": 4.10, "rm3": 2.56, "wnd": 3.46, "mtwnd": 3.90,
		"din":  2.70,
		"dien": 3.90,
	} {
		c, err := zoo.Config(model, zoo.Options{Scale: zoo.Full})
		if err != nil {
			t.Fatal(err)
		}
		var bytes int64
		for _, table := range c.Tables {
			bytes += 4 * table.Rows * table.Dim
		}
		if got := float64(bytes) / 1e9; got < want-0.006 || got > want+0.006 {
			t.Errorf("%s: tables of %.3f GB, want %.3f", model, got, want)
		}
	}
}

func TestScale(t *testing.T) {
	for scale, want := range map[zoo.Scale]int64{
		"": 62_500, zoo.Default: 62_500, zoo.Full: 1_000_000, zoo.Small: 1000, "1": 1_000_000,
		"0.25": 250_000, "1/3": 333_333, "2/3": 666_667, "0.0000000001": 1,
	} {
		c, err := zoo.Config("wnd", zoo.Options{Scale: scale})
		if err != nil {
			t.Error(err)
		} else if got := c.Tables[0].Rows; got != want {
			t.Errorf("scale %q: got %d rows, want %d", scale, got, want)
		}
	}
	for _, scale := range []zoo.Scale{
		"0", "-1", "1.01", "big", "1e-1", "1e999999999", "1/0", "0x1", "NaN", "Inf", " 1",
	} {
		if _, err := zoo.Config("wnd", zoo.Options{Scale: scale}); err == nil ||
			!strings.Contains(err.Error(), "expected small, default, full or a fraction") {
			t.Errorf("scale %q: got error %v", scale, err)
		}
	}
}

func TestGenerateAgain(t *testing.T) {
	dir := t.TempDir()
	options := zoo.Options{Scale: zoo.Small, Seed: 1}
	if !generate(t, dir, "ncf", options) {
		t.Error("nothing was written")
	}
	first := hash(t, dir)
	if generate(t, dir, "ncf", options) {
		t.Error("a model made with the same options was written again")
	}

	options.Seed = 2
	_, err := zoo.Generate(t.Context(), dir, "ncf", options)
	if !errors.Is(err, models.ErrExists) || !strings.Contains(err.Error(), "seed 1") ||
		!strings.Contains(err.Error(), "seed 2") {
		t.Errorf("other options: got error %v", err)
	}
	if hash(t, dir) != first {
		t.Error("the model was changed")
	}

	options.Overwrite = true
	if !generate(t, dir, "ncf", options) || hash(t, dir) == first {
		t.Error("the model was not overwritten")
	}
	if got := names(t, dir); !slices.Equal(got, []string{"ncf"}) {
		t.Errorf("the folder holds %v, want ncf alone", got)
	}
}

// What was not generated is never replaced.
func TestGenerateKeepsForeignModels(t *testing.T) {
	options := zoo.Options{Scale: zoo.Small, Overwrite: true}
	check := func(dir, want string) {
		t.Helper()
		before := hash(t, dir)
		_, err := zoo.Generate(t.Context(), dir, "ncf", options)
		if !errors.Is(err, models.ErrExists) || !strings.Contains(err.Error(), want) {
			t.Errorf("got error %v, want %q", err, want)
		}
		if hash(t, dir) != before {
			t.Error("the model was changed")
		}
	}

	foreign := t.TempDir()
	if err := os.MkdirAll(filepath.Join(foreign, "ncf", "1"), 0o755); err != nil {
		t.Fatal(err)
	}
	check(foreign, "was not generated")

	extended := t.TempDir()
	generate(t, extended, "ncf", zoo.Options{Scale: zoo.Small, Seed: 1})
	if err := os.Mkdir(filepath.Join(extended, "ncf", "2"), 0o755); err != nil {
		t.Fatal(err)
	}
	check(extended, "also holds 2")
}

func TestGenerateCancelled(t *testing.T) {
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	_, err := zoo.Generate(ctx, dir, "ncf", zoo.Options{
		Scale:    zoo.Default,
		Progress: func(done, total int64) { cancel() },
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got error %v, want %v", err, context.Canceled)
	}
	if got := names(t, dir); len(got) > 0 {
		t.Errorf("the folder holds %v, want nothing", got)
	}
}

func TestProgress(t *testing.T) {
	var last, total int64
	generate(t, t.TempDir(), "wnd", zoo.Options{Scale: zoo.Small, Progress: func(done, of int64) {
		if done <= last || done > of || (total != 0 && of != total) {
			t.Errorf("progress %d of %d after %d of %d", done, of, last, total)
		}
		last, total = done, of
	}})
	if last != total || total < 11_000_000 {
		t.Errorf("progress ends at %d of %d, want all of the 11.7 MB", last, total)
	}
}

func TestUnknownModel(t *testing.T) {
	_, err := zoo.Generate(t.Context(), t.TempDir(), "dlrm", zoo.Options{})
	if want := "generate model dlrm: unknown model, expected one of ncf, rm1, rm2, rm3, wnd, " +
		"mtwnd, din, dien, ranker-din, ranker-dien, ranker-transformer, " +
		"ranker-dlrm"; err == nil || err.Error() != want {
		t.Errorf("got error %v, want %s", err, want)
	}
}
