package agent

import (
	"context"
	"fmt"
	"net/http"
	"regexp"
	goruntime "runtime"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/metadata"

	"github.com/muster-serve/muster/agent/outcome"
	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/inference"
	core "github.com/muster-serve/muster/leader"
)

// leads waits until the agent leads, and returns its term.
func (a *testAgent) leads() *term {
	for {
		if r := a.leading.(*leader).leads(); r != nil {
			return r
		}
		goruntime.Gosched()
	}
}

// TestSeesOneModel: whatever a client of one model asks for shows it nothing of others, and those that
// may see all do.
func TestSeesOneModel(t *testing.T) {
	files := newTestCA(t)
	config := testConfig(t)
	config.Security.APIKeysFile = files.write("keys", "ads: "+adsKey+"\nfeed: "+feedKey+"\nprometheus: scrape-scrape-scrape\n")
	config.Security.AccessFile = files.write("access", "clients: {ads: {models: [ncf]}, feed: {models: ['*']}, prometheus: {control: [metrics]}}\n")
	a := startAgent(t, config, emulated())
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, model := range []string{"ncf", "wnd"} { // so that there is something to tell
		a.worker.Failed(model, outcome.ErrSlow)
	}
	a.leads() // before it does, Match is refused
	others := regexp.MustCompile(`\b(wnd|mtwnd|mt-wnd|dien|rm2)\b`)
	rpc := inference.NewGRPCInferenceServiceClient(a.conn)
	ctl := control.NewControlClient(a.conn)
	first := func(s interface{ Recv() (*control.View, error) }, err error) (fmt.Stringer, error) {
		if err != nil {
			return nil, err
		}
		return s.Recv()
	}
	calls := map[string]func(ctx context.Context) (fmt.Stringer, error){
		"Watch": func(ctx context.Context) (fmt.Stringer, error) { return first(ctl.Watch(ctx, &control.WatchRequest{})) },
		"Watch changes": func(ctx context.Context) (fmt.Stringer, error) {
			return first(ctl.Watch(ctx, &control.WatchRequest{Changes: true}))
		},
		"Status": func(ctx context.Context) (fmt.Stringer, error) { return ctl.Status(ctx, &control.StatusRequest{}) },
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
			if err := s.Send(&control.GatewayMessage{Hello: &control.GatewayHello{Gateway: 7, Protocol: control.Spoken.Oldest}}); err != nil {
				return nil, err
			}
			return s.Recv()
		},
	}
	for _, request := range [][2]string{
		{"GET", "http://" + a.addresses.HTTP + "/"}, {"GET", "http://" + a.addresses.HTTP + "/v2/models/stats"},
		{"POST", "http://" + a.addresses.HTTP + "/v2/repository/index"}, {"GET", "http://" + a.addresses.Metrics + "/metrics"},
	} {
		calls[request[1][strings.LastIndex(request[1], ":"):]] = func(ctx context.Context) (fmt.Stringer, error) {
			req, err := http.NewRequestWithContext(ctx, request[0], request[1], nil)
			if err != nil {
				return nil, err
			}
			headers, _ := metadata.FromOutgoingContext(ctx)
			req.Header["Authorization"] = headers["authorization"]
			resp, err := a.http.Do(req)
			if err != nil {
				return nil, err
			}
			defer resp.Body.Close()
			text := &strings.Builder{}
			return text, resp.Write(text)
		}
	}
	for name, call := range calls {
		for _, key := range []string{adsKey, feedKey} {
			ctx, end := context.WithCancel(withKey(ctx, key))
			got, err := call(ctx)
			end()
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			seen := others.FindString(got.String())
			if key == adsKey && (seen != "" || !strings.Contains(got.String(), "ncf")) {
				t.Errorf("%s: a client of ncf alone sees %q in %s", name, seen, got)
			}
			if key == feedKey && seen == "" {
				t.Errorf("%s: a client of all models sees only %s", name, got)
			}
		}
	}
	scraped, err := calls[a.addresses.Metrics[strings.LastIndex(a.addresses.Metrics, ":"):]+"/metrics"](withKey(ctx, "scrape-scrape-scrape"))
	if err != nil {
		t.Fatal(err)
	}
	if text := scraped.String(); !strings.Contains(text, `model="wnd"`) || !strings.Contains(text, "go_goroutines") {
		t.Errorf("one with the right metrics gets %s", text)
	}
	ads, err := calls[a.addresses.Metrics[strings.LastIndex(a.addresses.Metrics, ":"):]+"/metrics"](withKey(ctx, adsKey))
	if err != nil {
		t.Fatal(err)
	}
	if text := ads.String(); !strings.Contains(text, "go_goroutines") || !strings.Contains(text, `muster_model_state{model="ncf"`) {
		t.Errorf("a client of ncf does not get what is its: %s", text)
	}
}

// TestStatusOfPastModels: the status shows a client no model that is in nobody's view any more, which
// the leader still knows.
func TestStatusOfPastModels(t *testing.T) {
	files := newTestCA(t)
	config := testConfig(t)
	config.ModelDir = t.TempDir()
	config.Security.APIKeysFile = files.write("keys", "ads: "+adsKey+"\nfeed: "+feedKey+"\n")
	config.Security.AccessFile = files.write("access", "clients: {ads: {models: [ncf]}, feed: {models: ['*']}}\n")
	a := startAgent(t, config, emulated())
	leads := a.leads()
	leads.call(func() {
		past := core.Model{ModelID: core.ModelID{Name: "past", Version: 1}, QoSTarget: time.Second, Share: 0.99, Largest: 1}
		leads.step(core.Event{Kind: core.ViewChanged, Members: []*core.Member{{Name: a.name}, {Name: "left", Models: []core.Model{past}}}})
		leads.step(core.Event{Kind: core.ViewChanged, Members: []*core.Member{{Name: a.name}}})
		g := &gateway{id: 7, wake: make(chan struct{}, 1), cut: func(error) {}}
		leads.connect(g)
		leads.told(g, &control.GatewayMessage{Submit: []*control.Submit{{Sequence: 1, Model: "none", BatchSize: 1}}}) // a decision
	})
	for key, sees := range map[string]bool{adsKey: false, feedKey: true} {
		status, err := control.NewControlClient(a.conn).Status(withKey(t.Context(), key), &control.StatusRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if (len(status.GetModels()) > 0) != sees || (len(status.GetDecisions()) > 0) != sees {
			t.Errorf("with key %s: got %v, want models and decisions %v", key, status, sees)
		}
	}
}
