// Command cross checks that a program compiles for other platforms without cgo:
//
//	go run ./scripts/tools/cross ./cmd/muster/... darwin/arm64 windows/amd64
//
// It checks the types of the program's packages, of their tests and of all that they import, from
// the sources. That finds what a compiler would report, takes 7 s of CPU time for each platform,
// and leaves nothing in the build cache, where a build takes minutes for the first time. It does
// not link.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/muster-serve/muster/scripts/tools/command"
)

func main() {
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "cross: want packages and platforms, such as darwin/arm64")
		os.Exit(2)
	}
	failed := false
	for _, platform := range os.Args[2:] {
		packages, err := check(os.Args[1], platform)
		if err != nil {
			failed = true
			fmt.Fprintf(os.Stderr, "cross: %s does not compile for %s:\n%v\n", os.Args[1], platform,
				err)
			continue
		}
		fmt.Printf("cross: %s compiles for %s, %d packages\n", os.Args[1], platform, packages)
	}
	if failed {
		os.Exit(1)
	}
}

// A listedPackage package is one of `go list -json`.
type listedPackage struct {
	ImportPath, Dir string
	GoFiles         []string
	ImportMap       map[string]string // what its sources name, and which package that is
	Standard        bool
	Error           *struct{ Err string }
}

// check checks the types of packages, of their tests and of all that they import, and returns how
// many packages these are.
func check(program, platform string) (packages int, err error) {
	system, machine, _ := strings.Cut(platform, "/")
	sizes := types.SizesFor("gc", machine)
	if sizes == nil {
		return 0, fmt.Errorf("platform %q, want a system and an architecture", platform)
	}
	cmd := exec.Command("go", "list", "-e", "-deps", "-test",
		"-json=ImportPath,Dir,GoFiles,ImportMap,Standard,Error", program)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+system, "GOARCH="+machine)
	out, err := command.Output(cmd)
	if err != nil {
		return 0, err
	}
	c := checker{set: token.NewFileSet(), done: map[string]*types.Package{}, sizes: sizes}
	for list := json.NewDecoder(bytes.NewReader(out)); ; packages++ { // who is imported comes first
		var p listedPackage
		if err := list.Decode(&p); errors.Is(err, io.EOF) {
			return packages, errors.Join(c.faults...)
		} else if err != nil {
			return packages, err
		}
		c.checkPackage(&p)
	}
}

// A checker keeps the packages whose types have been checked, and what was wrong.
type checker struct {
	set    *token.FileSet
	done   map[string]*types.Package
	sizes  types.Sizes
	faults []error
}

func (c *checker) checkPackage(p *listedPackage) {
	if p.ImportPath == "unsafe" || strings.HasSuffix(p.ImportPath, ".test") {
		return
	}
	if p.Error != nil {
		c.faults = append(c.faults, fmt.Errorf("%s: %s", p.ImportPath, p.Error.Err))
	}
	var files []*ast.File
	for _, name := range p.GoFiles {
		f, err := parser.ParseFile(c.set, filepath.Join(p.Dir, name), nil,
			parser.SkipObjectResolution)
		if err != nil {
			c.faults = append(c.faults, err)
			continue
		}
		files = append(files, f)
	}
	config := types.Config{
		Importer: importer{c, p}, Sizes: c.sizes,
		IgnoreFuncBodies: p.Standard, // Go's own are tested
		Error:            func(err error) { c.faults = append(c.faults, err) },
	}
	checked, _ := config.Check(p.ImportPath, c.set, files, nil) // Error has the faults
	c.done[p.ImportPath] = checked
}

// An importer finds what a package imports.
type importer struct {
	*checker
	by *listedPackage
}

func (i importer) Import(path string) (*types.Package, error) {
	if path == "unsafe" {
		return types.Unsafe, nil
	}
	if vendored, ok := i.by.ImportMap[path]; ok {
		path = vendored
	}
	if found := i.done[path]; found != nil {
		return found, nil
	}
	return nil, fmt.Errorf("no package %s", path)
}
