package muster_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"testing"
)

// maxLines bounds the lines of a function: two screens, which a reader can hold in mind. It is
// chosen; all but the functions in longFunctions were below it when it was set.
const maxLines = 100

// longFunctions are those that are longer, as "folder function". The list may only shrink.
var longFunctions = []string{
	"agent Validate", "cmd/muster add",
	"reproduce/figures heraFig14", "reproduce/figures ribbonFig12", "reproduce/figures ribbonFig16",
	"reproduce/figures ribbonFig4",
}

// TestFunctions: no function that was written by hand is longer than maxLines.
func TestFunctions(t *testing.T) {
	var long []string
	files := eachFile(t, ".", parser.ParseComments, func(path string, set *token.FileSet,
		file *ast.File) {
		if ast.IsGenerated(file) {
			return
		}
		for _, decl := range file.Decls {
			f, ok := decl.(*ast.FuncDecl)
			if !ok {
				continue
			}
			lines := set.Position(f.End()).Line - set.Position(f.Pos()).Line + 1
			if lines > maxLines {
				long = append(long, fmt.Sprintf("%s %s", filepath.Dir(path), f.Name.Name))
			}
		}
	})
	if files < 500 {
		t.Errorf("looked at %d files, want all", files)
	}
	slices.Sort(long)
	for _, name := range long {
		if !slices.Contains(longFunctions, name) {
			t.Errorf("%s has more than %d lines: split it", name, maxLines)
		}
	}
	for _, name := range longFunctions {
		if !slices.Contains(long, name) {
			t.Errorf("%s is not longer than %d lines: take it off the list", name, maxLines)
		}
	}
}
