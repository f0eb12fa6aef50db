package agent

import (
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/feature/ec2/imds"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/gossip"
)

func FuzzMeta(f *testing.F) {
	full := meta{protocol: control.Protocol, address: "10.0.0.1:8001", typ: "g4dn.xlarge", role: "must", draining: true, revision: 1 << 40}
	f.Add(full.encode())
	f.Add(load{revision: 3, waiting: 7, remaining: []time.Duration{0, time.Second}}.encode())
	f.Add([]byte{2})
	f.Add([]byte{1, 255, 255, 255, 255, 15, 'x'})
	f.Fuzz(func(t *testing.T, b []byte) {
		if m, err := decodeMeta(b); err == nil && m.protocol == control.Protocol {
			if again, err := decodeMeta(m.encode()); err != nil || again != m {
				t.Errorf("%+v becomes %+v, %v", m, again, err)
			}
		}
		if l, err := decodeLoad(b); err == nil {
			if again, err := decodeLoad(l.encode()); err != nil || !reflect.DeepEqual(again, l) {
				t.Errorf("%+v becomes %+v, %v", l, again, err)
			}
		}
		_ = acceptable(b)
	})
}

// TestMetaFits: whatever the names, gossip has room for it.
func TestMetaFits(t *testing.T) {
	long := strings.Repeat("x", 1000)
	if n := len(meta{protocol: control.Protocol, address: long, typ: long, role: long, revision: 1 << 63}.encode()); n > gossip.MaxMeta {
		t.Errorf("meta of %d bytes, want at most %d", n, gossip.MaxMeta)
	}
	if n := len(load{revision: 1 << 63, waiting: 1 << 30, remaining: make([]time.Duration, 1000)}.encode()); n > gossip.MaxLoad {
		t.Errorf("load of %d bytes, want at most %d", n, gossip.MaxLoad)
	}
}

// TestInstanceType: the flag comes before EC2's metadata service, which wants a token, and that before
// the machine's own description.
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
	nonsense := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotFound) }))
	defer nonsense.Close()
	for _, tt := range []struct{ flag, endpoint, want string }{
		{"r5n.large", service.URL, "r5n.large"},
		{"", service.URL, "g4dn.xlarge"},
		{"", nonsense.URL, "local:"},
		{"", "http://127.0.0.1:1", "local:"},
	} {
		config := DefaultConfig()
		config.InstanceType = tt.flag
		unhurried := imds.Options{Endpoint: tt.endpoint, HTTPClient: http.DefaultClient, DisableDefaultTimeout: true}
		if got := config.instanceType(t.Context(), unhurried); !strings.HasPrefix(string(got), tt.want) {
			t.Errorf("flag %q, metadata service %s: got %q, want %q", tt.flag, tt.endpoint, got, tt.want)
		}
	}
}
