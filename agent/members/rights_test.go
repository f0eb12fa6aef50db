package members_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"regexp"
	goruntime "runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"

	"github.com/muster-serve/muster/agent"
	"github.com/muster-serve/muster/agent/agenttest"
	"github.com/muster-serve/muster/agent/outcome"
	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/inference"
)

// requestAs makes a REST request with an API key.
func requestAs(a *agenttest.Agent, method, path, key string) (*http.Response, string) {
	a.T.Helper()
	return a.Exchange(method, path, "", map[string]string{"Authorization": "Bearer " + key})
}

// TestSeesOneModel: whatever a client of one model asks for shows it nothing of others, and those
// that may see all do.
func TestSeesOneModel(t *testing.T) {
	files := agenttest.NewCA(t)
	config := agenttest.Config(t)
	config.Security.APIKeysFile = files.Write("keys",
		"ads: "+agenttest.AdsKey+"\nfeed: "+agenttest.FeedKey+"\nprometheus: scrape-scrape-scrape\n")
	config.Security.AccessFile = files.Write("access",
		"clients: {ads: {models: [ncf, gone]}, feed: {models: ['*']}, prometheus: {control: "+
			"[metrics]}}\n")
	a := agenttest.Start(t, config, agenttest.Emulated())
	ctx := t.Context()
	for _, model := range []string{"ncf", "wnd"} { // so that there is something to tell
		a.Counts().Failed(model, 0, outcome.ErrSlow, 0, 0, 0)
	}
	a.Leads() // before it does, Match is refused
	others := regexp.MustCompile(`\b(wnd|mtwnd|mt-wnd|dien|rm2)\b`)
	rpc := inference.NewGRPCInferenceServiceClient(a.Conn)
	ctl := control.NewControlClient(a.Conn)
	first := func(s interface{ Recv() (*control.View, error) }, err error) (fmt.Stringer, error) {
		if err != nil {
			return nil, err
		}
		return s.Recv()
	}
	calls := map[string]func(ctx context.Context) (fmt.Stringer, error){
		"Watch": func(ctx context.Context) (fmt.Stringer, error) {
			return first(ctl.Watch(ctx, &control.WatchRequest{}))
		},
		"Watch changes": func(ctx context.Context) (fmt.Stringer, error) {
			return first(ctl.Watch(ctx, &control.WatchRequest{Changes: true}))
		},
		"Status": func(ctx context.Context) (fmt.Stringer, error) {
			return ctl.Status(ctx, &control.StatusRequest{})
		},
		"index": func(ctx context.Context) (fmt.Stringer, error) {
			return rpc.RepositoryIndex(ctx, &inference.RepositoryIndexRequest{})
		},
		"statistics": func(ctx context.Context) (fmt.Stringer, error) {
			return rpc.ModelStatistics(ctx, &inference.ModelStatisticsRequest{})
		},
		"Match": func(ctx context.Context) (fmt.Stringer, error) {
			s, err := ctl.Match(ctx)
			if err != nil {
				return nil, err
			}
			if err := s.Send(&control.GatewayMessage{Hello: &control.GatewayHello{
				Gateway: rand.Uint64(), Protocol: control.Spoken.Oldest,
			}}); err != nil {
				return nil, err
			}
			return s.Recv()
		},
	}
	for _, request := range [][2]string{
		{"GET", "http://" + a.Addresses().HTTP + "/"}, {
			"GET", "http://" + a.Addresses().HTTP + "/v2/models/stats",
		},
		{"POST", "http://" + a.Addresses().HTTP + "/v2/repository/index"}, {
			"GET", "http://" + a.Addresses().Metrics + "/metrics",
		},
	} {
		calls[request[1][strings.LastIndex(request[1], ":"):]] = func(ctx context.Context) (
			fmt.Stringer, error) {
			req, err := http.NewRequestWithContext(ctx, request[0], request[1], nil)
			if err != nil {
				return nil, err
			}
			headers, _ := metadata.FromOutgoingContext(ctx)
			req.Header["Authorization"] = headers["authorization"]
			resp, err := a.HTTP.Do(req)
			if err != nil {
				return nil, err
			}
			defer resp.Body.Close()
			text := &strings.Builder{}
			return text, resp.Write(text)
		}
	}
	for name, call := range calls {
		for _, key := range []string{agenttest.AdsKey, agenttest.FeedKey} {
			// An agent that has just begun to lead may not have told of its models yet.
			for tells := false; !tells; goruntime.Gosched() {
				ctx, end := context.WithCancel(agenttest.WithKey(ctx, key))
				got, err := call(ctx)
				end()
				if err != nil {
					t.Errorf("%s: %v", name, err)
					break
				}
				seen := others.FindString(got.String())
				if key == agenttest.AdsKey && seen != "" {
					t.Errorf("%s: a client of ncf alone sees %q in %s", name, seen, got)
					break
				}
				tells = seen != "" || key == agenttest.AdsKey && strings.Contains(got.String(),
					"ncf")
			}
		}
	}
	for _, request := range [][2]string{
		{"GET", "/v2/models/gone"}, {"GET", "/v2/models/gone/ready"},
		{"GET", "/v2/models/gone/config"}, {"POST", "/v2/models/gone/infer"},
	} {
		for key, want := range map[string]bool{agenttest.AdsKey: false, agenttest.FeedKey: true} {
			resp, body := requestAs(a, request[0], request[1], key)
			if resp.StatusCode != http.StatusNotFound || others.MatchString(body) != want {
				t.Errorf("%s for who has key %s: %d %s", request, key, resp.StatusCode, body)
			}
		}
	}
	scraped, err := calls[a.Addresses().Metrics[strings.LastIndex(a.Addresses().Metrics, ":"):]+
		"/metrics"](agenttest.WithKey(ctx, "scrape-scrape-scrape"))
	if err != nil {
		t.Fatal(err)
	}
	if text := scraped.String(); !strings.Contains(text, `model="wnd"`) ||
		!strings.Contains(text, "go_goroutines") {
		t.Errorf("one with the right metrics gets %s", text)
	}
	ads, err := calls[a.Addresses().Metrics[strings.LastIndex(a.Addresses().Metrics, ":"):]+
		"/metrics"](agenttest.WithKey(ctx, agenttest.AdsKey))
	if err != nil {
		t.Fatal(err)
	}
	if text := ads.String(); !strings.Contains(text, "go_goroutines") ||
		!strings.Contains(text, `muster_model_state{model="ncf"`) {
		t.Errorf("a client of ncf does not get what is its: %s", text)
	}
}

// TestHealthShowsNoModel: health checks tell a caller of no model that it may not query, and answer
// for one as for a model that does not exist; the health of the agent is for everybody. Neither
// does readiness tell whether a model exists.
func TestHealthShowsNoModel(t *testing.T) {
	files := agenttest.NewCA(t)
	config := agenttest.Config(t)
	config.Security.APIKeysFile = files.Write("keys",
		"ads: "+agenttest.AdsKey+"\nfeed: "+agenttest.FeedKey+"\n")
	config.Security.AccessFile = files.Write("access",
		"clients: {ads: {models: [ncf]}, feed: {models: ['*']}}\n")
	a := agenttest.Start(t, config, agenttest.Emulated())
	health := healthpb.NewHealthClient(a.Conn)
	const unknown = healthpb.HealthCheckResponse_SERVICE_UNKNOWN
	watched := func(ctx context.Context, service string) healthpb.HealthCheckResponse_ServingStatus {
		t.Helper()
		ctx, end := context.WithCancel(ctx)
		defer end()
		watch, err := health.Watch(ctx, &healthpb.HealthCheckRequest{Service: service})
		if err != nil {
			t.Fatal(err)
		}
		got, err := watch.Recv()
		if err != nil {
			t.Fatal(err)
		}
		return got.GetStatus()
	}
	inferences := inference.GRPCInferenceService_ServiceDesc.ServiceName
	everybodys := []string{"", inferences}
	for name, tt := range map[string]struct {
		ctx  context.Context
		sees []string
	}{
		"a client of all": {agenttest.WithKey(t.Context(), agenttest.FeedKey), []string{"ncf",
			"wnd"}},
		"a client of ncf":      {agenttest.WithKey(t.Context(), agenttest.AdsKey), []string{"ncf"}},
		"one without a key":    {t.Context(), nil},
		"one with a wrong key": {agenttest.WithKey(t.Context(), "wrong-wrong-wrong"), nil},
	} {
		list, err := health.List(tt.ctx, &healthpb.HealthListRequest{})
		if err != nil {
			t.Fatal(err)
		}
		for _, service := range []string{"", inferences, "ncf", "wnd", "none"} {
			sees := slices.Contains(tt.sees, service) || slices.Contains(everybodys, service)
			if list.GetStatuses()[service] != nil != sees {
				t.Errorf("List for %s has %v, want %q %v", name, list, service, sees)
			}
			_, err := health.Check(tt.ctx, &healthpb.HealthCheckRequest{Service: service})
			if sees && err != nil {
				t.Errorf("Check of %q for %s: %v", service, name, err)
			} else if !sees {
				agenttest.WantCode(t, err, "NotFound", "unknown service")
			}
			if got := watched(tt.ctx, service); (got != unknown) != sees {
				t.Errorf("Watch of %q for %s: %v, want it known %v", service, name, got, sees)
			}
		}
	}
	answers := map[string]string{}
	for _, model := range []string{"wnd", "none"} {
		_, err := a.GRPC.ModelReady(agenttest.WithKey(t.Context(), agenttest.AdsKey),
			&inference.ModelReadyRequest{Name: model})
		resp, body := requestAs(a, "GET", "/v2/models/"+model+"/ready", agenttest.AdsKey)
		answers[model] = strings.ReplaceAll(fmt.Sprint(err, resp.Status, body), model, "MODEL")
	}
	if answers["wnd"] != answers["none"] {
		t.Errorf("readiness tells a model from none: %q", answers)
	}
}

// TestStatusOfPastModels: the status shows a client no model that is in nobody's view any more,
// which the leader still knows.
func TestStatusOfPastModels(t *testing.T) {
	files := agenttest.NewCA(t)
	config := agenttest.Config(t)
	config.Security.APIKeysFile = files.Write("keys",
		"ads: "+agenttest.AdsKey+"\nfeed: "+agenttest.FeedKey+"\n")
	config.Security.AccessFile = files.Write("access",
		"clients: {ads: {models: [ncf]}, feed: {models: ['*']}}\n")
	a := agenttest.Start(t, config, agenttest.Emulated())
	a.Leads()
	held := func(status *control.FleetStatus) (view, leader bool) {
		for _, m := range status.GetView().GetMembers() {
			view = view ||
				slices.ContainsFunc(m.GetModels(),
					func(m *control.Model) bool { return m.GetName() == "wnd" })
		}
		return view, slices.ContainsFunc(status.GetModels(),
			func(m *control.ModelStatus) bool { return m.GetModel() == "wnd" })
	}
	status := func(key string) *control.FleetStatus {
		t.Helper()
		status, err := control.NewControlClient(a.Conn).Status(agenttest.WithKey(t.Context(), key),
			&control.StatusRequest{})
		if err != nil {
			t.Fatal(err)
		}
		return status
	}
	until := func(view, leader bool) {
		for {
			if v, l := held(status(agenttest.FeedKey)); v == view && l == leader {
				return
			}
			goruntime.Gosched()
		}
	}
	until(true, true)
	// The leader lists a version that nobody has any more for a minute after its last query.
	_, err := a.GRPC.ModelInfer(agenttest.WithKey(t.Context(), agenttest.FeedKey),
		&inference.ModelInferRequest{ModelName: "wnd"})
	agenttest.WantCode(t, err, "InvalidArgument")
	counted := func(m *control.ModelStatus) bool {
		return m.GetModel() == "wnd" && m.GetRate() > 0
	}
	for !slices.ContainsFunc(status(agenttest.FeedKey).GetModels(), counted) {
		goruntime.Gosched() // the gateway tells the leader after it has answered
	}
	if err := a.Worker().Repository().Unload(t.Context(), "wnd"); err != nil {
		t.Fatal(err)
	}
	until(false, true)
	gateway, err := control.NewControlClient(a.Conn).Match(agenttest.WithKey(t.Context(),
		agenttest.FeedKey))
	if err != nil {
		t.Fatal(err)
	}
	if err := gateway.Send(&control.GatewayMessage{
		Hello:  &control.GatewayHello{Gateway: 7, Protocol: control.Spoken.Oldest},
		Submit: []*control.Submit{{Sequence: 1, Model: "none", BatchSize: 1}},
	}); err != nil {
		t.Fatal(err)
	}
	for rejected := 0; rejected == 0; { // a decision
		m, err := gateway.Recv()
		if err != nil {
			t.Fatal(err)
		}
		rejected = len(m.GetReject())
	}
	for key, sees := range map[string]bool{agenttest.AdsKey: false, agenttest.FeedKey: true} {
		got := status(key)
		if _, known := held(got); known != sees || (len(got.GetDecisions()) > 0) != sees {
			t.Errorf("with key %s: got %v, want the past model and decisions %v", key, got, sees)
		}
	}
}

// TestStatusOfPlacement: a client that may not query every model is not told what agents hold.
func TestStatusOfPlacement(t *testing.T) {
	files := agenttest.NewCA(t)
	config := agenttest.Config(t)
	config.ModelControl = "leader"
	config.Security.APIKeysFile = files.Write("keys",
		"ads: "+agenttest.AdsKey+"\nfeed: "+agenttest.FeedKey+"\n")
	config.Security.AccessFile = files.Write("access",
		"clients: {ads: {models: [ncf]}, feed: {models: ['*']}}\n")
	a := agenttest.Start(t, config, agenttest.Emulated())
	a.Leads()
	of := func(key string) *control.PlacementStatus {
		t.Helper()
		status, err := control.NewControlClient(a.Conn).Status(agenttest.WithKey(t.Context(), key),
			&control.StatusRequest{})
		if err != nil {
			t.Fatal(err)
		}
		return status.GetPlacement()
	}
	for of(agenttest.FeedKey) == nil {
		goruntime.Gosched()
	}
	if got := of(agenttest.AdsKey); got != nil {
		t.Errorf("a client of ncf is told %v", got)
	}
	_, err := control.NewControlClient(a.Conn).Place(agenttest.WithKey(t.Context(),
		agenttest.FeedKey),
		&control.PlaceRequest{Verb: "pause"})
	agenttest.WantCode(t, err, "PermissionDenied")
}

// TestSeesNoNeighbour: where models share agents, a client of one model is not told the names of
// its neighbours, by any agent, and is told the prices and profiles of the lanes that its model
// has.
func TestSeesNoNeighbour(t *testing.T) {
	agenttest.InFleet(t, func(f *agenttest.Fleet) {
		ca := agenttest.NewCA(f)
		f.CallAs(ca, "tester")
		access := ca.Write("access", "clients: {ads: {models: [wnd]}}\n")
		variants, shares := f.Variants(20*time.Millisecond, agenttest.Twins),
			agenttest.SharesLanes("rm2:1x1+wnd:1x1")
		var agents []*agenttest.Member
		for _, name := range []string{"a", "b"} {
			agents = append(agents, f.Start(variants, shares, func(a agent.Inside) {
				a.Config().Security = ca.Agent(name)
				a.Config().Security.AccessFile = access
			}))
		}
		f.Settled(agents...)
		leader := f.Led(agents...)
		set, stop := f.Offers(agents...)
		set("rm2", 20)
		set("wnd", 20)
		ads := map[*agenttest.Member]*grpc.ClientConn{}
		for _, a := range agents {
			ads[a] = agenttest.DialSecurely(f, a.Host+":8001", ca.Client("ads"),
				grpc.WithContextDialer(
					func(ctx context.Context, to string) (net.Conn, error) {
						return f.Network.Dial(ctx, "client", to)
					}))
			defer ads[a].Close()
		}
		ctx, cancel := context.WithCancel(f.Context())
		defer cancel()
		match, err := control.NewControlClient(ads[leader]).Match(ctx)
		if err != nil {
			f.Fatal(err)
		}
		if err := match.Send(&control.GatewayMessage{
			Hello: &control.GatewayHello{Gateway: 7, Protocol: control.Spoken.Oldest},
		}); err != nil {
			f.Fatal(err)
		}
		var mu sync.Mutex
		var told []string
		go func() { // until ctx ends
			for {
				m, err := match.Recv()
				if err != nil {
					return
				}
				mu.Lock()
				told = append(told, m.String())
				mu.Unlock()
			}
		}()
		for _, a := range agents {
			ctl := control.NewControlClient(ads[a])
			f.Eventually(time.Minute, func() string {
				status, err := ctl.Status(f.Context(), &control.StatusRequest{})
				if err != nil {
					f.Fatal(err)
				}
				if text := status.String(); strings.Contains(text, "rm2") {
					f.Fatalf("%s tells a client of wnd alone %s", a.Host, text)
				}
				return ofWnd(status.GetView())
			})
		}
		time.Sleep(5 * time.Second)
		if sent, failed := stop(); len(failed) > 0 {
			f.Errorf("%d of %d queries failed: %v", len(failed), sent, failed[0])
		}
		mu.Lock()
		defer mu.Unlock()
		if text := strings.Join(told, "\n"); len(told) < 10 || strings.Contains(text, "rm2") {
			f.Errorf("the leader tells a client of wnd alone %s", text)
		}
	})
}

// ofWnd says which price or profile of the lanes of wnd is missing in a view; "": none.
func ofWnd(v *control.View) string {
	for _, m := range v.GetMembers() {
		if len(m.GetParts()) != 2 {
			return fmt.Sprintf("%s has the parts %v", m.GetName(), m.GetParts())
		}
		lanes := string(m.LaneTypeOf("wnd"))
		if !slices.ContainsFunc(v.GetPrices(),
			func(p *control.TypePrice) bool { return p.GetType() == lanes }) {
			return fmt.Sprintf("no price of %s: %v", lanes, v.GetPrices())
		}
		if !slices.ContainsFunc(v.GetProfiles(),
			func(p *control.Profile) bool { return p.GetType() == lanes }) {
			return fmt.Sprintf("no profile of %s: %v", lanes, v.GetProfiles())
		}
	}
	return ""
}

// TestNotFoundListsNoOther: what a client is told of a model that it may query and nobody holds
// lists only those that it may query, whichever agent and way it asks; and so do releases.
func TestNotFoundListsNoOther(t *testing.T) {
	for n := 1; n <= 2; n++ {
		t.Run(fmt.Sprint(n, " agents"), func(t *testing.T) {
			agenttest.InFleet(t, func(f *agenttest.Fleet) {
				ca := agenttest.NewCA(f)
				f.CallAs(ca, "tester")
				access := ca.Write("access",
					"clients: {ads: {models: [wnd, gone]}, feed: {models: ['*']}, "+
						"ops: {models: [wnd, gone], control: [fleet]}}\n")
				variants := f.Variants(time.Millisecond, agenttest.Twins)
				var agents []*agenttest.Member
				for i := range n {
					agents = append(agents, f.Start(variants, func(a agent.Inside) {
						a.Config().Security = ca.Agent(fmt.Sprint("agent", i))
						a.Config().Security.AccessFile = access
					}))
				}
				f.Settled(agents...)
				leader := f.Led(agents...)
				f.Eventually(time.Minute, func() string {
					for _, a := range agents {
						if !a.Server().Ready() {
							return a.Host + " is not ready"
						}
					}
					return ""
				})
				if _, err := leader.Control.SetRelease(f.Context(), &control.SetReleaseRequest{
					Model: "rm2", Version: 1,
				}); err != nil {
					f.Fatal(err)
				}
				for _, client := range []string{"ads", "feed", "ops"} {
					for _, a := range agents {
						conn := agenttest.DialSecurely(f, a.Host+":8001", ca.Client(client),
							grpc.WithContextDialer(
								func(ctx context.Context, to string) (net.Conn, error) {
									return f.Network.Dial(ctx, "client", to)
								}))
						defer conn.Close()
						for way, text := range ofGone(f, conn) {
							want := client == "feed" || client == "ops" && way == "releases"
							if strings.Contains(text, "rm2") != want {
								f.Errorf("%s of %s: %s is told %s", way, a.Host, client, text)
							}
						}
					}
				}
			})
		})
	}
}

// ofGone is what the agent at conn says of a model that nobody holds, and of all releases, by the
// way in which it is asked.
func ofGone(f *agenttest.Fleet, conn *grpc.ClientConn) map[string]string {
	oip, ctl := inference.NewGRPCInferenceServiceClient(conn), control.NewControlClient(conn)
	said := map[string]string{}
	told := func(way string, answer fmt.Stringer, err error) {
		if said[way] = answer.String(); err != nil {
			said[way] = err.Error()
		}
	}
	infer, err := oip.ModelInfer(f.Context(), agenttest.NewRequest("gone", 0))
	told("query", infer, err)
	infer, err = oip.ModelInfer(metadata.AppendToOutgoingContext(f.Context(), control.AttemptHeader,
		control.Attempt{Gateway: 9, Sequence: 1, Attempt: 1}.String()),
		agenttest.NewRequest("gone", 0))
	told("attempt", infer, err)
	described, err := oip.ModelMetadata(f.Context(), &inference.ModelMetadataRequest{Name: "gone"})
	told("metadata", described, err)
	config, err := oip.ModelConfig(f.Context(), &inference.ModelConfigRequest{Name: "gone"})
	told("config", config, err)
	released, err := ctl.Release(f.Context(), &control.ReleaseRequest{Model: "gone"})
	told("release", released, err)
	released, err = ctl.Release(f.Context(), &control.ReleaseRequest{})
	told("releases", released, err)
	stream, err := oip.ModelStreamInfer(f.Context())
	if err != nil {
		f.Fatal(err)
	}
	if err := stream.Send(agenttest.NewRequest("gone", 0)); err != nil {
		f.Fatal(err)
	}
	answer, err := stream.Recv()
	told("stream", answer, err)
	return said
}
