package main

import (
	"archive/tar"
	"debug/elf"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
)

// TestCheckImage: an image with a program of this machine passes with what the program loads, and is
// refused without it, for another architecture, and without the program.
func TestCheckImage(t *testing.T) {
	content, err := os.ReadFile("/bin/sh")
	if err != nil {
		t.Skip(err)
	}
	file, err := os.Open("/bin/sh")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	of, err := readProgram(file)
	if err != nil || of == nil || of.loader == "" || len(of.needs) == 0 {
		t.Skipf("/bin/sh loads nothing: %+v, %v", of, err)
	}
	with := map[string]string{programPath: string(content), "etc/passwd": "a"}
	faultOf := func(architecture string, files map[string]string) string {
		t.Helper()
		layer, err := newLayer(filepath.Join(t.TempDir(), "layer"), 1, func(w *tar.Writer) error {
			for name, text := range files {
				h := &tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o755, Size: int64(len(text))}
				if err := writeFile(w, h, []byte(text)); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		image, err := mutate.AppendLayers(empty.Image, layer)
		if err != nil {
			t.Fatal(err)
		}
		if err := checkImage(image, architecture); err != nil {
			return err.Error()
		}
		return ""
	}
	fault := faultOf(runtime.GOARCH, with)
	for _, want := range append([]string{"no loader " + of.loader}, "no "+of.needs[0]+", which "+
		programPath+" needs") {
		if !strings.Contains(fault, want) {
			t.Errorf("faults %q, want %q", fault, want)
		}
	}
	with[strings.TrimPrefix(of.loader, "/")] = "the loader"
	for _, library := range of.needs {
		with["usr/lib/"+library] = "a library"
	}
	if fault := faultOf(runtime.GOARCH, with); fault != "" {
		t.Errorf("a whole image: %s", fault)
	}
	other := map[string]string{"amd64": "arm64", "arm64": "amd64"}[runtime.GOARCH]
	if fault := faultOf(other, with); !strings.Contains(fault, programPath+" is for EM_") {
		t.Errorf("as one for %s: %q", other, fault)
	}
	delete(with, programPath)
	if fault := faultOf(runtime.GOARCH, with); fault != "no "+programPath {
		t.Errorf("without the program: %q", fault)
	}
	if of, err := readProgram(strings.NewReader(elf.ELFMAG + "short")); err == nil {
		t.Errorf("a broken library is %+v", of)
	}
	if of, err := readProgram(io.MultiReader(strings.NewReader("#!"))); of != nil || err != nil {
		t.Errorf("what is short is %+v, %v", of, err)
	}
}
