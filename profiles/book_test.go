package profiles_test

import (
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/muster-serve/muster/profiles"
)

func bookKey(version int64) profiles.Key {
	return profiles.Key{Model: "wnd", Version: version, InstanceType: "c5n.2xlarge", Provider: "cpu"}
}

func TestBookStartsFromWhatIsAlike(t *testing.T) {
	b := profiles.NewBook(profiles.ShippedLibrary())
	shipped, err := profiles.ShippedLibrary().Table("wnd", "c5n.2xlarge")
	if err != nil {
		t.Fatal(err)
	}
	if got := b.Table(bookKey(3)); got.Mean(500) != shipped.Mean(500) || got.Origin() != profiles.Inherited || got.Key() != bookKey(3) {
		t.Errorf("a key not learned starts as %s %v", got.Origin(), got.Mean(500))
	}
	for name, key := range map[string]profiles.Key{
		"unknown model":    {Model: "bert", InstanceType: "c5n.2xlarge", Provider: "cpu"},
		"unknown type":     {Model: "wnd", InstanceType: "m5.xlarge", Provider: "cpu"},
		"another provider": {Model: "wnd", InstanceType: "c5n.2xlarge", Provider: "cuda"},
		"some cores only":  {Model: "wnd", InstanceType: "c5n.2xlarge", Provider: "cpu", Cores: 2},
	} {
		if got := b.Table(key); got != nil {
			t.Errorf("%s starts from %s", name, got.Source())
		}
	}

	m := newMachine(series(t, "wnd", "c5n.2xlarge"), 1)
	learn := func(version int64, slowness float64) {
		t.Helper()
		for range 500 {
			batch, latency := m.query()
			m.now = m.now.Add(time.Millisecond)
			if err := b.Observe(bookKey(version), batch, time.Duration(float64(latency)*slowness), "a", m.now); err != nil {
				t.Fatal(err)
			}
		}
	}
	learn(3, 2)
	learn(5, 3)
	if got := b.Table(bookKey(3)).Origin(); got != profiles.Learned {
		t.Errorf("what was learned is %s", got)
	}
	base := ms(shipped.Mean(200))
	for version, slowness := range map[int64]float64{1: 2, 2: 2, 3: 2, 4: 2, 5: 3, 6: 3, 99: 3} {
		if got := ms(b.Table(bookKey(version)).Mean(200)) / base; math.Abs(got/slowness-1) > 0.1 {
			t.Errorf("version %d starts %.2f times the shipped profile, want %v", version, got, slowness)
		}
	}
	if err := b.Observe(bookKey(8), 0, 1, "a", m.now); err == nil || b.Learner(bookKey(8)) != nil {
		t.Errorf("a bad observation: %v, and a learner", err)
	}
	if keys := b.Keys(); len(keys) != 2 || keys[0] != bookKey(3) || keys[1] != bookKey(5) {
		t.Errorf("keys are %v", keys)
	}
}

func TestBookSaveLoadMerge(t *testing.T) {
	path := filepath.Join(t.TempDir(), "profiles.json")
	m := newMachine(series(t, "wnd", "c5n.2xlarge"), 1)
	one := profiles.NewBook(nil)
	for i := range 600 {
		batch, latency := m.query()
		if err := one.Observe(bookKey(int64(i%2)), batch, latency, "a", m.now); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 { // the second replaces the first
		if err := one.Save(path); err != nil {
			t.Fatal(err)
		}
	}
	if files, err := os.ReadDir(filepath.Dir(path)); err != nil || len(files) != 1 {
		t.Errorf("left behind: %v (%v)", files, err)
	}
	two := profiles.NewBook(nil)
	if err := two.Load(path); err != nil {
		t.Fatal(err)
	}
	for _, key := range one.Keys() {
		if got, want := ms(two.Table(key).Mean(300)), ms(one.Table(key).Mean(300)); math.Abs(got/want-1) > 1e-6 {
			t.Errorf("%s: %v ms read back, %v saved", key, got, want)
		}
	}

	merged := profiles.NewBook(nil)
	if err := merged.Observe(bookKey(7), 10, time.Millisecond, "b", m.now); err != nil {
		t.Fatal(err)
	}
	if err := merged.Merge(two); err != nil {
		t.Fatal(err)
	}
	if err := merged.Merge(merged); err == nil {
		t.Error("a book was merged with itself")
	}
	if got := len(merged.Keys()); got != 3 || merged.Learner(bookKey(1)).Queries() != 300 {
		t.Errorf("%d keys merged", got)
	}

	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ in, want string }{
		"cut":    {string(good[:len(good)/2]), "unexpected EOF"},
		"empty":  {"", "EOF"},
		"format": {strings.Replace(string(good), `{"format":1`, `{"format":7`, 1), "format is 7, want 1"},
		"null":   {`{"format":1,"learners":[null]}`, "learner 0 is null"},
		"twice":  {strings.Replace(string(good), `,"version":1`, ``, 1), "stands twice"},
		"extra":  {string(good) + "{}", "more data"},
		"inside": {strings.Replace(string(good), `"factor":1`, `"factor":0`, 1), "factor is 0"},
	} {
		if err := os.WriteFile(path, []byte(c.in), 0o600); err != nil {
			t.Fatal(err)
		}
		err := merged.Load(path)
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
		if len(merged.Keys()) != 3 {
			t.Fatalf("%s: an error changed the book", name)
		}
	}
	if err := merged.Load(path + "x"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing file: %v", err)
	}
	if err := one.Save(filepath.Join(path, "no", "directory")); err == nil {
		t.Error("saved into a file as if it were a directory")
	}
}
