package main

import (
	"archive/tar"
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
)

// machines are the ELF machines of architectures.
var machines = map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}

// fromHost are libraries that NVIDIA's runtime brings into the container with the driver.
var fromHost = []string{"libcuda.so.1", "libnvidia-ml.so.1"}

// checkImage holds that what the image has can be loaded there: its programs and libraries are for its
// architecture, and the loader and each library that they name are in it. An image of an architecture
// that this machine cannot run, or for GPUs that it lacks, is seen to be whole all the same.
func checkImage(image v1.Image, architecture string) error {
	files := mutate.Extract(image)
	defer files.Close()
	there := map[string]bool{}      // paths, links included
	libraries := map[string]bool{}  // names in any folder
	needed := map[string][]string{} // by library: those that need it
	var loader string
	var faults []error
	for r := tar.NewReader(files); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		} else if err != nil {
			return err
		}
		name := strings.TrimSuffix(strings.TrimPrefix(h.Name, "./"), "/")
		there[name], libraries[path.Base(name)] = true, true
		if h.Typeflag != tar.TypeReg {
			continue
		}
		of, err := readProgram(r)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		} else if of == nil {
			continue
		}
		if want := machines[architecture]; of.machine != want {
			faults = append(faults, fmt.Errorf("%s is for %s, want %s", name, of.machine, want))
		}
		for _, library := range of.needs {
			needed[library] = append(needed[library], name)
		}
		if name == programPath {
			loader = of.loader
		}
	}
	if !there[programPath] {
		faults = append(faults, fmt.Errorf("no %s", programPath))
	}
	if loader != "" && !there[strings.TrimPrefix(loader, "/")] {
		faults = append(faults, fmt.Errorf("no loader %s, which %s names", loader, programPath))
	}
	for library, by := range needed {
		if !libraries[library] && !slices.Contains(fromHost, library) {
			faults = append(faults, fmt.Errorf("no %s, which %s needs", library, by[0]))
		}
	}
	return errors.Join(faults...)
}

// A binary is what the loader reads of a program or a library.
type binary struct {
	machine elf.Machine
	loader  string // its path; "": none
	needs   []string
}

// readProgram reads an ELF file; nil: it is none.
func readProgram(r io.Reader) (*binary, error) {
	magic := make([]byte, len(elf.ELFMAG))
	if _, err := io.ReadFull(r, magic); err == io.EOF || err == io.ErrUnexpectedEOF {
		return nil, nil
	} else if err != nil || string(magic) != elf.ELFMAG {
		return nil, err
	}
	rest, err := io.ReadAll(r)
	if err != nil {
		return nil, err
	}
	file, err := elf.NewFile(bytes.NewReader(append(magic, rest...)))
	if err != nil {
		return nil, err
	}
	of := &binary{machine: file.Machine}
	for _, p := range file.Progs {
		if p.Type == elf.PT_INTERP {
			text, err := io.ReadAll(p.Open())
			if err != nil {
				return nil, err
			}
			of.loader = strings.TrimRight(string(text), "\x00")
		}
	}
	of.needs, err = file.ImportedLibraries()
	return of, err
}
