package placecmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/muster-serve/muster/agent/worker"
	"github.com/muster-serve/muster/cmd/muster/internal/misuse"
	"github.com/muster-serve/muster/cmd/muster/internal/terminal"
	"github.com/muster-serve/muster/leader/place"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/profiles/sharing"
)

func newHeraCommand() *cobra.Command {
	var load float64
	var steps int
	var asJSON bool
	var modelDir string
	cmd := &cobra.Command{
		Use:   "hera FILE",
		Short: "Find which models share servers well, and how many servers they need",
		Long: `Find which models share servers well: for each two models in FILE, how little they
slow each other (Hera's Algorithm 1) and how much of a server they use at their best
split. Then count the servers for a demand: with one model a server, with pairs by
Hera's Algorithm 2, and with the pairs that "muster place solve" finds.

FILE is JSON, "-" is the standard input; docs/placement.md describes it, and "muster
profile" writes it. With --model-dir the command fails if a model there is not the
one that was measured.

The demand of each model is --load times the maximum that one server serves.`,
		Example: `  muster place hera profiles.json --load 10
  muster place hera profiles.json --load 1 --json`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !(load > 0 && load <= 1e6) {
				return misuse.Errorf("--load is %v, want a number above 0, at most 1e6", load)
			}
			s, err := readSharing(args[0], cmd.InOrStdin())
			if err != nil {
				return err
			}
			if modelDir != "" {
				if err := checkModels(cmd.Context(), args[0], modelDir); err != nil {
					return err
				}
			}
			r, err := s.makeReport(load, steps)
			if err != nil {
				return err
			}
			if asJSON {
				return terminal.PrintJSON(cmd.OutOrStdout(), r)
			}
			return r.writeText(cmd.OutOrStdout(), s)
		},
	}
	cmd.Flags().Float64Var(&load, "load", 1,
		"demand of each model, as a multiple of the maximum that one server serves")
	cmd.Flags().IntVar(&steps, "steps", place.DefaultSteps,
		"maximum steps of the search; one takes some microseconds")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().StringVar(&modelDir, "model-dir", "",
		"directory of models, which must be those that FILE was measured with")
	return cmd
}

// heraFile is a file of profiles.
type heraFile struct {
	machine  place.Machine
	profiles []*place.Profile
}

func readSharing(path string, stdin io.Reader) (*heraFile, error) {
	d, root, err := readDocument(path, stdin)
	if err != nil {
		return nil, err
	}
	s := &heraFile{}
	s.read(root)
	if err := d.err(); err != nil {
		return nil, err
	}
	return s, nil
}

// maxCores bounds the cores and ways of a file.
const maxCores = 1024

func (s *heraFile) read(root element) {
	// What such a file may hold beside, as the answers of another program, is not read.
	fields := root.readFields([]string{"cores", "ways", "bw_gbs", "low", "qps", "membw_half_cores"},
		[]string{"note", "affinity", "emu", "slowdown", "models", "machine", "bandwidth_by",
			"slowdown_error", "latencies", "steal", "others", "unsure"})
	if fields == nil {
		return
	}
	s.machine = place.Machine{
		Cores: fields["cores"].readCount(maxCores), Ways: fields["ways"].readCount(maxCores),
		Bandwidth: fields["bw_gbs"].readNumber(),
	}
	if s.machine.Cores < 2 {
		fields["cores"].addFault("is %s, want at least 2", fields["cores"].foundText())
	}
	at := map[string]*place.Profile{}
	models, tables := fields["qps"].readMembers()
	for i, model := range models {
		p := &place.Profile{Model: model}
		at[model] = p
		s.profiles = append(s.profiles, p)
		rows := tables[i].readItems()
		if len(rows) != s.machine.Cores+1 {
			tables[i].addFault("has %d rows, want one for each number of workers from 0 to %d",
				len(rows), s.machine.Cores)
		}
		for _, row := range rows {
			var by []float64
			for _, e := range row.readItems() {
				by = append(by, e.readNumber())
			}
			if len(by) != s.machine.Ways+1 {
				row.addFault("has %d numbers, want one for each number of ways from 0 to %d",
					len(by),
					s.machine.Ways)
			}
			p.QPS = append(p.QPS, by)
		}
	}
	named, bandwidths := fields["membw_half_cores"].readMembers()
	has := map[string]bool{}
	for i, model := range named {
		if p := at[model]; p != nil {
			p.Bandwidth, has[model] = bandwidths[i].readNumber(), true
		} else {
			bandwidths[i].addFault("qps has no such model")
		}
	}
	for i, model := range models {
		if !has[model] {
			tables[i].addFault("membw_half_cores has no such model")
		}
	}
	if slowdown, ok := fields["slowdown"]; ok {
		readSlowdown(slowdown, at)
	}
	for _, e := range fields["low"].readItems() {
		model := e.readText()
		switch p := at[model]; {
		case p == nil && model != "":
			e.addFault("qps has no model %q", model)
		case p != nil && p.Low:
			e.addFault("%q is given twice", model)
		case p != nil:
			p.Low = true
		}
	}
}

func readSlowdown(slowdown element, at map[string]*place.Profile) {
	models, tables := slowdown.readMembers()
	for i, model := range models {
		p := at[model]
		if p == nil {
			tables[i].addFault("qps has no such model")
			continue
		}
		p.Slowdown = map[string]float64{}
		neighbours, values := tables[i].readMembers()
		for j, neighbour := range neighbours {
			if at[neighbour] == nil {
				values[j].addFault("qps has no such model")
			}
			if p.Slowdown[neighbour] = values[j].readNumber(); p.Slowdown[neighbour] == 0 {
				values[j].addFault("is 0, want a number above 0")
			}
		}
	}
}

// checkModels reports which models of a file that `muster profile` has written are not those of the
// repository dir any more. Models that are not there are not looked for.
func checkModels(ctx context.Context, path, dir string) error {
	if path == "-" {
		return misuse.Errorf("--model-dir: the standard input is read once, name a file")
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	measured, err := sharing.Read(path, f)
	if err != nil {
		return err
	}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(measured.Models)) {
		v, err := models.ReadNewest(dir, name)
		if errors.Is(err, models.ErrNotFound) {
			continue
		}
		if err != nil {
			return err
		}
		sum, err := worker.Checksum(ctx, v)
		if err != nil {
			return err
		}
		if err := measured.Check(name, v.Number, sum, 0); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", path, err))
		}
	}
	return errors.Join(errs...)
}

// A sharingReport is the output of `muster place hera`; --json prints its fields.
type sharingReport struct {
	Affinity map[string]map[string]float64 `json:"affinity"`
	EMU      map[string]float64            `json:"emu"`
	Servers  serverCounts                  `json:"servers"`
}

type serverCounts struct {
	OneModel   int `json:"one_model_a_server"`
	Algorithm2 int `json:"algorithm2"`
	Solve      int `json:"solve"`
}

func (s *heraFile) makeReport(load float64, steps int) (*sharingReport, error) {
	if steps < 0 {
		return nil, misuse.Errorf("--steps is %d, want >= 0", steps)
	}
	r := &sharingReport{Affinity: map[string]map[string]float64{}, EMU: map[string]float64{}}
	demand := make([]float64, len(s.profiles))
	for i, a := range s.profiles {
		r.Affinity[a.Model] = map[string]float64{}
		for j, b := range s.profiles {
			r.Affinity[a.Model][b.Model] = s.machine.Affinity(a, b)
			if j > i {
				r.EMU[a.Model+"|"+b.Model] = s.machine.BestSplit(a, b).Utilisation(a, b)
			}
		}
		if most := a.Most(); most > 0 {
			demand[i] = load * most
			r.Servers.OneModel += place.Alone(demand[i], most)
		}
	}
	if len(s.profiles) == 0 {
		return r, nil
	}
	r.Servers.Algorithm2 = len(s.machine.Schedule(s.profiles, demand))
	sol, _, err := s.machine.FewestServers(s.profiles, demand, steps)
	if err != nil {
		return nil, err
	}
	if sol.Served < 1-1e-9 {
		return nil, errors.New("no servers were found that serve all of the demand")
	}
	r.Servers.Solve = sol.Agents
	return r, nil
}

func (r *sharingReport) writeText(to io.Writer, s *heraFile) error {
	var b strings.Builder
	if err := writeMatrix(&b, "affinity", s, func(i, j int) string {
		return fmt.Sprintf("%.3f", r.Affinity[s.profiles[i].Model][s.profiles[j].Model])
	}); err != nil {
		return err
	}
	b.WriteString("\n")
	if err := writeMatrix(&b, "utilisation", s, func(i, j int) string {
		if j <= i {
			return ""
		}
		return fmt.Sprintf("%.3f", r.EMU[s.profiles[i].Model+"|"+s.profiles[j].Model])
	}); err != nil {
		return err
	}
	fmt.Fprintf(&b, "\nservers: %d with one model each, %d by Algorithm 2, %d by Solve\n",
		r.Servers.OneModel, r.Servers.Algorithm2, r.Servers.Solve)
	_, err := io.WriteString(to, b.String())
	return err
}

// writeMatrix writes a table with a row and a column for each model.
func writeMatrix(to io.Writer, title string, s *heraFile, cell func(i, j int) string) error {
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "%s\t", title)
	for _, p := range s.profiles {
		fmt.Fprintf(w, "%s\t", terminal.Plain(p.Model))
	}
	fmt.Fprintln(w)
	for i, p := range s.profiles {
		fmt.Fprintf(w, "%s\t", terminal.Plain(p.Model))
		for j := range s.profiles {
			fmt.Fprintf(w, "%s\t", cell(i, j))
		}
		fmt.Fprintln(w)
	}
	return w.Flush()
}
