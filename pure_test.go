package muster_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// pure are the folders whose packages, and those below them, start no goroutine and read no clock:
// what they do follows from what they are told, and so a simulated run is what production would do.
var pure = []string{
	"api/accuracy", "api/lateness", "api/list", "api/names", "api/picture", "api/roles",
	"client/queries", "leader", "profiles",
	"reproduce/figures", "reproduce/merging", "reproduce/placements", "reproduce/planners",
	"reproduce/policies", "reproduce/scaling", "runtime/lane", "runtime/load", "runtime/queue",
	"sim",
}

// searches are the functions there that start goroutines all the same: each of these simulates a
// whole run, alone.
var searches = []string{
	"sim/compare.go: Compare", "sim/report.go: makeReport", "sim/throughput.go: FindThroughput",
}

// impure are the functions of the standard library that read the clock, wait for it, or start a
// goroutine. So does whatever is a method Go, of a sync.WaitGroup or an errgroup.Group.
var impure = map[string][]string{
	"time": {
		"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "NewTimer", "NewTicker", "Tick",
	},
	"context": {
		"WithTimeout", "WithTimeoutCause", "WithDeadline", "WithDeadlineCause", "AfterFunc",
	},
	"iter":      {"Pull", "Pull2"},
	"runtime":   {"AddCleanup", "SetFinalizer"},
	"os/signal": {"Notify", "NotifyContext"},
}

// impurities are what a file does that a pure package must not, each as "function: what".
func impurities(file *ast.File) (found []string) {
	packages := map[string]string{} // by the name that the file gives them
	for _, spec := range file.Imports {
		path, _ := strconv.Unquote(spec.Path.Value) // the parser has accepted it
		name := path[strings.LastIndex(path, "/")+1:]
		if spec.Name != nil {
			name = spec.Name.Name
		}
		packages[name] = path
		if name == "." && impure[path] != nil {
			found = append(found, "import: "+path+" without its name")
		}
	}
	for _, decl := range file.Decls {
		in := "package level"
		if f, ok := decl.(*ast.FuncDecl); ok {
			in = f.Name.Name
		}
		ast.Inspect(decl, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt:
				found = append(found, in+": go statement")
			case *ast.SelectorExpr:
				if of, ok := n.X.(*ast.Ident); ok &&
					slices.Contains(impure[packages[of.Name]], n.Sel.Name) {
					found = append(found,
						fmt.Sprintf("%s: %s.%s", in, packages[of.Name], n.Sel.Name))
				}
			case *ast.CallExpr:
				if f, ok := n.Fun.(*ast.SelectorExpr); ok && (f.Sel.Name == "Go" ||
					f.Sel.Name == "TryGo") {
					found = append(found, in+": method "+f.Sel.Name)
				}
			}
			return true
		})
	}
	return found
}

func TestPure(t *testing.T) {
	used := map[string]bool{}
	for _, folder := range pure {
		files := eachFile(t, folder, 0, func(name string, _ *token.FileSet, file *ast.File) {
			for _, what := range impurities(file) {
				function, _, _ := strings.Cut(what, ": ")
				if search := filepath.ToSlash(name) + ": " +
					function; slices.Contains(searches, search) {
					used[search] = true
					continue
				}
				t.Errorf("%s: %s; nothing in %s may start a goroutine or read a clock", name, what,
					folder)
			}
		})
		if files == 0 {
			t.Errorf("%s holds no Go file", folder)
		}
	}
	for _, search := range searches {
		if !used[search] {
			t.Errorf("%s is excepted, and need not be", search)
		}
	}
}

// TestImpurities checks that what is to be found is.
func TestImpurities(t *testing.T) {
	for _, tt := range []struct{ source, want string }{
		{`import "time"; func f() time.Time { return time.Unix(0, 0).Add(time.Second) }`, ""},
		{`import "time"; func f() time.Time { return time.Now() }`, "f: time.Now"},
		{`import "time"; var now = time.Now`, "package level: time.Now"},
		{`import t "time"; func f() { t.Sleep(1) }`, "f: time.Sleep"},
		{`import . "time"; func f() { Sleep(1) }`, "import: time without its name"},
		{`import "time"; type x struct{}; func (x) f() { func() { <-time.After(1) }() }`,
			"f: time.After"},
		{`import "time"; func f() { time.NewTimer(1) }`, "f: time.NewTimer"},
		{`import "context"; func f() { context.WithTimeout(nil, 1) }`, "f: context.WithTimeout"},
		{`import "context"; func f() { context.WithCancel(nil) }`, ""},
		{`func f() { go f() }`, "f: go statement"},
		{`func f() { func() { defer func() { go f() }() }() }`, "f: go statement"},
		{`import "sync"; func f() { var g sync.WaitGroup; g.Go(f) }`, "f: method Go"},
		{`import "iter"; func f(s iter.Seq[int]) { iter.Pull(s) }`, "f: iter.Pull"},
		{`type clock struct{}; func (clock) Now() {}; func f(time clock) { time.Now() }`, ""},
	} {
		file, err := parser.ParseFile(token.NewFileSet(), "x.go", "package x; "+tt.source, 0)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(impurities(file), ", "); got != tt.want {
			t.Errorf("%s: found %q, want %q", tt.source, got, tt.want)
		}
	}
}
