package serve

import (
	"testing"
)

func TestAcceptedEncoding(t *testing.T) {
	for accept, want := range map[string]string{
		"": "", "gzip": "gzip", "deflate": "deflate", "deflate, gzip": "gzip", "br": "",
		"GZIP;q=0.5":        "gzip",
		"gzip;q=0, deflate": "deflate", "gzip; q=0.0": "", "identity": "",
	} {
		if got := acceptedEncoding([]string{accept}); got != want {
			t.Errorf("%q: got %q, want %q", accept, got, want)
		}
	}
}
