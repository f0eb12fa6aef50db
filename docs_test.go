package muster_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// symbols are what the module's packages declare: by the package's name (that of several packages may
// be the same), what it exports, and by an exported type's name its methods and fields.
type symbols struct {
	packages map[string]map[string]bool
	types    map[string]map[string]bool
	// tests are, by folder, the functions that go test runs.
	tests map[string][]string
}

// declared reads the symbols of all packages; of those of tests what go test runs.
func declared(t *testing.T) symbols {
	t.Helper()
	s := symbols{map[string]map[string]bool{}, map[string]map[string]bool{}, map[string][]string{}}
	add := func(to map[string]map[string]bool, in, name string) {
		if to[in] == nil {
			to[in] = map[string]bool{}
		}
		to[in][name] = true
	}
	member := func(of, name string) { add(s.types, of, name) }
	err := filepath.WalkDir(".", func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && file != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" ||
			d.Name() == "build" || d.Name() == "bin") {
			return fs.SkipDir
		}
		if d.IsDir() || filepath.Ext(file) != ".go" {
			return nil
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		if strings.HasSuffix(file, "_test.go") {
			dir := "./" + filepath.ToSlash(filepath.Dir(file))
			for _, decl := range parsed.Decls {
				if f, ok := decl.(*ast.FuncDecl); ok && runs.MatchString(f.Name.Name) {
					s.tests[dir] = append(s.tests[dir], f.Name.Name)
				}
			}
			return nil
		}
		name := parsed.Name.Name
		for _, decl := range parsed.Decls {
			switch decl := decl.(type) {
			case *ast.FuncDecl:
				if decl.Recv == nil {
					add(s.packages, name, decl.Name.Name)
				} else if of := receiver(decl.Recv.List[0].Type); of != "" {
					member(of, decl.Name.Name)
				}
			case *ast.GenDecl:
				for _, spec := range decl.Specs {
					switch spec := spec.(type) {
					case *ast.ValueSpec:
						for _, n := range spec.Names {
							add(s.packages, name, n.Name)
						}
					case *ast.TypeSpec:
						add(s.packages, name, spec.Name.Name)
						for _, field := range fieldsOf(spec.Type) {
							member(spec.Name.Name, field)
						}
					}
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	python, err := os.ReadFile("python/src/muster/__init__.py")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range pythonName.FindAllSubmatch(python, -1) {
		add(s.packages, "muster", string(m[1]))
	}
	return s
}

// pythonName is a name of __all__, the list of what the Python package exports.
var pythonName = regexp.MustCompile(`(?m)^    "(\w+)",$`)

// receiver is the name of a method's type.
func receiver(of ast.Expr) string {
	switch of := of.(type) {
	case *ast.StarExpr:
		return receiver(of.X)
	case *ast.IndexExpr:
		return receiver(of.X)
	case *ast.IndexListExpr:
		return receiver(of.X)
	case *ast.Ident:
		return of.Name
	}
	return ""
}

// fieldsOf are the fields of a struct, or the methods of an interface.
func fieldsOf(of ast.Expr) (names []string) {
	var list *ast.FieldList
	switch of := of.(type) {
	case *ast.StructType:
		list = of.Fields
	case *ast.InterfaceType:
		list = of.Methods
	default:
		return nil
	}
	for _, field := range list.List {
		for _, n := range field.Names {
			names = append(names, n.Name)
		}
		if len(field.Names) == 0 { // embedded
			if sel, ok := field.Type.(*ast.SelectorExpr); ok {
				names = append(names, sel.Sel.Name)
			} else {
				names = append(names, receiver(field.Type))
			}
		}
	}
	return names
}

// lacks says what of a name as a document writes it is not there; empty: nothing, or it is no name of
// ours. It knows package.Symbol, package.Type.Member and Type.Member.
func (s symbols) lacks(name string) string {
	parts := strings.Split(strings.TrimSuffix(name, "()"), ".")
	if exported := s.packages[parts[0]]; exported != nil && len(parts) > 1 {
		if !exported[parts[1]] && !exported[parts[1]+"Client"] { // that of a gRPC service
			return "no package " + parts[0] + " has " + parts[1]
		}
		parts = parts[1:]
	}
	if members := s.types[parts[0]]; members != nil && len(parts) > 1 && !members[parts[1]] {
		return "no type " + parts[0] + " has " + parts[1]
	}
	return ""
}

var (
	inlineCode = regexp.MustCompile("`[^`\n]+`")
	// A symbol has a dot before its last name, which is exported.
	goSymbol = regexp.MustCompile(`^(?:\w+\.)+[A-Z]\w*(?:\(\))?$`)
	inFigure = regexp.MustCompile(`\b[a-z]+\.[A-Z]\w*`)
	figure   = regexp.MustCompile("(?ms)^```\n.*?^```")
	// A name in capitals stands for another one.
	placeholder = regexp.MustCompile(`(?:^|[./])[A-Z]+(?:[./]|$)`)
	runs        = regexp.MustCompile(`^(?:Test|Benchmark|Fuzz)[A-Z]`)
	testCommand = regexp.MustCompile(`go test [^` + "`" + `\n#]*`)
	testedIn    = regexp.MustCompile(`\s(\./[\w/]+)`)
	testedName  = regexp.MustCompile(`-(?:run|bench)[ =]'?([A-Z]\w*)`)
	// A document names folders and files of the repository from its root.
	folders = regexp.MustCompile(`^(?:agent|api|client|cloud|cmd|deploy|docs|examples|gossip|leader|` +
		`models|profiles|python|reproduce|runtime|scripts|sim)/[\w./-]*\w$`)
)

// missing is what a document names in code and the repository does not have, and how many names
// were looked for.
func missing(s symbols, document string) (names int, lacks []string) {
	spans := inlineCode.FindAllString(document, -1)
	for _, block := range figure.FindAllString(document, -1) {
		spans = append(spans, inFigure.FindAllString(block, -1)...)
	}
	for _, command := range testCommand.FindAllString(document, -1) {
		in := testedIn.FindStringSubmatch(command)
		for _, m := range testedName.FindAllStringSubmatch(command, -1) {
			name := m[1]
			if in == nil || placeholder.MatchString(name) { // XXX runs no test
				continue
			}
			names++
			if !slices.ContainsFunc(s.tests[in[1]],
				func(test string) bool { return strings.Contains(test, name) }) {
				lacks = append(lacks, command+": "+in[1]+" has no such test")
			}
		}
	}
	for _, span := range spans {
		code := strings.Trim(span, "`")
		switch {
		case placeholder.MatchString(code):
		case goSymbol.MatchString(code):
			names++
			if why := s.lacks(code); why != "" {
				lacks = append(lacks, code+": "+why)
			}
		case folders.MatchString(code):
			names++
			if _, err := os.Stat(code); err != nil {
				lacks = append(lacks, code+": it is not there")
			}
		}
	}
	return names, lacks
}

// pages are the files that a pattern names, with slashes.
func pages(t *testing.T, pattern string) []string {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		t.Fatalf("%s: %d files, %v", pattern, len(files), err)
	}
	return files
}

// TestDocumentedSymbols: the Go symbols, tests, folders and files that documents name exist.
func TestDocumentedSymbols(t *testing.T) {
	s, names := declared(t), 0
	for _, file := range slices.Concat(pages(t, "docs/*.md"), pages(t, "docs/internals/*.md"),
		pages(t, "reproduce/docs/*.md"), []string{"README.md", "CONTRIBUTING.md"}) {
		if file == "docs/internals/history.md" { // it names the paths of a former commit
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		n, lacks := missing(s, string(text))
		names += n
		for _, l := range lacks {
			t.Errorf("%s names %s", file, l)
		}
	}
	if names < 80 {
		t.Errorf("found %d names, want more: are they written in another way now?", names)
	}
}

// TestMissing checks that what is not there is found.
func TestMissing(t *testing.T) {
	s := symbols{
		packages: map[string]map[string]bool{"match": {"Matcher": true, "NewClient": true}},
		types:    map[string]map[string]bool{"Matcher": {"Step": true}},
		tests:    map[string][]string{"./leader": {"TestReplay"}},
	}
	for document, want := range map[string]int{
		"`match.Matcher` and `match.Matcher.Step()`, `Matcher.Step`, `match.New`":   0,
		"`time.Duration` and `match.NAME` are others'":                              0,
		"```\n a --> b\n   (match.Leaderless)\n```\n":                               1,
		"`match.Leaderless`, `match.Matcher.Left` and `Matcher.Left`":               3,
		"`leader/match`, `models/NAME/1`, `leader/nobody`":                          1,
		"`go test ./leader -run Replay`, `go test ./leader -run XXX -bench Replay`": 0,
		"`go test ./leader -run Gone -v`":                                           1,
	} {
		if _, lacks := missing(s, document); len(lacks) != want {
			t.Errorf("in %q %q is missing, want %d names", document, lacks, want)
		}
	}
}

// TestPagesAreReached: docs/README.md links to every page of docs and docs/internals, and llms.txt to
// every page of docs.
func TestPagesAreReached(t *testing.T) {
	links := regexp.MustCompile(`\]\(([^)#\s]+)`)
	for index, wanted := range map[string][]string{
		"docs/README.md": append(pages(t, "docs/*.md"), pages(t, "docs/internals/*.md")...),
		"llms.txt":       pages(t, "docs/*.md"),
	} {
		text, err := os.ReadFile(index)
		if err != nil {
			t.Fatal(err)
		}
		linked := map[string]bool{index: true}
		for _, m := range links.FindAllStringSubmatch(string(text), -1) {
			linked[path.Join(path.Dir(index), m[1])] = true
		}
		for _, page := range wanted {
			if !linked[page] {
				t.Errorf("%s does not link to %s", index, page)
			}
		}
	}
}

// TestUserPagesAreShort: what a user reads stays short. What a page holds beyond that (methods,
// measurements, proofs) belongs into docs/internals, on a page of its subject. They had 71,000 words
// when they held all of it. The limit grows by the length of a page for a new subject.
func TestUserPagesAreShort(t *testing.T) {
	words := func(file string) int {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return len(strings.Fields(string(text)))
	}
	const maxWords, maxReadme = 37_350, 1_200
	sum := 0
	for _, page := range pages(t, "docs/*.md") {
		// The reference is made from the code, one entry for each thing that can be set: people look
		// entries up, and do not read the page.
		if page != "docs/configuration.md" {
			sum += words(page)
		}
	}
	if sum > maxWords {
		t.Errorf("the pages of docs have %d words, want at most %d", sum, maxWords)
	}
	if n := words("README.md"); n > maxReadme {
		t.Errorf("README.md has %d words, want at most %d", n, maxReadme)
	}
}
