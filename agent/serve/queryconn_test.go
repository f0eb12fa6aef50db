package serve_test

import (
	"context"
	"encoding/binary"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	orcav3 "github.com/cncf/xds/go/xds/data/orca/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/muster-serve/muster/agent/agenttest"
	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/api/queryconn"
	"github.com/muster-serve/muster/api/secure"
	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/client"
	"github.com/muster-serve/muster/scripts/test/harness"
)

// A queries is a query connection to an agent.
type queries struct {
	t *testing.T
	*queryconn.Client
}

// dialQueries opens a query connection to an agent.
func dialQueries(t *testing.T, a *agenttest.Agent, config secure.ClientConfig) (*queries, error) {
	t.Helper()
	options, err := config.DialOptions(slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	c, err := queryconn.DialerOf(options).To(a.Addresses().GRPC)(t.Context())
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { _ = c.Close() })
	return &queries{t, c}, nil
}

func mustDialQueries(t *testing.T, a *agenttest.Agent, config secure.ClientConfig) *queries {
	t.Helper()
	q, err := dialQueries(t, a, config)
	if err != nil {
		t.Fatal(err)
	}
	return q
}

// ncfQuery is a query for NCF.
func ncfQuery(batchSize int) *oip.Request {
	var data []byte
	for _, id := range agenttest.NCFIDs(batchSize) {
		data = binary.LittleEndian.AppendUint64(data, uint64(id))
	}
	return &oip.Request{Model: "ncf", ID: "7", Inputs: []tensor.Tensor{{
		Name: "ids", DataType: tensor.Int64, Shape: []int64{int64(batchSize), 4}, Data: data,
	}}}
}

// ask sends a query with metadata, and returns the answer.
func (q *queries) ask(ctx context.Context, req *oip.Request, timeout time.Duration,
	metadata ...string) (*oip.StreamedAnswer, error) {
	a := new(oip.StreamedAnswer)
	return a, q.Query(ctx, &oip.StreamedQuery{
		Query: req, Timeout: timeout, Metadata: append(slices.Clone(q.Metadata), metadata...),
	}, a)
}

// want sends a query, and wants its answer or an error with that code and text. It returns the
// answer.
func (q *queries) want(code codes.Code, text string, req *oip.Request, timeout time.Duration,
	metadata ...string) *oip.StreamedAnswer {
	q.t.Helper()
	a, err := q.ask(q.t.Context(), req, timeout, metadata...)
	if err != nil {
		q.t.Fatalf("the connection broke: %v", err)
	}
	s := status.FromProto(a.Error)
	if s.Code() != code || !strings.Contains(s.Message(), text) {
		q.t.Errorf("got %v %q, want %v %q", s.Code(), s.Message(), code, text)
	}
	if (code == codes.OK) != (a.Answer != nil) {
		q.t.Errorf("got the answer %v with code %v", a.Answer, s.Code())
	}
	return a
}

// TestQueryConnectionLoad: an answer has the load report that a call has as a trailer, so that clients
// of several agents can balance by it.
func TestQueryConnectionLoad(t *testing.T) {
	a := agenttest.Start(t, agenttest.Config(t), agenttest.Emulated())
	q := mustDialQueries(t, a, secure.ClientConfig{})
	got := q.want(codes.OK, "", ncfQuery(1), 0)
	defer got.Answer.Release()
	var report orcav3.OrcaLoadReport
	if err := proto.Unmarshal([]byte(got.Load), &report); err != nil || len(report.Utilization) != 1 {
		t.Errorf("got the load %v with error %v, want the busy share of one type of lane", &report, err)
	}
}

// TestQueryConnections: the queries of a connection are answered as calls are, one after another,
// with TLS and without; one at fault has its error, and the next one its answer.
func TestQueryConnections(t *testing.T) {
	ca := agenttest.NewCA(t)
	keys := filepath.Join(t.TempDir(), "keys")
	key := strings.Repeat("k", 32)
	if err := os.WriteFile(keys, []byte("shop: "+key+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	withKey := ca.Client("")
	withKey.APIKey = key
	for _, tt := range []struct {
		name   string
		agent  secure.Config
		client secure.ClientConfig
	}{
		{name: "plain"},
		{"certificate", ca.Agent("a1"), ca.Client("shop")},
		{"API key", func() secure.Config {
			c := ca.Agent("a1")
			c.APIKeysFile = keys
			return c
		}(), withKey},
	} {
		t.Run(tt.name, func(t *testing.T) {
			config := agenttest.Config(t)
			config.Security = tt.agent
			a := agenttest.Start(t, config, agenttest.Emulated())
			q := mustDialQueries(t, a, tt.client)
			for range 3 {
				for _, size := range []int{1, 1000} {
					got := q.want(codes.OK, "", ncfQuery(size), 0).Answer
					if got.ID != "7" || len(got.Outputs) != 1 || got.Outputs[0].Shape[0] != int64(size) {
						t.Errorf("%d items: got %v", size, got)
					}
					got.Release()
				}
				malformed := ncfQuery(2)
				malformed.Inputs[0].Name = "other"
				q.want(codes.InvalidArgument, "other", malformed, 0)
				missing := ncfQuery(20_000)
				missing.Model = "missing"
				q.want(codes.NotFound, `model "missing"`, missing, 0)
				q.want(codes.DeadlineExceeded, "", ncfQuery(1), 1)
			}
			q.want(codes.InvalidArgument, control.AttemptHeader, ncfQuery(2), 0,
				control.AttemptHeader, "nonsense")
			if got := q.want(codes.OK, "", ncfQuery(2), 0, control.AttemptHeader,
				"1/1/1/0/0/5"); !got.HasRemaining {
				t.Error("no remaining time for an attempt whose gateway chose the lane")
			}
			if got := q.want(codes.OK, "", ncfQuery(2), 0); got.HasRemaining {
				t.Error("a remaining time without an attempt")
			}
			if held := sizes(a)["serve: bytes of queries"]; held != 0 {
				t.Errorf("%d bytes of queries are held though all are answered", held)
			}
			if tt.name == "API key" {
				q.Metadata = []string{"authorization", "Bearer wrong"}
				q.want(codes.Unauthenticated, "unknown API key", ncfQuery(20_000), 0)
				q.Metadata = nil
				q.want(codes.Unauthenticated, "no credentials", ncfQuery(2), 0)
			}
			if tt.name == "certificate" {
				other, err := dialQueries(t, a, secure.ClientConfig{})
				if err == nil {
					_, err = other.ask(t.Context(), ncfQuery(1), 0)
				}
				if err == nil {
					t.Error("an agent with TLS has answered a query without")
				}
			}
		})
	}
}

// TestQueryConnectionEnds: a query whose client goes away ends; an agent that stops answers what it
// has, and closes connections without queries.
func TestQueryConnectionEnds(t *testing.T) {
	g := agenttest.NewGate()
	a := agenttest.Start(t, agenttest.Config(t), g)
	open := func(n int) {
		t.Helper()
		for a.Server().QueryConns() != n {
			time.Sleep(time.Millisecond)
		}
	}
	g.Close()
	ctx, cancel := context.WithCancel(t.Context())
	gone := mustDialQueries(t, a, secure.ClientConfig{})
	ended := make(chan error, 1)
	go func() {
		_, err := gone.ask(ctx, ncfQuery(1), 0)
		ended <- err
	}()
	<-g.Entered
	cancel()
	if err := <-ended; err == nil {
		t.Error("an answer to a query that was given up")
	}
	open(0) // though the gate is closed
	if held := sizes(a)["serve: bytes of queries"]; held != 0 {
		t.Errorf("%d bytes of a query are held whose client has gone", held)
	}

	idle, busy := mustDialQueries(t, a, secure.ClientConfig{}), mustDialQueries(t, a,
		secure.ClientConfig{})
	g.Open()
	idle.want(codes.OK, "", ncfQuery(1), 0)
	open(2)
	g.Close()
	go func() {
		answer, err := busy.ask(t.Context(), ncfQuery(1), 0)
		if err == nil && answer.Answer == nil {
			err = status.FromProto(answer.Error).Err()
		}
		ended <- err
	}()
	for len(g.Entered) > 0 {
		<-g.Entered
	}
	<-g.Entered
	stopped := make(chan error, 1)
	go func() { stopped <- a.Stop() }()
	drains := func() bool { // until then, queries end by their deadline
		answer, err := idle.ask(t.Context(), ncfQuery(1), time.Millisecond)
		return err != nil || status.FromProto(answer.Error).Code() == codes.Unavailable
	}
	for !drains() {
		continue
	}
	g.Open()
	if err := <-ended; err != nil {
		t.Errorf("the query that ran when the agent stopped: %v", err)
	}
	for err := error(nil); err == nil; { // until the agent has closed it
		_, err = idle.ask(t.Context(), ncfQuery(1), 0)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

// TestClientUsesQueryConnections: the SDK opens query connections to an agent whose own address it
// was given, as many as there are queries at a time, up to a limit.
func TestClientUsesQueryConnections(t *testing.T) {
	config := agenttest.Config(t)
	config.ModelDir = t.TempDir()
	// Otherwise a slow machine is late for the target of 5 ms, and the agent refuses some of so many.
	if err := agenttest.CopyNCF(config.ModelDir, "ncf", harness.Unhurried); err != nil {
		t.Fatal(err)
	}
	a := agenttest.Start(t, config, agenttest.Emulated())
	c, err := client.New([]string{a.Addresses().GRPC})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for a.Server().QueryConns() == 0 {
		resp, err := c.Infer(t.Context(), ncfQuery(3))
		if err != nil {
			t.Fatal(err)
		}
		resp.Release()
	}
	for i := range 20 {
		resp, err := c.Infer(t.Context(), ncfQuery(i+1))
		if err != nil {
			t.Fatal(err)
		}
		if got := resp.Outputs[0].Shape[0]; got != int64(i+1) {
			t.Errorf("got %d items, want %d", got, i+1)
		}
		resp.Release()
	}
	if got := a.Server().QueryConns(); got != 1 {
		t.Errorf("%d query connections for one query at a time", got)
	}
	ended := make(chan error)
	const clients = 20
	for range clients {
		go func() {
			for range 50 {
				resp, err := c.Infer(t.Context(), ncfQuery(1000)) // 32 KB: not small
				if err != nil {
					ended <- err
					return
				}
				resp.Release()
			}
			ended <- nil
		}()
	}
	for range clients {
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
	}
	if got := a.Server().QueryConns(); got < 2 || got > 8 {
		t.Errorf("%d query connections for %d queries at a time, want 2 to 8", got, clients)
	}
	if err := a.Stop(); err != nil {
		t.Error(err)
	}
	if _, err := c.Infer(t.Context(), ncfQuery(1)); status.Code(err) != codes.Unavailable {
		t.Errorf("an agent that has stopped: %v", err)
	}
}

// TestCrowdedQueryConnections: connections for queries leave half of those that may be open to others.
func TestCrowdedQueryConnections(t *testing.T) {
	config := agenttest.Config(t)
	config.Limits.Connections = 16
	a := agenttest.Start(t, config, agenttest.Emulated())
	served := 0
	for range 10 {
		q, err := dialQueries(t, a, secure.ClientConfig{})
		if err != nil {
			continue // closed before it has sent the preface
		}
		if _, err := q.ask(t.Context(), ncfQuery(1), 0); err == nil {
			served++
		}
	}
	if served != 8 {
		t.Errorf("%d connections for queries are served, want 8 of 16", served)
	}
	if err := a.InferGRPC(agenttest.NCFRequest(2)); err != nil {
		t.Errorf("a call beside them: %v", err)
	}
}
