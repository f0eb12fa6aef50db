package profiles

import (
	"bufio"
	"compress/gzip"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"slices"
	"sort"
	"strconv"
	"time"
)

// Samples holds single measured latencies by model, instance type and batch size. It is immutable
// and safe for concurrent use.
type Samples struct {
	name   string
	series map[string]map[InstanceType]*Series
}

// A Series holds the samples of one model on one instance type.
type Series struct {
	Model        string
	InstanceType InstanceType
	batchSizes   []int             // ascending
	cells        [][]time.Duration // the samples at each of batchSizes
}

var samplesHeader = []string{"model", "instance_type", "batch_size", "sample_ms"}

// SamplesHeader returns the columns' names, which are the first line of a samples file.
func SamplesHeader() []string { return slices.Clone(samplesHeader) }

// OpenSamples reads the samples file at path; see ReadSamples.
func OpenSamples(path string) (*Samples, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read latency samples: %w", err)
	}
	defer f.Close()
	return ReadSamples(path, f)
}

// ReadSamples reads a CSV file, plain or compressed with gzip, whose header is
//
//	model,instance_type,batch_size,sample_ms
//
// followed by one line for each sample, in any order. If a model has a sample at a batch size on
// one instance type, it must have one at this batch size on all its instance types. Errors name the
// file (name), the line and the column, or the missing samples.
func ReadSamples(name string, r io.Reader) (*Samples, error) {
	s, err := readSamples(name, r)
	if err != nil {
		return nil, fmt.Errorf("read latency samples from %s: %w", name, err)
	}
	return s, nil
}

func readSamples(name string, r io.Reader) (*Samples, error) {
	buffered := bufio.NewReaderSize(r, 1<<16)
	r = buffered
	if magic, _ := buffered.Peek(2); len(magic) == 2 && magic[0] == 0x1f && magic[1] == 0x8b {
		z, err := gzip.NewReader(buffered)
		if err != nil {
			return nil, err
		}
		defer z.Close()
		r = z
	}
	rows := csv.NewReader(r)
	rows.ReuseRecord = true
	rows.FieldsPerRecord = -1 // checked below, with a better error
	header, err := rows.Read()
	if errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("empty; want the header %s", joinNames(samplesHeader))
	}
	if err != nil {
		return nil, err
	}
	if !slices.Equal(header, samplesHeader) {
		return nil, fmt.Errorf("line 1: the header is %q, want %q", header, samplesHeader)
	}

	s := &Samples{name: name, series: map[string]map[InstanceType]*Series{}}
	var last *Series
	lastCell := -1
	for {
		row, err := rows.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		line, _ := rows.FieldPos(0)
		if len(row) != len(samplesHeader) {
			return nil, fmt.Errorf("line %d: %d columns, want %d (%s)", line, len(row),
				len(samplesHeader), joinNames(samplesHeader))
		}
		for i := range 2 {
			if row[i] == "" {
				return nil, fmt.Errorf("line %d, column %s: empty", line, samplesHeader[i])
			}
		}
		batch, err := strconv.Atoi(row[2])
		if err != nil || batch < 1 || batch > MaxBatchSize {
			return nil, fmt.Errorf(
				"line %d, column batch_size: %q is not a whole number within 1..%d", line, row[2],
				MaxBatchSize)
		}
		latency, err := strconv.ParseFloat(row[3], 64)
		if err != nil || !(latency >= toMs(1)) || latency > toMs(maxLatency) ||
			math.IsNaN(latency) {
			return nil, fmt.Errorf(
				"line %d, column sample_ms: %q is not a latency in ms above 0 and up to %v", line,
				row[3], maxLatency)
		}
		if last == nil || last.Model != row[0] || string(last.InstanceType) != row[1] {
			last, lastCell = s.seriesOf(row[0], InstanceType(row[1])), -1
		}
		if lastCell < 0 || last.batchSizes[lastCell] != batch {
			lastCell = last.cellIndex(batch)
		}
		last.cells[lastCell] = append(last.cells[lastCell], fromMS(latency))
	}
	if len(s.series) == 0 {
		return nil, errors.New("no line after the header")
	}
	return s, s.checkComplete()
}

// seriesOf returns the series of a model on an instance type. It makes one if there is none.
func (s *Samples) seriesOf(model string, t InstanceType) *Series {
	if s.series[model] == nil {
		s.series[model] = map[InstanceType]*Series{}
	}
	if s.series[model][t] == nil {
		s.series[model][t] = &Series{Model: model, InstanceType: t}
	}
	return s.series[model][t]
}

// cellIndex returns the index of a batch size in s.cells. It adds an empty cell if there is none.
func (s *Series) cellIndex(batch int) int {
	i, found := slices.BinarySearch(s.batchSizes, batch)
	if !found {
		s.batchSizes = slices.Insert(s.batchSizes, i, batch)
		s.cells = slices.Insert(s.cells, i, nil)
	}
	return i
}

// checkComplete returns an error that names the first batch size for which one instance type has no
// sample and another one has.
func (s *Samples) checkComplete() error {
	for _, model := range s.Models() {
		var all []int
		for _, series := range s.series[model] {
			all = append(all, series.batchSizes...)
		}
		slices.Sort(all)
		all = slices.Compact(all)
		for _, t := range s.Types(model) {
			have := s.series[model][t].batchSizes
			for i, batch := range all {
				if i >= len(have) || have[i] != batch {
					return fmt.Errorf(
						"no sample of %s on %s at batch size %d, where other instance types have "+
							"some", model, t, batch)
				}
			}
		}
	}
	return nil
}

// Name returns the name of the file the samples were read from.
func (s *Samples) Name() string { return s.name }

// Models returns the models in alphabetical order.
func (s *Samples) Models() []string { return slices.Sorted(maps.Keys(s.series)) }

// Types returns the instance types a model was measured on, in alphabetical order.
func (s *Samples) Types(model string) []InstanceType {
	return slices.Sorted(maps.Keys(s.series[model]))
}

// Series returns the samples of a model on an instance type. If there are none, the error lists the
// models or types that have some.
func (s *Samples) Series(model string, t InstanceType) (*Series, error) {
	types, ok := s.series[model]
	if !ok {
		return nil, fmt.Errorf("%s holds no samples of model %q, only of %s", s.name, model,
			joinNames(s.Models()))
	}
	series, ok := types[t]
	if !ok {
		return nil, fmt.Errorf("%s holds no samples of %s on instance type %q, only on %s", s.name,
			model, t, joinNames(s.Types(model)))
	}
	return series, nil
}

// BatchSizes returns the batch sizes that were measured, ascending.
func (s *Series) BatchSizes() []int { return slices.Clone(s.batchSizes) }

// At returns the samples at the smallest measured batch size that is at least batch, or at the
// largest one. The slice belongs to the series; do not change it.
func (s *Series) At(batch int) []time.Duration {
	return s.cells[min(sort.SearchInts(s.batchSizes, batch), len(s.cells)-1)]
}

// Mean returns the mean of At(batch).
func (s *Series) Mean(batch int) time.Duration {
	var sum float64
	cell := s.At(batch)
	for _, d := range cell {
		sum += float64(d)
	}
	return time.Duration(math.Round(sum / float64(len(cell))))
}

// Table returns the series as a latency profile. It has a knot at every measured batch size, with
// the mean, the standard error of the mean, and the quantiles of the samples.
func (s *Series) Table(key Key) (*Table, error) {
	knots := make([]Knot, len(s.cells))
	for i, cell := range s.cells {
		sorted := slices.Sorted(slices.Values(cell))
		quantile := func(p float64) time.Duration {
			at := p * float64(len(sorted)-1)
			lo := int(at)
			hi := min(lo+1, len(sorted)-1)
			return sorted[lo] + time.Duration((at-float64(lo))*float64(sorted[hi]-sorted[lo]))
		}
		mean := s.Mean(s.batchSizes[i])
		var squares float64
		for _, d := range cell {
			squares += math.Pow(float64(d-mean), 2)
		}
		knots[i] = Knot{
			BatchSize: s.batchSizes[i], Mean: mean, P50: quantile(0.5), P90: quantile(0.9),
			P99: quantile(0.99),
		}
		if n := float64(len(cell)); n > 1 {
			knots[i].Error = math.Sqrt(squares/(n-1)/n) / float64(mean)
		}
	}
	return NewTable(key, Measured, "every sample", knots)
}
