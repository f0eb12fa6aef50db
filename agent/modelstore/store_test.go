package modelstore_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/muster-serve/muster/agent"
	"github.com/muster-serve/muster/agent/agenttest"
	"github.com/muster-serve/muster/api/inference"
	"github.com/muster-serve/muster/models/store"
)

// A countedBucket is a bucket that counts the bytes read of files.
type countedBucket struct {
	store.Bucket
	read *atomic.Int64
}

func (b countedBucket) Open(ctx context.Context, key string, offset, length int64) (io.ReadCloser,
	int64, error) {
	r, size, err := b.Bucket.Open(ctx, key, offset, length)
	if err != nil || !strings.HasPrefix(key, "blobs/") {
		return r, size, err
	}
	return struct {
		io.Reader
		io.Closer
	}{io.TeeReader(r, counter{b.read}), r}, size, nil
}

type counter struct{ n *atomic.Int64 }

func (c counter) Write(p []byte) (int, error) {
	c.n.Add(int64(len(p)))
	return len(p), nil
}

// TestModelStore: agents serve what is pushed to a store, the newest at once when told, take about
// one copy from it, and stay with what they have when the store's files are damaged.
func TestModelStore(t *testing.T) {
	agenttest.InFleet(t, func(f *agenttest.Fleet) {
		const agents = 4
		dir, from := filepath.Join(f.TempDir(), "store"), f.TempDir()
		var read atomic.Int64
		s := store.New(countedBucket{store.Directory(dir), &read}, "store")
		push := func(version int64) *store.Manifest {
			folder := filepath.Join(from, "ncf")
			number := fmt.Sprint(version)
			if err := os.CopyFS(folder, os.DirFS(filepath.Join(f.Dir, "ncf"))); version == 1 &&
				err != nil {
				f.Fatal(err)
			}
			if version > 1 {
				if err := os.CopyFS(filepath.Join(folder, number),
					os.DirFS(filepath.Join(folder, "1"))); err != nil {
					f.Fatal(err)
				}
				// A file that no other version has.
				if err := os.WriteFile(filepath.Join(folder, number, "notes"),
					slices.Repeat([]byte(number), 1000), 0o644); err != nil {
					f.Fatal(err)
				}
			}
			p, err := s.Push(f.Context(), folder, version, store.PushOptions{})
			if err != nil {
				f.Fatal(err)
			}
			return p.Manifest
		}
		first := push(1)
		for range agents {
			f.Start(func(a agent.Inside) {
				a.Config().ModelDir, a.Config().ModelStore = f.TempDir(), "file:///models"
				a.Config().StorePoll = time.Hour
				a.OpenStore(func(context.Context, string) (*store.Store, error) { return s, nil })
			})
		}
		serves := func(version int64) func() string {
			return func() string {
				for _, a := range f.Agents {
					if a.Worker() == nil {
						return a.Host + " begins"
					}
					l, err := a.Worker().Repository().Acquire("ncf", 0)
					if err != nil {
						return fmt.Sprintf("%s: %v", a.Host, err)
					}
					l.Release()
					if l.Version.Number != version {
						return fmt.Sprintf("%s serves version %d", a.Host, l.Version.Number)
					}
				}
				return ""
			}
		}
		f.Eventually(time.Minute, serves(1))
		if got, most := read.Load(), 3*first.Bytes(); got > most {
			f.Errorf("%d agents read %d bytes of the store, want at most %d", agents, got, most)
		}

		read.Store(0)
		push(2)
		if _, err := f.Agents[0].OIP.RepositoryModelLoad(f.Context(),
			&inference.RepositoryModelLoadRequest{ModelName: "ncf"}); err != nil {
			f.Fatal(err)
		}
		f.Eventually(10*time.Second, serves(2))
		if got := read.Load(); got > agents*1000 {
			f.Errorf("version 2 has 1000 bytes of its own; %d were read", got)
		}

		third := push(3)
		for _, file := range third.Files {
			if strings.HasSuffix(file.Path, "notes") {
				path := filepath.Join(dir, "blobs", "sha256", file.SHA256)
				if err := os.WriteFile(path, make([]byte, file.Size), 0o644); err != nil {
					f.Fatal(err)
				}
			}
		}
		_, err := f.Agents[0].OIP.RepositoryModelLoad(f.Context(),
			&inference.RepositoryModelLoadRequest{ModelName: "ncf"})
		if err == nil || !strings.Contains(err.Error(), "wrong bytes") {
			f.Errorf("a damaged file: got %v", err)
		}
		if bad := serves(2)(); bad != "" {
			f.Errorf("after a damaged version: %s", bad)
		}
	})
}
