// Package former keeps the former spellings of commands at work: what a flag of a command once
// selected is a command of its own.
package former

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
)

// A Selector is a flag that once selected what a subcommand does now.
type Selector struct {
	Of      string // the path of the command that had the flag, such as "muster plan"
	Flag    string // without dashes
	Command string // the name of the subcommand
	// Prefix begins those values of the flag that selected the subcommand; the rest of such a value
	// is now the subcommand's argument. It is "" for a flag without a value.
	Prefix string
	Kept   bool // the subcommand has the flag, too, with the same values
}

// Rewrite returns the arguments of the program in the present spelling, and a note that gives the
// former and the present spelling. It returns args as they are, and no note, where they have no
// selector.
func Rewrite(root *cobra.Command, args []string, selectors []Selector) (now []string,
	note string) {
	cmd, _, err := root.Find(args)
	if err != nil {
		return args, ""
	}
	own := slices.DeleteFunc(slices.Clone(selectors),
		func(s Selector) bool { return s.Of != cmd.CommandPath() })
	at := slices.Index(args, cmd.Name())
	if len(own) == 0 || at < 0 {
		return args, ""
	}
	for i := at + 1; i < len(args) && args[i] != "--"; i++ {
		flag, isFlag := strings.CutPrefix(args[i], "--")
		if !isFlag {
			continue
		}
		flag, value, inOne := strings.Cut(flag, "=")
		end := i + 1 // of the flag and its value
		if !inOne && takesValue(cmd, flag, own) && end < len(args) {
			value = args[end]
			end++
		}
		for _, s := range own {
			if s.Flag != flag || !strings.HasPrefix(value, s.Prefix) {
				continue
			}
			if selected, err := strconv.ParseBool(value); s.isSwitch() && inOne && err == nil &&
				!selected {
				// it says what is so without it
				return slices.Delete(slices.Clone(args), i, end), ""
			}
			return s.rewriteArgs(args, at, i, end, value[len(s.Prefix):])
		}
		i = end - 1
	}
	return args, ""
}

// CommandOf returns the path of the command that does what a flag of the command above cmd once
// selected; "" if it selected nothing.
func CommandOf(cmd *cobra.Command, flag string, selectors []Selector) string {
	for _, s := range selectors {
		if s.Flag == flag && s.isSwitch() && cmd.HasParent() && cmd.Parent().CommandPath() == s.Of {
			return s.Of + " " + s.Command
		}
	}
	return ""
}

func (s Selector) isSwitch() bool { return s.Prefix == "" && !s.Kept }

// rewriteArgs has the subcommand of s do what args[i:end] selects, for the command args[at].
func (s Selector) rewriteArgs(args []string, at, i, end int, argument string) ([]string, string) {
	before, selects, after := args[at+1:i], args[i:end], args[end:]
	now := append(slices.Clone(args[:at+1]), s.Command)
	old, present := strings.Join(selects, " "), s.Command
	switch {
	case s.Kept:
		before = args[at+1 : end]
		old, present = "--"+s.Flag, s.Command+" --"+s.Flag
	case s.Prefix != "":
		now, present = append(now, argument), s.Command+" "+argument
	}
	return slices.Concat(now, before, after),
		fmt.Sprintf("%q is now %q", s.Of+" "+old, s.Of+" "+present)
}

// takesValue reports whether a flag of cmd, of its subcommands, or of former spellings has a value.
func takesValue(cmd *cobra.Command, flag string, former []Selector) bool {
	for _, s := range former {
		if s.Flag == flag {
			return !s.isSwitch()
		}
	}
	for _, c := range append(slices.Clone(cmd.Commands()), cmd) {
		if f := c.Flag(flag); f != nil {
			return f.NoOptDefVal == ""
		}
	}
	return false
}
