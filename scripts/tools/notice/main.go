// Notice writes NOTICE: what the released binary contains from others, under which licences,
// and the texts of these. It reads them from the module cache and from the licence files in
// this repository, for every released architecture. So the result depends only on go.mod and
// on the files that git knows. With -check it writes nothing, and fails if NOTICE is not
// what it would write.
//
//	go run ./scripts/tools/notice [-check]
//
// A licence that is not in the list of accepted ones is an error, because somebody has to read it
// first. The usual tool, google/go-licenses, needs the network, and leaves out the NOTICE files
// that the Apache licence requires to be passed on.
package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/google/licensecheck"

	"github.com/muster-serve/muster/scripts/tools/command"
)

const onnxruntime = "runtime/internal/ortlib"

// binaries are what packages hold.
var binaries = []string{"./cmd/muster", "./cmd/muster-ec2"}

var architectures = []string{"amd64", "arm64"}

// accepted are licences, by SPDX identifier. A binary meets their conditions if it comes with their
// texts and says where the sources are.
var accepted = []string{
	"Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0", "CC-BY-4.0",
	"FTL", "ISC", "MIT", "MPL-2.0", "OFL-1.1",
}

// legal matches the names of files and folders that hold licences and notices, or say where data
// is from (CATALOGUE-SOURCE).
var legal = regexp.MustCompile(`(?i)^(licen[cs]es?|copying|copyright|notice|patents|` +
	`third.?party.?(licen[cs]es|notices))([-_.].*)?$|[-_](licen[cs]e|source)(\.md|\.txt)?$`)

// declined are the texts of licences that are left out, because the owner offers another one too, or
// because they are of what the binary does not contain.
var declined = map[string]string{
	"github.com/golang/freetype":          "licenses/gpl.txt", // or the FreeType License
	"github.com/opencontainers/go-digest": "LICENSE.docs",     // of its documentation
}

// A component is a part of the binary that others made, with the texts of its licences by file.
type component struct {
	name, version string
	texts         map[string]string
}

func (c component) String() string { return strings.TrimSpace(c.name + " " + c.version) }

func main() {
	check := flag.Bool("check", false, "only compare NOTICE with what would be made")
	flag.Parse()
	if err := run(*check); err != nil {
		fmt.Fprintln(os.Stderr, "notice:", err)
		os.Exit(1)
	}
}

func run(check bool) error {
	own, err := inRepository()
	if err != nil {
		return err
	}
	modules, err := goModules()
	if err != nil {
		return err
	}
	notice, err := render(append(own, modules...))
	if err != nil {
		return err
	}
	if !check {
		return os.WriteFile("NOTICE", notice, 0o644)
	}
	have, err := os.ReadFile("NOTICE")
	if err != nil {
		return err
	}
	return compare(string(have), string(notice))
}

// compare returns an error that shows the first difference, or nil.
func compare(have, want string) error {
	if have == want {
		return nil
	}
	h, w := strings.Split(have, "\n"), strings.Split(want, "\n")
	line := 0
	for line < len(h) && line < len(w) && h[line] == w[line] {
		line++
	}
	at := func(lines []string) string {
		if line < len(lines) {
			return fmt.Sprintf("%q", lines[line])
		}
		return "the end"
	}
	return fmt.Errorf("NOTICE is not that of this source: line %d is %s, want %s; "+
		"run \"make notice\" and look at the difference", line+1, at(h), at(w))
}

// inRepository finds what the repository has from others, by the licence files in its folders,
// and Go itself.
func inRepository() ([]component, error) {
	version, err := onnxruntimeVersion()
	if err != nil {
		return nil, err
	}
	// New files count before they are committed.
	out, err := command.Output(exec.Command("git", "ls-files", "-z",
		"--cached", "--others", "--exclude-standard", "--deduplicate"))
	if err != nil {
		return nil, err
	}
	folders := map[string]component{}
	for file := range strings.SplitSeq(strings.TrimRight(string(out), "\x00"), "\x00") {
		folder := path.Dir(file)
		if folder == "." || !legal.MatchString(path.Base(file)) || path.Ext(file) == ".go" {
			continue
		}
		if folder == onnxruntime && path.Base(file) != "LICENSE" {
			continue // ONNX Runtime's third-party notices stay a file of their own
		}
		text, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) {
			continue // deleted, not yet committed
		}
		if err != nil {
			return nil, err
		}
		if _, ok := folders[folder]; !ok {
			folders[folder] = component{name: "Muster's " + folder, texts: map[string]string{}}
		}
		folders[folder].texts[file] = string(text)
	}
	ort, ok := folders[onnxruntime]
	if !ok {
		return nil, fmt.Errorf("no LICENSE in %s", onnxruntime)
	}
	folders[onnxruntime] = component{name: "ONNX Runtime", version: version, texts: ort.texts}
	return slices.Collect(maps.Values(folders)), nil
}

func onnxruntimeVersion() (string, error) {
	name := onnxruntime + "/ortlib.go"
	source, err := os.ReadFile(name)
	if err != nil {
		return "", err
	}
	m := regexp.MustCompile(`(?m)^const Version = "(.*)"$`).FindSubmatch(source)
	if m == nil {
		return "", fmt.Errorf("no constant Version in %s", name)
	}
	return string(m[1]), nil
}

// goModules finds the modules with packages in the binary, and Go.
func goModules() ([]component, error) {
	found := map[string]component{}
	for _, arch := range architectures {
		cmd := exec.Command("go",
			append([]string{"list", "-deps", "-json=Dir,Module"}, binaries...)...)
		cmd.Env = append(os.Environ(), "GOOS=linux", "GOARCH="+arch, "CGO_ENABLED=1")
		out, err := command.Output(cmd)
		if err != nil {
			return nil, err
		}
		for decoder := json.NewDecoder(bytes.NewReader(out)); ; {
			var pkg struct {
				Dir    string
				Module *struct {
					Path, Version, Dir string
					Main               bool
					Replace            any
				}
			}
			if err := decoder.Decode(&pkg); err == io.EOF {
				break
			} else if err != nil {
				return nil, fmt.Errorf("go list: %w", err)
			}
			m := pkg.Module
			if m == nil || m.Main {
				continue
			}
			if m.Replace != nil {
				return nil, fmt.Errorf("%s is replaced: NOTICE would name another source", m.Path)
			}
			c, ok := found[m.Path]
			if !ok {
				c = component{name: m.Path, version: m.Version, texts: map[string]string{}}
				found[m.Path] = c
			}
			// A package may have a licence of its own besides its module's.
			for dir := pkg.Dir; ; dir = filepath.Dir(dir) {
				if err := c.read(dir); err != nil {
					return nil, err
				}
				if dir == m.Dir {
					break
				}
			}
			if name := declined[m.Path]; name != "" {
				delete(c.texts, filepath.Join(m.Dir, name))
			}
		}
	}
	// Go's licence is that of its x/ modules too, which, unlike it, every installation of Go finds.
	sys, ok := found["golang.org/x/sys"]
	if !ok {
		return nil, errors.New("no golang.org/x/sys, whose licence is Go's: read that elsewhere")
	}
	found["Go"] = component{name: "Go's runtime and standard library", texts: sys.texts}
	return slices.Collect(maps.Values(found)), nil
}

// read takes the licence files of a folder, and all files of its licence folders.
func (c component) read(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if !legal.MatchString(entry.Name()) {
			continue
		}
		root := filepath.Join(dir, entry.Name())
		err := filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || path.Ext(file) == ".go" {
				return err
			}
			text, err := os.ReadFile(file)
			c.texts[file] = string(text)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// licences are the SPDX identifiers of the licences that the texts hold.
func licences(c component) ([]string, error) {
	ids := map[string]bool{}
	for _, text := range c.texts {
		for _, m := range licensecheck.Scan([]byte(text)).Match {
			if m.IsURL {
				continue // of what the text speaks of
			}
			if m.ID == "GooglePatentsFile" || m.ID == "GooglePatentClause" {
				continue // grants more
			}
			if !slices.Contains(accepted, m.ID) {
				return nil, fmt.Errorf("%s has the licence %s, which nobody has looked at: "+
					"see accepted in scripts/tools/notice", c, m.ID)
			}
			ids[m.ID] = true
		}
	}
	if len(ids) == 0 {
		return nil, fmt.Errorf("%s: no text of a licence that is known in %q",
			c, slices.Sorted(maps.Keys(c.texts)))
	}
	return slices.Sorted(maps.Keys(ids)), nil
}

const rule = "--------------------------------------------------------------------------------"

func render(components []component) ([]byte, error) {
	slices.SortFunc(components, func(a, b component) int { return strings.Compare(a.name, b.name) })
	var out bytes.Buffer
	out.WriteString(`Muster
Copyright 2026 The Muster Authors

Licensed under the Apache License, Version 2.0: see LICENSE.

The binaries muster and muster-ec2 hold what is listed here, each with the marks of its licence's
and notices' texts, which follow. What ONNX Runtime holds of others is in its own
ThirdPartyNotices.txt, beside this file or in ` + onnxruntime + `; "muster licenses" prints it too.
The source of a Go module is https://proxy.golang.org/MODULE/@v/VERSION.zip.

"make notice" makes this file.

`)
	// A text's mark is a hash of its words, so that a new one changes no other's mark.
	texts, holders := map[string]string{}, map[string][]string{}
	var marks []string
	for _, c := range components {
		ids, err := licences(c)
		if err != nil {
			return nil, err
		}
		var own []string
		for _, file := range slices.Sorted(maps.Keys(c.texts)) {
			text := tidy(c.texts[file])
			sum := sha256.Sum256([]byte(strings.Join(strings.Fields(text), " ")))
			mark := fmt.Sprintf("[%x]", sum[:4])
			if text == "\n" || slices.Contains(own, mark) {
				continue
			}
			own = append(own, mark)
			holders[mark] = append(holders[mark], c.name)
			if texts[mark] == "" {
				marks = append(marks, mark)
				texts[mark] = text
			}
		}
		fmt.Fprintf(&out, "  %s\n      %s %s\n", c, strings.Join(ids, ", "), strings.Join(own, " "))
	}
	for _, mark := range marks {
		fmt.Fprintf(&out, "\n%s\n%s %s\n%s\n\n%s", rule,
			mark, strings.Join(holders[mark], "\n           "), rule, texts[mark])
	}
	return out.Bytes(), nil
}

// tidy gives a text this repository's line ends.
func tidy(text string) string {
	text = strings.TrimPrefix(text, "\ufeff")
	var lines []string
	for line := range strings.Lines(text) {
		lines = append(lines, strings.TrimRight(line, " \t\r\n\f"))
	}
	return strings.Trim(strings.Join(lines, "\n"), "\n") + "\n"
}
