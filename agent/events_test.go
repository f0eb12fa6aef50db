package agent_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/muster-serve/muster/agent"
	"github.com/muster-serve/muster/agent/agenttest"
	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/inference"
	"github.com/muster-serve/muster/api/secure"
)

// eventText is an event in a line, without its time: "agent kind what who from key=value ...".
func eventText(e *control.Event) string {
	text := fmt.Sprintf("%s %s: %s", e.Agent, e.Kind, e.What)
	if e.Who != "" || e.From != "" {
		text += fmt.Sprintf(" by %s from %s", e.Who, e.From)
	}
	for _, d := range e.Details {
		text += fmt.Sprintf(" %s=%s", d.Key, d.Value)
	}
	return text
}

// eventLines asks for events and returns them in lines.
func eventLines(ctx context.Context, c control.ControlClient, req *control.EventsRequest) (string,
	error) {
	stream, err := c.Events(ctx, req)
	if err != nil {
		return "", err
	}
	var lines strings.Builder
	for {
		e, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return lines.String(), nil
		}
		if err != nil {
			return lines.String(), err
		}
		lines.WriteString(eventText(e) + "\n")
	}
}

// TestEventsOfFleet: what happens to a fleet is told by its agents, and who asked for it.
func TestEventsOfFleet(t *testing.T) {
	if agenttest.RaceDetector {
		t.Skip("as TestGuardedFleet")
	}
	agenttest.InFleet(t, func(f *agenttest.Fleet) {
		ca := agenttest.NewCA(f.T)
		with := func(config secure.Config) func(agent.Inside) {
			return func(a agent.Inside) { a.Config().Security = config }
		}
		one, two := f.Start(with(ca.Agent("a1"))), f.Start(with(ca.Agent("a2")))
		f.Settled(one, two)
		dial := func(name string) *grpc.ClientConn {
			return agenttest.DialSecurely(f, one.Host+":8001", ca.Client(name),
				grpc.WithContextDialer(func(ctx context.Context, to string) (net.Conn, error) {
					return f.Network.Dial(ctx, "client", to)
				}))
		}
		admin, ads := dial("admin"), dial("ads")
		defer admin.Close()
		defer ads.Close()
		follow, err := control.NewControlClient(admin).Events(f.Context(), &control.EventsRequest{
			Follow: true,
		})
		if err != nil {
			f.Fatal(err)
		}
		for _, req := range []*control.EventsRequest{{}, {Follow: true}, {Fleet: true}} {
			if lines, err := eventLines(f.Context(), control.NewControlClient(ads),
				req); status.Code(err) != codes.PermissionDenied {
				f.Errorf("a client that may not: got %q, %v", lines, err)
			}
		}
		models := inference.NewGRPCInferenceServiceClient(admin)
		if _, err := models.RepositoryModelUnload(f.Context(),
			&inference.RepositoryModelUnloadRequest{ModelName: "ncf"}); err != nil {
			f.Fatal(err)
		}
		if _, err := models.RepositoryModelLoad(f.Context(),
			&inference.RepositoryModelLoadRequest{ModelName: "ncf"}); err != nil {
			f.Fatal(err)
		}
		// What an agent says for whom it asks is believed, what a client says is not.
		forged := metadata.AppendToOutgoingContext(f.Context(), "muster-who-bin", "root")
		if _, err := models.RepositoryModelUnload(forged,
			&inference.RepositoryModelUnloadRequest{
				ModelName: "nothing",
			}); status.Code(err) != codes.NotFound {
			f.Errorf("unload what is not there: got %v", err)
		}
		asIfPassedOn := metadata.AppendToOutgoingContext(f.Context(), control.LocalHeader, "1")
		if _, err := control.NewControlClient(admin).SetRelease(asIfPassedOn,
			&control.SetReleaseRequest{Model: "ncf", Version: 1, By: "root"}); err != nil {
			f.Fatal(err)
		}
		if _, err := control.NewControlClient(admin).SetFleet(asIfPassedOn,
			&control.SetFleetRequest{By: "root"}); err == nil {
			f.Error("a fleet without machines to rent was changed")
		}
		if _, err := control.NewControlClient(admin).Drain(f.Context(),
			&control.DrainRequest{Agents: []string{string(two.AgentName())}}); err != nil {
			f.Fatal(err)
		}
		f.Settled(one)

		own := []string{
			string(one.AgentName() + " started: muster agent version="),
			string(one.AgentName() + " loaded: model ready model=ncf version=1"),
			string(one.AgentName() + " joined: agent joined agent=" + two.AgentName()),
			string(one.AgentName() + " leader: leading the fleet epoch=1"),
			one.Name() +
				" unload: asked to unload a model by admin (certificate) from bufconn model=ncf " +
				"on=all",
			string(one.AgentName() +
				" unloaded: model serves no more model=ncf version=1 why=unloaded by call"),
			one.Name() +
				" load: asked to load a model by admin (certificate) from bufconn model=ncf on=all",
			one.Name() +
				" unload: asked to unload a model by admin (certificate) from bufconn " +
				"model=nothing on=all error=",
			one.Name() +
				" release: asked to promote a version by admin (certificate) from bufconn " +
				"model=ncf version=1 share=0",
			one.Name() +
				" fleet: asked to change the fleet by admin (certificate) from bufconn ",
			one.Name() + " release: release model=ncf what=promoted current=1 canary=0 previous=0 " +
				"share=0 number=1 by=admin (certificate)",
			one.Name() +
				" drain: asked to have another agent drain by admin (certificate) from bufconn " +
				"agent=" + two.Name(),
			string(one.AgentName() + " left: agent left agent=" + two.AgentName()),
		}
		got, err := eventLines(f.Context(), control.NewControlClient(admin),
			&control.EventsRequest{})
		if err != nil {
			f.Fatal(err)
		}
		for _, want := range own {
			if !strings.Contains(got, want) {
				f.Errorf("no %q among the events of the agent asked:\n%s", want, got)
			}
		}
		others := ""
		for _, e := range two.Events().After(0) {
			others += eventText(e) + "\n"
		}
		for _, want := range []string{
			" unload: asked to unload a model by admin (certificate) through a1 (agent) from ",
			" unloaded: model serves no more model=ncf version=1 why=unloaded by call",
			" load: asked to load a model by admin (certificate) through a1 (agent) from ",
			" drain: asked to drain by admin (certificate) through a1 (agent) from ",
			" draining: ",
		} {
			if !strings.Contains(others, two.Name()+want) {
				f.Errorf("no %q among the events of the other agent:\n%s", want, others)
			}
		}
		if log := one.Log.String(); !strings.Contains(log,
			`asked to unload ncf on all agents" model=ncf on=all event=unload who="admin (certificate)"`) {
			f.Errorf("the log does not say who asked:\n%s", log)
		}
		for _, e := range one.Events().After(0) { // JSON is what the dashboard and --json show
			if said := strconv.Quote(e.JSON().Sentence); !strings.Contains(one.Log.String(), "msg="+said) {
				f.Errorf("the log lacks the sentence %s", said)
			}
		}
		// One that follows has had the same.
		followed := ""
		for last := one.Events().After(0); ; {
			e, err := follow.Recv()
			if err != nil {
				f.Fatal(err)
			}
			followed += eventText(e) + "\n"
			if e.Sequence == last[len(last)-1].Sequence {
				break
			}
		}
		if followed != got {
			f.Errorf("one that follows has\n%s\nwant\n%s", followed, got)
		}
		three := f.Start(with(ca.Agent("a3")))
		f.Settled(one, three)
		all, err := eventLines(f.Context(), control.NewControlClient(admin), &control.EventsRequest{
			Fleet: true,
		})
		if err != nil ||
			!strings.Contains(all, string(one.AgentName()+" joined: agent joined agent="+three.AgentName())) ||
			!strings.Contains(all, string(three.AgentName()+" joined: agent joined agent="+one.AgentName())) {
			f.Errorf("events of the fleet: got %v\n%s", err, all)
		}
		if _, err := eventLines(f.Context(), control.NewControlClient(admin),
			&control.EventsRequest{
				Fleet: true, Follow: true,
			}); status.Code(err) != codes.InvalidArgument {
			f.Errorf("the fleet cannot be followed: got %v", err)
		}
	})
}

// TestWhoByHTTP: who asks by REST is told as who asks by gRPC, by the name of the API key.
func TestWhoByHTTP(t *testing.T) {
	ca := agenttest.NewCA(t)
	config := agenttest.Config(t)
	config.Security = secure.Config{
		APIKeysFile: ca.Write("keys", "ops: ops-ops-ops-ops-ops\n"),
		AccessFile:  ca.Write("access", "clients: {ops: {control: [unload]}}\n"),
	}
	a := agenttest.Start(t, config, agenttest.Emulated())
	for _, model := range []string{"ncf", "\x1b[2J" + strings.Repeat("x", 3000)} {
		resp, body := a.Exchange("POST",
			"/v2/repository/models/"+strings.ReplaceAll(model, "\x1b", "%1b")+"/unload", "",
			map[string]string{"Authorization": "Bearer ops-ops-ops-ops-ops"})
		if (resp.StatusCode == http.StatusOK) != (model == "ncf") {
			t.Fatalf("unload: got %d %s", resp.StatusCode, body)
		}
	}
	got := ""
	for _, e := range a.Events().After(0) {
		if e.Kind == "unload" {
			got += eventText(e) + "\n"
			size := len(e.What)
			for _, d := range e.Details {
				size += len(d.Key) + len(d.Value)
			}
			if size > 2048 {
				t.Errorf("event of %d bytes, want at most 2048", size)
			}
		}
	}
	if !strings.Contains(got, "asked to unload a model by ops (API key) from 127.0.0.1:") ||
		!strings.Contains(got, "model=ncf on=all\n") {
		t.Errorf("got %q", got)
	}
}
