// Package variants reads what flags of `muster sim` say about families: which variants they have,
// and which instances hold which of them.
package variants

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/muster-serve/muster/cmd/muster/internal/load"
	"github.com/muster-serve/muster/leader/match"
	"github.com/muster-serve/muster/sim"
	"github.com/muster-serve/muster/sim/latency"
)

// A FamilySpec is a family as a flag describes it.
type FamilySpec struct {
	Name     string
	Share    float64 // of the queries, beside the other families' and models' shares
	Variants []VariantSpec
}

// A VariantSpec is a model that takes Factor times as long as the model Of.
type VariantSpec struct {
	Name     string
	Accuracy float64
	Of       string
	Factor   float64
}

// Parse reads NAME=VARIANT:ACCURACY,VARIANT:ACCURACY[@SHARE]. A variant without known latencies is
// VARIANT:ACCURACY:MODEL*FACTOR: it takes FACTOR times as long as MODEL.
func Parse(text string) (f FamilySpec, err error) {
	const form = "NAME=VARIANT:ACCURACY[:MODEL*FACTOR],...[@SHARE]"
	name, rest, ok := strings.Cut(text, "=")
	if !ok || name == "" {
		return f, fmt.Errorf("family: got %q, want %s", text, form)
	}
	list, share, shared := strings.Cut(rest, "@")
	f = FamilySpec{Name: name, Share: 1}
	if shared {
		if _, f.Share, err = load.ParseShare(name + "=" + share); err != nil {
			return f, fmt.Errorf("family: %w", err)
		}
	}
	for part := range strings.SplitSeq(list, ",") {
		fields := strings.Split(strings.TrimSpace(part), ":")
		if len(fields) < 2 || len(fields) > 3 || fields[0] == "" {
			return f, fmt.Errorf("family %s: got the variant %q, want %s", name, part, form)
		}
		v := VariantSpec{Name: fields[0], Of: fields[0], Factor: 1}
		if v.Accuracy, err = strconv.ParseFloat(fields[1], 64); err != nil ||
			!(v.Accuracy > 0 && v.Accuracy <= 1) {
			return f, fmt.Errorf("family %s: %s has accuracy %q, want a number above 0 and up to 1",
				name, v.Name, fields[1])
		}
		if len(fields) == 3 {
			of, factor, times := strings.Cut(fields[2], "*")
			v.Of = of
			if times {
				v.Factor, err = strconv.ParseFloat(factor, 64)
			}
			if err != nil || of == "" || !(v.Factor > 0 && v.Factor <= 1000) {
				return f, fmt.Errorf("family %s: %s has the latency %q, want MODEL*FACTOR, e.g. "+
					"wnd*0.4", name, v.Name, fields[2])
			}
		}
		if slices.ContainsFunc(f.Variants, func(o VariantSpec) bool { return o.Name == v.Name }) {
			return f, fmt.Errorf("family %s: %s is given twice", name, v.Name)
		}
		f.Variants = append(f.Variants, v)
	}
	return f, nil
}

// Model makes the family as the simulator takes it. model makes a model with its latencies.
func (f FamilySpec) Model(model func(name string) (sim.Model, error)) (sim.Model, error) {
	var m sim.Model
	var all []sim.Variant
	var differ []error
	for i, v := range f.Variants {
		of, err := model(v.Of)
		if err != nil {
			return m, fmt.Errorf("family %s: %w", f.Name, err)
		}
		if i == 0 {
			m = of
		}
		if of.QoSTarget != m.QoSTarget {
			differ = append(differ,
				fmt.Errorf("family %s: the QoS targets of %s and %s are %v and "+
					"%v; give one with --qos-ms", f.Name, f.Variants[0].Name, v.Name, m.QoSTarget,
					of.QoSTarget))
		}
		if of.BatchSizes.Largest() < m.BatchSizes.Largest() {
			m.BatchSizes = of.BatchSizes
		}
		all = append(all, sim.Variant{
			Name: v.Name, Accuracy: v.Accuracy, Latencies: scaleLatencies(of.Latencies, v.Factor),
		})
	}
	m.Name, m.Weight = f.Name, f.Share
	m.SetVariants(all)
	return m, errors.Join(differ...)
}

func scaleLatencies(latencies map[string]match.Latencies,
	factor float64) map[string]match.Latencies {
	by := map[string]match.Latencies{}
	for name, l := range latencies {
		by[name] = latency.Scaled(l, factor)
	}
	return by
}

// ParseHolding reads TYPE=COUNT:MODEL,MODEL.
func ParseHolding(text string) (h sim.HeldModels, err error) {
	pool, models, ok := strings.Cut(text, ":")
	var p sim.Pool
	if ok && models != "" {
		p, err = sim.ParsePool(pool)
	}
	if err != nil || len(p) != 1 {
		return h, errors.Join(fmt.Errorf("hold: got %q, want TYPE=COUNT:MODEL,MODEL", text), err)
	}
	return sim.HeldModels{
		Type: p[0].Type, Count: p[0].Count, Models: strings.Split(models, ","),
	}, nil
}
