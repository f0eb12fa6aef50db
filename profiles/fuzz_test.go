package profiles_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/muster-serve/muster/profiles"
)

// FuzzTable reads any profile as agents send it. One that is read must give latencies that grow
// with the quantile, and be written as it was read.
func FuzzTable(f *testing.F) {
	model := profiles.ShippedLibrary().Models()[0]
	for _, typ := range profiles.ShippedLibrary().Types(model) {
		t, err := profiles.ShippedLibrary().Table(model, typ)
		if err != nil {
			f.Fatal(err)
		}
		data, err := json.Marshal(t)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add([]byte(`{"key":{},"knots":[{"batch_size":1,"mean_ms":1e300}]}`))
	f.Add([]byte(`{"knots":null}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var read profiles.Table
		if json.Unmarshal(data, &read) != nil {
			return
		}
		for _, batch := range []int{1, 2, 1000, profiles.MaxBatchSize} {
			mean, p50, p99 := read.Mean(batch), read.Quantile(0.5, batch), read.Quantile(0.99,
				batch)
			if mean <= 0 || p50 <= 0 || p99 < p50 {
				t.Errorf("batch size %d: mean %v, 50 %% %v, 99 %% %v", batch, mean, p50, p99)
			}
		}
		written, err := json.Marshal(&read)
		if err != nil {
			t.Fatalf("what was read cannot be written: %v", err)
		}
		var again profiles.Table
		if err := json.Unmarshal(written, &again); err != nil {
			t.Fatalf("what was written cannot be read: %v", err)
		}
		if twice, err := json.Marshal(&again); err != nil || string(twice) != string(written) {
			t.Errorf("written %s, then %s, %v", written, twice, err)
		}
	})
}

// FuzzBook loads any file of learned profiles. One that is loaded can be used and saved.
func FuzzBook(f *testing.F) {
	dir := f.TempDir()
	path, saved := filepath.Join(dir, "in.json"), filepath.Join(dir, "out.json")
	start := time.Unix(1e9, 0).UTC()
	b := profiles.NewBook(profiles.ShippedLibrary())
	key := profiles.Key{Model: "ncf", Version: 1, InstanceType: "t3.xlarge", Provider: "cpu"}
	for i := range 40 {
		if err := b.Observe(key, 1+i*20, 2*time.Millisecond, "a", start); err != nil {
			f.Fatal(err)
		}
	}
	if err := b.Save(path); err != nil {
		f.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Add([]byte(`{"format":1,"learners":[null]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		b := profiles.NewBook(profiles.ShippedLibrary())
		if b.Load(path) != nil {
			return
		}
		if err := b.CheckKeys(); err != nil {
			t.Error(err)
		}
		for _, key := range b.Keys() {
			if err := b.Observe(key, 3, 2*time.Millisecond, "a", start); err != nil {
				t.Errorf("%v: %v", key, err)
			}
			if table := b.Table(key); table != nil && table.Mean(1) <= 0 {
				t.Errorf("%v: mean %v", key, table.Mean(1))
			}
			b.FindLearner(key).Agents()
		}
		if err := b.Save(saved); err != nil {
			t.Errorf("what was loaded cannot be saved: %v", err)
		}
		if err := profiles.NewBook(nil).Load(saved); err != nil {
			t.Errorf("what was saved cannot be loaded: %v", err)
		}
	})
}

// FuzzReadLibrary reads any file of profiles for the emulated executor.
func FuzzReadLibrary(f *testing.F) {
	var shipped bytes.Buffer
	if err := profiles.ShippedLibrary().Write(&shipped); err != nil {
		f.Fatal(err)
	}
	f.Add(shipped.Bytes())
	f.Add(
		[]byte(
			`{"models":[{"name":"m"}],"tables":[{"key":{"model":"m"},"knots":[{"batch_size":1}]}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		l, err := profiles.ReadLibrary("in", bytes.NewReader(data))
		if err != nil {
			return
		}
		for _, model := range l.Models() {
			for _, typ := range l.Types(model) {
				if table, err := l.Table(model, typ); err != nil || table.Mean(1) <= 0 {
					t.Errorf("%s on %s: %v, %v", model, typ, table, err)
				}
			}
		}
		var out bytes.Buffer
		if err := l.Write(&out); err != nil {
			t.Errorf("what was read cannot be written: %v", err)
		} else if _, err := profiles.ReadLibrary("out", &out); err != nil {
			t.Errorf("what was written cannot be read: %v", err)
		}
	})
}
