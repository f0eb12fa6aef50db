// Weight says what a cold build of ./cmd/muster costs, and how large the binary is, by module. It
// rewrites the tables between the markers of docs/internals/build.md.
//
//	go run ./scripts/tools/weight [-graph FILE] [-without PATH,PATH]
//
// It builds as `make build` does, with an empty build cache, and takes the CPU time of each package
// from -debug-actiongraph. That takes five to ten CPU minutes, and 2 GB for temporary files.
// -graph takes the action graph of an earlier build instead, and -without prints what would leave
// with the imports of these packages, with what lies below them, and writes nothing.
package main

import (
	"bytes"
	"cmp"
	"debug/elf"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/muster-serve/muster/scripts/tools/command"
)

const (
	own     = "github.com/muster-serve/muster"
	binary  = "./cmd/muster"
	page    = "docs/internals/build.md"
	begin   = "<!-- weight: made by scripts/tools/weight -->"
	end     = "<!-- /weight -->"
	library = own + "/runtime/internal/ortlib..gobytes" // the symbols of ONNX Runtime's library
	// maxRows is how many modules have a row of their own.
	maxRows = 25
)

// flags are those of `make build`.
var flags = []string{"-trimpath", "-tags=embed_onnxruntime", "-gcflags=all=-dwarf=false"}

func main() {
	graph := flag.String("graph", "", "the action graph of an earlier cold build")
	without := flag.String("without", "", "print what leaves with the imports of these packages")
	flag.Parse()
	if err := run(*graph, *without); err != nil {
		fmt.Fprintln(os.Stderr, "weight:", err)
		os.Exit(1)
	}
}

func run(graph, without string) error {
	dir, err := os.MkdirTemp("", "weight-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if graph == "" {
		graph = filepath.Join(dir, "graph.json")
		if err := build(graph, filepath.Join(dir, "stripped"), "-s -w",
			"GOCACHE="+filepath.Join(dir, "cache")); err != nil {
			return err
		}
		if err := os.RemoveAll(filepath.Join(dir, "cache")); err != nil {
			return err
		}
	}
	b, err := readBuild(graph)
	if err != nil {
		return err
	}
	named := filepath.Join(dir, "named")
	if err := build("", named, "-w"); err != nil {
		return err
	}
	if err := b.readBinary(named); err != nil {
		return err
	}
	if without != "" {
		fmt.Println(b.weightWithout(strings.Split(without, ",")))
		return nil
	}
	old, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	text, err := replaced(string(old), b.table())
	if err != nil {
		return err
	}
	return os.WriteFile(page, []byte(text), 0o644)
}

// replaced returns the page with another text between the markers.
func replaced(page, text string) (string, error) {
	before, rest, ok := strings.Cut(page, begin)
	_, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		return "", fmt.Errorf("no %s and %s in the page", begin, end)
	}
	return before + begin + "\n\n" + text + "\n" + end + after, nil
}

// build builds the binary, and writes the action graph if that has a name.
func build(graph, to, ldflags string, env ...string) error {
	args := append([]string{"build"}, flags...)
	if graph != "" {
		args = append(args, "-debug-actiongraph="+graph)
	}
	cmd := exec.Command("go", append(args, "-ldflags="+ldflags, "-o", to, binary)...)
	cmd.Env = append(os.Environ(), append(env, "CGO_ENABLED=1")...)
	_, err := command.Output(cmd)
	return err
}

// A weight is what packages cost.
type weight struct {
	packages int
	cpu      time.Duration // to compile them
	bytes    float64       // in the stripped binary
}

func (w *weight) add(v weight) {
	w.packages += v.packages
	w.cpu += v.cpu
	w.bytes += v.bytes
}

func (w weight) String() string {
	return fmt.Sprintf("%d packages, %.1f CPU s, %.1f MB", w.packages, w.cpu.Seconds(), w.bytes/1e6)
}

// cells are those of a row.
func (w weight) cells() string {
	return fmt.Sprintf(" %d | %.1f | %.1f |", w.packages, w.cpu.Seconds(), w.bytes/1e6)
}

// A gopackage is a package of the binary.
type gopackage struct {
	weight
	module  string
	imports []string
}

// A coldBuild is what one cold build took and made.
type coldBuild struct {
	packages map[string]*gopackage
	link     time.Duration
	library  float64 // bytes of ONNX Runtime's library
	size     float64 // bytes of the stripped binary
}

// readBuild reads the CPU time of each package from an action graph, and the packages' imports from
// the go command.
func readBuild(graph string) (*coldBuild, error) {
	b := &coldBuild{packages: map[string]*gopackage{}}
	out, err := command.Output(exec.Command("go", slices.Concat([]string{"list", "-deps",
		"-json=ImportPath,Module,Imports,ImportMap"}, flags[:2], []string{binary})...))
	if err != nil {
		return nil, err
	}
	for decoder := json.NewDecoder(bytes.NewReader(out)); ; {
		var p struct {
			ImportPath string
			Module     *struct{ Path string }
			Imports    []string
			ImportMap  map[string]string
		}
		if err := decoder.Decode(&p); err == io.EOF {
			break
		} else if err != nil {
			return nil, fmt.Errorf("go list: %w", err)
		}
		module := "Go's standard library"
		if p.Module != nil {
			module = p.Module.Path
		}
		for i, path := range p.Imports {
			p.Imports[i] = cmp.Or(p.ImportMap[path], path)
		}
		b.packages[p.ImportPath] = &gopackage{
			weight: weight{packages: 1}, module: module, imports: p.Imports,
		}
	}
	text, err := os.ReadFile(graph)
	if err != nil {
		return nil, err
	}
	var actions []struct {
		Mode, Package   string
		CmdUser, CmdSys time.Duration
	}
	if err := json.Unmarshal(text, &actions); err != nil {
		return nil, fmt.Errorf("%s: %w", graph, err)
	}
	for _, a := range actions {
		cpu := a.CmdUser + a.CmdSys
		if a.Mode == "link" {
			b.link += cpu
		} else if p := b.packages[a.Package]; p != nil {
			p.cpu += cpu
		} else if cpu > 0 {
			return nil, fmt.Errorf("%s: %s of %s, which the binary does not have", graph, a.Mode,
				a.Package)
		}
	}
	return b, nil
}

// readBinary divides the bytes of a binary with a symbol table among the packages. What has no name
// of a package, such as the tables of functions' lines and the descriptions of types, is divided in
// proportion to code: of a binary of 93 MB, 48 MB are such.
func (b *coldBuild) readBinary(name string) error {
	f, err := elf.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	const alloc = elf.SHF_ALLOC
	for _, s := range f.Sections {
		if s.Flags&alloc != 0 && s.Type != elf.SHT_NOBITS {
			b.size += float64(s.FileSize)
		}
	}
	symbols, err := f.Symbols()
	if err != nil {
		return err
	}
	code, rest := map[*gopackage]float64{}, b.size
	all := 0.0
	for _, s := range symbols {
		if int(s.Section) >= len(f.Sections) || f.Sections[s.Section].Type == elf.SHT_NOBITS {
			continue
		}
		size := float64(s.Size)
		if strings.HasPrefix(s.Name, library) {
			b.library += size
			rest -= size
			continue
		}
		p := b.packages[b.owner(s.Name)]
		if p == nil {
			continue
		}
		p.bytes += size
		rest -= size
		if f.Sections[s.Section].Flags&elf.SHF_EXECINSTR != 0 {
			code[p] += size
			all += size
		}
	}
	for p, size := range code {
		p.bytes += rest * size / all
	}
	return nil
}

// owner returns the path of the package that a symbol is of, or "".
func (b *coldBuild) owner(symbol string) string {
	for _, prefix := range []string{"type:.eq.", "type:.hash."} {
		symbol = strings.TrimPrefix(symbol, prefix)
	}
	if i := strings.IndexAny(symbol, "([{*,"); i >= 0 {
		symbol = symbol[:i]
	}
	symbol = strings.ReplaceAll(symbol, "%2e", ".")
	if strings.HasPrefix(symbol, "main.") {
		return own + strings.TrimPrefix(binary, ".")
	}
	slash := strings.LastIndexByte(symbol, '/') + 1
	for i := slash; i < len(symbol); i++ {
		if symbol[i] == '.' && b.packages[symbol[:i]] != nil {
			return symbol[:i]
		}
	}
	return ""
}

// weightWithout is what would leave the binary if none of our packages imported the paths, or what
// lies below them.
func (b *coldBuild) weightWithout(paths []string) (w weight) {
	kept := map[string]bool{}
	var keep func(path string, ours bool)
	keep = func(path string, ours bool) {
		if kept[path] || b.packages[path] == nil {
			return
		}
		if ours && slices.ContainsFunc(paths, func(cut string) bool {
			return path == cut || strings.HasPrefix(path, cut+"/")
		}) {
			return
		}
		kept[path] = true
		for _, one := range b.packages[path].imports {
			keep(one, b.packages[path].module == own)
		}
	}
	keep(own+strings.TrimPrefix(binary, "."), true)
	keep("runtime", false) // of every program
	keep("runtime/cgo", false)
	for path, p := range b.packages {
		if !kept[path] {
			w.add(p.weight)
		}
	}
	return w
}

// table is what build.md shows: the sums, and the modules that cost most.
func (b *coldBuild) table() string {
	var sum weight
	modules, direct := map[string]*weight{}, map[string]bool{}
	for _, p := range b.packages {
		sum.add(p.weight)
		if modules[p.module] == nil {
			modules[p.module] = &weight{}
		}
		modules[p.module].add(p.weight)
		for _, path := range p.imports {
			if p.module == own && b.packages[path] != nil {
				direct[b.packages[path].module] = true
			}
		}
	}
	var t strings.Builder
	fmt.Fprintf(&t,
		"%.0f CPU seconds, of which %.1f to link, for %d packages of %d modules; %.1f MB, "+
			"of which\n%.1f ONNX Runtime.\n\n", (sum.cpu + b.link).Seconds(), b.link.Seconds(),
		sum.packages, len(modules), b.size/1e6, b.library/1e6)
	t.WriteString("| module | packages | CPU s | MB | leaves with it: CPU s | MB |\n" +
		"| --- | --- | --- | --- | --- | --- |\n")
	order := slices.SortedFunc(maps.Keys(modules), func(a, b string) int {
		return cmp.Or(cmp.Compare(cost(*modules[b]), cost(*modules[a])), cmp.Compare(a, b))
	})
	var others weight
	for i, module := range order {
		if i >= maxRows {
			others.add(*modules[module])
			continue
		}
		fmt.Fprintf(&t, "| %s |%s", module, modules[module].cells())
		if direct[module] && module != own && strings.Contains(module, ".") {
			w := b.weightWithout([]string{module})
			fmt.Fprintf(&t, " %.1f | %.1f |\n", w.cpu.Seconds(), w.bytes/1e6)
		} else {
			t.WriteString(" | |\n")
		}
	}
	fmt.Fprintf(&t, "| %d others |%s | |\n", max(len(order)-maxRows, 0), others.cells())
	return t.String()
}

// cost orders modules: a megabyte weighs as ten CPU seconds do, as in the sums of today.
func cost(w weight) float64 { return w.cpu.Seconds() + w.bytes/1e5 }
