package agent_test

import (
	"context"
	"math"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/muster-serve/muster/agent/agenttest"
	"github.com/muster-serve/muster/agent/fuzzing"
	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/gossip"
	"github.com/muster-serve/muster/leader/election"
)

const by1 = 1 << 4

// What the records of FuzzWorker are.
const (
	sayLeader = iota // a LeaderMessage on the stream of who
	askProbe         // a ProbeRequest on the stream of who
	askKeyring
)

// FuzzWorker has others say to an agent whatever they like on the streams that they open as
// leaders and gateways, and as those who rotate its gossip keys. It must go on answering queries.
func FuzzWorker(f *testing.F) {
	from := &control.LeaderMessage{From: "x"}
	leads := &control.LeaderMessage{From: "x", Election: []*control.Election{
		{From: "x", Epoch: 1 << 30, Rank: 5, Leader: "x", Successor: "y"},
	},
		Leadership: &control.Leadership{Epoch: 1 << 30, Leader: "x"},
		Prices: []*control.TypePrice{
			{Type: "t3.xlarge", PerMs: math.NaN(), ServiceMs: math.Inf(1)},
		}, Profiles: []*control.Profile{{Model: "ncf/1", Type: "t3.xlarge", Table: []byte("{")}}}
	old := &control.LeaderMessage{
		Election: []*control.Election{
			{From: "y", Epoch: 1, Leader: "y"}, {From: "z", Kind: 4, Heard: true},
			{From: "z", Kind: 99}, {From: "x", Kind: 5},
		},
	}
	probe := &control.ProbeRequest{Id: 1, Gateway: 2, Model: "ncf", BatchSize: 3, TimeLeftNs: 1e9}
	release := &control.ProbeRequest{Id: 1, Gateway: 2, Release: true}
	nonsense := &control.ProbeRequest{
		Id: 3, Model: "ncf", Version: -1, BatchSize: math.MaxUint32, TimeLeftNs: math.MinInt64,
		Bytes: math.MaxUint64,
	}
	step := func(step string, key []byte) *control.KeyringRequest {
		return &control.KeyringRequest{Step: step, Key: key, Rotation: 1}
	}
	f.Add(fuzzing.Script(sayLeader, from, sayLeader, leads, sayLeader, old, sayLeader+by1, leads,
		askProbe, probe, askProbe+by1, release, askProbe, nonsense))
	f.Add(fuzzing.Script(sayLeader, leads, askKeyring, step(agenttest.AddKey, agenttest.NewerKey), askKeyring,
		step(agenttest.OnlyKey, agenttest.NewerKey), askKeyring, step(agenttest.UseKey, agenttest.NewerKey),
		askKeyring, step(agenttest.UseKey, agenttest.OldKey), askKeyring,
		step(agenttest.OnlyKey, agenttest.OldKey), askKeyring,
		step("", nil), askKeyring, step(agenttest.EndKeys, nil)))
	config := agenttest.Config(f)
	config.GossipKey = gossip.FormatKey(agenttest.OldKey)
	a := agenttest.Start(f, config, agenttest.Emulated())
	here := control.NewControlClient(a.Local())
	f.Fuzz(func(t *testing.T, b []byte) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var links [4]control.Control_LinkClient
		var probes [4]control.Control_ProbeClient
		ends := []chan struct{}{}
		for i := range links {
			var err error
			if links[i], err = here.Link(ctx); err != nil {
				t.Fatal(err)
			}
			if probes[i], err = here.Probe(ctx); err != nil {
				t.Fatal(err)
			}
			for _, do := range []func(){ // they end when what serves the stream does
				func() { drainPipe(links[i].Recv) },
				func() { drainPipe(probes[i].Recv) },
			} {
				ended := make(chan struct{})
				ends = append(ends, ended)
				go func() { defer close(ended); do() }()
			}
		}
		for _, x := range fuzzing.Records(b) {
			switch x.Kind {
			case sayLeader:
				m := &control.LeaderMessage{}
				if proto.Unmarshal(x.Data, m) == nil {
					for _, e := range m.Election {
						// who lies about the last epoch of all is believed
						e.Epoch &= math.MaxUint32
					}
					_ = links[x.Who].Send(m) // the agent may have ended it
				}
			case askProbe:
				m := &control.ProbeRequest{}
				if proto.Unmarshal(x.Data, m) == nil {
					_ = probes[x.Who].Send(m)
				}
			case askKeyring:
				m := &control.KeyringRequest{}
				if proto.Unmarshal(x.Data, m) == nil {
					_, _ = here.Keyring(ctx, m)
				}
			}
		}
		if _, err := a.GRPC.ModelInfer(ctx, agenttest.WithTimeout(agenttest.NCFRequest(1), time.Minute)); err != nil {
			t.Errorf("a query meanwhile: %v", err)
		}
		cancel()
		for _, ended := range ends {
			<-ended
		}
		if held := a.Gossip().Keys(); len(held) == 0 {
			t.Error("no gossip key is left")
		}
		if n := agenttest.Held(a.Inside, "worker: reservations"); n > 0 {
			t.Errorf("%d reservations are kept for nobody", n)
		}
	})
}

func drainPipe[M any](receive func() (M, error)) {
	for {
		if _, err := receive(); err != nil {
			return
		}
	}
}

// A deadlineRecorder lets a handler bound what it reads and writes, as a connection does.
type deadlineRecorder struct{ *httptest.ResponseRecorder }

func (deadlineRecorder) SetReadDeadline(time.Time) error { return nil }

func (deadlineRecorder) SetWriteDeadline(time.Time) error { return nil }

// FuzzREST sends an agent's REST server any request. It must answer each, and
// never with a fault of its own.
func FuzzREST(f *testing.F) {
	f.Add("POST", "/v2/models/ncf/infer",
		"Content-Encoding: gzip\nInference-Header-Content-Length: 10", []byte(agenttest.NCFBody(1)))
	f.Add("POST", "/v2/models/ncf/versions/1/infer", "Inference-Header-Content-Length: 10",
		[]byte(agenttest.NCFBody(1)))
	f.Add("POST", "/v2/repository/index", "", []byte(`{"ready":true}`))
	f.Add("POST", "/v2/repository/models/ncf/load", "",
		[]byte(`{"parameters":{"agent":"x","unload_dependents":false}}`))
	f.Add("GET", "/v2/models/ncf/versions/x/stats",
		"Accept-Encoding: gzip;q=0,deflate\nAuthorization: Bearer x", []byte{})
	a := agenttest.Start(f, agenttest.Config(f), agenttest.Emulated())
	handler := a.Server().REST()
	f.Fuzz(func(t *testing.T, method, path, header string, body []byte) {
		u, err := url.ParseRequestURI(path)
		if err != nil || !strings.HasPrefix(path, "/") || strings.Contains(path, "unload") {
			return
		}
		req := httptest.NewRequest("POST", "/", strings.NewReader(string(body)))
		req.Method, req.URL, req.RequestURI = method, u, path
		for line := range strings.Lines(header) {
			if name, value, ok := strings.Cut(line, ":"); ok {
				req.Header.Set(strings.TrimSpace(name), strings.TrimSpace(value))
			}
		}
		w := &deadlineRecorder{httptest.NewRecorder()}
		handler.ServeHTTP(w, req)
		if w.Code == 500 || w.Code > 504 {
			t.Errorf("%s %s: %d %s", method, path, w.Code, w.Body)
		}
		if held := agenttest.Held(a.Inside, "serve: bytes of queries"); held != 0 {
			t.Errorf("%d bytes are held", held)
		}
	})
}

// TestPlaces: a place is given back by the stream alone that it is kept for.
func TestPlaces(t *testing.T) {
	a := agenttest.Start(t, agenttest.Config(t), agenttest.Emulated())
	open := func() control.Control_ProbeClient {
		s, err := control.NewControlClient(a.Conn).Probe(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	ask := func(s control.Control_ProbeClient, m *control.ProbeRequest) {
		t.Helper()
		if err := s.Send(m); err != nil {
			t.Fatal(err)
		}
		if !m.Release {
			if answer, err := s.Recv(); err != nil || answer.GetFinishNs() < 0 && m.Model == "ncf" {
				t.Fatalf("probe: %v, %v", answer, err)
			}
		}
	}
	kept := func() int { return agenttest.Held(a.Inside, "worker: reservations") }
	mine, others := open(), open()
	ask(mine, &control.ProbeRequest{Id: 1, Gateway: 1, Model: "ncf", BatchSize: 1})
	ask(others, &control.ProbeRequest{Id: 1, Gateway: 1, Release: true})
	ask(others, &control.ProbeRequest{Id: 2, Gateway: 2, Model: "none"}) // is answered after that
	if n := kept(); n != 1 {
		t.Errorf("%d reservations are kept, want the one that another stream cannot release", n)
	}
	ask(mine, &control.ProbeRequest{Id: 1, Gateway: 1, Release: true})
	ask(mine, &control.ProbeRequest{Id: 3, Gateway: 1, Model: "none"})
	if n := kept(); n != 0 {
		t.Errorf("%d reservations are kept after their release", n)
	}
}

// TestHostilePeer: streams of the fleet's protocol that begin or go on wrongly end,
// and nobody else notices.
func TestHostilePeer(t *testing.T) {
	agenttest.InFleet(t, func(f *agenttest.Fleet) {
		agents := []*agenttest.Member{f.Start(), f.Start(), f.Start()}
		f.Settled(agents...)
		leader := f.Led(agents...)
		stop := f.QueryAll(agents)
		ctx, cancel := context.WithCancel(f.Context())
		defer cancel()
		for _, tt := range []struct {
			name  string
			hello *control.GatewayMessage
			code  codes.Code
		}{
			{"says nothing of itself", &control.GatewayMessage{}, codes.InvalidArgument},
			{"no id",
				&control.GatewayMessage{
					Hello: &control.GatewayHello{Protocol: control.Spoken.Oldest},
				}, codes.InvalidArgument},
			{"another version",
				&control.GatewayMessage{Hello: &control.GatewayHello{Gateway: 1, Protocol: 9}},
				codes.FailedPrecondition},
		} {
			s, err := leader.Control.Match(ctx)
			if err != nil {
				f.Fatal(err)
			}
			_ = s.Send(tt.hello) // the other end says what is wrong
			if _, err := s.Recv(); status.Code(err) != tt.code {
				f.Errorf("a gateway that %s: got %v, want %v", tt.name, err, tt.code)
			}
		}
		for _, a := range agents {
			// One who has led before, or would like to have.
			old, err := a.Control.Link(ctx)
			if err != nil {
				f.Fatal(err)
			}
			for _, m := range []*control.LeaderMessage{
				{From: "former", Leadership: &control.Leadership{Epoch: 1, Leader: "former"},
					Prices: []*control.TypePrice{{Type: "r5n.large", PerMs: math.NaN()}}},
				{Election: []*control.Election{{From: "former", Leader: "former"}},
					Profiles: []*control.Profile{
						{Model: "ncf/1", Type: "r5n.large", Table: []byte("no")},
					}},
				{Election: []*control.Election{
					{From: "former", Kind: uint32(election.Resign), Leader: string(leader.AgentName())},
					{From: string(leader.AgentName()), Kind: 77}, {Kind: 1},
				}},
			} {
				if err := old.Send(m); err != nil {
					f.Fatal(err)
				}
			}
			if m, err := old.Recv(); err != nil || m.GetMember().GetName() != a.Name() {
				f.Errorf("a link is greeted with %v, %v", m, err)
			}
			nobody, err := a.Control.Link(ctx)
			if err != nil {
				f.Fatal(err)
			}
			_ = nobody.Send(&control.LeaderMessage{})
			if _, err := nobody.Recv(); status.Code(err) != codes.InvalidArgument {
				f.Errorf("a link of nobody: got %v, want InvalidArgument", err)
			}
		}
		time.Sleep(5 * time.Second)
		stop()
		f.Settled(agents...)
		if now := f.Led(agents...); now != leader {
			f.Errorf("%s leads, want %s as before", now.AgentName(), leader.AgentName())
		}
		for _, a := range agents {
			for _, p := range a.Members().View().GetPrices() {
				if !(p.GetPerMs() >= 0) {
					f.Errorf("%s believes in the price %v", a.AgentName(), p)
				}
			}
			if slices.ContainsFunc(a.Members().View().GetProfiles(),
				func(p *control.Profile) bool { return string(p.GetTable()) == "no" }) {
				f.Errorf("%s believes in a profile that is none", a.AgentName())
			}
			if n := strings.Count(a.Log.String(), "level=WARN"); n > 3 {
				f.Errorf("%s warns %d times", a.AgentName(), n)
			}
		}
	})
}
