package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

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

// TestDocumentedCommands: every command and every flag that the documents name
// exists.
func TestDocumentedCommands(t *testing.T) {
	documents, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	documents = append(documents, "../../README.md")
	root := newRoot()
	root.InitDefaultCompletionCmd()
	known := map[string]bool{"version": true, "help": true}
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
				if err != nil || cmd == root || cmd.HasSubCommands() && len(rest) > 0 && !strings.HasPrefix(rest[0], "-") {
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
		t.Errorf("found %d commands and %d flags in the documents, want more: are they written in another way now?", commands, flags)
	}
}
