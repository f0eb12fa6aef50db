package control

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/muster-serve/muster/api/accuracy"
)

// A Family is what a query may ask for in place of a model: models that members hold and that answer
// the same question.
type Family struct {
	Name string
	// Variants has the version of each model that a query for it gets, the most accurate model
	// first. There is at least one.
	Variants []Variant
	// Loadable is whether a member that does not drain may be told to load a model of it. If no
	// member holds one, Variants are those.
	Loadable bool
	// BestLoadable is the most accurate of these models; nil if there is none.
	BestLoadable *Model
}

// A Variant is a model of a family.
type Variant struct {
	*Model
	// Serving is whether a member holds it that does not drain.
	Serving bool
}

// BestVariants returns the accuracies of the best variants of the members' families, held or not,
// and what is stated for the families.
func BestVariants(members []*Member) accuracy.Best {
	best := accuracy.Best{}
	for _, member := range members {
		for _, a := range member.GetAccuracies() {
			best.Require(a.GetFamily(), a.GetMinAccuracy())
		}
		for _, of := range [][]*Model{member.GetModels(), member.GetLoadable()} {
			for _, m := range of {
				best.Require(m.GetStatesFor(), m.GetMinAccuracy())
				if m.GetFamily() != "" {
					best.Add(m.GetFamily(), m.GetAccuracy())
				}
			}
		}
	}
	return best
}

// Families returns the families of the members' models, by name. A model's name is none's, even if
// members contradict each other for a while. Variants that are too inaccurate are left out: older
// agents announce them, and others do until they know of a better one.
func Families(members []*Member) map[string]*Family {
	families := map[string]*Family{}
	best := BestVariants(members)
	for _, member := range members {
		for _, m := range member.GetModels() {
			if m.GetFamily() == "" || !m.GetNewest() ||
				best.Excludes(m.GetFamily(), m.GetAccuracy()) {
				continue
			}
			f := families[m.GetFamily()]
			if f == nil {
				f = &Family{Name: m.GetFamily()}
				families[f.Name] = f
			}
			f.add(Variant{m, !member.GetDraining()})
		}
	}
	addLoadable(families, members, best)
	if len(families) == 0 {
		return nil
	}
	for _, member := range members {
		for _, m := range member.GetModels() {
			delete(families, m.GetName())
		}
	}
	for _, f := range families {
		slices.SortFunc(f.Variants, func(a, b Variant) int {
			return cmp.Or(cmp.Compare(b.KnownAccuracy(), a.KnownAccuracy()),
				cmp.Compare(a.GetName(), b.GetName()))
		})
	}
	return families
}

// addLoadable adds what members may be told to load: to families, and those that no member holds.
func addLoadable(families map[string]*Family, members []*Member, best accuracy.Best) {
	unheld := map[string]*Family{}
	for _, member := range members {
		for _, m := range member.GetLoadable() {
			if m.GetFamily() == "" || member.GetDraining() ||
				best.Excludes(m.GetFamily(), m.GetAccuracy()) {
				continue
			}
			f := families[m.GetFamily()]
			if f == nil {
				f = &Family{Name: m.GetFamily()}
				families[f.Name], unheld[f.Name] = f, f
			}
			f.Loadable = true
			if f.BestLoadable == nil || m.KnownAccuracy() > f.BestLoadable.KnownAccuracy() {
				f.BestLoadable = m
			}
			if unheld[f.Name] != nil {
				f.add(Variant{m, false})
			}
		}
	}
}

// add adds a variant. Of versions of the same model it keeps one that serves, and of those the
// newest.
func (f *Family) add(v Variant) {
	i := slices.IndexFunc(f.Variants, func(o Variant) bool { return o.GetName() == v.GetName() })
	if i < 0 {
		f.Variants = append(f.Variants, v)
		return
	}
	if o := f.Variants[i]; v.Serving && !o.Serving ||
		v.Serving == o.Serving && v.GetVersion() > o.GetVersion() {
		f.Variants[i] = v
	}
}

// KnownAccuracy is the model's accuracy, which counts as 1 if it is not known.
func (m *Model) KnownAccuracy() float64 { return accuracy.Known(m.GetAccuracy()) }

// Names lists the variants, the most accurate first.
func (f *Family) Names() []string {
	names := make([]string, len(f.Variants))
	for i, v := range f.Variants {
		names[i] = v.GetName()
	}
	return names
}

// Serving is whether any variant serves.
func (f *Family) Serving() bool {
	return slices.ContainsFunc(f.Variants, func(v Variant) bool { return v.Serving })
}

// LargestBatchSize is that of the variant whose one is the least.
func (f *Family) LargestBatchSize() uint32 {
	least := f.Variants[0].GetLargestBatchSize()
	for _, v := range f.Variants {
		least = min(least, v.GetLargestBatchSize())
	}
	return least
}

// Refuses says why no variant answers a query that names the given version, "" for none, and the
// least accuracy, 0 for any; empty if one does, or would once it is loaded, which the leader decides
// on. invalid is whether the query is wrong for every fleet.
func (f *Family) Refuses(version string, least float64) (why string, invalid bool) {
	if version != "" {
		return fmt.Sprintf("version %.64q of %q, which is a family, and families have no "+
			"versions; name one of its models: %s", version, f.Name,
			strings.Join(f.Names(), ", ")), true
	}
	if best := f.Variants[0]; best.KnownAccuracy() < least && (f.BestLoadable == nil ||
		f.BestLoadable.KnownAccuracy() < least) {
		return fmt.Sprintf("no variant of family %q reaches min_accuracy %v; the most accurate "+
			"is %s with %v", f.Name, least, best.GetName(), best.KnownAccuracy()), false
	}
	return "", false
}
