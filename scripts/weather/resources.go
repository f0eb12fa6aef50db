package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// A usage is what an agent takes.
type usage struct {
	goroutines, descriptors int
	memory                  int // resident, MB
}

var metrics = regexp.MustCompile(`(?m)^(go_goroutines|process_open_fds|process_resident_memory_bytes) (\S+)$`)

// usage asks an agent what it takes.
func (w *weather) usage(ctx context.Context, a *agent) (u usage, err error) {
	text, err := w.get(ctx, "https://"+a.Metrics+"/metrics")
	if err != nil {
		return u, err
	}
	found := metrics.FindAllStringSubmatch(text, -1)
	if len(found) != 3 {
		return u, fmt.Errorf("%v: metrics %v", a, found)
	}
	for _, m := range found {
		x, err := strconv.ParseFloat(m[2], 64)
		if err != nil {
			return u, err
		}
		switch m[1] {
		case "go_goroutines":
			u.goroutines = int(x)
		case "process_open_fds":
			u.descriptors = int(x)
		default:
			u.memory = int(x) >> 20
		}
	}
	return u, nil
}

// usages are what all agents take, and this process.
func (w *weather) usages(ctx context.Context) (all []usage, err error) {
	for _, a := range w.agents {
		u, err := w.usage(ctx, a)
		if err != nil {
			return nil, err
		}
		all = append(all, u)
	}
	return append(all, usage{goroutines: runtime.NumGoroutine()}), nil
}

// most is the largest of each.
func most(all []usage) (m usage) {
	for _, u := range all {
		m.goroutines, m.descriptors, m.memory = max(m.goroutines, u.goroutines), max(m.descriptors, u.descriptors), max(m.memory, u.memory)
	}
	return m
}

// allowed is what an agent may take in the end, where u is the most that one took at
// first.
func allowed(u usage) usage {
	return usage{goroutines: u.goroutines*5/4 + 20, descriptors: u.descriptors*5/4 + 10, memory: 2*u.memory + 64}
}

// allowedClients is how many goroutines the clients may have: without a leader the SDK
// opens streams to ask agents by, and keeps them.
func (w *weather) allowedClients(before []usage) int {
	return before[w.size].goroutines + 20 + 5*w.size
}

// flat reports whether what is taken is as before. What is left of a leader or of a
// connection is gone only after a while.
func (w *weather) flat(before, after []usage) bool {
	most, is := allowed(most(before[:w.size])), most(after[:w.size])
	return is.goroutines <= most.goroutines && is.descriptors <= most.descriptors && after[w.size].goroutines <= w.allowedClients(before)
}

// awaitFlat returns what is taken as soon as it is as before, or after a minute.
func (w *weather) awaitFlat(ctx context.Context, before []usage) (after []usage, err error) {
	end := time.Now().Add(time.Minute)
	for {
		if after, err = w.usages(ctx); err != nil || w.flat(before, after) || time.Now().After(end) {
			return after, err
		}
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (w *weather) writeUsages(out io.Writer, before, after []usage) error {
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "agent\ttype\tgoroutines\tdescriptors\tmemory, MB\tlives since")
	for i, a := range w.agents {
		b, u := before[i], after[i]
		since := "the start"
		if !a.Started.Before(w.start) {
			since = fmt.Sprintf("%.0f s", a.Started.Sub(w.start).Seconds())
		}
		fmt.Fprintf(t, "%d\t%s\t%d, %d\t%d, %d\t%d, %d\t%s\n", i, a.InstanceType, b.goroutines, u.goroutines, b.descriptors, u.descriptors, b.memory, u.memory, since)
	}
	fmt.Fprintf(t, "clients\t\t%d, %d\n", before[w.size].goroutines, after[w.size].goroutines)
	return t.Flush()
}

// What is looked for in the agents' logs.
var (
	line    = regexp.MustCompile(`level=(WARN|ERROR) msg=("(?:[^"\\]|\\.)*"|\S+)`)
	leading = regexp.MustCompile(`msg="leading the fleet" .*epoch=(\d+)`)
	named   = regexp.MustCompile(`\S+-[0-9a-f]{8}\b`) // agents
	crashed = regexp.MustCompile(`(?m)^(panic: .*|fatal error: .*|WARNING: DATA RACE)`)
)

// A logbook is what the logs say.
type logbook struct {
	elections int
	warnings  map[string]int // by message
	errors    []string       // lines that should not be
}

func (w *weather) readLogs() (b logbook, err error) {
	b.warnings = map[string]int{}
	epochs := map[string]bool{}
	for i := range w.agents {
		path := filepath.Join(w.dir, fmt.Sprintf("agent-%d.log", i))
		text, err := os.ReadFile(path)
		if err != nil {
			return b, err
		}
		for _, m := range line.FindAllSubmatch(text, -1) {
			what := named.ReplaceAllString(strings.Trim(string(m[2]), `"`), "...")
			b.warnings[what]++
			if string(m[1]) == "ERROR" {
				b.errors = append(b.errors, fmt.Sprintf("%s: %s", filepath.Base(path), what))
			}
		}
		for _, m := range crashed.FindAll(text, -1) {
			b.errors = append(b.errors, fmt.Sprintf("%s: %s", filepath.Base(path), m))
		}
		for _, m := range leading.FindAllSubmatch(text, -1) {
			epochs[string(m[1])] = true
		}
	}
	b.elections = len(epochs)
	return b, nil
}

func (b logbook) write(out io.Writer) {
	var all []string
	for what := range b.warnings {
		all = append(all, what)
	}
	slices.SortFunc(all, func(x, y string) int { return b.warnings[y] - b.warnings[x] })
	fmt.Fprintln(out, "warnings in the agents' logs:")
	for _, what := range all {
		fmt.Fprintf(out, "  %5d  %s\n", b.warnings[what], what)
	}
}
