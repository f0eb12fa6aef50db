// Package doctor looks for what keeps a machine or a fleet from serving well, and says what to do
// about it. Machine reads the machine that it runs on and the settings of its agent; Fleet judges
// what an agent says of its fleet. Neither changes anything.
package doctor

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
)

// A Level says how bad a finding is.
type Level string

// The levels of findings.
const (
	OK      Level = "ok"
	Unknown Level = "unknown" // it could not be checked
	Warning Level = "warning"
	Fault   Level = "fault" // an agent does not start, or queries fail
)

// A Finding is the result of one check.
type Finding struct {
	Check  string `json:"check"`
	Level  Level  `json:"level"`
	Found  string `json:"found"`            // in words
	Remedy string `json:"remedy,omitempty"` // what to do; "" where there is nothing to do
}

// findings collects the results of checks.
type findings []Finding

func (f *findings) add(check string, level Level, remedy, format string, args ...any) {
	*f = append(*f, Finding{check, level, fmt.Sprintf(format, args...), remedy})
}

// HasFault reports whether any finding is a fault.
func HasFault(all []Finding) bool {
	return slices.ContainsFunc(all, func(f Finding) bool { return f.Level == Fault })
}

// Print writes the findings as a table, each remedy below its finding.
func Print(w io.Writer, all []Finding) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, f := range all {
		fmt.Fprintf(t, "%s\t%s\t%s\n", f.Level, f.Check, f.Found)
		if f.Remedy != "" {
			fmt.Fprintf(t, "\t\t-> %s\n", f.Remedy)
		}
	}
	return t.Flush()
}
