package serve_test

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/muster-serve/muster/agent"
	"github.com/muster-serve/muster/agent/agenttest"
	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/runtime"
)

// streamed is a query for NCF with the given id on a stream, and in itself.
func streamed(id uint64, batchSize int, metadata ...string) *control.StreamedQuery {
	q := &control.StreamedQuery{Id: id, Query: identified(fmt.Sprint(id), batchSize)}
	for _, s := range metadata {
		q.Metadata = append(q.Metadata, []byte(s))
	}
	return q
}

// received returns the answers of a stream by their ids, n of them.
func received(t *testing.T, stream control.Control_QueriesClient,
	n int) map[uint64]*control.StreamedAnswer {
	t.Helper()
	all := map[uint64]*control.StreamedAnswer{}
	for range n {
		a, err := stream.Recv()
		if err != nil {
			t.Fatalf("after %d answers of %d: %v", len(all), n, err)
		}
		all[a.Id] = a
	}
	return all
}

// codeOf is the code of an answer.
func codeOf(t *testing.T, a *control.StreamedAnswer) (codes.Code, string) {
	t.Helper()
	if len(a.GetError()) == 0 {
		return codes.OK, ""
	}
	s := status.New(codes.OK, "").Proto()
	if err := proto.Unmarshal(a.Error, s); err != nil {
		t.Fatal(err)
	}
	return codes.Code(s.Code), s.Message
}

// TestQueries: the queries of a stream are answered as calls are, each when it has its answer; one
// that is at fault has its error, one that is given up ends, and one whose deadline passes as well.
func TestQueries(t *testing.T) {
	g := agenttest.NewGate()
	a := agenttest.Start(t, agenttest.Config(t), g)
	stream, err := control.NewControlClient(a.Conn).Queries(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Header(); err != nil {
		t.Fatalf("a stream without header: %v", err)
	}
	send := func(all ...*control.StreamedQuery) {
		t.Helper()
		for _, q := range all {
			if err := stream.Send(q); err != nil {
				t.Fatal(err)
			}
		}
	}
	malformed := streamed(2, 1)
	malformed.Query.Inputs[0].Shape = []int64{2, 4}
	missing := streamed(3, 1)
	missing.Query.ModelName = "missing"
	send(streamed(1, 3), malformed, missing,
		streamed(4, 2, control.AttemptHeader, "1/1/1/0/0/5"),
		streamed(5, 2, control.AttemptHeader, "nonsense"),
		&control.StreamedQuery{Id: 99, Cancel: true}) // of a query that there is not
	answers := received(t, stream, 5)
	for id, want := range map[uint64]struct {
		code codes.Code
		text string
	}{
		1: {codes.OK, ""}, 2: {codes.InvalidArgument, "fewer than the 8 elements"},
		3: {codes.NotFound, `model "missing"`}, 4: {codes.OK, ""},
		5: {codes.InvalidArgument, control.AttemptHeader},
	} {
		code, message := codeOf(t, answers[id])
		if code != want.code || !strings.Contains(message, want.text) {
			t.Errorf("query %d: got %v %q, want %v %q", id, code, message, want.code, want.text)
		}
		if got := answers[id].GetAnswer(); want.code == codes.OK && (got.GetId() != fmt.Sprint(id) ||
			len(got.GetRawOutputContents()) != 1) {
			t.Errorf("query %d: got %v", id, got)
		}
	}
	// an attempt whose gateway chose the lane learns the remaining time, as by the trailer
	if answers[4].RemainingNs == nil || answers[1].RemainingNs != nil {
		t.Errorf("remaining: %v with an attempt and %v without, want only the first",
			answers[4].RemainingNs, answers[1].RemainingNs)
	}

	g.Close()
	late := streamed(7, 1)
	late.TimeoutNs = 1
	send(streamed(6, 1))
	<-g.Entered // it runs
	send(late, &control.StreamedQuery{Id: 6, Cancel: true})
	answers = received(t, stream, 2)
	if code, message := codeOf(t, answers[6]); code != codes.Canceled {
		t.Errorf("given up: got %v %q", code, message)
	}
	if code, message := codeOf(t, answers[7]); code != codes.DeadlineExceeded {
		t.Errorf("past its deadline: got %v %q", code, message)
	}
	g.Open()
	if held := sizes(a)["serve: bytes of queries"]; held != 0 {
		t.Errorf("%d bytes of queries are held though all are answered", held)
	}

	send(streamed(8, 1))
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if code, message := codeOf(t, received(t, stream, 1)[8]); code != codes.OK {
		t.Errorf("the last query: got %v %q", code, message)
	}
}

// TestBadQueries: a stream that breaks its protocol ends with an error that says how.
func TestBadQueries(t *testing.T) {
	g := agenttest.NewGate()
	a := agenttest.Start(t, agenttest.Config(t), g)
	for _, tt := range []struct {
		want string
		sent []*control.StreamedQuery
	}{
		{"message 4 of the stream has no query", []*control.StreamedQuery{{Id: 4}}},
		{"two queries of the stream have the id 4",
			[]*control.StreamedQuery{streamed(4, 1), streamed(4, 1)}},
		{"a name without its value", []*control.StreamedQuery{streamed(4, 1, "name")}},
		{"more than 64 metadata", []*control.StreamedQuery{streamed(4, 1, make([]string, 66)...)}},
		{"a message of ", []*control.StreamedQuery{streamed(4, 1, "name", strings.Repeat("x", 1<<17))}},
	} {
		stream, err := control.NewControlClient(a.Conn).Queries(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for i, q := range tt.sent {
			if i+1 < len(tt.sent) {
				g.Close()
			}
			if err := stream.Send(q); err != nil {
				t.Fatal(err)
			}
			if i+1 < len(tt.sent) {
				<-g.Entered // so that the next has the id of one that runs
			}
		}
		for err == nil { // the one that runs ends with the stream
			_, err = stream.Recv()
		}
		g.Open()
		if !strings.Contains(err.Error(), tt.want) {
			t.Errorf("got %v, want %q", err, tt.want)
		}
	}
	if err := a.InferGRPC(agenttest.NCFRequest(2)); err != nil {
		t.Errorf("next query: %v", err)
	}
}

// TestQueriesAtDrain: a stream does not keep an agent from stopping, and what it has received is
// answered.
func TestQueriesAtDrain(t *testing.T) {
	g := agenttest.NewGate()
	a := agenttest.Start(t, agenttest.Config(t), g)
	stream, err := control.NewControlClient(a.Conn).Queries(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	g.Close()
	if err := stream.Send(streamed(1, 1)); err != nil {
		t.Fatal(err)
	}
	<-g.Entered
	stopped := make(chan error, 1)
	go func() { stopped <- a.Stop() }()
	g.Open()
	if code, message := codeOf(t, received(t, stream, 1)[1]); code != codes.OK {
		t.Errorf("got %v %q, want the answer", code, message)
	}
	if _, err := stream.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("got %v, want UNAVAILABLE", err)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

// TestQueriesGuarded: each query of a stream is checked for what its client may do then.
func TestQueriesGuarded(t *testing.T) {
	ca := agenttest.NewCA(t)
	config := agenttest.Config(t)
	config.Security = ca.Agent("a1")
	config.Security.APIKeysFile = ca.Write("keys", "feed: feed-feed-feed-feed\n")
	config.Security.AccessFile = ca.Write("access", "clients: {feed: {models: [ncf]}}\n")
	a := agenttest.Start(t, config, agenttest.Emulated())
	for key, want := range map[string][]codes.Code{
		"feed-feed-feed-feed": {codes.OK, codes.PermissionDenied}, "": nil,
	} {
		client := ca.Client("")
		client.APIKey = key
		conn := agenttest.DialSecurely(t, a.Addresses().GRPC, client)
		stream, err := control.NewControlClient(conn).Queries(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		other := streamed(1, 1)
		other.Query.ModelName = "wnd"
		_ = stream.Send(streamed(0, 1)) // Recv says why it failed
		_ = stream.Send(other)
		if want == nil {
			if _, err := stream.Recv(); status.Code(err) != codes.Unauthenticated {
				t.Errorf("without a key: got %v", err)
			}
		} else {
			answers := received(t, stream, 2)
			for id := range want {
				if code, message := codeOf(t, answers[uint64(id)]); code != want[id] {
					t.Errorf("query %d: got %v %q, want %v", id, code, message, want[id])
				}
			}
		}
		_ = conn.Close() // its calls are over
	}
}

// gated starts an agent with a gate that is closed.
func gated(f *agenttest.Fleet) (*agenttest.Member, *agenttest.Gate) {
	f.Helper()
	g := agenttest.NewGate()
	a := f.Start(func(a agent.Inside) {
		a.Environment().OpenExecutor = func(agent.Config, *slog.Logger) (runtime.Executor, error) { return g, nil }
	})
	f.Settled(a)
	synctest.Wait()
	g.Close()
	return a, g
}

// TestFullQueries: a query's timeout counts from its arrival on, also while its stream is full.
func TestFullQueries(t *testing.T) {
	const room = 1024
	agenttest.InFleet(t, func(f *agenttest.Fleet) {
		a, g := gated(f)
		stream, err := a.Control.Queries(f.Context())
		if err != nil {
			f.Fatal(err)
		}
		for i := range room + 1 {
			q := streamed(uint64(i), 1)
			q.TimeoutNs = int64(time.Minute)
			if i == room {
				q.TimeoutNs = int64(100 * time.Millisecond)
			}
			if err := stream.Send(q); err != nil {
				f.Fatal(err)
			}
		}
		synctest.Wait() // all have arrived
		time.Sleep(100 * time.Millisecond)
		g.Open()
		answers := received(f.T, stream, room+1)
		for id, want := range map[uint64]codes.Code{0: codes.OK, room: codes.DeadlineExceeded} {
			if code, message := codeOf(f.T, answers[id]); code != want {
				f.Errorf("query %d: got %v %q, want %v", id, code, message, want)
			}
		}
	})
}
