package version

import "testing"

func TestVersionOf(t *testing.T) {
	for built, want := range map[string]string{
		"":                                   "0.1.0-dev",
		"(devel)":                            "0.1.0-dev",
		"v0.0.0-20261128235144-31e1d13abcde": "0.1.0-dev+31e1d13abcde",
		"v0.0.0-20261128235144-31e1d13abcde+dirty":  "0.1.0-dev+31e1d13abcde.dirty",
		"v0.1.1-0.20261128235144-31e1d13abcde":      "0.1.0-dev+31e1d13abcde",
		"v0.2.0-rc.1.0.20261128235144-31e1d13abcde": "0.1.0-dev+31e1d13abcde",
		"v0.1.0":      "0.1.0",
		"v1.2.3-rc.1": "1.2.3-rc.1",
	} {
		if got := versionOf(built); got != want {
			t.Errorf("%q: got %q, want %q", built, got, want)
		}
	}
}
