package members

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/gossip"
)

func FuzzMeta(f *testing.F) {
	full := Meta{Protocol: control.Protocol, Address: "10.0.0.1:8001", Type: "g4dn.xlarge", Role: "must", Draining: true, Revision: 1 << 40}
	f.Add(full.Encode())
	f.Add(load{revision: 3, waiting: 7, remaining: []time.Duration{0, time.Second}}.encode())
	f.Add([]byte{2})
	f.Add([]byte{1, 255, 255, 255, 255, 15, 'x'})
	f.Fuzz(func(t *testing.T, b []byte) {
		if m, err := DecodeMeta(b); err == nil && m.Protocol == control.Protocol {
			if again, err := DecodeMeta(m.Encode()); err != nil || again != m {
				t.Errorf("%+v becomes %+v, %v", m, again, err)
			}
		}
		if l, err := decodeLoad(b); err == nil {
			if again, err := decodeLoad(l.encode()); err != nil || !reflect.DeepEqual(again, l) {
				t.Errorf("%+v becomes %+v, %v", l, again, err)
			}
		}
		_ = Acceptable(b)
	})
}

// TestMetaFits: whatever the names, gossip has room for it.
func TestMetaFits(t *testing.T) {
	long := strings.Repeat("x", 1000)
	if n := len(Meta{Protocol: control.Protocol, Address: long, Type: long, Role: long, Revision: 1 << 63}.Encode()); n > gossip.MaxMeta {
		t.Errorf("meta of %d bytes, want at most %d", n, gossip.MaxMeta)
	}
	if n := len(load{revision: 1 << 63, waiting: 1 << 30, remaining: make([]time.Duration, 1000)}.encode()); n > gossip.MaxLoad {
		t.Errorf("load of %d bytes, want at most %d", n, gossip.MaxLoad)
	}
}
