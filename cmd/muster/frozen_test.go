package main

import (
	"flag"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/muster-serve/muster/cmd/muster/internal/former"
)

// Commands and flags are frozen, and so are the variables and keys of the config file, which are
// named after flags: testdata/frozen.txt lists those of the commit 958423c. A command or a flag may
// be added and never be removed. After a release, freeze its names too:
//
//	go test ./cmd/muster -run TestFrozenNames -freeze
var freeze = flag.Bool("freeze", false, "write testdata/frozen.txt anew")

// gone are commands and flags that were removed on purpose since, by why.
var gone = map[string]string{
	"muster sim --threshold": "the policy drs, which reproduce has, read it",
}

// TestFrozenNames: each command and flag that was frozen is still accepted, by the former spelling at
// least.
func TestFrozenNames(t *testing.T) {
	const path = "testdata/frozen.txt"
	if *freeze {
		if err := os.WriteFile(path, []byte(strings.Join(commandNames(newRoot()), "\n")+"\n"),
			0o644); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	root := newRoot()
	for name := range strings.Lines(string(text)) {
		name = strings.TrimSuffix(name, "\n")
		if has := accepts(root, name); has == (gone[name] != "") {
			t.Errorf("%q: accepted: %t; why it is gone: %q", name, has, gone[name])
		}
	}
}

// commandNames are the commands of cmd and below it, each with its flags, sorted.
func commandNames(cmd *cobra.Command) []string {
	names := []string{cmd.CommandPath()}
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
		names = append(names, cmd.CommandPath()+" --"+f.Name)
		if f.Shorthand != "" {
			names = append(names, cmd.CommandPath()+" -"+f.Shorthand)
		}
	})
	for _, child := range cmd.Commands() {
		names = append(names, commandNames(child)...)
	}
	slices.Sort(names)
	return names
}

// accepts reports whether there is a command, with a flag if name ends in one.
func accepts(root *cobra.Command, name string) bool {
	words := strings.Fields(name)[1:] // without muster
	flagName := ""
	if n := len(words); n > 0 && strings.HasPrefix(words[n-1], "-") {
		words, flagName = words[:n-1], words[n-1]
	}
	cmd, rest, err := root.Find(words)
	if err != nil || len(rest) > 0 {
		return false
	}
	long := strings.TrimLeft(flagName, "-")
	switch {
	case flagName == "" || cmd.FParseErrWhitelist.UnknownFlags:
		return true
	case !strings.HasPrefix(flagName, "--"):
		return cmd.Flags().ShorthandLookup(long) != nil
	}
	return cmd.LocalFlags().Lookup(long) != nil || slices.ContainsFunc(selectors,
		func(s former.Selector) bool { // the flag had no effect without the selector
			if s.Of != cmd.CommandPath() {
				return false
			}
			now, _, err := root.Find(append(slices.Clone(words), s.Command))
			return s.Flag == long || err == nil && now.LocalFlags().Lookup(long) != nil
		})
}
