package day

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A Curve is how a load changes over the day, as factors of its mean. It repeats after its length,
// which is a day, or that of recorded queries.
type Curve struct {
	points []point // by time; between two of them the factor changes evenly
	length time.Duration
	shift  time.Duration
	scale  float64 // the mean as its file has it
}

type point struct {
	at     time.Duration
	factor float64
}

// Length is the length of a day.
const Length = 24 * time.Hour

// minMinutes is how long recorded queries last at least that a curve is made of: in one minute the
// load would be flat.
const minMinutes = 2

// Daily is the curve that rises once a day from two sevenths of the mean, at midnight, to twelve
// sevenths, at noon, as a cosine: that of the day of docs/rent.md.
func Daily() *Curve {
	c := &Curve{length: Length}
	for at := time.Duration(0); at < Length; at += 10 * time.Minute {
		c.points = append(c.points,
			point{at, 1 - 5./7*math.Cos(2*math.Pi*at.Hours()/Length.Hours())})
	}
	return c
}

// Flat is the curve of a load that does not change.
func Flat() *Curve { return &Curve{points: []point{{0, 1}}, length: Length} }

// ParseCurve reads "daily", "flat", or the path of a file, with "+DURATION" after it for a curve
// that comes later by that. The file is a CSV file as [ReadCurve] reads it, a public record of many
// services (publicFormats), of which "#RANK" after the path takes the one with the RANK-th largest
// load, or any other of which countRecorded returns how many queries arrive in each minute.
func ParseCurve(text string, countRecorded func(path string) ([]float64, error)) (*Curve, error) {
	name, later, shifted := strings.Cut(text, "+")
	var c *Curve
	switch name {
	case "daily":
		c = Daily()
	case "flat":
		c = Flat()
	default:
		var err error
		c, err = readCurveFile(text, name, countRecorded)
		if err != nil {
			return nil, err
		}
	}
	if shifted {
		d, err := time.ParseDuration(later)
		if most := max(Length, c.length); err != nil || d < 0 || d >= most {
			return nil, fmt.Errorf("curve %q: got +%s, want a time below %v, e.g. +6h", text, later,
				most)
		}
		d %= c.length
		c.shift = d
	}
	return c, nil
}

// readCurveFile reads the curve of a file, which text names.
func readCurveFile(text, name string, countRecorded func(path string) ([]float64, error)) (*Curve,
	error) {
	path, rank, ranked := strings.Cut(name, "#")
	service := 0
	if ranked {
		var err error
		if service, err = strconv.Atoi(rank); err != nil || service < 1 {
			return nil, fmt.Errorf("curve %q: got #%s, want the rank of a service, from #1", text, rank)
		}
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("curve %q: want daily, flat, a CSV file with the columns hour and "+
			"factor, recorded queries, or a public record of services: %w", text, err)
	}
	defer f.Close()
	b := bufio.NewReader(f)
	if start, _ := b.Peek(len("hour")); string(start) == "hour" && !ranked {
		return ReadCurve(name, b)
	}
	if format := formatOf(b); format != nil {
		counts, err := countServices(format, b, service)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		return recorded(name, counts)
	}
	if ranked {
		return nil, fmt.Errorf("curve %q: %s is no public record of services, of which #%d would be one",
			text, path, service)
	}
	counts, err := countRecorded(path)
	if err != nil {
		return nil, err
	}
	return recorded(name, counts)
}

// ReadCurve reads a CSV file with the columns hour, which rises from 0 up to below 24, and factor,
// or any other measure of the load: the mean counts as 1.
func ReadCurve(name string, from io.Reader) (*Curve, error) {
	c := &Curve{length: Length}
	lines := bufio.NewScanner(from)
	for n := 1; lines.Scan(); n++ {
		text := strings.TrimSpace(lines.Text())
		if n == 1 || text == "" {
			if n == 1 && text != "hour,factor" {
				return nil, fmt.Errorf("%s line 1: got %q, want the columns hour,factor", name, text)
			}
			continue
		}
		hour, factor, _ := strings.Cut(text, ",")
		h, err := strconv.ParseFloat(hour, 64)
		x, err2 := strconv.ParseFloat(factor, 64)
		if errors.Join(err, err2) != nil || !(h >= 0 && h < 24) || !(x >= 0 && x <= 1e9) {
			return nil, fmt.Errorf("%s line %d: got %q, want an hour in 0..24 and a factor of 0 or "+
				"more", name, n, text)
		}
		at := time.Duration(h * float64(time.Hour))
		if k := len(c.points); k > 0 && at <= c.points[k-1].at {
			return nil, fmt.Errorf("%s line %d: hour %s is not after the one before", name, n, hour)
		}
		c.points = append(c.points, point{at, x})
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if len(c.points) == 0 {
		return nil, fmt.Errorf("%s has no hour", name)
	}
	return c, c.scaleToMean(name)
}

// scaleToMean makes the mean of the factors 1.
func (c *Curve) scaleToMean(name string) error {
	if c.scale = c.mean(); c.scale == 0 {
		return fmt.Errorf("%s: all factors are 0", name)
	}
	for i := range c.points {
		c.points[i].factor /= c.scale
	}
	return nil
}

// recorded makes a curve of how many queries of a record arrive in each minute. It lasts as many
// minutes, and repeats after them.
func recorded(name string, counts []float64) (*Curve, error) {
	if len(counts) < minMinutes {
		return nil, fmt.Errorf("%s lasts %d minutes, want %d or more, so that a load changes in it",
			name, len(counts), minMinutes)
	}
	c := &Curve{length: time.Duration(len(counts)) * time.Minute}
	for i, n := range counts {
		c.points = append(c.points, point{time.Duration(i)*time.Minute + time.Minute/2, n})
	}
	return c, c.scaleToMean(name)
}

// mean is the mean factor of a day.
func (c *Curve) mean() (mean float64) {
	for i, p := range c.points {
		next := c.points[(i+1)%len(c.points)]
		long := next.at - p.at
		if i+1 == len(c.points) {
			long += c.length
		}
		mean += (p.factor + next.factor) / 2 * float64(long) / float64(c.length)
	}
	return mean
}

// At is the factor at a time, which may lie before the day or after it.
func (c *Curve) At(at time.Duration) float64 {
	at = ((at-c.shift)%c.length + c.length) % c.length
	i, _ := slices.BinarySearchFunc(c.points, at, func(p point, at time.Duration) int {
		if p.at <= at {
			return -1
		}
		return 1
	})
	before, after := c.points[(i+len(c.points)-1)%len(c.points)], c.points[i%len(c.points)]
	long, since := after.at-before.at, at-before.at
	if long <= 0 {
		long += c.length
	}
	if since < 0 {
		since += c.length
	}
	return before.factor + (after.factor-before.factor)*float64(since)/float64(long)
}

// Max is the largest factor.
func (c *Curve) Max() (most float64) {
	for _, p := range c.points {
		most = max(most, p.factor)
	}
	return most
}
