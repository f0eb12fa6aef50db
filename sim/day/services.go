package day

import (
	"bufio"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
)

// A publicFormat is how others publish the load of many services. Each line of such a file tells of
// one of them.
type publicFormat struct {
	header string // what the file begins with
	read   func(*serviceLoads, *csvLine) error
	// summed: what read adds holds for that minute and all later ones.
	summed bool
}

// publicFormats are those of Azure Functions' invocations of 2019, by minutes, and of 2021, one by
// one, and of the instances of Alibaba's recommendation services of 2025, whose queries nobody has
// published: how many instances a service has stands for its load.
var publicFormats = []publicFormat{
	{header: "HashOwner,HashApp,HashFunction,Trigger,1,", read: readMinutes},
	{header: "app,func,end_timestamp,duration", read: readInvocation},
	{header: "instance_sn,role,app_name,", read: readInstance, summed: true},
}

const (
	// maxPublicMinutes bounds a time in such a file: the longest, of Alibaba, has 31 days.
	maxPublicMinutes = 60 * 24 * 60
	// maxServiceMinutes bounds the memory that a file takes: 512 MB. A day of Azure's of 2019 has
	// some 12,000 services, which take 140 MB.
	maxServiceMinutes = 1 << 26
)

// serviceLoads are the loads of services, by minutes.
type serviceLoads struct {
	of      map[string][]float64
	minutes int
	held    int // values in of
	summed  bool
}

// add adds to the load of a service from a second on, which may be any number.
func (s *serviceLoads) add(service string, second, load float64) error {
	if service == "" || len(service) > 256 {
		return fmt.Errorf("got the service %.40q, want a name of 1 to 256 bytes", service)
	}
	if !(second >= 0 && second < 60*maxPublicMinutes) {
		return fmt.Errorf("got the time %v s, want 0..%d", second, 60*maxPublicMinutes)
	}
	if math.IsNaN(load) || math.Abs(load) > 1e9 {
		return fmt.Errorf("got %v queries, want 0..1e9", load)
	}
	minute := int(second / 60)
	its := s.of[service]
	if missing := minute + 1 - len(its); missing > 0 {
		if s.held += missing; s.held > maxServiceMinutes {
			return fmt.Errorf("more than %d minutes of all services, want a part of the file",
				maxServiceMinutes)
		}
		its = append(its, make([]float64, missing)...)
	}
	its[minute] += load
	if _, ok := s.of[service]; !ok {
		service = strings.Clone(service) // of its line
	}
	s.of[service] = its
	s.minutes = max(s.minutes, minute+1)
	return nil
}

// A csvLine is a line of a file with named columns.
type csvLine struct {
	columns map[string]int
	cells   []string
}

func (l *csvLine) text(column string) (string, error) {
	i, ok := l.columns[column]
	if !ok {
		return "", fmt.Errorf("there is no column %s", column)
	}
	return l.cells[i], nil
}

// number is that of a column; absent if it is empty.
func (l *csvLine) number(column string, absent float64) (float64, error) {
	text, err := l.text(column)
	if err != nil || text == "" {
		return absent, err
	}
	x, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsInf(x, 0) {
		return 0, fmt.Errorf("%s: got %.40q, want a number", column, text)
	}
	if math.IsNaN(x) {
		return absent, nil
	}
	return x, nil
}

// readMinutes reads a function of Azure of 2019: how often it was called in each minute of a day.
func readMinutes(s *serviceLoads, l *csvLine) error {
	app, err := l.text("HashApp")
	if err != nil {
		return err
	}
	for minute := 1; minute <= 24*60; minute++ {
		column := strconv.Itoa(minute)
		if _, ok := l.columns[column]; !ok {
			break
		}
		n, err := l.number(column, 0)
		switch {
		case err != nil:
			return err
		case n < 0:
			return fmt.Errorf("minute %s: got %v calls, want 0 or more", column, n)
		}
		if err := s.add(app, float64(60*(minute-1)), n); err != nil {
			return err
		}
	}
	return nil
}

// readInvocation reads a call of a function of Azure of 2021, which began when it ended less its
// duration: those that began before the file does count for its start.
func readInvocation(s *serviceLoads, l *csvLine) error {
	app, err := l.text("app")
	end, err2 := l.number("end_timestamp", math.NaN())
	took, err3 := l.number("duration", 0)
	if err := errors.Join(err, err2, err3); err != nil {
		return err
	}
	return s.add(app, max(0, end-took), 1)
}

// readInstance reads an instance of Alibaba, whose times are empty where they lie outside the
// record.
func readInstance(s *serviceLoads, l *csvLine) error {
	app, err := l.text("app_name")
	from, err2 := l.number("creation_time", 0)
	until, err3 := l.number("deletion_time", -1)
	if err := errors.Join(err, err2, err3); err != nil {
		return err
	}
	if err := s.add(app, from, 1); err != nil || until < 0 {
		return err
	}
	if until < from {
		return fmt.Errorf("deletion_time: got %v, before creation_time, %v", until, from)
	}
	return s.add(app, until, -1)
}

// countServices returns the load by minutes of all services of a public record together, or, with a
// rank above 0, of the one with the rank-th largest load.
func countServices(format *publicFormat, from io.Reader, rank int) ([]float64, error) {
	s, err := readServices(format, from)
	if err != nil {
		return nil, err
	}
	return s.pick(rank)
}

// formatOf is the format of what b begins with; nil if it is none of those.
func formatOf(b *bufio.Reader) *publicFormat {
	for i := range publicFormats {
		f := &publicFormats[i]
		if start, _ := b.Peek(len(f.header)); string(start) == f.header {
			return f
		}
	}
	return nil
}

func readServices(format *publicFormat, from io.Reader) (*serviceLoads, error) {
	lines := csv.NewReader(from)
	lines.ReuseRecord = true
	header, err := lines.Read()
	if err != nil {
		return nil, err
	}
	l := &csvLine{columns: map[string]int{}}
	for i, column := range header {
		l.columns[strings.Clone(column)] = i
	}
	s := &serviceLoads{of: map[string][]float64{}, summed: format.summed}
	for {
		l.cells, err = lines.Read()
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, err // names the line
		}
		if err := format.read(s, l); err != nil {
			line, _ := lines.FieldPos(0)
			return nil, fmt.Errorf("line %d: %w", line, err)
		}
	}
	if format.summed {
		for _, its := range s.of {
			for i := 1; i < len(its); i++ {
				its[i] += its[i-1]
			}
		}
	}
	return s, nil
}

// lastOf is the load of a service after the last line that tells of it.
func (s *serviceLoads) lastOf(its []float64) float64 {
	if s.summed {
		return its[len(its)-1]
	}
	return 0
}

// pick is the load of all services, or of that of a rank.
func (s *serviceLoads) pick(rank int) ([]float64, error) {
	type total struct {
		service string
		load    float64
	}
	var all []total
	sum := make([]float64, s.minutes)
	for service, its := range s.of {
		t, last := total{service: service}, s.lastOf(its)
		for i := range sum {
			x := last
			if i < len(its) {
				x = its[i]
			}
			t.load += x
			sum[i] += x
		}
		all = append(all, t)
	}
	if rank == 0 {
		return sum, nil
	}
	if rank > len(all) {
		return nil, fmt.Errorf("got #%d, want #1 to #%d: it has %d services", rank, len(all), len(all))
	}
	slices.SortFunc(all, func(a, b total) int {
		if a.load != b.load {
			if a.load > b.load {
				return -1
			}
			return 1
		}
		return strings.Compare(a.service, b.service)
	})
	its := s.of[all[rank-1].service]
	last := s.lastOf(its)
	for len(its) < s.minutes {
		its = append(its, last)
	}
	return its, nil
}
