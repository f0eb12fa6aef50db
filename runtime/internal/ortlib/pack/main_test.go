package main

import (
	"archive/tar"
	"archive/zip"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestPackRefuses(t *testing.T) {
	dir := t.TempDir()
	create := func(name string) *os.File {
		f, err := os.Create(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}

	wheel := create("a.whl")
	z := zip.NewWriter(wheel)
	w, err := z.Create("onnxruntime/capi/libonnxruntime.so.1.30.0")
	check(err)
	_, err = w.Write([]byte("another library"))
	check(err)
	check(z.Close())
	check(wheel.Close())

	npm := create("b.tgz")
	gz := gzip.NewWriter(npm)
	tw := tar.NewWriter(gz)
	const member, data = "package/bin/napi-v6/linux/arm64/libonnxruntime.so.1", "another library"
	check(tw.WriteHeader(&tar.Header{Name: member, Size: int64(len(data)), Mode: 0o644}))
	_, err = tw.Write([]byte(data))
	check(err)
	check(tw.Close())
	check(gz.Close())
	check(npm.Close())

	library, packed := filepath.Join(dir, "out.so"), filepath.Join(dir, "out.zst")
	for _, test := range []struct{ archive, arch, want string }{
		{"a.whl", "amd64", "SHA-256"},
		{"b.tgz", "arm64", "SHA-256"},
		{"b.tgz", "amd64", "linux/x64"}, // not in there
		{"a.whl", "riscv64", "riscv64"},
		{"c.whl", "amd64", "no such file"},
		{"a.zip", "amd64", "neither"},
	} {
		err := pack(filepath.Join(dir, test.archive), test.arch, library, packed)
		if err == nil || !strings.Contains(err.Error(), test.want) ||
			!strings.Contains(err.Error(), test.archive) && test.arch != "riscv64" {
			t.Errorf("%s for %s: got error %v, want one with %q", test.archive, test.arch, err,
				test.want)
		}
	}
	for _, path := range []string{library, packed} {
		if _, err := os.Stat(path); !os.IsNotExist(err) {
			t.Errorf("%s was written", path)
		}
	}
}

// TestPackNotices: the committed licence texts must be those of the library.
func TestPackNotices(t *testing.T) {
	const library = "a library"
	sum := sha256.Sum256([]byte(library))
	wheel := &sources[0]
	before := wheel.sum["amd64"]
	t.Cleanup(func() { wheel.sum["amd64"] = before })
	wheel.sum["amd64"] = hex.EncodeToString(sum[:])

	dir := t.TempDir()
	file := func(name, text string) string {
		t.Helper()
		name = filepath.Join(dir, name)
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return name
	}
	archive := file("a.whl", "")
	f, err := os.Create(archive)
	if err != nil {
		t.Fatal(err)
	}
	z := zip.NewWriter(f)
	for name, text := range map[string]string{
		wheel.member["amd64"]: library, "onnxruntime/LICENSE": "new licence",
		"onnxruntime/ThirdPartyNotices.txt": "new notices",
	} {
		w, err := z.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}

	out, packed := filepath.Join(dir, "out.so"), filepath.Join(dir, "out.zst")
	file("LICENSE", "new licence")
	for _, old := range []string{"old notices", ""} {
		committed := file("ThirdPartyNotices.txt", old)
		if err := pack(archive, "amd64", out, packed); err == nil ||
			!strings.Contains(err.Error(), committed) {
			t.Errorf("notices %q: got error %v, want one that names %s", old, err, committed)
		}
	}
	if _, err := os.Stat(packed); !os.IsNotExist(err) {
		t.Error("a library was packed without its notices")
	}
	file("ThirdPartyNotices.txt", "new notices")
	if err := pack(archive, "amd64", out, packed); err != nil {
		t.Error(err)
	}
	if got, err := os.ReadFile(out); err != nil || string(got) != library {
		t.Errorf("got the library %q, %v", got, err)
	}
}
