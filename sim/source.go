package sim

import (
	"errors"
	"fmt"
	"iter"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/muster-serve/muster/leader/match"
	"github.com/muster-serve/muster/profiles"
	"github.com/muster-serve/muster/profiles/published"
	"github.com/muster-serve/muster/profiles/workload"
	"github.com/muster-serve/muster/sim/latency"
)

// A Source provides latencies: from samples, or from the profiles shipped with Muster.
type Source struct {
	samples *profiles.Samples // nil: the shipped profiles
	library *profiles.Library
}

// OpenSource opens a file of samples. [published.Name] stands for the samples published with
// KAIROS, "" for the shipped profiles.
func OpenSource(samples string) (*Source, error) {
	if samples == "" {
		return NewSource(nil), nil
	}
	s, err := OpenSamples(samples, published.KAIROS)
	if err != nil {
		return nil, err
	}
	return NewSource(s), nil
}

// NewSource returns a source of samples; nil means the shipped profiles.
func NewSource(samples *profiles.Samples) *Source {
	return &Source{samples: samples, library: profiles.ShippedLibrary()}
}

// OpenSamples opens a file of samples. [published.Name] stands for the samples published with the
// paper.
func OpenSamples(path, paper string) (*profiles.Samples, error) {
	if path == published.Name {
		return published.Samples(paper)
	}
	return profiles.OpenSamples(path)
}

// String describes the source for people.
func (s *Source) String() string {
	if s.samples != nil {
		return "samples " + s.samples.Name()
	}
	return "shipped profiles"
}

// Models returns the names of the models with known latencies, sorted.
func (s *Source) Models() []string {
	if s.samples != nil {
		return s.samples.Models()
	}
	return s.library.Models()
}

// InstanceTypes returns the instance types on which the model's latencies are known, sorted.
func (s *Source) InstanceTypes(model string) []string {
	types := s.library.Types(model)
	if s.samples != nil {
		types = s.samples.Types(model)
	}
	names := make([]string, len(types))
	for i, t := range types {
		names[i] = string(t)
	}
	return names
}

// Model returns a model with its latencies on the instance types. Its QoS target is qosTarget, or
// if that is 0 the model's usual one. Batch sizes above the largest measured one are left out of
// batchSizes. Errors about unknown models and types list the known ones.
func (s *Source) Model(name string, instanceTypes []string, batchSizes *workload.BatchSizes,
	qosTarget time.Duration) (Model, error) {
	m := Model{Name: name, QoSTarget: qosTarget, Latencies: map[string]match.Latencies{}}
	info, err := s.library.Model(name)
	if s.samples != nil {
		if !slices.Contains(s.samples.Models(), name) {
			return m, fmt.Errorf("model %q is unknown, %s has: %s", name, s,
				strings.Join(s.Models(), ", "))
		}
		if err != nil && qosTarget <= 0 {
			return m, fmt.Errorf("model %q has no known QoS target; give one", name)
		}
	} else if err != nil {
		return m, err
	}
	if m.QoSTarget <= 0 {
		m.QoSTarget = info.QoSTarget
	}
	largest := info.LargestBatchSize
	if s.samples != nil {
		largest = math.MaxInt
	}
	for _, t := range instanceTypes {
		if s.samples == nil {
			table, err := s.library.Table(name, profiles.InstanceType(t))
			if err != nil {
				return m, err
			}
			m.Latencies[t] = table
			continue
		}
		series, err := s.samples.Series(name, profiles.InstanceType(t))
		if err != nil {
			return m, err
		}
		m.Latencies[t] = latency.Measured(series)
		largest = min(largest, slices.Max(series.BatchSizes()))
		m.LargestRun = largest // what a larger run takes is not known
	}
	if m.BatchSizes, err = batchSizes.AtMost(largest); err != nil {
		return m, fmt.Errorf("model %s: %w", name, err)
	}
	return m, nil
}

// ParsePool parses a pool in the form "TYPE=COUNT,TYPE=COUNT".
func ParsePool(s string) (Pool, error) {
	var p Pool
	for part := range strings.SplitSeq(s, ",") {
		name, count, ok := strings.Cut(strings.TrimSpace(part), "=")
		n, err := strconv.Atoi(count)
		if !ok || name == "" || err != nil || n < 0 {
			return nil, fmt.Errorf(
				"pool %q: got %q, want TYPE=COUNT,TYPE=COUNT with counts of 0 or more", s, part)
		}
		if slices.ContainsFunc(p, func(in Instances) bool { return in.Type == name }) {
			return nil, fmt.Errorf("pool %q: %s is named twice", s, name)
		}
		p = append(p, Instances{name, n})
	}
	if n := p.Count(); n < 1 || n > MaxInstances {
		return nil, fmt.Errorf("pool %q has %d instances, want 1..%d", s, n, MaxInstances)
	}
	return p, nil
}

// Types returns the pool's instance types in its order.
func (p Pool) Types() []string {
	types := make([]string, len(p))
	for i, in := range p {
		types[i] = in.Type
	}
	return types
}

// A Phase is a part of a load whose rate changes over time: for Duration the arrival rate is Factor
// times the configured one.
type Phase struct {
	Duration time.Duration
	Factor   float64
}

// ParseLoad parses phases: "60s:1,30s:1.5" is 60 s at the configured rate, then 30 s at 1.5 times
// the rate, and again from the start.
func ParseLoad(s string) ([]Phase, error) {
	var phases []Phase
	for part := range strings.SplitSeq(s, ",") {
		duration, factor, ok := strings.Cut(strings.TrimSpace(part), ":")
		d, err1 := time.ParseDuration(duration)
		f, err2 := strconv.ParseFloat(factor, 64)
		if !ok || err1 != nil || err2 != nil || d <= 0 || !(f > 0 && f <= 1000) {
			return nil, fmt.Errorf(
				"load %q: got %q, want DURATION:FACTOR with a duration and a factor above 0, "+
					"e.g. 60s:1,30s:1.5", s, part)
		}
		phases = append(phases, Phase{d, f})
	}
	return phases, nil
}

// StreamOf makes a Config.Stream of an arrival process in the form of [workload.ParseArrivals].
// With phases the rate changes over time; after the last phase the first begins again.
func StreamOf(arrivals string, phases ...Phase) func(*Config) (iter.Seq[workload.Query], error) {
	return func(c *Config) (iter.Seq[workload.Query], error) {
		loads := make([]workload.Load, len(c.Models))
		for i := range c.Models {
			m := &c.Models[i]
			loads[i] = workload.Load{Model: m.Name, Share: m.weightOrDefault(),
				BatchSizes: m.BatchSizes}
		}
		if len(phases) == 0 {
			a, err := workload.ParseArrivals(arrivals, c.Rate)
			if err != nil {
				return nil, err
			}
			return workload.Queries(c.Seed, a, loads...)
		}
		for _, p := range phases {
			if _, err := workload.ParseArrivals(arrivals, c.Rate*p.Factor); err != nil {
				return nil, err
			}
		}
		a, err := workload.ParseArrivals(arrivals, c.Rate)
		if err != nil {
			return nil, err
		}
		stream, err := workload.Queries(c.Seed, a, loads...)
		if err != nil {
			return nil, err
		}
		return warpTime(stream, phases), nil
	}
}

// warpTime lets the time of a stream pass Factor times as fast in each phase, so that an arrival
// that is due in a later phase than the one before it is neither lost nor drawn anew.
func warpTime(stream iter.Seq[workload.Query], phases []Phase) iter.Seq[workload.Query] {
	// of all phases in ns, and how much of the stream's time passes in them
	var length, passes float64
	for _, p := range phases {
		length += float64(p.Duration)
		passes += float64(p.Duration) * p.Factor
	}
	return func(yield func(workload.Query) bool) {
		var last time.Duration
		for q := range stream {
			rounds := math.Floor(float64(q.At) / passes)
			left := float64(q.At) - rounds*passes
			at := rounds * length
			for _, p := range phases {
				if d := float64(p.Duration); left > d*p.Factor {
					at, left = at+d, left-d*p.Factor
					continue
				}
				at += left / p.Factor
				break
			}
			if at >= math.MaxInt64 {
				return // the time overflows, after 292 years
			}
			last = max(last, time.Duration(at)) // rounding errors must not turn two arrivals around
			q.At = last
			if !yield(q) {
				return
			}
		}
	}
}

// StreamOfTrace makes a Config.Stream of a recorded workload, whose times are scaled to the
// configured rate.
func StreamOfTrace(f *workload.QueryTrace) func(*Config) (iter.Seq[workload.Query], error) {
	return func(c *Config) (iter.Seq[workload.Query], error) {
		if f.Rate() == 0 {
			return nil, errors.New("all queries of the trace arrive at once")
		}
		stretch := f.Rate() / c.Rate
		if float64(f.Duration())*stretch >= math.MaxInt64 {
			return nil, fmt.Errorf("at %v queries/s the trace takes more than 292 years", c.Rate)
		}
		return func(yield func(workload.Query) bool) {
			for q := range f.Queries() {
				q.At = time.Duration(float64(q.At) * stretch)
				if !yield(q) {
					return
				}
			}
		}, nil
	}
}
