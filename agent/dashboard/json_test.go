package dashboard

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/names"
)

// TestNumbers: what is not known is null, counts are whole, and nothing else is in a number.
func TestNumbers(t *testing.T) {
	b, err := json.Marshal(numbers{
		math.NaN(), math.Inf(1), 0, -1, 1234567, 1795386441, 0.123456789, 1e-9, 1e300,
	})
	if want := "[null,null,0,-1,1234567,1795386441,0.123457,1e-09,1e+300]"; string(b) != want ||
		err != nil {
		t.Errorf("got %s, %v, want %s", b, err, want)
	}
}

// TestEventsAreLines: what others have chosen ends no event of a stream and begins none.
func TestEventsAreLines(t *testing.T) {
	nasty := "</script>\n\nevent: beat\ndata: {}\r\n\r\n<img src=x onerror=alert(1)>\u2028"
	b := appendFrame(nil, "x", 7, (&control.Event{
		Agent: nasty, What: nasty, Kind: nasty, TimeUnixNs: math.MinInt64,
		Details: []*control.EventDetail{{Key: nasty, Value: nasty}},
	}).JSON())
	if n := bytes.Count(b, []byte("\n")); n != 4 || bytes.ContainsAny(b, "\r<>") ||
		!bytes.HasPrefix(b, []byte("event: x\nid: 7\ndata: {")) {
		t.Errorf("%d lines: %q", n, b)
	}
	var e control.EventJSON
	if err := json.Unmarshal(b[len("event: x\nid: 7\ndata: "):], &e); err != nil ||
		e.What != nasty {
		t.Errorf("%v: %+v", err, e)
	}
}

// bigBeat is a beat of 1,000 lanes of 250 agents, with 20 models, as a leader's.
func bigBeat(t testing.TB) *control.PulseMessage {
	v := &control.View{Leadership: &control.Leadership{Epoch: 1, Leader: "ip-10-0-0-0"}}
	for i := range 250 {
		m := &control.Member{
			Name: fmt.Sprintf("ip-10-0-%d-%d", i/256, i%256), Lanes: 4, Address: "10.0.0.1:8001",
			InstanceType: []string{"g4dn.xlarge", "r5n.large", "c5n.2xlarge", "t3.xlarge"}[i%4],
		}
		for k := range 20 {
			m.Models = append(m.Models, &control.Model{
				Name: fmt.Sprint("model", k), Version: 1, QosTargetNs: 1e7,
			})
		}
		v.Members = append(v.Members, m)
	}
	f := control.NewFleet(v, nil, nil)
	f.Revision = 1<<20 | 1
	b := &control.Beat{Fleet: f.Revision, Epoch: 1, ShotWeight: 7, Row: &control.Row{
		Beats: 1, Rate: 5000, Limit: 7000.5, Answered: 5000,
	}}
	for i := range f.CountLanes() {
		b.Lanes = control.AppendLane(b.Lanes, control.LaneBeat{
			Free: time.Duration(i) * 37 * time.Microsecond, Busy: float64(i%100) / 100,
			Model: i % 20,
		})
	}
	for k, m := range f.Models {
		key := string(names.NewModelKey(m.Name, m.Version))
		b.Row.Models = append(b.Row.Models, &control.ModelRow{
			Model: key, Answered: 250, P50Ns: 3.3e6, P99Ns: 9.9e6,
		})
		b.Models = append(b.Models, &control.ModelBeat{Model: uint32(k), Rate: 250.3, Within: 0.99})
		for typ := range 4 {
			h := &control.Heat{Type: uint32(typ), Model: uint32(k)}
			for bin := range 20 {
				h.Bins = append(h.Bins, uint32(bin), uint32(bin+typ))
			}
			b.Heat = append(b.Heat, h)
		}
	}
	for i := range 60 {
		b.Shots = append(b.Shots, uint32(13*i), uint32(i%4), uint32(i%20), 0)
	}
	return &control.PulseMessage{Fleet: f, Beat: b}
}

// A sink is a viewer's connection that takes everything.
type sink struct {
	http.ResponseWriter
	header http.Header
}

func (s sink) Header() http.Header         { return s.header }
func (s sink) Write(b []byte) (int, error) { return io.Discard.Write(b) }

// BenchmarkBeat takes a beat of 1,000 lanes from the network and writes it to 100 viewers, which an
// agent does once a second. At less than 50 ms that is less than 5 % of a core.
func BenchmarkBeat(b *testing.B) {
	const viewers = 100
	w := newWorld(b, "a", "b")
	w.lead(1, "b", "")
	h := w.agents["a"].hub
	var all []*watcher
	for range viewers {
		watcher, _ := h.watch(true, 0)
		all = append(all, watcher)
	}
	message := bigBeat(b)
	wire, err := proto.Marshal(message)
	if err != nil {
		b.Fatal(err)
	}
	out := sink{header: http.Header{}}
	size := 0
	for second := uint64(1); b.Loop(); second++ {
		var m control.PulseMessage
		if err := proto.Unmarshal(wire, &m); err != nil {
			b.Fatal(err)
		}
		m.Beat.Row.Second = second
		if second > 1 {
			m.Fleet = nil
		}
		if err := h.deliverNew(&m, false); err != nil {
			b.Fatal(err)
		}
		for _, watcher := range all {
			frame := (<-watcher.out).frameFor(viewerClass{all: true, events: true})
			size = len(frame)
			_, _ = out.Write(frame)
		}
	}
	b.ReportMetric(float64(len(wire)), "bytes-from-leader")
	b.ReportMetric(float64(size), "bytes-to-viewer")
}

// TestWhyLate: the page says why queries are late, of the models that a viewer may see.
func TestWhyLate(t *testing.T) {
	f := &control.Fleet{
		Models: []*control.FleetModel{{Name: "ncf"}, {Name: "wnd"}},
		Agents: []*control.FleetAgent{{Name: "host-3f1c", DisplayName: "vm-2"}},
	}
	m := &control.MissedQueries{
		Missed: []*control.Missed{
			{Model: "ncf", Cause: "cpu", Agent: "host-3f1c", Count: 24},
			{Model: "wnd", Cause: "lane", Count: 7}, {Cause: "rights", Count: 1},
		},
		Ended: []*control.EndedQueries{{Model: "ncf", Count: 900}, {Model: "wnd", Count: 100}},
	}
	for _, c := range []struct {
		class viewerClass
		want  string
	}{
		{viewerClass{all: true}, "3.2 % late: 2.4 % vm-2 lacks CPU, 0.7 % waited for a lane"},
		{viewerClass{models: "01"}, "7.0 % late: waited for a lane"},
		{viewerClass{models: "00"}, ""},
	} {
		if got := visibleMissed(m, f, c.class).Sentence(3); got != c.want {
			t.Errorf("%+v: %q, want %q", c.class, got, c.want)
		}
	}
	if got := visibleMissed(nil, f, viewerClass{all: true}).Sentence(3); got != "" {
		t.Errorf("of an older leader: %q, want nothing", got)
	}
}
