package load

import (
	"errors"
	"fmt"

	"github.com/muster-serve/muster/api/querytrace"
	"github.com/muster-serve/muster/profiles/workload"
)

// Process is the arrival process if nothing else is given.
const Process = "poisson"

// FromHelp is the help of the flag whose value TracePath takes as from.
const FromHelp = "file of recorded queries, as JSON lines, .npz or CSV, instead of --arrivals " +
	"and --batch"

// TracePath returns the path of the recorded queries that --from, or --arrivals, names; "" if the
// queries are drawn.
func TracePath(from, arrivals string) (string, error) {
	switch {
	case from == "" && IsFile(arrivals):
		return arrivals, nil
	case from != "" && arrivals != Process:
		return "", errors.New("from: give --from or --arrivals, not both")
	case from != "" && !IsFile(from):
		return "", fmt.Errorf("from: %s is no file", from)
	}
	return from, nil
}

// CheckArrivals reports what is wrong with an arrival process.
func CheckArrivals(arrivals string) error {
	// The rate is not known yet; 1 serves to check the syntax.
	if _, err := workload.ParseArrivals(arrivals, 1); err != nil {
		return fmt.Errorf("%w, or a file of recorded queries", err)
	}
	return nil
}

// OpenTrace reads the recorded queries at path. each is called with every one and its number, from
// 1; nil calls nothing.
func OpenTrace(path string,
	each func(number int, q querytrace.TracedQuery) error) (*workload.QueryTrace,
	error) {
	trace := workload.NewQueryTrace(path)
	return trace, querytrace.ReadFile(path, func(q querytrace.TracedQuery) error {
		trace.Add(workload.Query{At: q.At, Model: q.Model, BatchSize: q.Rows, Users: q.Users,
			Values: q.Values, Deadline: q.Deadline})
		if each == nil {
			return nil
		}
		return each(trace.Len(), q)
	})
}
