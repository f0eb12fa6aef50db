package place

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/muster-serve/muster/api/names"
)

// A Partition is some cores of an agent, and the models that run there.
type Partition struct {
	Models []names.ModelKey
	// Lanes is the number of lanes of the partition, and Cores that of the cores of each. Both are
	// 0 for the lanes that the agent has by its own settings; such a partition is the only one of
	// its layout.
	Lanes, Cores int
	// Ways of the last-level cache that are the partition's alone; 0: it shares the cache with all.
	Ways int
}

// A Layout is what an agent holds. The zero value holds nothing.
type Layout struct{ Partitions []Partition }

// NewLayout is the layout of an agent that holds these models on the lanes of its own settings.
func NewLayout(models ...names.ModelKey) Layout {
	if len(models) == 0 {
		return Layout{}
	}
	return Layout{[]Partition{{Models: models}}}.canonicalForm()
}

// nothing is the name of the layout that holds nothing. A model's name of that form is escaped.
const nothing = "-"

// String is the layout's canonical name: two layouts have the same name if, and only if, they are
// the same. "wnd/1" holds a model on the lanes of the agent's own settings, "ncf/1,wnd/1" two on
// the same lanes, "rm2/1:2x1/4w+wnd/1:6x1/7w" one on 2 lanes of 1 core and 4 ways each partition,
// the other on 6 of 1 and 7. [ParseLayout] reads it.
func (l Layout) String() string {
	if len(l.Partitions) == 0 {
		return nothing
	}
	var b strings.Builder
	for i, p := range l.canonicalForm().Partitions {
		if i > 0 {
			b.WriteByte('+')
		}
		b.WriteString(p.formatText())
	}
	return b.String()
}

func (p *Partition) formatText() string {
	var b strings.Builder
	for i, m := range p.Models {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(escape(string(m)))
	}
	if p.Lanes > 0 {
		fmt.Fprintf(&b, ":%dx%d", p.Lanes, p.Cores)
		if p.Ways > 0 {
			fmt.Fprintf(&b, "/%dw", p.Ways)
		}
	}
	return b.String()
}

// special are the bytes that mean something in a layout's name.
const special = "%+:, \t\r\n"

func escape(name string) string {
	if name == nothing {
		return "%2D"
	}
	if !strings.ContainsAny(name, special) {
		return name
	}
	var b strings.Builder
	for i := range len(name) {
		if strings.IndexByte(special, name[i]) >= 0 {
			fmt.Fprintf(&b, "%%%02X", name[i])
		} else {
			b.WriteByte(name[i])
		}
	}
	return b.String()
}

func unescape(text string) (string, error) {
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		if text[i] != '%' {
			b.WriteByte(text[i])
			continue
		}
		if i+2 >= len(text) {
			return "", fmt.Errorf("%q ends in an escape that is not complete", text)
		}
		code, err := strconv.ParseUint(text[i+1:i+3], 16, 8)
		if err != nil {
			return "", fmt.Errorf("%q has %q, want %% and two hexadecimal digits", text,
				text[i:i+3])
		}
		b.WriteByte(byte(code))
		i += 2
	}
	return b.String(), nil
}

// ParseLayout reads the form of [Layout.String]; the order of models and partitions does not
// matter.
func ParseLayout(text string) (Layout, error) {
	if text == nothing {
		return Layout{}, nil
	}
	var l Layout
	for part := range strings.SplitSeq(text, "+") {
		p, err := parsePartition(strings.TrimSpace(part))
		if err != nil {
			return Layout{}, fmt.Errorf("layout %q: %w", text, err)
		}
		l.Partitions = append(l.Partitions, p)
	}
	if err := l.Validate(); err != nil {
		return Layout{}, fmt.Errorf("layout %q: %w", text, err)
	}
	return l.canonicalForm(), nil
}

func parsePartition(text string) (Partition, error) {
	var p Partition
	models, cores, sized := strings.Cut(text, ":")
	for m := range strings.SplitSeq(models, ",") {
		name, err := unescape(strings.TrimSpace(m))
		if err != nil {
			return p, err
		}
		p.Models = append(p.Models, names.ModelKey(name))
	}
	if !sized {
		return p, nil
	}
	size, ways, shares := strings.Cut(cores, "/")
	lanes, each, ok := strings.Cut(size, "x")
	var errs [3]error
	p.Lanes, errs[0] = strconv.Atoi(lanes)
	p.Cores, errs[1] = strconv.Atoi(each)
	if shares {
		number, w := strings.CutSuffix(ways, "w")
		p.Ways, errs[2] = strconv.Atoi(number)
		ok = ok && w && p.Ways > 0
	}
	if !ok || errors.Join(errs[:]...) != nil || p.Lanes < 1 {
		return p, fmt.Errorf(`%q has %q for its lanes, want LANESxCORES or LANESxCORES/WAYSw, `+
			`as "2x1/4w"`, text, cores)
	}
	return p, nil
}

// maxCores bounds the lanes of a partition, the cores of a lane and the ways, so that sums of them
// do not overflow.
const maxCores = 1 << 16

// Validate reports what is wrong with the layout.
func (l Layout) Validate() error {
	var errs []error
	for _, p := range l.Partitions {
		text := strconv.Quote(p.formatText())
		for i, m := range p.Models {
			if m == "" {
				errs = append(errs, fmt.Errorf("partition %s has a model without a name", text))
			}
			if slices.Contains(p.Models[:i], m) {
				errs = append(errs, fmt.Errorf("partition %s has model %s twice", text, m))
			}
		}
		switch {
		case len(p.Models) == 0:
			errs = append(errs, fmt.Errorf("partition %s has no model", text))
		case p.Lanes < 0 || p.Cores < 0 || p.Ways < 0 || (p.Lanes == 0) != (p.Cores == 0):
			errs = append(errs, fmt.Errorf("partition %s has %d lanes of %d cores and %d ways, "+
				"want 1 or more lanes of 1 or more cores, or none", text, p.Lanes, p.Cores, p.Ways))
		case max(p.Lanes, p.Cores, p.Ways) > maxCores:
			errs = append(errs, fmt.Errorf("partition %s has %d lanes of %d cores and %d ways, "+
				"want at most %d of each", text, p.Lanes, p.Cores, p.Ways, maxCores))
		case p.Lanes == 0 && len(l.Partitions) > 1:
			errs = append(errs, fmt.Errorf("partition %s of %d has no number of lanes", text,
				len(l.Partitions)))
		case p.Lanes == 0 && p.Ways > 0:
			errs = append(errs, fmt.Errorf("partition %s has %d ways, and no number of lanes", text,
				p.Ways))
		}
	}
	return errors.Join(errs...)
}

// canonicalForm is the layout with its models and partitions in order. It shares nothing with l.
func (l Layout) canonicalForm() Layout {
	out := Layout{slices.Clone(l.Partitions)}
	for i := range out.Partitions {
		p := &out.Partitions[i]
		p.Models = slices.Clone(p.Models)
		slices.Sort(p.Models)
	}
	slices.SortFunc(out.Partitions, func(a, b Partition) int {
		return cmp.Or(slices.Compare(a.Models, b.Models), cmp.Compare(a.Lanes, b.Lanes),
			cmp.Compare(a.Cores, b.Cores), cmp.Compare(a.Ways, b.Ways))
	})
	return out
}

// Equal reports whether l and o are the same layout.
func (l Layout) Equal(o Layout) bool { return l.String() == o.String() }

// Models are the models of all partitions, in order, each once.
func (l Layout) Models() []names.ModelKey {
	var all []names.ModelKey
	for _, p := range l.Partitions {
		all = append(all, p.Models...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// Has reports whether some partition holds model.
func (l Layout) Has(model names.ModelKey) bool {
	return slices.ContainsFunc(l.Partitions, func(p Partition) bool {
		return slices.Contains(p.Models, model)
	})
}

// IsOnAllLanes reports whether the lanes of an agent's own settings serve all models of the layout:
// it has no partitions, or holds nothing.
func (l Layout) IsOnAllLanes() bool {
	return len(l.Partitions) == 0 || len(l.Partitions) == 1 && l.Partitions[0].Lanes == 0
}

// LaneType is the type of partition i's lanes on an agent whose own lanes are of type t: prices and
// profiles know lanes beside other models as a type of their own, "c5n.2xlarge/cpu/2+rm2" (the
// models of the other partitions, whatever their versions; and the ways, "/4w").
func (l Layout) LaneType(i int, t names.LaneType) names.LaneType {
	p := &l.Partitions[i]
	if p.Lanes == 0 {
		return t
	}
	return t.Partition(p.Cores, l.Beside(i), p.Ways)
}

// Beside are the names of the models that the partitions other than i hold.
func (l Layout) Beside(i int) []string {
	var beside []string
	for j, o := range l.Partitions {
		if j == i {
			continue
		}
		for _, m := range o.Models {
			name, _ := m.Split()
			beside = append(beside, name)
		}
	}
	return names.Neighbours(beside)
}

// MarshalText and UnmarshalText have the form of String.
func (l Layout) MarshalText() ([]byte, error) { return []byte(l.String()), nil }

// UnmarshalText reads what [ParseLayout] reads.
func (l *Layout) UnmarshalText(text []byte) error {
	parsed, err := ParseLayout(string(text))
	if err == nil {
		*l = parsed
	}
	return err
}
