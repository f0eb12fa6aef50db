// Package lists has the flags that hold lists of texts. All commands make such flags with [Var], so
// that a list is read alike on the command line, in variables and in the config file.
package lists

import (
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// Var defines a flag with a list of texts, separated by commas. An entry with a comma in it can stand
// in double quotes. Spaces around entries are left out, and so are empty entries, as one after a
// comma at the end. A flag that is given again adds to the list.
func Var(flags *pflag.FlagSet, p *[]string, name string, value []string, usage string) {
	flags.StringSliceVar(p, name, value, usage)
	f := flags.Lookup(name)
	f.Value = list{f.Value, f.Value.(pflag.SliceValue)}
	if len(value) == 0 {
		f.DefValue = "" // of pflag's own lists alone it knows that "[]" need not be shown
	}
}

// A list is pflag's value of a list of texts, with clean entries.
type list struct {
	pflag.Value
	pflag.SliceValue
}

func (l list) Set(text string) error {
	// Before a quote pflag's reader takes no space.
	if err := l.Value.Set(strings.TrimSpace(text)); err != nil {
		return err
	}
	return l.Replace(l.GetSlice())
}

func (l list) Append(entry string) error { return l.Replace(append(l.GetSlice(), entry)) }

func (l list) Replace(entries []string) error {
	clean := make([]string, 0, len(entries))
	for _, e := range entries {
		clean = append(clean, strings.TrimSpace(e))
	}
	return l.SliceValue.Replace(slices.DeleteFunc(clean, func(e string) bool { return e == "" }))
}
