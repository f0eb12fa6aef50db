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
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return nil, err
	}
	found := map[string]bool{}
	add := func(name *ast.Ident) {
		if name.IsExported() {
			found[name.Name] = true
		}
	}
	for _, path := range files {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
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
	names := make([]string, 0, len(found))
	for name := range found {
		names = append(names, name)
	}
	slices.Sort(names)
	return names, nil
}

// maxExported bounds what a room of the agent exports: a reader can hold that many names in mind. 25
// is chosen; the rooms had at most 23 when the bound was set.
const maxExported = 25

// TestExports: no room of the agent exports more than a reader can take in.
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
		if len(names) > maxExported {
			t.Errorf("%s exports %d names, want at most %d: %q", dir, len(names), maxExported, names)
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

// TestInside: no product code looks into an agent by [agent.Inside], which is for tests.
func TestInside(t *testing.T) {
	files := eachFile(t, ".", parser.SkipObjectResolution, func(path string, _ *token.FileSet,
		file *ast.File) {
		if path == "agent/inside.go" || strings.HasPrefix(path, "agent/agenttest/") {
			return
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if id, ok := n.(*ast.Ident); ok && id.Name == "Inside" {
				t.Errorf("%s names Inside, which is for tests", path)
			}
			return true
		})
	})
	if files < 500 {
		t.Errorf("looked at %d files, want all", files)
	}
}
