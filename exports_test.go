package muster_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// exported is what the package in folder dir exports at top level, sorted: constants, variables,
// functions and types, but neither methods nor fields.
func exported(dir string) ([]string, error) {
	packages, err := parser.ParseDir(token.NewFileSet(), dir, func(f fs.FileInfo) bool {
		return !strings.HasSuffix(f.Name(), "_test.go")
	}, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	found := map[string]bool{}
	add := func(name *ast.Ident) {
		if name.IsExported() {
			found[name.Name] = true
		}
	}
	for _, p := range packages {
		for _, file := range p.Files {
			for _, decl := range file.Decls {
				switch d := decl.(type) {
				case *ast.FuncDecl:
					if d.Recv == nil {
						add(d.Name)
					}
				case *ast.GenDecl:
					for _, spec := range d.Specs {
						switch s := spec.(type) {
						case *ast.TypeSpec:
							add(s.Name)
						case *ast.ValueSpec:
							for _, name := range s.Names {
								add(name)
							}
						}
					}
				}
			}
		}
	}
	names := make([]string, 0, len(found))
	for name := range found {
		names = append(names, name)
	}
	slices.Sort(names)
	return names, nil
}

// mostExported bounds what a room of the agent exports: a reader can hold that many names in mind. 25
// is chosen; the rooms had at most 23 when the bound was set.
const mostExported = 25

// TestExports: no room of the agent exports more than a reader can take in, and the rooms of an agent
// are seen by tests alone.
func TestExports(t *testing.T) {
	rooms := 0
	err := filepath.WalkDir("agent", func(dir string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		if dir == "agent/agenttest" || d.Name() == "testdata" {
			return fs.SkipDir // it is for tests
		}
		names, err := exported(dir)
		if err != nil {
			return err
		}
		if len(names) > 0 {
			rooms++
		}
		if len(names) > mostExported {
			t.Errorf("%s exports %d names, want at most %d: %q", dir, len(names), mostExported, names)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if rooms < 10 {
		t.Errorf("found %d rooms", rooms)
	}
}
