package main

import (
	"archive/tar"
	"archive/zip"
	"compress/gzip"
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
	w, err := z.Create("onnxruntime/capi/libonnxruntime.so.1.27.0")
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
		if err == nil || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), test.archive) && test.arch != "riscv64" {
			t.Errorf("%s for %s: got error %v, want one with %q", test.archive, test.arch, err, test.want)
		}
	}
	for _, path := range []string{library, packed} {
		if _, err := os.Stat(path); !os.IsNotExist(err) {
			t.Errorf("%s was written", path)
		}
	}
}
