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
	full := Meta{
		Versions: control.Spoken, Address: "10.0.0.1:8001", Type: "g4dn.xlarge", Role: "must",
		Draining: true, Revision: 1 << 40,
	}
	f.Add(full.Encode())
	f.Add(gossipedLoad{revision: 3, waiting: 7, remaining: []time.Duration{0,
		time.Second}}.encode())
	f.Add([]byte{2})
	f.Add([]byte{1, 255, 255, 255, 255, 15, 'x'})
	f.Fuzz(func(t *testing.T, b []byte) {
		if m, err := DecodeMeta(b, control.Spoken); err == nil &&
			m.Versions.Oldest <= control.Spoken.Newest {
			if again, err := DecodeMeta(m.Encode(), control.Spoken); err != nil || again != m {
				t.Errorf("%+v becomes %+v, %v", m, again, err)
			}
		}
		if l, err := decodeLoad(b); err == nil {
			if again, err := decodeLoad(l.encode()); err != nil || !reflect.DeepEqual(again, l) {
				t.Errorf("%+v becomes %+v, %v", l, again, err)
			}
		}
		_ = Acceptable(b, control.Spoken)
	})
}

// TestMetaVersions: who speaks a version that this agent speaks is a member, whether it says one or
// a range; of others no more is read than the version.
func TestMetaVersions(t *testing.T) {
	spoken := control.Versions{Oldest: 7, Newest: 7}
	for _, tt := range []struct {
		name string
		b    []byte
		want control.Versions
		err  string
	}{
		{"the same", Meta{Versions: spoken, Address: "a:1"}.Encode(), spoken, ""},
		{"the first that speaks the oldest",
			Meta{Versions: control.Versions{Oldest: 3, Newest: 7}, Address: "a:1"}.Encode(),
			control.Versions{Oldest: 3, Newest: 7}, ""},
		{"the next",
			Meta{Versions: control.Versions{Oldest: 7, Newest: 8}, Address: "a:1"}.Encode(),
			control.Versions{Oldest: 7, Newest: 8}, ""},
		{
			"beyond",
			Meta{Versions: control.Versions{Oldest: 8, Newest: 9}, Address: "a:1"}.Encode(),
			control.Versions{Oldest: 8, Newest: 8},
			"it speaks version 8 of the agents' protocol, this agent version 7: upgrade this agent " +
				"to a version of Muster that speaks version 8",
		},
		{
			"before",
			Meta{Versions: control.Versions{Oldest: 3, Newest: 6}, Address: "a:1"}.Encode(),
			control.Versions{Oldest: 3, Newest: 6},
			"it speaks versions 3 to 6 of the agents' protocol, this agent version 7: upgrade it to " +
				"a version of Muster that speaks version 7",
		},
		{
			"before there were ranges",
			withoutNewest(Meta{Versions: control.Versions{Oldest: 2, Newest: 2}, Address: "a:1"}),
			control.Versions{Oldest: 2, Newest: 2},
			"it speaks version 2 of the agents' protocol, this agent version 7: upgrade it to a " +
				"version of Muster that speaks version 7",
		},
	} {
		m, err := DecodeMeta(tt.b, spoken)
		if err != nil || m.Versions != tt.want {
			t.Errorf("%s: got %v, %v, want %v", tt.name, m.Versions, err, tt.want)
		}
		err = Acceptable(tt.b, spoken)
		if tt.err == "" && err != nil ||
			tt.err != "" && (err == nil || !strings.Contains(err.Error(), tt.err)) {
			t.Errorf("%s: got %v, want %q in it", tt.name, err, tt.err)
		}
	}
}

// withoutNewest is m as agents sent it that knew of one version only.
func withoutNewest(m Meta) []byte {
	b := m.Encode()
	return b[:len(b)-1]
}

// TestMetaFits: whatever the names, gossip has room for it.
func TestMetaFits(t *testing.T) {
	long := strings.Repeat("x", 1000)
	if n := len(Meta{
		Versions: control.Spoken, Address: long, Type: long, Role: long, Revision: 1 << 63,
	}.Encode()); n > gossip.MaxMeta {
		t.Errorf("meta of %d bytes, want at most %d", n, gossip.MaxMeta)
	}
	if n := len(gossipedLoad{
		revision: 1 << 63, waiting: 1 << 30, remaining: make([]time.Duration, 1000),
	}.encode()); n > gossip.MaxLoad {
		t.Errorf("load of %d bytes, want at most %d", n, gossip.MaxLoad)
	}
}
