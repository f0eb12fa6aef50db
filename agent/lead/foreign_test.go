package lead

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/muster-serve/muster/agent/fuzzing"
	"github.com/muster-serve/muster/agent/members"
	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/api/secure"
	"github.com/muster-serve/muster/leader"
	"github.com/muster-serve/muster/leader/election"
	"github.com/muster-serve/muster/profiles"
)

var errStill = errors.New("nobody is reached here")

// What the records of FuzzLeader say, and how who does it is added.
const (
	sayGateway = iota // a GatewayMessage; the first after a disconnect connects
	disconnect
	sayWorker // a WorkerMessage; the first after a break greets
	breakLink
	goneLink
	passTime // as many ms as there are bytes
	by1      = 1 << 4
	by2      = 2 << 4
)

// A stillFleet is a fleet of members that do not change.
type stillFleet struct{ members []*control.Member }

func (f *stillFleet) Self() names.AgentName { return "leader" }
func (f *stillFleet) View() *control.View {
	return &control.View{
		Members: f.members,
	}
}
func (f *stillFleet) Plan() *control.Plan                        { return nil }
func (f *stillFleet) Proposal() *control.Proposal                { return nil }
func (f *stillFleet) Placement() *control.Placement              { return nil }
func (f *stillFleet) Changed() <-chan struct{}                   { return nil }
func (f *stillFleet) Gone(context.Context, names.AgentName) bool { return false }
func (f *stillFleet) Dial(names.AgentName) (grpc.ClientConnInterface, error) {
	return nil, errStill
}

func honestMember(who byte) *control.Member {
	return &control.Member{
		Name: fmt.Sprint("w", who), Address: "w:1", Protocol: control.Spoken.Oldest,
		InstanceType: "box", Provider: "cpu", Executor: "emulated",
		Lanes: 1, Cores: 1, Role: "may", Rank: 1, Models: []*control.Model{
			testModel("m", 100*time.Millisecond),
		},
	}
}

// A toldLeader is a leader that is told what others say, and does nothing else.
// Nothing runs beside it.
type toldLeader struct {
	*term
	gateways [4]*gateway
	greeted  [4]bool
}

func newToldLeader(t *testing.T, dir string, log *slog.Logger) *toldLeader {
	config := Config{
		Role: election.May, StateDir: dir, Catalogue: profiles.DefaultCatalogue(),
		Library: profiles.ShippedLibrary(),
	}
	l := &Leader{
		config: config, fleet: &stillFleet{[]*control.Member{honestMember(0), honestMember(1)}},
		log:     log,
		metrics: newMetrics(prometheus.NewRegistry()), book: profiles.NewBook(config.Library),
		ctx: t.Context(), following: &members.LeadershipWatch{},
	}
	l.following.Publish(&control.Leadership{Epoch: 1, Leader: "leader"})
	l.links = newLinks(l.fleet, log)
	in := &toldLeader{term: newTerm(l, election.Claim{Epoch: 1, Leader: "leader"}, nil)}
	if !in.open() {
		t.Fatal("the term does not begin")
	}
	return in
}

// do does what a record says.
func (in *toldLeader) do(x fuzzing.Record) {
	switch x.Kind {
	case sayGateway:
		m := &control.GatewayMessage{}
		if proto.Unmarshal(x.Data, m) != nil {
			return
		}
		if g := in.gateways[x.Who]; g != nil {
			in.handleGatewayMessage(g, m)
		} else if checkHello(m.GetHello()) == nil {
			in.connectGateway(x.Who, m.GetHello().GetGateway())
			in.handleGatewayMessage(in.gateways[x.Who], m)
		}
	case disconnect:
		if g := in.gateways[x.Who]; g != nil {
			in.removeGateway(g)
			in.gateways[x.Who] = nil
		}
	case sayWorker:
		m := &control.WorkerMessage{}
		if proto.Unmarshal(x.Data, m) != nil {
			return
		}
		in.say(x.Who, m)
	case breakLink, goneLink:
		in.linkBroken(names.AgentName(fmt.Sprint("w", x.Who)), x.Kind == goneLink, io.EOF)
		in.greeted[x.Who] = false
	case passTime:
		in.pass(time.Duration(len(x.Data)) * time.Millisecond)
	}
}

func (in *toldLeader) connectGateway(who byte, id uint64) {
	in.gateways[who] = &gateway{id: id, wake: make(chan struct{}, 1), cut: func(error) {}}
	in.connect(in.gateways[who])
}

// say is what a link does with a message.
func (in *toldLeader) say(who byte, m *control.WorkerMessage) {
	name := fmt.Sprint("w", who)
	if m.Member != nil &&
		members.CheckDescription(m.Member, names.AgentName(name), control.Spoken) != nil {
		in.linkBroken(names.AgentName(name), false, io.EOF)
		in.greeted[who] = false
		return
	}
	first := !in.greeted[who]
	in.greeted[who] = in.greeted[who] || m.Member != nil
	if in.greeted[who] {
		in.handleMemberMessage(names.AgentName(name), m, first)
	}
}

// pass lets time pass, in which the learning loop looks at what it has been told.
func (in *toldLeader) pass(d time.Duration) {
	in.now = in.now.Add(d)
	in.learning.passSeen(in.now)
	for {
		select {
		case t := <-in.inbox:
			t.do()
			continue
		default:
		}
		break
	}
	in.step(leader.Event{Kind: leader.TimePassed})
}

// FuzzLeader has gateways and workers say to a leader whatever they like. It must
// keep its head, send nothing that cannot be sent, and serve others as before.
func FuzzLeader(f *testing.F) {
	hello := &control.GatewayMessage{
		Hello: &control.GatewayHello{Gateway: 7, Protocol: control.Spoken.Oldest},
	}
	greeting := &control.WorkerMessage{Member: honestMember(0), RemainingNs: []int64{0}}
	submit := func(s ...*control.Submit) *control.GatewayMessage {
		return &control.GatewayMessage{
			Submit: s,
		}
	}
	completed := &control.Completed{
		Gateway: 7, Sequence: 1, Attempt: 1, Model: "m", Version: 1, BatchSize: 3, ExecutionNs: 1e6,
		LatencyNs: 2e6, Bytes: 100,
	}
	ran := &control.WorkerMessage{Completed: []*control.Completed{completed, completed}}
	absurd := &control.WorkerMessage{RemainingNs: []int64{math.MaxInt64, math.MinInt64},
		Completed: []*control.Completed{
			{Gateway: 7, Sequence: 1, Attempt: 1, Model: "m", Version: 1, BatchSize: math.MaxUint32,
				ExecutionNs: math.MinInt64, QueueNs: math.MaxInt64, ReceiveNs: -1, LatencyNs: -1,
				RemainingNs: math.MaxInt64},
			{Gateway: 7, Sequence: 1, Attempt: math.MaxUint32, Lane: math.MaxUint32, Refused: "x"},
		}}
	many := proto.CloneOf(greeting)
	many.Member.Lanes, many.Member.PriceUsdPerHour,
		many.Member.Models[0].QosPercentile = math.MaxUint32, math.NaN(), math.NaN()
	held := proto.CloneOf(greeting)
	held.Held = []*control.Held{
		{Gateway: 7, Sequence: 1, Attempt: 1, Model: "m", Version: 1, BatchSize: 3}, {
			Gateway: 9, Lane: 9,
		},
	}
	f.Add(fuzzing.Script(sayWorker, greeting, passTime, 1, sayGateway, hello, sayGateway,
		submit(&control.Submit{Sequence: 1, Model: "m", BatchSize: 3, Bytes: 100}),
		passTime, 1, sayWorker, ran, passTime, 300, breakLink, nil, passTime, 1500))
	f.Add(fuzzing.Script(sayWorker, held, sayGateway, hello, sayGateway,
		submit(&control.Submit{Sequence: 1, Model: "m", BatchSize: 3, Attempts: 1, Agent: "w0"}),
		sayWorker, absurd,
		sayWorker, many, sayGateway, &control.GatewayMessage{
			Cancel: []uint64{1, 1, 2}, Unused: []*control.Assign{
				{Sequence: 1, Attempt: 1, Agent: "w0"}, {Agent: "w1", Lane: 9},
			},
		}))
	f.Add(fuzzing.Script(sayGateway+by1, hello, sayGateway+by2, hello, sayGateway+by2, submit(
		&control.Submit{
			Sequence: 1, Model: "m", BatchSize: math.MaxUint32, WaitedNs: math.MaxInt64,
			TimeLeftNs: math.MinInt64, Attempts: math.MaxUint32, Agent: "w1", Lane: math.MaxUint32,
		},
		&control.Submit{Sequence: 2, Model: "nothing", Version: -1},
		&control.Submit{Sequence: 3, Model: "m", Agent: "w1", Attempts: 1}), passTime, 200,
		disconnect+by2, nil))
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, b []byte) {
		log := &bytes.Buffer{}
		in := newToldLeader(t, dir, slog.New(slog.NewTextHandler(log, nil)))
		send := func() {
			t.Helper()
			in.flush()
			for _, g := range in.term.gateways {
				if _, err := proto.Marshal(g.pending); err != nil {
					t.Errorf("to a gateway: %v", err)
				}
				g.pending, g.unread = nil, 0
			}
		}
		for _, x := range fuzzing.Records(b) {
			in.do(x)
			send()
		}
		s := &control.FleetStatus{}
		in.fillStatus(s)
		if _, err := proto.Marshal(s); err != nil {
			t.Errorf("status: %v", err)
		}

		// They go, and others are served.
		for who := range byte(4) {
			in.do(fuzzing.Record{Kind: disconnect, Who: who})
			in.do(fuzzing.Record{Kind: goneLink, Who: who})
		}
		in.pass(2 * time.Second)
		in.say(0, &control.WorkerMessage{Member: honestMember(0), RemainingNs: []int64{0}})
		in.pass(time.Second)
		in.connectGateway(3, 1<<60)
		in.handleGatewayMessage(in.gateways[3], &control.GatewayMessage{
			Submit: []*control.Submit{
				{Sequence: 1, Model: "m", Version: 1, BatchSize: 3, TimeLeftNs: 1e9},
			},
		})
		in.flush()
		if m := in.gateways[3].pending; len(m.GetAssign()) != 1 || m.Assign[0].Agent != "w0" {
			t.Errorf("a good query of another gateway gets %v, want an assignment", m)
		}
		in.cancel()
		if strings.Contains(log.String(), "makes no sense") {
			t.Errorf("what others say is logged as nonsense of our own: %s", log)
		}
	})
}

// TestTrim: a submit keeps no more than there is use for.
func TestTrim(t *testing.T) {
	s := &control.Submit{
		Model: "ncf", Traceparent: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
		Tracestate: strings.Repeat("x", maxTracestate),
	}
	s.ProtoReflect().SetUnknown(append(binary.AppendUvarint(nil, 1000<<3|2),
		append([]byte{100}, make([]byte, 100)...)...))
	trim(s)
	if len(s.Tracestate) != maxTracestate || s.Traceparent == "" ||
		len(s.ProtoReflect().GetUnknown()) > 0 {
		t.Errorf("kept %v, want both contexts and nothing unknown", s)
	}
	s.Tracestate += "x"
	if trim(s); s.Tracestate != "" || s.Traceparent == "" {
		t.Errorf("kept %v, want no tracestate", s)
	}
	s.Traceparent, s.Tracestate = strings.Repeat("x", maxTraceparent+1), "a=b"
	if trim(s); s.Traceparent+s.Tracestate != "" {
		t.Errorf("kept %v, want no context", s)
	}
}

// TestDescriptions are what no agent is believed to be.
func TestDescriptions(t *testing.T) {
	for want, change := range map[string]func(*control.Member){
		"":                                   func(*control.Member) {},
		`found agent "other" at its address`: func(m *control.Member) { m.Name = "other" },
		"speaks version 9":                   func(m *control.Member) { m.Protocol = 9 },
		"4294967295 lanes, want at most":     func(m *control.Member) { m.Lanes = math.MaxUint32 },
		"price is NaN": func(m *control.Member) {
			m.PriceUsdPerHour = math.NaN()
		},
		"price is -1": func(m *control.Member) { m.PriceUsdPerHour = -1 },
		"price is +Inf": func(m *control.Member) {
			m.PriceUsdPerHour = math.Inf(1)
		},
		"model without a name": func(m *control.Member) { m.Models[0].Name = "" },
		`NaN of the queries of model "m"`: func(m *control.Member) {
			m.Models[0].QosPercentile = math.NaN()
		},
		"answered within -1ns": func(m *control.Member) { m.Models[0].QosTargetNs = -1 },
		`largest batch size of model "m"`: func(m *control.Member) {
			m.Models[0].LargestBatchSize = 0
		},
	} {
		m := honestMember(0)
		change(m)
		if err := members.CheckDescription(m, "w0", control.Spoken); fmt.Sprint(err) != "<nil>" &&
			want == "" || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

// TestRefusedSubmit: a query whose submit is made again, and refused then, waits at
// the leader no more.
func TestRefusedSubmit(t *testing.T) {
	in := newToldLeader(t, t.TempDir(), slog.New(slog.DiscardHandler))
	in.connectGateway(0, 7)
	g, over := in.gateways[0], error(nil)
	g.count = func(uint64) error { return over }
	submit := &control.GatewayMessage{
		Submit: []*control.Submit{{Sequence: 1, Model: "m", BatchSize: 1}},
	}
	in.handleGatewayMessage(g, submit)
	if all, _ := in.state.Waiting(); all != 1 {
		t.Fatalf("%d queries wait, want 1", all)
	}
	over = &secure.LimitError{RetryAfter: time.Second}
	in.handleGatewayMessage(g, submit)
	if all, _ := in.state.Waiting(); all != 0 || len(g.out.GetReject()) != 1 ||
		g.out.Reject[0].RetryAfterNs != int64(time.Second) || g.received != 2 {
		t.Errorf("%d queries wait, and the gateway gets %v; want none, and a rejection", all, g.out)
	}
	in.cancel()
}
