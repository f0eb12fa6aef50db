package profiles_test

import (
	"encoding/json"
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/muster-serve/muster/profiles"
)

func bookKey(version int64) profiles.Key {
	return profiles.Key{
		Model: "wnd", Version: version, InstanceType: "c5n.2xlarge", Provider: "cpu",
	}
}

func TestBookStartsFromWhatIsAlike(t *testing.T) {
	b := profiles.NewBook(profiles.ShippedLibrary())
	shipped, err := profiles.ShippedLibrary().Table("wnd", "c5n.2xlarge")
	if err != nil {
		t.Fatal(err)
	}
	if got := b.Table(bookKey(3)); got.Mean(500) != shipped.Mean(500) ||
		got.Origin() != profiles.Inherited || got.Key() != bookKey(3) {
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
			if err := b.Observe(bookKey(version), batch, time.Duration(float64(latency)*slowness),
				"a", m.now); err != nil {
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
			t.Errorf("version %d starts %.2f times the shipped profile, want %v", version, got,
				slowness)
		}
	}
	if err := b.Observe(bookKey(8), 0, 1, "a", m.now); err == nil ||
		b.FindLearner(bookKey(8)) != nil {
		t.Errorf("a bad observation: %v, and a learner", err)
	}
	if keys := b.Keys(); len(keys) != 2 || keys[0] != bookKey(3) || keys[1] != bookKey(5) {
		t.Errorf("keys are %v", keys)
	}
}

func TestBookSaveLoad(t *testing.T) {
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
		if got, want := ms(two.Table(key).Mean(300)), ms(one.Table(key).Mean(300)); math.Abs(got/
			want-1) > 1e-6 {
			t.Errorf("%s: %v ms read back, %v saved", key, got, want)
		}
	}

	if err := two.Observe(bookKey(7), 10, time.Millisecond, "b", m.now); err != nil {
		t.Fatal(err)
	}
	if got := len(two.Keys()); got != 3 || two.FindLearner(bookKey(1)).Queries() != 300 {
		t.Errorf("%d keys read back and learned", got)
	}

	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ in, want string }{
		"cut":   {string(good[:len(good)/2]), "ends too early"},
		"empty": {"", "empty, want JSON"},
		"format": {
			strings.Replace(string(good), `{"format":2`, `{"format":7`, 1),
			"format is 7, want 1 to 2",
		},
		"newer":  {`{"format":3,"entries":{}}`, "format is 3, want 1 to 2"},
		"null":   {`{"format":1,"learners":[null]}`, "learner 0 is null"},
		"twice":  {strings.Replace(string(good), `,"version":1`, ``, 1), "occurs twice"},
		"extra":  {string(good) + "{}", "more data"},
		"inside": {strings.Replace(string(good), `"factor":1`, `"factor":0`, 1), "factor is 0"},
	} {
		if err := os.WriteFile(path, []byte(c.in), 0o600); err != nil {
			t.Fatal(err)
		}
		err := two.Load(path)
		if err == nil || !strings.Contains(err.Error(), c.want) ||
			!strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
		if len(two.Keys()) != 3 {
			t.Fatalf("%s: an error changed the book", name)
		}
	}
	if err := two.Load(path + "x"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing file: %v", err)
	}
	if err := one.Save(filepath.Join(path, "no", "directory")); err == nil {
		t.Error("saved into a file as if it were a directory")
	}
}

// TestBookKeysByChecksum: what was learned of other files under the same version is where files
// start, not what they are; and what no checksum was known of belongs to those first asked for.
func TestBookKeysByChecksum(t *testing.T) {
	b := profiles.NewBook(nil)
	at := func(version int64, checksum string) profiles.Key {
		k := bookKey(version)
		k.Checksum = checksum
		return k
	}
	now := time.Unix(0, 0)
	learn := func(key profiles.Key, latency time.Duration) {
		t.Helper()
		for range 100 {
			now = now.Add(time.Millisecond)
			if err := b.Observe(key, 200, latency, "a", now); err != nil {
				t.Fatal(err)
			}
		}
	}
	is := func(key profiles.Key, origin profiles.Origin, want time.Duration) {
		t.Helper()
		if got := b.Table(key); got.Origin() != origin || got.Key() != key ||
			math.Abs(float64(got.Mean(200))/float64(want)-1) > 0.05 {
			t.Errorf("%s is %s, %v, want %s, %v", key, got.Origin(), got.Mean(200), origin, want)
		}
	}
	learn(at(1, ""), 100*time.Millisecond)
	is(at(1, "aa"), profiles.Learned, 100*time.Millisecond)
	if keys := b.Keys(); len(keys) != 1 || keys[0] != at(1, "aa") ||
		b.FindLearner(at(1, "aa")).Queries() != 100 {
		t.Errorf("what was learned without a checksum is now of %v", keys)
	}
	is(at(1, "bb"), profiles.Inherited, 100*time.Millisecond)
	learn(at(1, "bb"), 20*time.Millisecond)
	is(at(1, "aa"), profiles.Learned, 100*time.Millisecond)
	is(at(1, "bb"), profiles.Learned, 20*time.Millisecond)
	learn(at(3, "cc"), 40*time.Millisecond)
	is(at(1, "dd"), profiles.Inherited, 20*time.Millisecond)
	is(at(2, "aa"), profiles.Inherited, 20*time.Millisecond)
	learn(at(1, "aa"), 100*time.Millisecond)
	is(at(1, "dd"), profiles.Inherited, 100*time.Millisecond)
	is(at(4, "aa"), profiles.Inherited, 40*time.Millisecond)

	path := filepath.Join(t.TempDir(), "profiles.json")
	if err := b.Save(path); err != nil {
		t.Fatal(err)
	}
	saved := b.Keys()
	b = profiles.NewBook(nil)
	if err := b.Load(path); err != nil || !slices.Equal(b.Keys(), saved) {
		t.Errorf("saved %v, loaded %v (%v)", saved, b.Keys(), err)
	}
	if text, err := json.Marshal(b.Table(at(1, "aa"))); err != nil ||
		strings.Contains(string(text), "checksum") {
		t.Errorf("a table, which older gateways read, is written as %s (%v)", text, err)
	}
	if err := b.CheckKeys(); err != nil {
		t.Error(err)
	}
}

// TestKeyOf: a lane that is the whole machine has the key of the shipped profiles.
func TestKeyOf(t *testing.T) {
	c := profiles.DefaultCatalogue()
	for name, x := range map[string]struct {
		on       profiles.LaneDescription
		provider string
		cores    int
	}{
		"a whole machine": {
			profiles.LaneDescription{InstanceType: "c5n.2xlarge", Provider: "cpu", Lanes: 1,
				Cores: 8}, "cpu",
			0,
		},
		"half of one": {
			profiles.LaneDescription{InstanceType: "c5n.2xlarge", Provider: "cpu", Lanes: 2,
				Cores: 4}, "cpu",
			4,
		},
		"one that keeps cores": {
			profiles.LaneDescription{InstanceType: "c5n.2xlarge", Provider: "cpu", Lanes: 1,
				Cores: 6}, "cpu",
			6,
		},
		"a GPU": {
			profiles.LaneDescription{InstanceType: "g4dn.xlarge", Provider: "cuda", Lanes: 1,
				Cores: 2},
			"cuda", 0,
		},
		"the cores beside a GPU": {
			profiles.LaneDescription{InstanceType: "g4dn.xlarge", Provider: "cpu", Lanes: 1,
				Cores: 3}, "cpu",
			3,
		},
		"a GPU that is played": {
			profiles.LaneDescription{
				InstanceType: "g4dn.xlarge", Provider: "cpu", Emulated: true, Lanes: 1, Cores: 2,
			}, "cuda", 0,
		},
		"a machine not catalogued": {
			profiles.LaneDescription{InstanceType: "local:x:8", Provider: "cpu", Lanes: 1,
				Cores: 8}, "cpu", 8,
		},
	} {
		want := profiles.Key{
			Model: "wnd", Version: 2, Checksum: "aa", InstanceType: x.on.InstanceType,
			Provider: x.provider, Cores: x.cores,
		}
		if got := profiles.KeyOf(c, "wnd", 2, "aa", x.on); got != want {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
	}
}

// TestBookRestore: whatever the file holds, the book can be used and saved, and what the file held
// is kept.
func TestBookRestore(t *testing.T) {
	old, err := os.ReadFile(filepath.Join("testdata", "profiles-format1.json"))
	if err != nil {
		t.Fatal(err)
	}
	for name, x := range map[string]struct{ in, aside, fault string }{
		"older":   {string(old), ".format1", ""},
		"newer":   {`{"format":3,"entries":{"a":[1,2]}}`, ".format3", "format is 3"},
		"cut":     {string(old[:len(old)/2]), ".damaged", "ends too early"},
		"empty":   {"", ".damaged", "empty, want JSON"},
		"another": {`[]`, ".damaged", "is a list, want an object"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "profiles.json")
			// the second keeps both
			for _, aside := range []string{path + x.aside, path + x.aside + ".2"} {
				if err := os.WriteFile(path, []byte(x.in), 0o600); err != nil {
					t.Fatal(err)
				}
				b := profiles.NewBook(nil)
				r, err := b.Restore(path)
				if err != nil || r.Kept != aside {
					t.Fatalf("restored: %+v, %v; want the file kept as %s", r, err, aside)
				}
				if x.fault == "" != (r.Fault == nil) ||
					r.Fault != nil && (!strings.Contains(r.Fault.Error(), x.fault) ||
						!strings.Contains(r.Fault.Error(), path)) {
					t.Errorf("fault is %v, want %q", r.Fault, x.fault)
				}
				if got := b.FindLearner(bookKey(2)); (got != nil) != (x.fault == "") ||
					got != nil && (got.Queries() != 200 ||
						got.LatencyTable().Mean(200).Round(100*time.Microsecond) != 22800*
							time.Microsecond) {
					t.Errorf("learned %+v", got)
				}
				if x.fault != "" {
					if err := b.Save(path); err != nil {
						t.Fatal(err)
					}
				}
				if kept, err := os.ReadFile(aside); err != nil || string(kept) != x.in {
					t.Errorf("%s holds %.60q (%v)", aside, kept, err)
				}
				again := profiles.NewBook(nil)
				if r, err := again.Restore(path); err != nil || r != (profiles.RestoreResult{}) ||
					!slices.Equal(again.Keys(), b.Keys()) {
					t.Errorf("restored again: %+v, %v, %v", r, again.Keys(), err)
				}
			}
		})
	}
	path := filepath.Join(t.TempDir(), "profiles.json")
	if r, err := profiles.NewBook(nil).Restore(path); err != nil ||
		r != (profiles.RestoreResult{}) {
		t.Errorf("a missing file: %+v, %v", r, err)
	}
	// it cannot be read nor replaced by a file
	if err := os.MkdirAll(filepath.Join(path, "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	if r, err := profiles.NewBook(nil).Restore(path); err == nil || r.Kept != "" ||
		!strings.Contains(err.Error(), path) {
		t.Errorf("a directory: %+v, %v", r, err)
	}
	if files, err := os.ReadDir(filepath.Dir(path)); err != nil || len(files) != 1 {
		t.Errorf("left behind: %v (%v)", files, err)
	}
}
