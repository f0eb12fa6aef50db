package agent_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"log/slog"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/muster-serve/muster/agent"
	"github.com/muster-serve/muster/agent/agenttest"
	"github.com/muster-serve/muster/agent/members"
	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/inference"
	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/client"
	"github.com/muster-serve/muster/gossip"
)

// TestFleetForms: three agents join and have the same view, and each answers for the models of all.
func TestFleetForms(t *testing.T) {
	agenttest.InFleet(t, func(f *agenttest.Fleet) {
		agents := []*agenttest.Member{f.Start(), f.Start(), f.Start()}
		f.Settled(agents...)
		for _, a := range agents {
			resp, err := a.OIP.ModelMetadata(f.Context(), &inference.ModelMetadataRequest{
				Name: "ncf",
			})
			if err != nil || resp.GetPlatform() != "emulated" {
				f.Errorf("metadata of %s: %v, %v", a.Host, resp, err)
			}
			m, err := a.Control.Describe(f.Context(), &control.DescribeRequest{})
			if err != nil || m.GetName() != a.Name() || m.GetAddress() != a.Host+":8001" ||
				m.GetInstanceType() != "r5n.large" || m.GetPriceUsdPerHour() != 0.149 {
				f.Errorf("%s describes itself as %v, %v", a.Host, m, err)
			}
		}
	})
}

// TestWatch: a watcher sees an agent join and leave.
func TestWatch(t *testing.T) {
	agenttest.InFleet(t, func(f *agenttest.Fleet) {
		a := f.Start()
		f.Settled(a)
		ctx, cancel := context.WithCancel(f.Context())
		defer cancel()
		stream, err := a.Control.Watch(ctx, &control.WatchRequest{})
		if err != nil {
			f.Fatal(err)
		}
		next := func(what string, members int) {
			f.Helper()
			for {
				v, err := stream.Recv()
				if err != nil {
					f.Fatalf("watch: %v, want %s", err, what)
				}
				if len(v.GetMembers()) == members {
					return
				}
			}
		}
		next("one agent", 1)
		b := f.Start()
		next("two agents", 2)
		f.Settled(a, b)
		if err := b.Stop(); err != nil {
			f.Error(err)
		}
		next("one agent again", 1)
		if !strings.Contains(a.Log.String(), "left the fleet") {
			f.Errorf("log of the agent that stays: %s", a.Log)
		}
	})
}

// TestQueriesWhileStarting: a starting agent answers a query for a model of the fleet with "not
// ready", never with "not found", until it can answer it.
func TestQueriesWhileStarting(t *testing.T) {
	agenttest.InFleet(t, func(f *agenttest.Fleet) {
		a := f.Start()
		f.Settled(a)
		b := f.Start()
		answered := false
		for range 5000 {
			_, err := b.OIP.ModelInfer(f.Context(), agenttest.NCFRequest(10))
			if code := status.Code(err); code != codes.OK && code != codes.Unavailable {
				f.Fatalf("an agent that starts answers %v, want %v", err, codes.Unavailable)
			}
			if answered = err == nil; answered {
				break
			}
			time.Sleep(100 * time.Microsecond)
		}
		if !answered {
			f.Errorf("an agent that starts does not answer")
		}
	})
}

// TestFleetAnswers: a query to any agent is answered, with a leader or without one, and all agents
// share the work.
func TestFleetAnswers(t *testing.T) {
	for name, changes := range map[string][]func(agent.Inside){
		"led": nil, "without a leader": {agenttest.NeverLeads},
	} {
		t.Run(name, func(t *testing.T) {
			agenttest.InFleet(t, func(f *agenttest.Fleet) {
				agents := []*agenttest.Member{
					f.Start(changes...), f.Start(changes...), f.Start(changes...),
				}
				f.Settled(agents...)
				if name == "led" {
					f.Led(agents...)
				}
				if failed := f.Send(300, time.Millisecond/2, agents...); len(failed) > 0 {
					f.Errorf("failed: %v", failed)
				}
				attempts, submits := 0.0, uint64(0)
				for _, a := range agents {
					ran := agenttest.Counted(a.Inside, "muster_attempts_total")
					if ran < 30 {
						f.Errorf("%s had %v attempts of 300 queries", a.Host, ran)
					}
					attempts += ran
					submits += a.Gateway().Stats().Submits
				}
				if attempts < 300 || attempts > 310 {
					f.Errorf("%v attempts for 300 queries", attempts)
				}
				if led := name == "led"; led != (submits > 0) {
					f.Errorf("%d submits to a leader", submits)
				}
			})
		})
	}
}

// TestFleetLosesNoQuery: whatever happens to one agent, the queries of the other agents' clients
// are answered.
func TestFleetLosesNoQuery(t *testing.T) {
	for _, tt := range []struct {
		name string
		do   func(f *agenttest.Fleet, victim *agenttest.Member)
		// back means that the affected agent is a member again at the end.
		back bool
	}{
		{"killed", func(f *agenttest.Fleet, victim *agenttest.Member) { f.Kill(victim) }, false},
		{"frozen and back", func(f *agenttest.Fleet, victim *agenttest.Member) {
			f.Partition([]*agenttest.Member{victim})
			time.Sleep(300 * time.Millisecond)
			f.Heal()
		}, true},
		{"cut off and back", func(f *agenttest.Fleet, victim *agenttest.Member) {
			f.Partition([]*agenttest.Member{victim})
			time.Sleep(20 * time.Second) // by then gossip has found the agent failed
			f.Heal()
		}, true},
		{"drained", func(f *agenttest.Fleet, victim *agenttest.Member) {
			if err := victim.Stop(); err != nil {
				f.Error(err)
			}
		}, false},
	} {
		for _, who := range []string{"worker", "leader"} {
			t.Run(who+" "+tt.name, func(t *testing.T) {
				agenttest.InFleet(t, func(f *agenttest.Fleet) {
					agents := []*agenttest.Member{f.Start(), f.Start(), f.Start()}
					f.Settled(agents...)
					victim := f.Led(agents...)
					if who == "worker" {
						victim = agents[(slices.Index(agents, victim)+1)%3]
					}
					rest := slices.DeleteFunc(slices.Clone(agents),
						func(a *agenttest.Member) bool { return a == victim })
					var done sync.WaitGroup
					done.Go(func() {
						time.Sleep(50 * time.Millisecond)
						tt.do(f, victim)
					})
					if failed := f.Send(agenttest.Paced(1000), agenttest.Pace(), rest...); len(failed) > 0 {
						f.Errorf("failed: %v", failed)
					}
					done.Wait()
					if !tt.back {
						f.Settled(rest...)
						f.Led(rest...)
						return
					}
					f.Settled(agents...)
					f.Led(agents...)
					before := agenttest.Counted(victim.Inside, "muster_attempts_total")
					n := 300
					if testing.Short() {
						n = 60
					}
					if failed := f.Send(n, time.Millisecond/2, rest...); len(failed) > 0 {
						f.Errorf("failed afterwards: %v", failed)
					}
					if ran := agenttest.Counted(victim.Inside, "muster_attempts_total") -
						before; ran < float64(n)/10 {
						f.Errorf("back again, it ran %v of %d queries", ran, n)
					}
				})
			})
		}
	}
}

// TestFleetSDK: a client of several agents loses no query when its gateway is killed.
func TestFleetSDK(t *testing.T) {
	for _, options := range [][]client.Option{nil, {client.WithoutFleet()}} {
		agenttest.InFleet(t, func(f *agenttest.Fleet) {
			agents := []*agenttest.Member{f.Start(), f.Start(), f.Start()}
			f.Settled(agents...)
			f.Led(agents...)
			dial := grpc.WithContextDialer(func(ctx context.Context, to string) (net.Conn, error) {
				return f.Network.Dial(ctx, "client", to)
			})
			c, err := client.New([]string{agents[0].Host + ":8001", agents[1].Host + ":8001"},
				append(options,
					client.WithDialOptions(dial,
						grpc.WithTransportCredentials(insecure.NewCredentials())))...)
			if err != nil {
				f.Fatal(err)
			}
			defer c.Close()
			var sent sync.WaitGroup
			for i := range 400 {
				if i == 100 {
					f.Kill(agents[0])
				}
				sent.Go(func() {
					ctx, cancel := context.WithTimeout(f.Context(), 5*time.Second)
					defer cancel()
					ids, err := tensor.Of("ids", agenttest.NCFIDs(20), 20, 4)
					if err != nil {
						f.Error(err)
						return
					}
					if _, err := c.Infer(ctx,
						&oip.Request{Model: "ncf", Inputs: []tensor.Tensor{ids}}); err != nil {
						f.Errorf("query %d: %v", i, err)
					}
				})
				time.Sleep(time.Millisecond)
			}
			sent.Wait()
		})
	}
}

// TestSameHostRestarted: a restarted agent replaces its former process, although no agent has
// noticed that process's end.
func TestSameHostRestarted(t *testing.T) {
	agenttest.InFleet(t, func(f *agenttest.Fleet) {
		a, b := f.Start(), f.Start()
		f.Settled(a, b)
		f.Kill(b)
		again := f.StartOn(b.Host)
		f.Settled(a, again)
		if log := a.Log.String(); !strings.Contains(log, "event=replaced") ||
			strings.Contains(log, "event=failed") {
			f.Errorf("log: %s", log)
		}
	})
}

// TestFormerAgentHeardOf: an agent that has ended does not replace a live member when gossip speaks
// of it again, as a member that was cut off makes it do.
func TestFormerAgentHeardOf(t *testing.T) {
	agenttest.InFleet(t, func(f *agenttest.Fleet) {
		a, b := f.Start(), f.Start()
		f.Settled(a, b)
		forger := f.Gossip.Listen("10.0.0.99:7946")
		defer forger.Shutdown()
		for _, at := range []*agenttest.Member{a, b} {
			if _, err := forger.WriteTo(agenttest.ForgedAlive(string("former-"+at.AgentName()), at.Host+":8001"),
				a.Wire.Addr().String()); err != nil {
				f.Error(err)
			}
		}
		f.Eventually(time.Second, func() string {
			if n := len(a.Gossip().Members()); n != 4 {
				return fmt.Sprintf("gossip of %s has %d members, want 4", a.AgentName(), n)
			}
			return ""
		})
		for range 100 {
			if m := a.Members().View().Members; len(m) != 2 ||
				a.Members().Member(names.AgentName(b.AgentName())) == nil ||
				len(a.Members().Member(names.AgentName(b.AgentName())).Models) == 0 {
				f.Fatalf("%s sees %v, want itself and %s with its model", a.AgentName(), m, b.AgentName())
			}
			time.Sleep(100 * time.Millisecond)
		}
		if failed := f.Send(20, time.Millisecond, a, b); len(failed) > 0 {
			f.Errorf("failed: %v", failed)
		}
	})
}

// TestStrangers: agents with another key or of another version cannot join; both sides log the
// reason, and the fleet is not disturbed.
func TestStrangers(t *testing.T) {
	agenttest.InFleet(t, func(f *agenttest.Fleet) {
		key := func(b byte) func(agent.Inside) {
			return func(a agent.Inside) {
				a.Config().GossipKey = base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{b},
					gossip.KeySize))
			}
		}
		a, b, stranger := f.Start(key(1)), f.Start(key(1)), f.Start(key(2))
		f.Settled(a, b)
		f.Settled(stranger)
		time.Sleep(time.Minute)
		f.Settled(a, b)
		for _, x := range []*agenttest.Member{a, stranger} {
			if !strings.Contains(x.Log.String(), "key") ||
				!strings.Contains(x.Log.String(), "level=WARN") {
				f.Errorf("%s does not say that the key is another: %s", x.Host, x.Log)
			}
		}
		if failed := f.Send(20, time.Millisecond, a, b, stranger); len(failed) > 0 {
			f.Errorf("failed: %v", failed)
		}
	})
	beyond := control.Spoken.Newest + 1
	for _, c := range []struct {
		other      control.Versions
		says, mend string
	}{
		{control.VersionsOf(beyond, beyond), fmt.Sprintf("it speaks version %d", beyond), fmt.Sprintf(
			"upgrade this agent to a version of Muster that speaks version %d", beyond)},
		{control.VersionsOf(3, 6), "it speaks versions 3 to 6",
			"upgrade it to a version of Muster that speaks version 7"},
	} {
		agenttest.InFleet(t, func(f *agenttest.Fleet) {
			a := f.Start()
			f.Settled(a)
			log := &agenttest.LogBuffer{}
			other := members.Meta{Versions: c.other, Address: "10.0.0.9:8001"}
			g, err := gossip.Open(f.Context(), gossip.Config{
				Name: "of-another-version", Seeds: []string{"10.0.0.1:7946"}, Meta: other.Encode(),
				Transport: f.Gossip.Listen("10.0.0.9:7946"),
				Accept: func(m gossip.Member) error {
					if v, _ := binary.Uvarint(m.Meta); uint32(v) != c.other.Oldest {
						return fmt.Errorf("it speaks version %d", v)
					}
					return nil
				},
				Logger: slog.New(slog.NewTextHandler(log, nil)),
			})
			if err != nil {
				f.Fatal(err)
			}
			time.Sleep(time.Minute)
			f.Settled(a)
			if want := fmt.Sprintf("%s of the agents' protocol, this agent %v: %s", c.says,
				control.Spoken, c.mend); !strings.Contains(a.Log.String(), want) {
				f.Errorf("log of the agent: %s\nwant %q", a.Log, want)
			}
			if want := fmt.Sprintf("it speaks version %d", control.Spoken.Oldest); !strings.Contains(
				log.String(), want) {
				f.Errorf("log of the other: %s\nwant %q", log, want)
			}
			if err := g.Close(); err != nil {
				f.Error(err)
			}
		})
	}
}

// TestDrainByCall: an agent makes another drain by its name; with an unknown name none drains.
func TestDrainByCall(t *testing.T) {
	agenttest.InFleet(t, func(f *agenttest.Fleet) {
		a, b := f.Start(), f.Start()
		f.Settled(a, b)
		if _, err := a.Control.Drain(f.Context(),
			&control.DrainRequest{
				Agents: []string{string(b.AgentName()), "nobody"},
			}); status.Code(err) != codes.NotFound {
			f.Errorf("drain nobody: %v", err)
		}
		resp, err := a.Control.Drain(f.Context(), &control.DrainRequest{
			Agents: []string{string(b.AgentName())},
		})
		if err != nil || !slices.Equal(resp.GetDraining(), []string{string(b.AgentName())}) {
			f.Fatalf("drain: %v, %v", resp, err)
		}
		f.Settled(a)
		if err := b.Stop(); err != nil {
			f.Error(err)
		}
		s, err := a.Control.Status(f.Context(), &control.StatusRequest{})
		if err != nil || len(s.GetAgents()) != 1 {
			f.Errorf("status: %v, %v", s, err)
		}
	})
}

// TestNewestDrains: while the only agent with a model's newest version drains, the version before
// answers queries that name no version.
func TestNewestDrains(t *testing.T) {
	agenttest.InFleet(t, func(f *agenttest.Fleet) {
		newer := copyModels(f)
		toVersion2(f, newer)
		a, b := f.Start(), f.Start()
		c := f.Start(func(a agent.Inside) { a.Config().ModelDir = newer })
		f.Settled(a, b, c)
		f.Led(a, b, c)
		version := func() string {
			resp, err := a.OIP.ModelInfer(f.Context(), agenttest.NCFRequest(1))
			if err != nil {
				f.Errorf("query without a version: %v", err)
			}
			return resp.GetModelVersion()
		}
		if got := version(); got != "2" {
			f.Errorf("version %q answered, want 2", got)
		}
		c.Drain()
		for range 30 {
			time.Sleep(10 * time.Millisecond)
			// in process, because its servers may have closed
			here := inference.NewGRPCInferenceServiceClient(c.Local())
			if resp, err := here.ModelReady(f.Context(),
				&inference.ModelReadyRequest{Name: "ncf"}); err != nil || !resp.Ready {
				f.Errorf("the model is not ready: %v", err)
			}
			if got := version(); f.Failed() {
				f.Fatalf("while the agent with version 2 drains %q answers", got)
			}
		}
		if got := version(); got != "1" {
			f.Errorf("version %q answered in the end, want 1", got)
		}
	})
}

// TestReadyWhileDraining: a model that only a draining agent has is not ready, by REST as by gRPC.
func TestReadyWhileDraining(t *testing.T) {
	agenttest.InFleet(t, func(f *agenttest.Fleet) {
		newer := copyModels(f)
		toVersion2(f, newer)
		a, b := f.Start(), f.Start(func(b agent.Inside) { b.Config().ModelDir = newer })
		f.Settled(a, b)
		ready := func() (bool, int) {
			resp, err := a.OIP.ModelReady(f.Context(),
				&inference.ModelReadyRequest{Name: "ncf", Version: "2"})
			if err != nil {
				f.Fatal(err)
			}
			rest := httptest.NewRecorder()
			a.Server().REST().ServeHTTP(rest,
				httptest.NewRequest("GET", "/v2/models/ncf/versions/2/ready", nil))
			return resp.Ready, rest.Code
		}
		if is, code := ready(); !is || code != 200 {
			f.Errorf("before: %v by gRPC, %d by REST", is, code)
		}
		b.Drain()
		f.Eventually(time.Second, func() string {
			is, code := ready()
			if is != (code == 200) {
				f.Errorf("while the agent drains: %v by gRPC, %d by REST", is, code)
			}
			if code == 200 {
				return "it is still ready"
			}
			return ""
		})
	})
}

// TestNewVersion: a query that names no version, and waits for a lane while its version is
// replaced, is answered with the new version.
func TestNewVersion(t *testing.T) {
	agenttest.InFleet(t, func(f *agenttest.Fleet) {
		f.Dir = copyModels(f)
		a, b := f.Start(), f.Start()
		f.Settled(a, b)
		f.Led(a, b)
		var done sync.WaitGroup
		done.Go(func() {
			time.Sleep(100 * time.Millisecond)
			toVersion2(f, f.Dir)
			if _, err := a.OIP.RepositoryModelLoad(f.Context(),
				&inference.RepositoryModelLoadRequest{ModelName: "ncf"}); err != nil {
				f.Error(err)
			}
		})
		for range 25 {
			if failed := f.Send(40, 0, a, b); len(failed) > 0 {
				f.Errorf("failed: %v", failed)
			}
		}
		done.Wait()
		if resp, err := a.OIP.ModelInfer(f.Context(), agenttest.NCFRequest(1)); err != nil ||
			resp.GetModelVersion() != "2" {
			f.Errorf("version %q answered, want 2: %v", resp.GetModelVersion(), err)
		}
	})
}

// copyModels returns a directory with a copy of the fleet's models, which a test may change.
func copyModels(f *agenttest.Fleet) string {
	f.Helper()
	dir := f.TempDir()
	if err := os.CopyFS(dir, os.DirFS(f.Dir)); err != nil {
		f.Fatal(err)
	}
	return dir
}

// toVersion2 makes version 1 of ncf in a repository version 2.
func toVersion2(f *agenttest.Fleet, dir string) {
	f.Helper()
	if err := os.Rename(filepath.Join(dir, "ncf", "1"), filepath.Join(dir, "ncf", "2")); err != nil {
		f.Error(err)
	}
}

// TestModelsEverywhere: a model is unloaded and loaded on the named agent or on all agents, and
// queries go to the agents that hold it.
func TestModelsEverywhere(t *testing.T) {
	agenttest.InFleet(t, func(f *agenttest.Fleet) {
		a, b := f.Start(), f.Start()
		f.Settled(a, b)
		unload := func(one string) {
			f.Helper()
			req := &inference.RepositoryModelUnloadRequest{ModelName: "ncf",
				Parameters: map[string]*inference.ModelRepositoryParameter{
					"agent": {
						ParameterChoice: &inference.ModelRepositoryParameter_StringParam{
							StringParam: one,
						},
					},
				}}
			if _, err := a.OIP.RepositoryModelUnload(f.Context(), req); err != nil {
				f.Fatalf("unload on %s: %v", one, err)
			}
		}
		holders := func(want int) {
			f.Helper()
			f.Eventually(5*time.Second, func() string {
				for _, x := range []*agenttest.Member{a, b} {
					n := 0
					for _, m := range x.Members().View().Members {
						n += len(m.Models)
					}
					if n != want {
						return fmt.Sprintf("%s sees %d holders, want %d", x.Host, n, want)
					}
				}
				return ""
			})
		}
		unload(string(a.AgentName()))
		holders(1)
		if failed := f.Send(20, 3*time.Millisecond, a, b); len(failed) > 0 {
			f.Errorf("failed: %v", failed)
		}
		if m, err := a.OIP.ModelMetadata(f.Context(),
			&inference.ModelMetadataRequest{Name: "ncf"}); err != nil || len(m.GetInputs()) == 0 {
			f.Errorf("metadata of what only the other holds: %v, %v", m, err)
		}
		unload("all")
		holders(0)
		if _, err := a.OIP.ModelInfer(f.Context(), agenttest.NCFRequest(1)); status.Code(
			err) != codes.NotFound {
			f.Errorf("query for a model that nobody holds: %v", err)
		}
		if _, err := a.OIP.RepositoryModelLoad(f.Context(),
			&inference.RepositoryModelLoadRequest{ModelName: "ncf"}); err != nil {
			f.Fatal(err)
		}
		holders(2)
	})
}
