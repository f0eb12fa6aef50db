package figures

import (
	"cmp"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/muster-serve/muster/api/picture"
	"github.com/muster-serve/muster/profiles"
	"github.com/muster-serve/muster/profiles/published"
	"github.com/muster-serve/muster/profiles/workload"
	"github.com/muster-serve/muster/reproduce/policies"
	"github.com/muster-serve/muster/sim"
)

// A Figure is one reproduced figure.
type Figure struct {
	Name string
	// Rows are the figure's numbers as a table, the header first.
	Rows [][]string
	// Text says in a few sentences which claims of the paper hold here and which do not.
	Text []string

	picture func() *picture.Picture
}

// WriteCSV writes the numbers.
func (f *Figure) WriteCSV(w io.Writer) error { return csv.NewWriter(w).WriteAll(f.Rows) }

// WritePNG draws the figure.
func (f *Figure) WritePNG(w io.Writer) error { return f.picture().Write(w, "png") }

// show has the figure drawn as charts in rows of so many columns.
func (f *Figure) show(columns int, charts ...shown) {
	f.picture = func() *picture.Picture { return page(columns, charts...) }
}

// WriteText writes the sentences.
func (f *Figure) WriteText(w io.Writer) error {
	_, err := fmt.Fprintln(w, strings.Join(f.Text, "\n"))
	return err
}

// Options of a reproduction.
type Options struct {
	// Data is a directory with samples (samples.csv.gz or samples.csv) and, for RIBBON's figures,
	// its tables (mtwnd.json and dien.json); "" means the data published with the figure's paper.
	// For Proteus's figures it is a copy of that paper's artifact; "" means our own families.
	Data string
	// Pairs is a file of `muster profile --pairs`, for the figures of Hera that can be of measured
	// models; "" means built-in profiles.
	Pairs string
	// Seeds is the number of runs over which a throughput is averaged, Queries the number of
	// queries of each. Searches are repeated six times per seed.
	Seeds, Queries int
	// Clock, if not nil, is the time since any moment; proteus-fig10 measures by it.
	Clock func() time.Duration
	// Progress, if not nil, is called with what is being done, one call at a time.
	Progress func(format string, args ...any)
}

// budget is that of KAIROS's experiments, in $/hr.
const budget = 2.5

// paperModels are the models of KAIROS's experiments in its order.
var paperModels = []string{"ncf", "rm2", "wnd", "mtwnd", "dien"}

// figures makes each figure.
var figures = map[string]func(context.Context, *lab) (*Figure, error){
	"kairos-fig1":   fig1,
	"kairos-fig2":   fig2,
	"kairos-fig3":   fig3,
	"kairos-fig5":   fig5,
	"kairos-fig8":   fig8,
	"kairos-fig9":   fig9,
	"kairos-fig10":  fig10,
	"kairos-fig11":  fig11,
	"kairos-fig12":  fig12,
	"kairos-fig13":  fig13,
	"kairos-fig14":  fig14,
	"kairos-fig15":  fig15,
	"kairos-fig16":  fig16,
	"hera-fig6":     heraFig6,
	"hera-fig7":     heraFig7,
	"hera-fig10":    heraFig10,
	"hera-fig11":    heraFig11,
	"hera-fig12":    heraFig12,
	"hera-fig14":    heraFig14,
	"hera-fig15":    heraFig15,
	"hera-fig17":    heraFig17,
	"proteus-fig4":  proteusFig4,
	"proteus-fig5":  proteusFig5,
	"proteus-fig6":  proteusFig6,
	"proteus-fig7":  proteusFig7,
	"proteus-fig10": proteusFig10,
	"proteus-wrong": proteusWrong,
	"ribbon-fig4":   ribbonFig4,
	"ribbon-fig8":   ribbonFig8,
	"ribbon-fig9":   ribbonFig9,
	"ribbon-fig10":  ribbonFig10,
	"ribbon-fig11":  ribbonFig11,
	"ribbon-fig12":  ribbonFig12,
	"ribbon-fig13":  ribbonFig13,
	"ribbon-fig14":  ribbonFig14,
	"ribbon-fig15":  ribbonFig15,
	"ribbon-fig16":  ribbonFig16,
}

// Names lists the figures that can be reproduced, by paper and number.
func Names() []string {
	return slices.SortedFunc(maps.Keys(figures), func(a, b string) int {
		paperA, _, _ := strings.Cut(a, "-")
		paperB, _, _ := strings.Cut(b, "-")
		return cmp.Or(cmp.Compare(paperA, paperB), cmp.Compare(len(a), len(b)), cmp.Compare(a, b))
	})
}

// Reproduce makes the named figure; the error for an unknown name lists the known ones.
func Reproduce(ctx context.Context, name string, o Options) (*Figure, error) {
	reproduce := figures[name]
	if reproduce == nil {
		return nil, fmt.Errorf("figure %q is unknown, there are: %s", name,
			strings.Join(Names(), ", "))
	}
	if o.Pairs != "" && !slices.Contains(ofPairs, name) {
		return nil, fmt.Errorf("%s is not of measured pairs; these are: %s", name,
			strings.Join(ofPairs, ", "))
	}
	paper, _, _ := strings.Cut(name, "-")
	l, err := newLab(o, paper)
	if err != nil {
		return nil, err
	}
	f, err := reproduce(ctx, l)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	f.Name = name
	// RIBBON's figures differ in what they are from, and say so themselves
	if paper == published.KAIROS {
		f.Text = append(f.Text, l.provenance(name != "kairos-fig5"))
	}
	return f, nil
}

// A lab has the data and options that the figures share.
type lab struct {
	Options
	data    fs.FS // Options.Data, or the paper's published files
	samples *profiles.Samples
	source  *sim.Source // of the samples
	prices  []sim.Price
}

func newLab(o Options, paper string) (*lab, error) {
	l := &lab{Options: o}
	if paper == "hera" { // its figures are of built-in profiles
		return l, nil
	}
	var err error
	if paper == proteusPaper { // its data are of another form, or our own families are of KAIROS's
		l.samples, err = published.Samples(published.KAIROS)
	} else if o.Data == "" {
		l.data = published.Files(paper)
		l.samples, err = published.Samples(paper)
	} else {
		l.data = os.DirFS(o.Data)
		l.samples, err = samplesIn(o.Data)
	}
	if err != nil {
		return nil, err
	}
	l.source = sim.NewSource(l.samples)
	l.prices, err = sim.Prices(profiles.DefaultCatalogue(), sim.PaperTypes())
	return l, err
}

// samplesIn reads the samples in a directory.
func samplesIn(dir string) (*profiles.Samples, error) {
	for _, name := range []string{"samples.csv.gz", "samples.csv"} {
		samples, err := profiles.OpenSamples(filepath.Join(dir, name))
		if err == nil {
			return samples, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("data: %w", err)
		}
	}
	return nil, fmt.Errorf("data: %s has neither samples.csv.gz nor samples.csv", dir)
}

// provenance says where the numbers come from; throughputs says that they are throughputs.
func (l *lab) provenance(throughputs bool) string {
	s := fmt.Sprintf("Latencies: %s.", l.source)
	if throughputs {
		s += fmt.Sprintf(
			" Poisson arrivals, %d queries a run, %d seeds; an allowable throughput is the "+
				"highest rate at which 99 %% of the queries meet their QoS target.", l.Queries,
			l.Seeds)
	}
	return s
}

func (l *lab) progress(format string, args ...any) {
	if l.Progress != nil {
		l.Progress(format, args...)
	}
}

// config is the paper's setting for a model.
func (l *lab) config(model string, sizes *workload.BatchSizes) (*sim.Config, error) {
	m, err := l.source.Model(model, sim.PaperTypes(), sizes, 0)
	if err != nil {
		return nil, err
	}
	return &sim.Config{
		Models: []sim.Model{m}, Queries: l.Queries, Seed: 1, Others: policies.All(),
	}, nil
}

// compare finds each policy's best pool for the model.
func (l *lab) compare(ctx context.Context, cfg *sim.Config, policies []string) (*sim.Comparison,
	error) {
	model := cfg.Models[0].Name
	return sim.Compare(ctx, cfg, policies, l.prices, budget, nil, l.Seeds,
		func(policy string, done, of int) {
			l.progress("%s, %s: %d of %d pools", model, policy, done, of)
		})
}

// throughput finds the allowable throughput of a policy on a pool.
func (l *lab) throughput(ctx context.Context, cfg *sim.Config, policy string,
	pool sim.Pool) (*sim.Throughput, error) {
	l.progress("%s, %s on %s", cfg.Models[0].Name, policy, pool)
	one := *cfg
	one.Policy, one.Pool = policy, pool
	return sim.FindThroughput(ctx, &one, l.Seeds, nil)
}

// homogeneous is the throughput of instances of the paper's base type alone, scaled to
// the budget in $/hr.
func (l *lab) homogeneous(ctx context.Context, cfg *sim.Config, budget float64) (float64, error) {
	c, err := sim.Compare(ctx, cfg, nil, l.prices[:1], budget, nil, l.Seeds, nil)
	if err != nil {
		return 0, err
	}
	return c.HomogeneousScaled, nil
}

func number(x float64) string { return strconv.FormatFloat(x, 'f', 4, 64) }

// counts writes a pool as the papers do: (4,0,0).
func counts(p sim.Pool, types []string) string {
	var n []string
	for _, t := range types {
		n = append(n, strconv.Itoa(p.Of(t)))
	}
	return "(" + strings.Join(n, ",") + ")"
}

// least and most are the extremes of a ratio over groups, with the group's name.
func least(values []float64, groups []string) (float64, string) {
	i := slices.Index(values, slices.Min(values))
	return values[i], groups[i]
}

func most(values []float64, groups []string) (float64, string) {
	i := slices.Index(values, slices.Max(values))
	return values[i], groups[i]
}

// outcome says whether a claim of the paper holds here.
func outcome(holds bool) string {
	if holds {
		return "Reproduces"
	}
	return "Does not reproduce"
}
