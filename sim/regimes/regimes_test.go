package regimes

import (
	"slices"
	"strings"
	"testing"
)

// known are the regimes that break the rule today, in the short form. The list may only shrink.
var known = []string{
	"rm2-0.03", "rm2-3",
	"rm2-whole-0.03", "rm2-whole-0.3", "rm2-whole-0.5", "rm2-whole-3",
	"rtt1-0.3", "rtt1-0.85",
	"two-400x-1:1-0.3", "two-400x-8:1-0.3", "two-4x-1:1-0.3", "two-4x-1:1-1.2", "two-4x-8:1-0.3",
	"two-4x-8:1-1.2",
	"wnd+rm2-6:1-1.2",
	"wnd-0.03", "wnd-0.3", "wnd-0.5", "wnd-0.8",
	"wnd-whole-0.03", "wnd-whole-0.3", "wnd-whole-0.5", "wnd-whole-1.5",
	"wrong-10-1.2", "wrong-20-0.8", "wrong-20-1.2",
}

// TestRule holds the rule on the short form of each regime.
func TestRule(t *testing.T) {
	all, err := List()
	if err != nil {
		t.Fatal(err)
	}
	left := slices.Clone(known)
	for _, r := range all {
		if r.ShortQueries == 0 {
			continue
		}
		isKnown := slices.Contains(known, r.Name)
		left = slices.DeleteFunc(left, func(name string) bool { return name == r.Name })
		t.Run(r.Name, func(t *testing.T) {
			var results []*Result
			for _, p := range Policies() {
				x, err := r.Run(t.Context(), &p, &Options{Seeds: r.SeedsOf(true), Short: true})
				if err != nil {
					t.Fatal(err)
				}
				results = append(results, x)
			}
			broken, err := r.Broken(results)
			if err != nil {
				t.Fatal(err)
			}
			switch {
			case len(broken) > 0 && !isKnown:
				t.Errorf("%s\nbreaks the rule:\n%s", r, strings.Join(broken, "\n"))
			case len(broken) == 0 && isKnown:
				t.Errorf("%s\ndoes not break the rule any more: take it off the list of known", r)
			}
		})
	}
	if len(left) > 0 {
		t.Errorf("the list of known names %v, which are no regimes with a short form", left)
	}
}
