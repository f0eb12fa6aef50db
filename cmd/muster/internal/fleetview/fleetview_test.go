package fleetview

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"
	"github.com/cockroachdb/datadriven"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/oip"
)

// testFleet is a fleet of n agents, the second of which is overdue, the fourth
// drains and the fifth has many lanes, under load.
func testFleet(n int) *control.FleetStatus {
	s := &control.FleetStatus{
		View: &control.View{
			Leadership: &control.Leadership{Epoch: 4, Leader: "ip-10-0-0-1-9e3779b1"},
		},
		Rate: 523.4, FluidLimit: 812, Waiting: 12, WaitingLate: 3,
		Models: []*control.ModelStatus{
			{Model: "dien", Version: 1, Rate: 410.2, WithinQos: proto.Float64(0.996),
				Answered: 123456, Late: 321, Refused: 4,
				Refusals: []*control.ModelStatus_Refusals{
					{Reason: "overloaded", Count: 3}, {Reason: "deadline", Count: 1},
				}},
			{Model: "ncf", Version: 1, Rate: 113.2, WithinQos: proto.Float64(0.97),
				Answered: 1234567890, Late: 12345678},
			{Model: "ncf", Version: 2, UnmetShare: 0.0254,
				WhyUnmet: "no lane answers these queries within the QoS target, however idle"},
			{Model: "retired", Version: 7, Answered: 17},
		},
		Decisions: []string{
			"assign query=1/30 attempt=1 lane=4 reason=matched cost=0.31 latency=30ms waited=1ms " +
				"slack=319ms agent=ip-10-0-0-1-9e3779b1",
			"assign query=1/24 attempt=2 lane=0 reason=lane-overdue cost=0.11 latency=12ms " +
				"waited=101ms slack=219ms agent=ip-10-0-0-3-daa66d13",
			"reject query=2/16 reason=overloaded",
			"assign query=1/20 attempt=1 lane=2 reason=matched cost=0.3 latency=30ms slack=320ms " +
				"agent=ip-10-0-0-5-1715609d",
		},
	}
	if n > 1 {
		s.View.Leadership.Successor = "ip-10-0-0-3-daa66d13"
	}
	for i := range n {
		m := &control.Member{
			Name:    fmt.Sprintf("ip-10-0-0-%d-%08x", i+1, uint32(i+1)*2654435761),
			Address: fmt.Sprintf("10.0.0.%d:8001", i+1), InstanceType: "g4dn.xlarge",
			PriceUsdPerHour: 0.526,
			Executor:        "onnx", Lanes: 1, Draining: i == 3,
			Models: []*control.Model{
				{Name: "dien", Version: 1, QosTargetNs: 35e6, QosPercentile: 0.99},
				{Name: "ncf", Version: 1, QosTargetNs: 5e6, QosPercentile: 0.99},
				{Name: "ncf", Version: 2, QosTargetNs: 5e6, QosPercentile: 0.99, Newest: true},
			},
		}
		a := &control.AgentStatus{
			Name: m.Name, RemainingNs: []int64{int64(i%5) * 9e6}, Waiting: uint32(i % 3),
			Factor: 1 + float64(i%4)/100, Busy: float64(i%7) / 6, Overdue: i == 1,
		}
		switch i % 6 {
		case 2:
			m.Executor, m.InstanceType = "emulated", "r5n.24xlarge.of.a.long.name"
		case 4:
			m.Lanes, a.RemainingNs = 12, make([]int64, 12)
			a.RemainingNs[1], a.RemainingNs[2], a.RemainingNs[3] = 1, 20e6, 5e9
		}
		s.View.Members, s.Agents = append(s.View.Members, m), append(s.Agents, a)
	}
	return s
}

// TestRefusals: status and a wide top say why queries failed, of which model, and which reached
// none.
func TestRefusals(t *testing.T) {
	s := testFleet(1)
	s.Models = append([]*control.ModelStatus{{Rate: 0.2, Refused: 2,
		Refusals: []*control.ModelStatus_Refusals{{Reason: "not_found", Count: 2}}}}, s.Models...)
	var printed strings.Builder
	if err := Print(&printed, s); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"\n(none)   -        0.2        -           0           0         0          2\n",
		"\ndien     1        410.2      99.6 %      123456      321       1          3\n",
		"\nfailed queries of (none): not_found 2\nfailed queries of dien/1: overloaded 3, deadline 1\n" +
			"ncf/2 cannot meet its QoS target with 2.54 % of its queries: no lane answers these " +
			"queries within the QoS target, however idle\n",
	} {
		if !strings.Contains(printed.String(), want) {
			t.Errorf("status: got\n%s\nwant in it\n%s", &printed, want)
		}
	}
	top := ansi.Strip(Draw(s, 120, 0))
	for _, want := range []string{
		"         1         3  overloaded 3, deadline 1\n",
		"\n(none)         0          -      0.2        -",
		"         2  not_found 2\n",
	} {
		if !strings.Contains(top, want) {
			t.Errorf("top: got\n%s\nwant in it\n%s", top, want)
		}
	}
}

// TestGPUs: status shows the cards and what is wrong with them, and top that something is.
func TestGPUs(t *testing.T) {
	s := testFleet(3)
	for i, g := range []*control.GPU{
		{Name: "Tesla T4", MemoryBytes: 15 << 30, UsedBytes: 3 << 30},
		{Index: 1, Name: "NVIDIA H100", MemoryBytes: 80 << 30, Slowed: []string{"heat", "hardware"},
			Uncorrected: 2, Xid: 63},
		{},
	} {
		s.View.Members[i].Gpu = g
	}
	var printed strings.Builder
	if err := Print(&printed, s); err != nil {
		t.Fatal(err)
	}
	const want = "\nAGENT                 GPU  NAME         USED GIB     TROUBLE\n" +
		"ip-10-0-0-1-9e3779b1  0    Tesla T4     3.0 of 15.0  -\n" +
		"ip-10-0-0-2-3c6ef362  1    NVIDIA H100  0.0 of 80.0  Xid 63, 2 uncorrected memory " +
		"errors, slowed: heat and hardware\n" +
		"ip-10-0-0-3-daa66d13  -    not watched  -            -\n"
	if !strings.Contains(printed.String(), want) {
		t.Errorf("status: got\n%s\nwant in it%s", &printed, want)
	}
	if top := ansi.Strip(Draw(s, 120, 0)); strings.Count(top, "GPU trouble") != 1 {
		t.Errorf("top: got\n%s\nwant in it once: GPU trouble", top)
	}
	if printed.Reset(); Print(&printed, testFleet(3)) != nil || strings.Contains(printed.String(),
		"GPU") {
		t.Errorf("status of a fleet without GPUs: got\n%s", &printed)
	}
}

// TestDraw draws what testdata/top says. With -rewrite it writes down what
// it draws.
func TestDraw(t *testing.T) {
	datadriven.RunTest(t, "testdata/top", func(t *testing.T, d *datadriven.TestData) string {
		var agents, width, height int
		d.ScanArgs(t, "agents", &agents)
		d.ScanArgs(t, "width", &width)
		d.ScanArgs(t, "height", &height)
		s := testFleet(agents)
		switch d.Cmd {
		case "draw":
		case "without-leader": // and with what its absence leaves unknown
			s = &control.FleetStatus{View: s.View, Agents: s.Agents}
			s.View.Leadership = &control.Leadership{Epoch: 4}
			for _, a := range s.Agents {
				a.Factor, a.Busy, a.Overdue = 0, 0, false
			}
		case "strange": // what ought not to be, or not for long
			s.View.Members[0].Name = "\x1b[31mred\n"
			s.Agents = append(s.Agents[1:], &control.AgentStatus{
				Name: "left", RemainingNs: []int64{math.MaxInt64},
			})
			s.Rate, s.FluidLimit, s.View.Leadership.Leader = math.NaN(), 1e-300, "left"
			s.Agents[1].RemainingNs = nil
			for _, m := range s.View.Members {
				m.Models = nil
			}
		default:
			d.Fatalf(t, "unknown command")
		}
		return ansi.Strip(Draw(s, width, height)) + "\n"
	})
}

// TestPlan: status and top say how the demand has changed and what is planned, in which state.
func TestPlan(t *testing.T) {
	at := time.Now()
	s := testFleet(2)
	s.Proposal = &control.Proposal{
		TimeUnixNs: at.UnixNano(), Model: "wnd", Version: 2, Kind: "batch sizes and arrival rate",
		Before: &control.Proposal_Load{Rate: 400.2, MeanSize: 236.4, LargeSize: 606},
		Now:    &control.Proposal_Load{Rate: 601, MeanSize: 250, LargeSize: 414},
		Change: true,
		Reason: "g4dn.xlarge=1,r5n.large=13 instead of g4dn.xlarge=2 costs 2.463 instead of " +
			"1.052 $/hr, and only that serves 601 queries/s",
	}
	wants := func(want string) {
		t.Helper()
		var b strings.Builder
		if err := Print(&b, s); err != nil {
			t.Fatal(err)
		}
		got := b.String() + ansi.Strip(Draw(s, 150, 0))
		if strings.Count(got, want) != 2 {
			t.Errorf("got %s\nwant twice %s", got, want)
		}
	}
	demand := "demand of wnd/2 changed at " + at.Format("15:04") +
		": rate from 400.2/s to 601.0/s, mean batch size from 236 to 250, 95 % quantile from " +
		"606 to 414\n"
	wants(demand + "  plan: g4dn.xlarge=1,r5n.large=13 instead of") // an older leader's
	s.Plan = &control.Plan{
		State: "proposed", Change: true, Reason: "only that serves 601 queries/s",
		Now: &control.Plan_Choice{Price: 1.052}, Proposed: &control.Plan_Choice{Price: 2.463},
		Changes: []string{"g4dn.xlarge: 1 fewer", "r5n.large: 13 more"},
	}
	proposed := "plan, proposed: $2.463/hr instead of $1.052\n  g4dn.xlarge: 1 fewer\n" +
		"  r5n.large: 13 more\n  only that serves 601 queries/s\n"
	wants(demand + proposed)
	s.Plan.State, s.Plan.Change = "superseded", false
	wants(demand + "plan, superseded: only that serves")
	s.Proposal.Kind, s.Proposal.TimeUnixNs = "arrival rate", at.Add(-48*time.Hour).UnixNano()
	wants(at.Add(-48*time.Hour).Format("2006-01-02 15:04") + ": rate from 400.2/s to 601.0/s\n")
	s.Proposal = nil
	wants("plan, superseded: only that serves")
	s.Plan.SetRented(&control.FleetState{Mode: "approve", Proposal: &control.FleetProposal{
		Number: 7, PriceUsdPerHour: 2, NowUsdPerHour: 3, Why: "300 queries/s",
		Waits: "somebody has to approve it", Changes: []string{"r5n.large: 2 fewer"},
	}})
	wants("plan 7, waits for approval: $2.000/hr instead of $3.000; somebody has to approve it\n" +
		"  r5n.large: 2 fewer\n  for 300 queries/s\n")
}

// TestDrawFits: whatever the fleet and the terminal, nothing is drawn
// beyond the edges, and the height is used where there is more to say: at most the lines of a title
// and what stands below it stay empty.
func TestDrawFits(t *testing.T) {
	for _, agents := range []int{0, 1, 6, 60} {
		whole := Draw(testFleet(agents), 200, 0)
		for _, width := range []int{1, 13, 40, 79, 120} {
			for height := 1; height <= 50; height++ {
				lines := strings.Split(Draw(testFleet(agents), width, height), "\n")
				want := min(height, strings.Count(whole, "\n")+1)
				if len(lines) > want || len(lines) < want-2 {
					t.Fatalf("%d agents at %d x %d: got %d lines, want %d", agents, width, height,
						len(lines), want)
				}
				for _, l := range lines {
					if ansi.StringWidth(l) > width {
						t.Fatalf("%d agents at %d x %d: got %q, which is %d wide", agents, width,
							height, l, ansi.StringWidth(l))
					}
				}
			}
		}
	}
	if got, want := Draw(&control.FleetStatus{}, 80, 24), "0 agents, 0 lanes"; !strings.Contains(
		got, want) {
		t.Errorf("of nothing: got %q, want %q in it", got, want)
	}
}

// TestSmallScreen: in the smallest usual terminal the models have their rows, with rate, late and
// refused queries; agents and decisions give way.
func TestSmallScreen(t *testing.T) {
	for _, agents := range []int{1, 6, 60} {
		s := testFleet(agents)
		shown := ansi.Strip(Draw(s, 40, 11)) // the twelfth line says whom top asks
		for _, want := range []string{
			"MODEL", "RATE/S", "LATE 60S", "REFUSED", "dien/1", "410.2", "0.4 %", "ncf/1",
			"! 3.0 %",
			"ncf/2", "retired/7", "AGENT",
		} {
			if !strings.Contains(shown, want) {
				t.Errorf("%d agents: no %q in\n%s", agents, want, shown)
			}
		}
	}
}

func TestBrief(t *testing.T) {
	for _, tt := range []struct {
		d    time.Duration
		want string
	}{
		{-1, "0"}, {0, "0"}, {1, "0ms"}, {99999, "0.1ms"}, {1250 * time.Microsecond, "1.3ms"}, {
			9960 * time.Microsecond, "10ms",
		},
		{10 * time.Millisecond, "10ms"}, {9999 * time.Millisecond, "9999ms"},
		{10 * time.Second, "10s"}, {9999 * time.Second, "9999s"}, {math.MaxInt64, "2562048h"},
	} {
		if got := formatBrief(int64(tt.d)); got != tt.want {
			t.Errorf("%v: got %q, want %q", tt.d, got, tt.want)
		}
	}
}

// topped is what the model makes of the message.
func topped(t *testing.T, m screen, msg tea.Msg) (screen, tea.Cmd) {
	t.Helper()
	next, cmd := m.Update(msg)
	return next.(screen), cmd
}

func TestScreen(t *testing.T) {
	shown := func(m screen) string { return ansi.Strip(m.View().Content) }
	m := screen{ctx: t.Context(), interval: time.Hour, status: testFleet(6), note: "asks a"}
	if got := shown(m); got != "" {
		t.Errorf("of unknown size: got %q", got)
	}
	m, _ = topped(t, m, tea.WindowSizeMsg{Width: 80, Height: 24})
	lines := strings.Split(shown(m), "\n")
	if len(lines) != 24 || lines[23] != "asks a" || !strings.Contains(shown(m), "523.4") {
		t.Errorf("got %q", lines)
	}
	m, _ = topped(t, m, tea.WindowSizeMsg{Width: 60, Height: 50})
	if lines := strings.Split(shown(m), "\n"); len(lines) != 50 || lines[49] != "asks a" {
		t.Errorf("after resizing: got %q", lines)
	}

	start := time.Unix(0, 0)
	m, cmd := topped(t, m, pollResult{at: start, err: errors.New("a: connection refused")})
	if got := shown(m); cmd == nil ||
		!strings.Contains(got, "OLD NUMBERS: no answer for 0s; a: connection refused") ||
		!strings.Contains(got, "523.4") {
		t.Errorf("without an answer: got %q", got)
	}
	m, _ = topped(t, m, pollResult{
		at: start.Add(12 * time.Second), err: errors.New("a: connection refused"),
	})
	if got := shown(m); !strings.Contains(got, "no answer for 12s") {
		t.Errorf("without an answer for 12 s: got %q", got)
	}
	m, cmd = topped(t, m, pollResult{
		at: start.Add(13 * time.Second), status: &control.FleetStatus{}, note: "asks b",
	})
	if got := shown(m); cmd == nil || strings.Contains(got, "523.4") ||
		!strings.Contains(got, "asks b") || !m.failing.IsZero() {
		t.Errorf("with an answer again: got %q", got)
	}

	for _, key := range []tea.KeyPressMsg{{Code: 'q', Text: "q"}, {Code: 'c', Mod: tea.ModCtrl}} {
		if _, cmd := topped(t, m, key); cmd == nil || cmd() != tea.Quit() {
			t.Errorf("%v does not quit", key)
		}
	}
	if _, cmd := topped(t, m, tea.KeyPressMsg{Code: 'x', Text: "x"}); cmd != nil {
		t.Error("x does something")
	}
}

// A statusServer tells the status of a fleet.
type statusServer struct {
	control.UnimplementedControlServer
	address string
	server  *grpc.Server
	status  *control.FleetStatus
}

func (s *statusServer) Status(context.Context, *control.StatusRequest) (*control.FleetStatus,
	error) {
	return s.status, nil
}

// serveStatus starts n agents of a fleet that know each other. Their models'
// name is fleet.
func serveStatus(t *testing.T, n int) []*statusServer {
	t.Helper()
	view := &control.View{Leadership: &control.Leadership{Epoch: 1}}
	servers := make([]*statusServer, n)
	for i := range servers {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		s := &statusServer{
			address: listener.Addr().String(),
			server:  grpc.NewServer(oip.ServerOptions(1 << 20)...), status: &control.FleetStatus{
				View: view,
			},
		}
		view.Members = append(view.Members, &control.Member{
			Name: fmt.Sprintf("agent-%d", i), Address: s.address, Lanes: 1,
		})
		control.RegisterControlServer(s.server, s)
		go s.server.Serve(listener) //nolint:errcheck // it ends with Stop
		t.Cleanup(s.server.Stop)
		servers[i] = s
	}
	return servers
}

// TestSource: when the agent that is asked goes away, another one is, whether
// the user named it or not.
func TestSource(t *testing.T) {
	agents := serveStatus(t, 3)
	source := NewSource([]string{agents[0].address},
		append(oip.DialOptions(), grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	t.Cleanup(source.Close)
	ask := func(note string) {
		t.Helper()
		s, err := source.Ask(t.Context())
		if err != nil || len(s.GetView().GetMembers()) != 3 {
			t.Fatalf("got %v, %v", s, err)
		}
		if got := source.lastLine(time.Second); !strings.HasPrefix(got, note) {
			t.Errorf("got the note %q, want %q", got, note)
		}
	}
	ask("q quits; asks " + agents[0].address + " every 1s")
	if strings.Contains(source.lastLine(time.Second), "since") {
		t.Errorf("the first agent asked: got the note %q", source.lastLine(time.Second))
	}
	agents[0].server.Stop()
	ask(fmt.Sprintf("q quits; asks %s every 1s, since %s cannot be reached: ", agents[1].address,
		agents[0].address))
	ask("q quits; asks " + agents[1].address)
	agents[1].server.Stop()
	ask("q quits; asks " + agents[2].address)
	agents[2].server.Stop()
	if _, err := source.Ask(t.Context()); err == nil ||
		!strings.Contains(err.Error(), agents[2].address+" cannot be reached: ") {
		t.Errorf("without agents: got %v, want the one asked last", err)
	}

	// Members that have left are forgotten, servers that the user gave are not.
	source.setAddresses(&control.FleetStatus{
		View: &control.View{Members: []*control.Member{{Address: "b:1"}, {}}},
	})
	if got, want := fmt.Sprint(source.addresses[1:]), fmt.Sprintf("[%s b:1]",
		agents[0].address); got != want {
		t.Errorf("got addresses %s after %s, want %s", got, source.addresses[0], want)
	}
}

// Counts have no exponent.
func TestCount(t *testing.T) {
	for n, want := range map[uint64]string{
		99_999_999: "99999999", 123_456_789: "123.5M", 100e9: "100G", 1234e9: "1234G",
	} {
		if got := formatCount(n); got != want {
			t.Errorf("%d: got %s, want %s", n, got, want)
		}
	}
}
