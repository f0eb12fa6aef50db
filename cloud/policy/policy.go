// Package policy reads fleet.yaml: which fleet is rented, from whom, within which limits, and how
// much of it the leader may do by itself.
package policy

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/muster-serve/muster/leader/rent"
	"github.com/muster-serve/muster/leader/rent/choose"
	"github.com/muster-serve/muster/leader/staffing"
	"github.com/muster-serve/muster/profiles"
)

// A Mode is how much a leader does by itself.
type Mode string

// The modes.
const (
	Off     Mode = "off"     // nothing is planned, rented or returned
	Advise  Mode = "advise"  // plans are shown
	Approve Mode = "approve" // the fleet becomes what a person has approved
	Auto    Mode = "auto"    // the fleet becomes what the leader plans
)

// Acts reports whether anything is rented or returned.
func (m Mode) Acts() bool { return m == Approve || m == Auto }

// A Policy is what fleet.yaml says, with the defaults filled in.
type Policy struct {
	Fleet string // its name, unique among a provider's
	Mode  Mode
	// Rate is what to plan for in queries/s; 0: what is asked for. Headroom is by which
	// factor a plan serves more, at least 1. Budget in $/hr, if above 0, is spent for
	// the highest rate instead.
	Rate, Headroom, Budget float64
	// MaxPrice is the most that all that is rented costs, in $/hr, also for a moment.
	MaxPrice     float64
	MinInstances int
	Types        map[profiles.InstanceType]choose.Limits // the types to choose from
	// Families is what is stated for families, by name.
	Families map[string]Accuracy
	// Calm is how long nothing is returned that was needed within.
	Calm     time.Duration
	Launches int     // at a time
	Drains   float64 // at a time, as a share of the fleet
	// Threshold is the share that a change must gain.
	Threshold float64
	Window    Window
	// Spare, SpotShare and MaxPool are those of [choose.Config].
	Spare              int
	SpotShare, MaxPool float64
	// One of them is not nil.
	EC2        *EC2
	Kubernetes *Kubernetes
	Process    *Process
}

// An Accuracy is what is stated for a family, in (0, 1]; 0: nothing.
type Accuracy struct {
	Min    float64 // of a variant that answers for it
	Target float64 // the mean of its answers that plans aim at
}

// EC2 says where and from what instances are launched.
type EC2 struct {
	Region          string   `json:"region"`
	Template        string   `json:"template"`         // the launch template's name
	TemplateVersion string   `json:"template_version"` // a number
	Subnets         []string `json:"subnets"`
}

// Kubernetes says from what pods are made, and which nodes they ask for.
type Kubernetes struct {
	Server          string // the API server's URL; "": that of the agent's cluster
	Namespace       string // "": the agent's
	Template        string // the name of a ConfigMap
	TemplateVersion string // "": not told
	Zones           []string
	Nodes           string // whose labels tell spot from on demand: one of NodeLabels
	// Prices of kinds in $/hr, beside the catalogue's on demand.
	Prices        map[string]float64
	LaunchTimeout time.Duration // for which a pod may find no node
}

// NodeLabels are the values of Kubernetes.Nodes.
func NodeLabels() []string { return []string{"karpenter", "eks", "gke", "aks"} }

// Process says how emulated agents are started on this machine.
type Process struct {
	Dir    string        // for their state
	Models string        // their model repository
	Boots  time.Duration // until a new one starts
	// Short are types that cannot be had, for shows.
	Short []profiles.InstanceType
}

// Default is the policy of a file that has no line on a matter.
func Default() *Policy {
	return &Policy{Mode: Advise, Headroom: staffing.Headroom, MinInstances: 1, Calm: 5 * time.Minute,
		Launches: 8, Drains: 0.1, Threshold: 0.05, MaxPool: 0.3}
}

// Rent returns the bounds of a leader's rent.Renter.
func (p *Policy) Rent() rent.Policy {
	r := rent.DefaultPolicy()
	r.MaxPrice, r.Launches, r.Drains, r.Min = p.MaxPrice, p.Launches, p.Drains, p.MinInstances
	if p.Process != nil { // what is listed is never old, and starts at once
		r.Settle, r.JoinTimeout, r.Lost = 5*time.Second, time.Minute+p.Process.Boots, 30*time.Second
	}
	return r
}

// Choose returns the bounds of a leader's choose.Chooser.
func (p *Policy) Choose() choose.Config {
	return choose.Config{
		Rate: p.Rate, Headroom: p.Headroom, Budget: p.Budget, MaxPrice: p.MaxPrice,
		MinInstances: p.MinInstances, Types: p.Types, Calm: p.Calm, Launches: p.Launches,
		Threshold: p.Threshold,
		Spare:     p.Spare, SpotShare: p.SpotShare, MaxPool: p.MaxPool,
	}
}

// Provider names the section that says from whom instances are rented.
func (p *Policy) Provider() string {
	switch {
	case p.EC2 != nil:
		return "ec2"
	case p.Kubernetes != nil:
		return "kubernetes"
	}
	return "process"
}

// Template is what new instances are launched from, as a provider lists it.
func (p *Policy) Template() string {
	switch {
	case p.EC2 != nil:
		return p.EC2.TemplateVersion
	case p.Kubernetes != nil:
		return p.Kubernetes.TemplateVersion
	}
	return ""
}

// Names are the types to choose from, in order.
func (p *Policy) Names() []profiles.InstanceType { return slices.Sorted(maps.Keys(p.Types)) }

var fleetName = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]{0,62}$`)

// Validate returns all faults of p, with the keys of the file.
func (p *Policy) Validate() error {
	var faults []error
	fault := func(format string, args ...any) {
		faults = append(faults, fmt.Errorf(format, args...))
	}
	if !fleetName.MatchString(p.Fleet) {
		fault("fleet: %q, want a name of up to 63 small letters, digits, dots and hyphens", p.Fleet)
	}
	if !(p.MaxPrice > 0) || math.IsInf(p.MaxPrice, 0) {
		fault("limits.max_price_usd_per_hour: %v, want the maximum price of the whole fleet",
			p.MaxPrice)
	}
	if len(p.Types) == 0 {
		fault("limits.types: none, want the instance types to choose from")
	}
	least := 0
	for _, name := range p.Names() {
		l := p.Types[name]
		least += l.Min
		if l.Max > 0 && l.Min > l.Max {
			fault("limits.types.%s: min %d is above max %d", name, l.Min, l.Max)
		}
	}
	most := 0
	for _, l := range p.Types {
		if l.Max == 0 {
			most = math.MaxInt
			break
		}
		most += l.Max
	}
	if most < p.MinInstances && len(p.Types) > 0 {
		fault("limits.min_instances: %d, but the types' max allow %d", p.MinInstances, most)
	}
	if p.Budget > p.MaxPrice && p.MaxPrice > 0 {
		fault("objective.budget: %v $/hr is above limits.max_price_usd_per_hour, %v", p.Budget,
			p.MaxPrice)
	}
	var providers []string
	for _, of := range []struct {
		name  string
		given bool
	}{
		{"ec2", p.EC2 != nil}, {"kubernetes", p.Kubernetes != nil}, {"process", p.Process != nil},
	} {
		if of.given {
			providers = append(providers, of.name)
		}
	}
	switch len(providers) {
	case 0:
		fault("no provider: want a section ec2, kubernetes or process")
	case 1:
	default:
		fault("%d providers, %s: want one", len(providers), strings.Join(providers, " and "))
	}
	return errors.Join(faults...)
}

// Affords returns an error if what the policy's minimum costs is above its limit, by the prices of
// kinds in $/hr; kinds without a price are left out.
func (p *Policy) Affords(prices map[rent.Kind]float64) error {
	cost, count := 0.0, 0
	cheapest := math.Inf(1)
	var of []string
	for _, name := range p.Names() {
		price := prices[rent.Kind{Type: name}]
		if price > 0 {
			cheapest = min(cheapest, price)
		}
		if n := p.Types[name].Min; n > 0 {
			cost += float64(n) * price
			count += n
			of = append(of, fmt.Sprintf("%d x %s", n, name))
		}
	}
	if more := p.MinInstances - count; more > 0 && !math.IsInf(cheapest, 1) {
		cost += float64(more) * cheapest
		of = append(of, fmt.Sprintf("%d of the cheapest", more))
	}
	limit, name := p.MaxPrice, "limits.max_price_usd_per_hour"
	if p.Budget > 0 && p.Budget < limit {
		limit, name = p.Budget, "objective.budget"
	}
	if cost > limit+1e-9 {
		return fmt.Errorf("%s: %v $/hr does not pay for the minimum of this file, %s at "+
			"%.4g $/hr", name, limit, strings.Join(of, ", "), cost)
	}
	return nil
}

// Allows returns an error if the counts are not within the policy's limits, by the prices of kinds
// in $/hr.
func (p *Policy) Allows(counts map[rent.Kind]int, prices map[rent.Kind]float64) error {
	var faults []error
	fault := func(format string, args ...any) {
		faults = append(faults, fmt.Errorf(format, args...))
	}
	total, cost := 0, 0.0
	of := map[profiles.InstanceType]int{}
	for _, kind := range slices.SortedFunc(maps.Keys(counts), rent.Kind.Compare) {
		n := counts[kind]
		l, ok := p.Types[kind.Type]
		switch {
		case !ok && n > 0:
			fault("%d of %s: limits.types of fleet.yaml does not have the type", n, kind.Type)
			continue
		case n > 0 && kind.Market == rent.Spot && l.OnDemand:
			fault("%d of %s: limits.types has the type on demand alone", n, kind)
		case n > 0 && kind.Market == rent.Spot && p.SpotShare == 0:
			fault("%d of %s: spot.share is 0", n, kind)
		case n > 0 && prices[kind] <= 0:
			fault("%d of %s: its price is not known", n, kind)
		}
		total += n
		cost += float64(n) * prices[kind]
		if of[kind.Type] += n; l.Max > 0 && of[kind.Type] > l.Max {
			fault("%d of %s: limits.types allows %d", of[kind.Type], kind.Type, l.Max)
		}
	}
	for _, name := range p.Names() {
		if l := p.Types[name]; of[name] < l.Min {
			fault("%d of %s: limits.types wants at least %d", of[name], name, l.Min)
		}
	}
	if total < p.MinInstances {
		fault("%d instances: limits.min_instances is %d", total, p.MinInstances)
	}
	if cost > p.MaxPrice+1e-9 {
		fault("$%.4g/hr: limits.max_price_usd_per_hour is %.4g", cost, p.MaxPrice)
	}
	return errors.Join(faults...)
}

// A Window is when what serves may be returned; the zero value is always.
type Window struct {
	days     [7]bool       // by time.Weekday
	from, to time.Duration // of the day, UTC
	text     string
}

var weekdays = []string{"sun", "mon", "tue", "wed", "thu", "fri", "sat"}

// ParseWindow reads "always" or "mon-fri 06:00-22:00 UTC"; the days may be left out.
func ParseWindow(text string) (Window, error) {
	const want = `want "always" or such as "mon-fri 06:00-22:00 UTC"`
	if text == "always" {
		return Window{}, nil
	}
	w := Window{text: text}
	words := strings.Fields(text)
	if len(words) == 2 {
		words = append([]string{"sun-sat"}, words...)
	}
	if len(words) != 3 || words[2] != "UTC" {
		return w, fmt.Errorf("%q, %s", text, want)
	}
	first, last, ok := strings.Cut(words[0], "-")
	if !ok {
		last = first
	}
	i, j := slices.Index(weekdays, first), slices.Index(weekdays, last)
	if i < 0 || j < 0 {
		return w, fmt.Errorf("%q: days %q, %s", text, words[0], want)
	}
	for d := i; ; d = (d + 1) % 7 {
		w.days[d] = true
		if d == j {
			break
		}
	}
	from, to, _ := strings.Cut(words[1], "-")
	begin, err := time.Parse("15:04", from)
	end, err2 := time.Parse("15:04", cmp.Or(strings.TrimPrefix(to, "24:00"), "00:00"))
	if err != nil || err2 != nil {
		return w, fmt.Errorf("%q: hours %q, %s", text, words[1], want)
	}
	midnight := begin.Truncate(24 * time.Hour)
	w.from, w.to = begin.Sub(midnight), end.Sub(midnight)
	if to == "24:00" {
		w.to = 24 * time.Hour
	}
	if w.to <= w.from {
		return w, fmt.Errorf("%q: hours that end before they begin, %s", text, want)
	}
	return w, nil
}

// Closed says why nothing that serves may be returned now; "": it may.
func (w Window) Closed(now time.Time) string {
	if w.text == "" {
		return ""
	}
	now = now.UTC()
	hour, minute, second := now.Clock()
	at := time.Duration(hour)*time.Hour + time.Duration(minute)*time.Minute +
		time.Duration(second)*time.Second
	if w.days[now.Weekday()] && at >= w.from && at < w.to {
		return ""
	}
	return "change.window is " + w.text
}
