package scaling

import (
	"bufio"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/muster-serve/muster/leader/place"
	"github.com/muster-serve/muster/reproduce/placements"
)

// Data is the artifact of Proteus (github.com/UMass-LIDS/Proteus), as its authors publish it. Its
// licence permits its use for comparisons only, so nothing of it is part of this program.
type Data struct {
	files fs.FS
	// order is, by type, in which order the profiles have variants and sizes.
	order [][]placements.VariantSize
}

// The traces of the artifact.
const (
	Twitter = "medium-normal_load"
	Bursty  = "zipf_exponential_bursty"
	Poisson = "zipf_exponential"
	Gamma   = "zipf_gamma"
	Uniform = "zipf_uniform"
)

// NewData returns the artifact in a directory.
func NewData(files fs.FS) (*Data, error) {
	for _, name := range []string{profiled, variantLists, traces} {
		if _, err := fs.Stat(files, name); err != nil {
			return nil, fmt.Errorf("data: no copy of github.com/UMass-LIDS/Proteus: %w", err)
		}
	}
	return &Data{files: files}, nil
}

const (
	profiled     = "profiling/aggregate_profiled.csv"
	variantLists = "traces/model_variants"
	traces       = "traces/twitter/asplos"
)

// artifactTypes are the types of the artifact's simulator. It has no profiles of its second type
// and takes it to be as the first. There are ten agents of each.
var artifactTypes = []struct{ name, profiled string }{
	{"CPU", "onnxruntime_cpu"}, {"GPU_AMPERE", "onnxruntime_gpu_ampere"},
	{"VPU", "onnxruntime_cpu"}, {"GPU_PASCAL", "onnxruntime_gpu_pascal"},
}

// Fleet is the artifact's fleet with the target of a trace's queries, and the trace.
func (d *Data) Fleet(trace string) (*placements.Fleet, []Query, error) {
	f := &placements.Fleet{Sizes: []int{1, 2, 4, 8}}
	for _, t := range artifactTypes {
		f.Types = append(f.Types, place.Type{Name: t.name, Count: 10})
	}
	lists, err := fs.ReadDir(d.files, variantLists)
	if err != nil {
		return nil, nil, err
	}
	variants := map[string]int{}
	var queries []Query
	for _, list := range lists {
		if list.IsDir() || strings.HasPrefix(list.Name(), ".") {
			continue
		}
		k := len(f.Families)
		its, target, err := d.trace(trace, list.Name(), k)
		if errors.Is(err, fs.ErrNotExist) {
			continue // this trace has no such queries
		}
		if err != nil {
			return nil, nil, err
		}
		queries = append(queries, its...)
		f.Families = append(f.Families, placements.Family{Name: list.Name(), Target: target})
		err = d.lines(path.Join(variantLists, list.Name()), 2, func(fields []string) error {
			accuracy, err := strconv.ParseFloat(fields[1], 64)
			variants[fields[0]] = len(f.Variants)
			f.Variants = append(f.Variants, placements.Variant{
				Model: fields[0], Family: k, Accuracy: accuracy,
			})
			return err
		})
		if err != nil {
			return nil, nil, err
		}
	}
	if len(queries) == 0 {
		return nil, nil, fmt.Errorf("data: %s/%s has no queries", traces, trace)
	}
	slices.SortStableFunc(queries, func(a, b Query) int { return int(a.At - b.At) })
	seconds := (queries[len(queries)-1].At + time.Second).Seconds()
	for _, q := range queries {
		f.Families[q.Family].Expected += 1 / seconds
	}
	return f, queries, d.latencies(f, variants)
}

// trace reads a family's queries, one a line: ms since the start, a number, the target in ms.
func (d *Data) trace(trace, family string, k int) (queries []Query, target time.Duration,
	err error) {
	name := path.Join(traces, trace, "300", family+".txt")
	err = d.lines(name, 3, func(fields []string) error {
		at, err := strconv.Atoi(fields[0])
		if err != nil {
			return err
		}
		ms, err := strconv.ParseFloat(fields[2], 64)
		if err != nil || !(ms > 0 && ms < 1e9) {
			return fmt.Errorf("the target is %q, want ms", fields[2])
		}
		target = time.Duration(ms * 1e6)
		queries = append(queries, Query{At: time.Duration(at) * time.Millisecond, Family: k})
		return nil
	})
	return queries, target, err
}

// lines calls do with the fields of each line of a file that are divided by commas.
func (d *Data) lines(name string, fields int, do func(fields []string) error) error {
	file, err := d.files.Open(name)
	if err != nil {
		return err
	}
	defer file.Close()
	scan := bufio.NewScanner(file)
	for n := 1; scan.Scan(); n++ {
		line := strings.TrimSpace(scan.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		its := strings.Split(line, ",")
		if len(its) < fields {
			return fmt.Errorf("%s:%d: %q, want %d fields", name, n, line, fields)
		}
		if err := do(its); err != nil {
			return fmt.Errorf("%s:%d: %w", name, n, err)
		}
	}
	return scan.Err()
}

// latencies reads the medians of the profiles.
func (d *Data) latencies(f *placements.Fleet, variants map[string]int) error {
	d.order = make([][]placements.VariantSize, len(f.Types))
	for range f.Types {
		of := make([][]time.Duration, len(f.Variants))
		for v := range of {
			of[v] = make([]time.Duration, len(f.Sizes))
		}
		f.Latency = append(f.Latency, of)
	}
	file, err := d.files.Open(profiled)
	if err != nil {
		return err
	}
	defer file.Close()
	read := csv.NewReader(file)
	header, err := read.Read()
	if err != nil {
		return fmt.Errorf("%s: %w", profiled, err)
	}
	column := func(name string) int { return slices.Index(header, name) }
	model, accel, batch, median := column("Model"), column("Accel"), column("batchsize"),
		column("50th_pct")
	if min(model, accel, batch, median) < 0 {
		return fmt.Errorf("%s: columns are %v, want Model, Accel, batchsize and 50th_pct", profiled,
			header)
	}
	for {
		row, err := read.Read()
		if err == io.EOF {
			d.rest(f)
			return nil
		}
		if err != nil {
			return fmt.Errorf("%s: %w", profiled, err)
		}
		v, ok := variants[row[model]]
		size, err := strconv.Atoi(row[batch])
		k := slices.Index(f.Sizes, size)
		if !ok || k < 0 && err == nil {
			continue
		}
		ms, err2 := strconv.ParseFloat(row[median], 64)
		if err := errors.Join(err, err2); err != nil {
			return fmt.Errorf("%s: %w", profiled, err)
		}
		for t := range artifactTypes {
			if artifactTypes[t].profiled == row[accel] {
				if f.Latency[t][v][k] == 0 {
					d.order[t] = append(d.order[t], placements.VariantSize{Variant: v, Size: k})
				}
				f.Latency[t][v][k] = time.Duration(ms * 1e6)
			}
		}
	}
}

// rest appends to the order what was not measured.
func (d *Data) rest(f *placements.Fleet) {
	for t := range d.order {
		for v := range f.Variants {
			for k := range f.Sizes {
				if f.Latency[t][v][k] == 0 {
					d.order[t] = append(d.order[t], placements.VariantSize{Variant: v, Size: k})
				}
			}
		}
	}
}

// INFaaS is the rival as the artifact has it, for the fleet that was read last.
func (d *Data) INFaaS() *placements.INFaaS {
	return &placements.INFaaS{AsArtifact: true, Order: d.order}
}

// A Placed is a placement of the artifact: counts by type and variant, and how queries are routed.
type Placed struct {
	Counts  [][]int
	Weights placements.Weights
}

// Placement reads the placement with which a system of a trace starts, by the artifact's settings.
// The weights repeat the artifact's: of several agents of a type and variant the last counts.
func (d *Data) Placement(f *placements.Fleet, trace, system string) (*Placed, error) {
	settings := path.Join("configs", trace, system+".json")
	text, err := fs.ReadFile(d.files, settings)
	if err != nil {
		return nil, err
	}
	var its struct {
		Allocation string `json:"static_allocation"`
	}
	if err := json.Unmarshal(text, &its); err != nil {
		return nil, fmt.Errorf("%s: %w", settings, err)
	}
	if text, err = fs.ReadFile(d.files, its.Allocation); err != nil {
		return nil, err
	}
	p := &Placed{}
	for range f.Types {
		p.Counts = append(p.Counts, make([]int, len(f.Variants)))
		p.Weights = append(p.Weights, make([]float64, len(f.Variants)))
	}
	at := func(variant, typ string) (t, v int, err error) {
		t = slices.IndexFunc(f.Types, func(t place.Type) bool { return t.Name == typ })
		v = slices.IndexFunc(f.Variants, func(v placements.Variant) bool { return v.Model == variant })
		if t < 0 || v < 0 {
			err = fmt.Errorf("%s: %s on %s is not of the fleet", its.Allocation, variant, typ)
		}
		return t, v, err
	}
	lines := strings.Split(string(text), "\n")
	if len(lines) < 6 {
		return nil, fmt.Errorf("%s: %d lines, want 6", its.Allocation, len(lines))
	}
	for _, m := range counted.FindAllStringSubmatch(lines[1], -1) {
		t, v, err := at(m[1], m[2])
		if err != nil {
			return nil, err
		}
		n, err := strconv.Atoi(m[3])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", its.Allocation, err)
		}
		p.Counts[t][v] += n
	}
	variant := map[string]string{}
	for _, m := range counted.FindAllStringSubmatch(lines[5], -1) {
		variant[m[2]] = m[1]
	}
	for _, m := range weighed.FindAllStringSubmatch(lines[3], -1) {
		typ, _, _ := strings.Cut(m[1], "-")
		t, v, err := at(variant[m[1]], typ)
		if err != nil {
			return nil, err
		}
		if p.Weights[t][v], err = strconv.ParseFloat(m[3], 64); err != nil {
			return nil, fmt.Errorf("%s: %w", its.Allocation, err)
		}
	}
	return p, nil
}

var (
	counted = regexp.MustCompile(`\('([^']+)', '([^']+)'\): (\d+)`)
	weighed = regexp.MustCompile(`\('([^']+)', (\d+)\): ([0-9.e+-]+)`)
)
