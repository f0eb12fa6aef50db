package models

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestManyVersions: what is read of the disk each second does not grow with the versions that do not
// serve, and changes of those that do are seen at once, of the others within a minute. Time is
// virtual.
func TestManyVersions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		const versions = 300
		for v := range versions {
			b.add(fmt.Sprintf("ncf/%d", v+1))
		}
		var calls atomic.Int64
		b.before = func(string) { calls.Add(1) }
		b.start()
		b.serves("ncf", versions)
		b.polls(3)
		calls.Store(0)
		b.polls(restScans)
		// Each scan: the directory, the model and its settings, and the version that serves, with a
		// model and a few files; each of the others once.
		if got, most := calls.Load(), int64(20*restScans+10*versions); got > most {
			t.Errorf("%d calls of the file system in %d scans, expected at most %d", got, restScans,
				most)
		}
		b.add("ncf/7") // anew
		b.polls(restScans + 2)
		for v := versions; v > 7; v-- {
			if err := os.RemoveAll(filepath.Join(b.dir, "ncf", fmt.Sprint(v))); err != nil {
				t.Fatal(err)
			}
		}
		b.loads = nil
		b.polls(4)
		b.serves("ncf", 7)
		b.polls(restScans)
		if want := []string{"ncf/7"}; !slices.Equal(b.loads, want) {
			t.Errorf("loaded %v, want %v", b.loads, want)
		}
	})
}

// TestBrokenVersions: of many versions that cannot be loaded, a part is followed, the newest are
// tried, and none is read more often than once for the start.
func TestBrokenVersions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.log = &lockedLog{}
		b.add("ncf/1")
		const versions = 3000
		for v := range versions {
			if err := os.Mkdir(filepath.Join(b.dir, "ncf", fmt.Sprint(v+2)), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		b.start()
		if n := len(b.Index()); n != maxVersions {
			t.Errorf("%d versions are followed, expected %d", n, maxVersions)
		}
		if n := strings.Count(b.logged(), "broken ncf/"); n != maxTries+1 {
			t.Errorf("%d events, expected one for each of %d versions and one for those passed over", n,
				maxTries)
		}
		if _, err := b.Acquire("ncf", 0); err == nil || len(err.Error()) > 4096 {
			t.Errorf("the error of a query has %d bytes, expected 4096 at most", len(err.Error()))
		}
		b.status("ncf", versions, Unavailable, "no such file")
		b.status("ncf", versions+1-maxTries, Unavailable, "not tried: the 100 newer versions")
		// What model.yaml names is followed, however old.
		b.write("ncf/model.yaml", "versions: [1]\n")
		b.polls(4)
		b.serves("ncf", 1)
	})
}

// TestHungModel: a model whose file system does not answer keeps no other model waiting, is named, and
// comes when it answers again. Time is virtual.
func TestHungModel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.log = &lockedLog{}
		b.add("din/1", "ncf/1", "wnd/1")
		hang := make(chan struct{})
		var hangs atomic.Bool
		b.before = func(path string) {
			if hangs.Load() && strings.HasPrefix(path, filepath.Join(b.dir, "ncf")) {
				<-hang
			}
		}
		b.start()
		b.logged()
		hangs.Store(true)
		b.polls(1)
		time.Sleep(maxHungTime)
		b.add("din/2", "wnd/2")
		b.polls(4)
		b.serves("din", 2)
		b.serves("wnd", 2)
		b.serves("ncf", 1)
		if got := b.logged(); !strings.Contains(got, "broken ncf/") {
			t.Errorf("logged %q, expected ncf as broken", got)
		}
		b.add("ncf/2")
		begin := time.Now()
		if err := b.Load(t.Context(), "ncf"); err == nil ||
			!strings.Contains(err.Error(), "does not answer") || time.Since(begin) > maxHungTime {
			t.Errorf("load: %v after %v", err, time.Since(begin))
		}
		hangs.Store(false)
		close(hang)
		b.polls(4)
		b.serves("ncf", 2)
		if got := b.logged(); !strings.Contains(got, "returned ncf/") {
			t.Errorf("logged %q, expected ncf as returned", got)
		}
	})
}

// TestHungDirectory: a model directory that does not answer is named, what is loaded serves on, and Run
// ends all the same. Time is virtual.
func TestHungDirectory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.log = &lockedLog{}
		b.add("ncf/1")
		hang := make(chan struct{})
		var hangs atomic.Bool
		b.before = func(path string) {
			if hangs.Load() {
				<-hang
			}
		}
		t.Cleanup(func() { close(hang) }) // after Run has ended
		b.start()
		b.logged()
		hangs.Store(true)
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := b.logged(); strings.Count(got, "broken") != 1 {
			t.Errorf("logged %q, expected one line", got)
		}
		b.serves("ncf", 1)
	})
}

// TestFolderSwitched: a model's folder that a link replaces by one with the same files, as the cache of a
// model store does for each new version, leads to no load.
func TestFolderSwitched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.add(".a/1")
		link := filepath.Join(b.dir, "ncf")
		if err := os.Symlink(".a", link); err != nil {
			t.Fatal(err)
		}
		b.start()
		b.serves("ncf", 1)
		err := os.MkdirAll(filepath.Join(b.dir, ".b/1"), 0o755)
		err = errors.Join(err, os.Link(filepath.Join(b.dir, ".a/1/model.onnx"),
			filepath.Join(b.dir, ".b/1/model.onnx")), os.Symlink(".b", link+".new"),
			os.Rename(link+".new", link))
		if err != nil {
			t.Fatal(err)
		}
		b.polls(4)
		if len(b.loads) != 1 {
			t.Errorf("loads: %v, want one", b.loads)
		}
	})
}

// TestOtherForms: a file that is no ONNX model is named, with what to do, wherever people put it: at
// the top of the repository, in a model's folder, in that of a version.
func TestOtherForms(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.write("lone.onnx", identity())
		b.write("lone.pt", "PK\x03\x04")
		b.write("README.md", "models")
		b.write("torch/model.pt", "PK\x03\x04")
		b.write("pickle/1/model.pkl", "\x80\x05")
		b.write("tf/1/model.savedmodel/saved_model.pb", "")
		for name, text := range map[string]string{
			"lfs": "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n",
			"zip": "PK\x03\x04torch", "pickled": "\x80\x05\x95", "bom": "\ufeffname: x",
			"html": "<!DOCTYPE html>", "keras": "\x89HDF\r\n\x1a\n",
		} {
			b.write(name+"/1/model.onnx", text)
		}
		for name, to := range map[string]string{
			"dangling": "../nowhere", "linked/1/model.onnx": "/no/model",
		} {
			path := filepath.Join(b.dir, name)
			if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755),
				os.Symlink(to, path)); err != nil {
				t.Fatal(err)
			}
		}
		b.start()
		for name, want := range map[string]string{
			"lone.onnx": "move it to " + filepath.Join(b.dir, "lone/1/model.onnx"),
			"lone.pt":   "torch.onnx.export", "torch": "torch.onnx.export",
			"pickle": "found model.pkl, expected model.onnx: only ONNX models are served; ",
			"tf":     "tf2onnx.convert", "lfs": "git lfs pull", "zip": "torch.onnx.export",
			"pickled": "skl2onnx", "bom": "byte order mark", "html": "HTML",
			"keras": "--keras", "dangling": "is a link to ../nowhere, which is not there",
			"linked": "it is a link to /no/model, which is not there",
		} {
			found := false
			for _, s := range b.Index() {
				if s.Model == name {
					found = found || s.State == Unavailable && strings.Contains(s.Reason, want)
					if !strings.Contains(s.Reason, want) {
						t.Errorf("%s: %s, want %q", name, s.Reason, want)
					}
				}
			}
			if !found {
				t.Errorf("%s is not in the index", name)
			}
		}
		for _, s := range b.Index() {
			if s.Model == "README.md" {
				t.Error("README.md is in the index")
			}
		}
	})
}
