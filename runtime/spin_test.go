package runtime

import "testing"

func TestBoundsSpinning(t *testing.T) {
	for version, want := range map[string]bool{
		"1.24.1": false, "1.26.0": false, "1.27.0": true, "1.30.0": true, "2.0.0": true,
		"0.30.0": false, "": false, "new": false,
	} {
		if got := boundsSpinning(version); got != want {
			t.Errorf("version %q: %t, want %t", version, got, want)
		}
	}
}
