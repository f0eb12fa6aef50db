package agent

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/feature/ec2/imds"

	"github.com/muster-serve/muster/profiles"
)

// TestInstanceType: the flag comes before EC2's metadata service, which wants a token, and that
// before the machine's own description.
func TestInstanceType(t *testing.T) {
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		const token = "a-token"
		switch {
		case r.Method == http.MethodPut && r.URL.Path == "/latest/api/token":
			w.Header().Set("X-Aws-Ec2-Metadata-Token-Ttl-Seconds", "300")
			_, _ = w.Write([]byte(token))
		case r.Header.Get("X-Aws-Ec2-Metadata-Token") != token:
			w.WriteHeader(http.StatusUnauthorized)
		case r.URL.Path == "/latest/meta-data/instance-type":
			_, _ = w.Write([]byte("g4dn.xlarge"))
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	defer service.Close()
	nonsense := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusNotFound)
	}))
	defer nonsense.Close()
	for _, tt := range []struct{ flag, endpoint, want string }{
		{"r5n.large", service.URL, "r5n.large"},
		{"", service.URL, "g4dn.xlarge"},
		{"", nonsense.URL, "local:"},
		{"", "http://127.0.0.1:1", "local:"},
	} {
		config := DefaultConfig()
		config.InstanceType = tt.flag
		unhurried := imds.Options{
			Endpoint: tt.endpoint, HTTPClient: http.DefaultClient, DisableDefaultTimeout: true,
		}
		ask := func(ctx context.Context) (profiles.InstanceType, error) {
			return askEC2(ctx, unhurried)
		}
		if got := config.instanceType(t.Context(), ask); !strings.HasPrefix(string(got),
			tt.want) {
			t.Errorf("flag %q, metadata service %s: got %q, want %q", tt.flag, tt.endpoint, got,
				tt.want)
		}
	}
}
