package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

var (
	fence      = regexp.MustCompile("(?ms)^```.*?^```")
	indented   = regexp.MustCompile("(?m)^(?:    |\t).*$")
	inlineCode = regexp.MustCompile("`[^`\n]+`")
	// A command ends where the shell or a comment goes on.
	musterCommand = regexp.MustCompile(`(?:^|[\s(])(?:bin/)?muster ([^#|;&>)]*)`)
)

// codeOf is what a document has in code blocks, and what it has in lines as code.
func codeOf(document string) (code []string) {
	for _, block := range fence.FindAllString(document, -1) {
		code = append(code, strings.Split(strings.ReplaceAll(block, "\\\n", " "), "\n")...)
	}
	document = fence.ReplaceAllString(document, "")
	code = append(code, indented.FindAllString(document, -1)...)
	for _, span := range inlineCode.FindAllString(document, -1) {
		code = append(code, strings.Trim(span, "`"))
	}
	return code
}

// documentsOf are the documents of the repository that name commands.
func documentsOf(t *testing.T) []string {
	t.Helper()
	documents := []string{"../../README.md", "../../SECURITY.md", "../../examples/README.md"}
	for _, pattern := range []string{"docs/*.md", "docs/internals/*.md"} {
		files, err := filepath.Glob("../../" + pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %d files, %v", pattern, len(files), err)
		}
		documents = append(documents, files...)
	}
	return documents
}

// TestDocumentedCommands: every command and every flag that the documents name
// exists.
func TestDocumentedCommands(t *testing.T) {
	documents := documentsOf(t)
	root := newRoot()
	root.InitDefaultCompletionCmd()
	known := map[string]bool{"version": true, "help": true}
	root.PersistentFlags().VisitAll(func(f *pflag.Flag) { known[f.Name] = true })
	var collect func(*cobra.Command)
	collect = func(cmd *cobra.Command) {
		cmd.Flags().VisitAll(func(f *pflag.Flag) { known[f.Name] = true })
		for _, child := range cmd.Commands() {
			collect(child)
		}
	}
	collect(root)
	commands, flags := 0, 0
	for _, name := range documents {
		content, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, code := range codeOf(string(content)) {
			if flag, _, _ := strings.Cut(code, " "); strings.HasPrefix(flag, "--") {
				flags++
				if flag, _, _ = strings.Cut(flag[2:], "="); !known[flag] {
					t.Errorf("%s: no command has the flag --%s", name, flag)
				}
			}
			for _, m := range musterCommand.FindAllStringSubmatch(code, -1) {
				commands++
				words := strings.Fields(m[1])
				cmd, rest, err := root.Find(words)
				if err != nil || cmd == root ||
					cmd.HasSubCommands() && len(rest) > 0 && !strings.HasPrefix(rest[0], "-") {
					t.Errorf("%s: there is no command %q", name, "muster "+m[1])
					continue
				}
				for _, word := range rest {
					flag, isFlag := strings.CutPrefix(word, "--")
					flag, _, _ = strings.Cut(flag, "=")
					if isFlag && cmd.Flag(flag) == nil && cmd.InheritedFlags().Lookup(flag) == nil {
						t.Errorf("%s: %q has no flag --%s", name, cmd.CommandPath(), flag)
					}
				}
			}
		}
	}
	if commands < 50 || flags < 50 {
		t.Errorf(
			"found %d commands and %d flags in the documents, want more: are they written in "+
				"another way now?", commands, flags)
	}
}

var (
	heading = regexp.MustCompile(`(?m)^#+ (.*)$`)
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
)

// anchors are the names that a document's headings are linked by, as GitHub makes them.
func anchors(document string) map[string]bool {
	known := map[string]bool{}
	for _, m := range heading.FindAllStringSubmatch(fence.ReplaceAllString(document, ""), -1) {
		name := strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
				return unicode.ToLower(r)
			}
			return -1
		}, m[1])
		known[name] = true
	}
	return known
}

// TestDocumentsReadWell: no line of a document is longer than 120 characters, and every link within
// the repository leads to a file and, with a #, to a heading of it.
func TestDocumentsReadWell(t *testing.T) {
	documents := append(documentsOf(t), "../../CONTRIBUTING.md", "../../llms.txt",
		"../../reproduce/docs/figures.md")
	links := 0
	for _, name := range documents {
		content, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		number := 0
		for line := range strings.Lines(string(content)) {
			number++
			if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > 120 {
				t.Errorf("%s:%d has %d characters, want at most 120", name, number, n)
			}
		}
		text := inlineCode.ReplaceAllString(fence.ReplaceAllString(string(content), ""), "")
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			links++
			file, anchor, _ := strings.Cut(m[1], "#")
			target := name
			if file != "" {
				target = filepath.Join(filepath.Dir(name), file)
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s links to %s, which is not there", name, m[1])
				continue
			}
			if anchor == "" {
				continue
			}
			content, err := os.ReadFile(target)
			if err != nil {
				t.Fatal(err)
			}
			if !anchors(string(content))[anchor] {
				t.Errorf("%s links to %s, but %s has no such heading", name, m[1], target)
			}
		}
	}
	if links < 50 {
		t.Errorf("found %d links in the documents, want more: are they written in another way now?",
			links)
	}
}
