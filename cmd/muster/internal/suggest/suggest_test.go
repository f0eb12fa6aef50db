package suggest

import "testing"

func TestNear(t *testing.T) {
	settings := []string{"GRPC", "HTTP", "JOIN", "LANES", "TLS_CA", "TLS_CERT", "MODEL_DIR"}
	for _, tt := range []struct {
		name       string
		candidates []string
		want       string
	}{
		{"lisst", []string{"generate", "list", "load", "unload"}, `; did you mean "list"?`},
		{"infr", []string{"agent", "infer", "status"}, `; did you mean "infer"?`},
		{"modles", []string{"models", "top"}, `; did you mean "models"?`},
		{"tpo", []string{"top", "help"}, ""}, // two of three
		{"to", []string{"sim", "top"}, `; did you mean "top"?`},
		{"foo", []string{"init", "issue", "revoke"}, ""},
		{"BNECH", settings, ""},
		{"GRCP", settings, `; did you mean "GRPC"?`},
		{"MODELDIR", settings, `; did you mean "MODEL_DIR"?`},
		{"TLSCERT", settings, `; did you mean "TLS_CERT"?`},
		{"X", settings, ""},
		{"", settings, ""},
		{"X", nil, ""},
		{"ab", []string{"a", "b"}, ""},
		{"max-waiting-querys", []string{"max-waiting-queries"},
			`; did you mean "max-waiting-queries"?`},
		{"same", []string{"sama", "sami"}, `; did you mean "sama"?`},
	} {
		if got := Near(tt.name, tt.candidates); got != tt.want {
			t.Errorf("%s: got %q, want %q", tt.name, got, tt.want)
		}
	}
}
