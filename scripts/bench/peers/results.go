package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/prometheus/procfs"

	"github.com/muster-serve/muster/scripts/test/harness"
)

// figures are what was measured in a case, in us and queries/s.
type figures struct {
	P50     float64 `json:"p50_us"`
	P99     float64 `json:"p99_us"`
	Rate    float64 `json:"rate"`        // of several clients at a time
	LoadP99 float64 `json:"load_p99_us"` // likewise
	CPU     float64 `json:"cpu_us"`      // the server's CPU time of a query of one client
}

// A result is of a server in a round.
type result struct {
	Round  int                `json:"round"`
	Server string             `json:"server"`
	Error  string             `json:"error,omitempty"`
	Ready  float64            `json:"ready_s,omitempty"`
	Others float64            `json:"others"` // share of the CPUs' time that other processes took
	Stolen float64            `json:"stolen"` // and that other machines took
	Cases  map[string]figures `json:"cases"`
}

// results are in the order in which they were measured.
type results []result

// hasRound reports whether a server was measured in a round, in all cases.
func (rs results) hasRound(round int, server string, cases []query) bool {
	return slices.ContainsFunc(rs, func(x result) bool {
		return x.Round == round && x.Server == server && x.Error == "" &&
			!slices.ContainsFunc(cases,
				func(q query) bool { return x.Cases[q.name].Rate == 0 })
	})
}

// readResults reads a file of results; there are none if it does not exist. A last line that was
// cut off does not count.
func readResults(path string) (all results, err error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	lines := bufio.NewReader(f)
	for n := 1; ; n++ {
		line, err := lines.ReadBytes('\n')
		if err == io.EOF {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		var x result
		if err := json.Unmarshal(line, &x); err != nil {
			return nil, fmt.Errorf("%s: line %d: %w", path, n, err)
		}
		all = append(all, x)
	}
}

// appendResult adds a line to a file of results.
func appendResult(path string, x result) error {
	text, err := json.Marshal(x)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(append(text, '\n'))
	return errors.Join(err, f.Close())
}

// print prints the tables of the measurements so far.
func (r *run) print() error {
	all, err := readResults(r.resultsPath())
	if err == nil {
		all.write(os.Stdout)
	}
	return err
}

// write writes the tables: the latency of one client, the rate of several, and where Muster loses.
// Figures are medians of the rounds in which the server was measured; ratios to Muster are medians
// of the ratios of the rounds.
func (rs results) write(w io.Writer) {
	var servers, cases []string
	failed := map[string]string{}
	rounds, others, stolen := 0, []float64(nil), []float64(nil)
	for _, x := range rs {
		if !slices.Contains(servers, x.Server) {
			servers = append(servers, x.Server)
		}
		if x.Error != "" && !rs.hasRound(x.Round, x.Server, nil) {
			failed[x.Server] = x.Error
		}
		rounds = max(rounds, x.Round+1)
		others, stolen = append(others, x.Others), append(stolen, x.Stolen)
	}
	for _, s := range sizes {
		for _, batch := range s.batch {
			name := fmt.Sprint(s.model, " ", batch)
			if slices.ContainsFunc(rs, func(x result) bool { return x.Cases[name].Rate > 0 }) {
				cases = append(cases, name)
			}
		}
	}
	if len(cases) == 0 {
		fmt.Fprintln(w, "Nothing is measured yet.")
		return
	}
	slices.SortStableFunc(servers, func(a, b string) int { return rank(a) - rank(b) })
	fmt.Fprintf(w, "%d rounds; in the median other processes took %.0f %% of the CPUs' time "+
		"(at most %.0f), and %.1f %% was stolen (at most %.1f).\n", rounds,
		100*harness.Quantile(others, 0.5), 100*harness.Quantile(others, 1),
		100*harness.Quantile(stolen, 0.5),
		100*harness.Quantile(stolen, 1))
	table := func(title string, of func(figures) float64) {
		fmt.Fprintf(w, "\n%s\n\n| | %s |\n|%s\n", title, strings.Join(cases, " | "),
			strings.Repeat(" --- |", len(cases)+1))
		for _, s := range servers {
			fmt.Fprintf(w, "| %s |", s)
			for _, c := range cases {
				fmt.Fprintf(w, " %s |", short(rs.medianOf(s, c, of)))
			}
			fmt.Fprintln(w)
		}
	}
	table("Latency of one client, p50, us", func(f figures) float64 { return f.P50 })
	table("Latency of one client, p99, us", func(f figures) float64 { return f.P99 })
	table("CPU time of the server for a query of one client, us",
		func(f figures) float64 { return f.CPU })
	table(fmt.Sprintf("Queries/s of %d clients", atATime),
		func(f figures) float64 { return f.Rate })
	fmt.Fprintf(w,
		"\nBeside the best peer (above 1: Muster is ahead), by Muster's default and by the "+
			"best of its rows\n\n| | p50 | best | the peer | queries/s | best | the peer |\n"+
			"|%s\n", strings.Repeat(" --- |", 7))
	var lost []string
	for _, c := range cases {
		p50, first := rs.leadOverPeers(c, servers, func(f figures) float64 { return 1 / f.P50 })
		rate, second := rs.leadOverPeers(c, servers, func(f figures) float64 { return f.Rate })
		fmt.Fprintf(w, "| %s | %.2f | %.2f | %s | %.2f | %.2f | %s |\n", c, p50.standard, p50.best,
			first, rate.standard, rate.best, second)
		if p50.best > 0 && p50.best < 0.98 {
			lost = append(lost, fmt.Sprintf("%s: p50 is %.2f x that of %s", c, 1/p50.best, first))
		}
		if rate.best > 0 && rate.best < 0.98 {
			lost = append(lost, fmt.Sprintf("%s: %.2f x the queries/s of %s", c, rate.best, second))
		}
	}
	fmt.Fprintf(w, "\nMuster's best row loses by more than 2 %%: %s.\n",
		orNone(strings.Join(lost, "; ")))
	for _, s := range slices.Sorted(maps.Keys(failed)) {
		fmt.Fprintf(w, "%s failed: %s\n", s, failed[s])
	}
}

func orNone(s string) string {
	if s == "" {
		return "nowhere"
	}
	return s
}

// rank orders servers in tables: Muster, ONNX Runtime alone, peers.
func rank(server string) int {
	switch {
	case strings.HasPrefix(server, "Muster"):
		return 0
	case strings.HasPrefix(server, "ONNX"):
		return 1
	}
	return 2
}

// short writes a figure with three digits or as a whole number.
func short(x float64) string {
	switch {
	case x <= 0:
		return "-"
	case x < 100:
		return fmt.Sprintf("%.3g", x)
	}
	return fmt.Sprintf("%.0f", x)
}

// medianOf returns the median over the rounds; 0 if there is none.
func (rs results) medianOf(server, name string, of func(figures) float64) float64 {
	var values []float64
	for _, x := range rs {
		if f, ok := x.Cases[name]; ok && x.Server == server {
			values = append(values, of(f))
		}
	}
	return harness.Quantile(values, 0.5)
}

// lead says how far Muster is ahead of a peer: above 1 it is.
type lead struct {
	standard float64 // by what it does without settings, and a client of the protocol by gRPC
	best     float64 // by the best of its rows, each as the median of its ratios
}

// leadOverPeers returns the lead over the best peer, as the median of the ratios of the rounds, and
// that peer.
func (rs results) leadOverPeers(name string, servers []string, of func(figures) float64) (l lead,
	peer string) {
	for _, own := range servers {
		if rank(own) > 0 {
			continue
		}
		least, who := 0.0, ""
		for _, s := range servers {
			if rank(s) < 2 {
				continue
			}
			if m := rs.medianRatio(name, own, s, of); m > 0 && (who == "" || m < least) {
				least, who = m, s
			}
		}
		if own == "Muster" {
			l.standard = least
		}
		if least > l.best {
			l.best, peer = least, who
		}
	}
	return l, peer
}

// medianRatio returns the median over the rounds of a figure of one server by that of another.
func (rs results) medianRatio(name, server, other string, of func(figures) float64) float64 {
	in := map[int]float64{}
	for _, x := range rs {
		if f, ok := x.Cases[name]; ok && x.Server == server {
			in[x.Round] = of(f)
		}
	}
	var ratios []float64
	for _, x := range rs {
		if f, ok := x.Cases[name]; ok && x.Server == other && in[x.Round] > 0 {
			ratios = append(ratios, in[x.Round]/of(f))
		}
	}
	return harness.Quantile(ratios, 0.5)
}

// ours reports whether a process was started by this one, or by one of those.
func ours(pid int) bool {
	env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	return err == nil && strings.Contains(string(env), fmt.Sprintf("MUSTER_PEERS=%d-", os.Getpid()))
}

// cpuTime returns the CPU time that the server's processes have used, in s.
func (p *process) cpuTime() (sum float64) {
	for _, pid := range marked(p.mark) {
		if proc, err := procfs.NewProc(pid); err == nil {
			if s, err := proc.Stat(); err == nil {
				sum += s.CPUTime()
			}
		}
	}
	return sum
}
