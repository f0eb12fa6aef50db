package serve_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	goruntime "runtime"
	heap "runtime/metrics"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/muster-serve/muster/agent"
	"github.com/muster-serve/muster/agent/agenttest"
	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/inference"
	"github.com/muster-serve/muster/api/secure"
	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/leader/match"
	"github.com/muster-serve/muster/models"
)

// TestClientOfOneModel: a client with a key for one model gets nothing of another by what SDKs use,
// nor room for what no query needs.
func TestClientOfOneModel(t *testing.T) {
	ca := agenttest.NewCA(t)
	config := agenttest.Config(t)
	config.Security = ca.Agent("a1")
	config.Security.APIKeysFile = ca.Write("keys", "feed: feed-feed-feed-feed\n")
	config.Security.AccessFile = ca.Write("access", "clients: {feed: {models: [ncf]}}\n")
	a := agenttest.Start(t, config, agenttest.Emulated())
	credentials := ca.Client("")
	credentials.APIKey = "feed-feed-feed-feed"
	conn := agenttest.DialSecurely(t, a.Addresses().GRPC, credentials)
	defer conn.Close()
	c := control.NewControlClient(conn)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()

	for _, changes := range []bool{false, true} {
		watch, err := c.Watch(ctx, &control.WatchRequest{Changes: changes})
		if err != nil {
			t.Fatal(err)
		}
		view, err := watch.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if text := view.String(); !strings.Contains(text, "ncf") || strings.Contains(text, "dien") {
			t.Errorf("Watch, changes %v: shows other models than ncf: %s", changes, text)
		}
	}
	status, err := c.Status(ctx, &control.StatusRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if text := status.String(); !strings.Contains(text, "ncf") || strings.Contains(text, "dien") {
		t.Errorf("Status has other models than ncf: %s", text)
	}
	index, err := inference.NewGRPCInferenceServiceClient(conn).RepositoryIndex(ctx,
		&inference.RepositoryIndexRequest{})
	if err != nil || len(index.GetModels()) != 1 {
		t.Errorf("the index has %v, %v, want ncf alone", index, err)
	}

	probe, err := c.Probe(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, model := range []string{"ncf", "wnd"} {
		if err := probe.Send(&control.ProbeRequest{
			Id: 1, Model: model, BatchSize: 1, Gateway: 7,
		}); err != nil {
			t.Fatal(err)
		}
		if answer, err := probe.Recv(); (model == "ncf") != (err == nil) {
			t.Errorf("probe of %s: got %v, %v", model, answer, err)
		}
	}

	open := func() control.Control_MatchClient {
		t.Helper()
		s, err := c.Match(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Send(&control.GatewayMessage{
			Hello: &control.GatewayHello{Gateway: 7, Protocol: control.Spoken.Oldest},
		}); err != nil {
			t.Fatal(err)
		}
		return s
	}
	gateway := open()
	if err := gateway.Send(&control.GatewayMessage{Submit: []*control.Submit{
		{Sequence: 1, Model: "wnd", BatchSize: 1}, {Sequence: 2, Model: "ncf", BatchSize: 1},
	}}); err != nil {
		t.Fatal(err)
	}
	for rejected, assigned := false, false; !rejected || !assigned; {
		m, err := gateway.Recv()
		if err != nil {
			t.Fatalf("rejected %v, assigned %v: %v", rejected, assigned, err)
		}
		for _, p := range m.GetProfiles() {
			if !strings.HasPrefix(p.GetModel(), "ncf/") {
				t.Errorf("Match tells of %q", p.GetModel())
			}
		}
		for _, r := range m.GetReject() {
			rejected = r.GetSequence() == 1 && r.GetReason() == match.UnknownModel.String() &&
				strings.Contains(r.GetMessage(), `"feed" may not query model "wnd"`)
		}
		for _, x := range m.GetAssign() {
			if x.GetSequence() != 2 {
				t.Errorf("assigned %v, want only query 2", x)
			}
			assigned = true
		}
	}

	large := open()
	if err := large.Send(&control.GatewayMessage{Submit: []*control.Submit{
		{Sequence: 1, Model: "ncf", BatchSize: 1, Traceparent: agenttest.TestHeaders["traceparent"],
			Tracestate: strings.Repeat("x", 900<<10)},
	}}); err != nil && err != io.EOF {
		t.Fatal(err)
	}
	for err == nil || err == io.EOF {
		_, err = large.Recv()
	}
	agenttest.WantCode(t, err, "ResourceExhausted", "want at most 65536")
}

// TestGatewayOfAnother: a gateway's id is its client's. Nobody else can end its stream by it, or
// take its reservations, and the status tells nobody which ids there are. The same client may come
// back with its id, as one whose stream has broken does.
func TestGatewayOfAnother(t *testing.T) {
	files := agenttest.NewCA(t)
	config := agenttest.Config(t)
	config.Security.APIKeysFile = files.Write("keys",
		"ads: "+agenttest.AdsKey+"\nfeed: "+agenttest.FeedKey+"\n")
	config.Security.AccessFile = files.Write("access", "clients: {'*': {models: ['*']}}\n")
	a := agenttest.Start(t, config, agenttest.Emulated())
	a.Leads() // before it does, Match is refused
	c := control.NewControlClient(a.Conn)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	const id = 1234567890123456789
	open := func(key string) control.Control_MatchClient {
		t.Helper()
		s, err := c.Match(agenttest.WithKey(ctx, key))
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Send(&control.GatewayMessage{
			Hello: &control.GatewayHello{Gateway: id, Protocol: control.Spoken.Oldest},
		}); err != nil {
			t.Fatal(err)
		}
		return s
	}
	ended := func(s control.Control_MatchClient) error {
		for {
			if _, err := s.Recv(); err != nil {
				return err
			}
		}
	}
	rejected := func(s control.Control_MatchClient, sequence uint64) {
		t.Helper()
		if err := s.Send(&control.GatewayMessage{Submit: []*control.Submit{
			{Sequence: sequence, Model: "none", BatchSize: 1},
		}}); err != nil {
			t.Fatal(err)
		}
		for {
			m, err := s.Recv()
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range m.GetReject() {
				if r.GetSequence() == sequence {
					return
				}
			}
		}
	}
	first := open(agenttest.AdsKey)
	rejected(first, 4)
	agenttest.WantCode(t, ended(open(agenttest.FeedKey)), "PermissionDenied", "another client")
	rejected(first, 8) // it goes on
	again := open(agenttest.AdsKey)
	rejected(again, 12)
	agenttest.WantCode(t, ended(first), "Aborted", "opened another stream")

	seen, err := c.Status(agenttest.WithKey(ctx, agenttest.FeedKey), &control.StatusRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if text := strings.Join(seen.GetDecisions(), "\n"); strings.Contains(text, strconv.Itoa(id)) ||
		!strings.Contains(text, "/12 ") {
		t.Errorf("decisions have the gateway's id, or not its queries:\n%s", text)
	}

	probe := func(key string) control.Control_ProbeClient {
		t.Helper()
		s, err := c.Probe(agenttest.WithKey(ctx, key))
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Send(&control.ProbeRequest{
			Id: 1, Model: "ncf", BatchSize: 1, Gateway: id,
		}); err != nil {
			t.Fatal(err)
		}
		if answer, err := s.Recv(); err != nil || answer.GetFinishNs() < 0 {
			t.Fatalf("a probe gets %v, %v", answer, err)
		}
		return s
	}
	probe(agenttest.AdsKey)
	probe(agenttest.FeedKey)
	if n := agenttest.Held(a.Inside, "worker: reservations"); n != 2 {
		t.Errorf("%d reservations are held, want one for each client", n)
	}
}

// TestLostRights: what is open ends when its client loses its API key, or the right to have it
// open; the same of other clients goes on.
func TestLostRights(t *testing.T) {
	files := agenttest.NewCA(t)
	const keys = "feed: " + agenttest.FeedKey + "\n"
	config := agenttest.Config(t)
	config.Security.APIKeysFile = files.Write("keys", keys+"ads: "+agenttest.AdsKey+"\n")
	const entries = "{feed: {models: ['*'], control: [events]}, ads: {models: [ncf], control: [%s]}}\n"
	config.Security.AccessFile = files.Write("access", "clients: "+fmt.Sprintf(entries, "events"))
	a := agenttest.Start(t, config, agenttest.Emulated())
	a.Leads() // before it does, Match is refused
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	c := control.NewControlClient(a.Conn)
	refresh := func() {
		a.Guard().Refresh()
		a.Guard().Refresh()
	}

	// Each opens something, and returns what waits for its end.
	type stream interface{ RecvMsg(any) error }
	until := func(s stream, m any, err error) func() error {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		if err := s.RecvMsg(m); err != nil { // it is open
			t.Fatal(err)
		}
		return func() error {
			for {
				if err := s.RecvMsg(m); err != nil {
					return err
				}
			}
		}
	}
	open := map[string]func(ctx context.Context, key string) func() error{
		"Watch": func(ctx context.Context, _ string) func() error {
			s, err := c.Watch(ctx, &control.WatchRequest{})
			return until(s, new(control.View), err)
		},
		"Events": func(ctx context.Context, _ string) func() error {
			s, err := c.Events(ctx, &control.EventsRequest{Follow: true})
			return until(s, new(control.Event), err)
		},
		"Match": func(ctx context.Context, key string) func() error {
			s, err := c.Match(ctx)
			if err == nil {
				err = s.Send(&control.GatewayMessage{Hello: &control.GatewayHello{
					Gateway: uint64(key[0]), Protocol: control.Spoken.Oldest,
				}})
			}
			return until(s, new(control.MatchMessage), err)
		},
		"Probe": func(ctx context.Context, _ string) func() error {
			s, err := c.Probe(ctx)
			if err == nil {
				err = s.Send(&control.ProbeRequest{Id: 1, Model: "ncf", BatchSize: 1, Gateway: 7})
			}
			return until(s, new(control.ProbeAnswer), err)
		},
		"Queries": func(ctx context.Context, _ string) func() error {
			s, err := c.Queries(ctx)
			if err == nil {
				err = s.Send(streamed(1, 1))
			}
			return until(s, new(control.StreamedAnswer), err)
		},
		"ModelStreamInfer": func(ctx context.Context, _ string) func() error {
			s, err := a.GRPC.ModelStreamInfer(ctx)
			if err == nil {
				err = s.Send(agenttest.NCFRequest(1))
			}
			return until(s, new(inference.ModelStreamInferResponse), err)
		},
		"health": func(ctx context.Context, _ string) func() error {
			s, err := healthpb.NewHealthClient(a.Conn).Watch(ctx,
				&healthpb.HealthCheckRequest{Service: "ncf"})
			return until(s, new(healthpb.HealthCheckResponse), err)
		},
		"dashboard": func(ctx context.Context, key string) func() error {
			req, err := http.NewRequestWithContext(ctx, "GET",
				"http://"+a.Addresses().HTTP+"/dashboard/api/stream", nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Authorization", "Bearer "+key)
			resp, err := a.HTTP.Do(req)
			if err != nil || resp.StatusCode != http.StatusOK {
				t.Fatalf("the dashboard's stream: %v, %v", resp, err)
			}
			return func() error {
				defer resp.Body.Close()
				_, err := io.Copy(io.Discard, resp.Body)
				return err
			}
		},
	}
	type opened struct{ ads, feed func() error }
	all := map[string]opened{}
	for what, open := range open {
		all[what] = opened{
			open(agenttest.WithKey(ctx, agenttest.AdsKey), agenttest.AdsKey),
			open(agenttest.WithKey(ctx, agenttest.FeedKey), agenttest.FeedKey),
		}
	}
	queries := map[string]*queries{}
	for _, key := range []string{agenttest.AdsKey, agenttest.FeedKey} {
		queries[key] = mustDialQueries(t, a, secure.ClientConfig{})
		queries[key].Metadata = []string{"authorization", "Bearer " + key}
		queries[key].want(codes.OK, "", ncfQuery(1), 0)
	}

	files.Write("access", "clients: "+fmt.Sprintf(entries, ""))
	refresh()
	agenttest.WantCode(t, all["Events"].ads(), "PermissionDenied", "may not events")
	delete(open, "Events")
	files.Write("keys", keys)
	refresh()
	for what := range open {
		if what == "dashboard" {
			if err := all[what].ads(); err != nil { // it is at its end
				t.Errorf("the dashboard's stream: %v", err)
			}
			continue
		}
		agenttest.WantCode(t, all[what].ads(), "Unauthenticated", "API key")
	}
	if _, err := queries[agenttest.AdsKey].ask(ctx, ncfQuery(1), 0); err == nil {
		t.Error("a connection for queries of a removed key is open")
	}
	queries[agenttest.FeedKey].want(codes.OK, "", ncfQuery(1), 0)

	files.Write("access", "clients: {other: {models: ['*']}}\n")
	refresh()
	for what, streams := range all {
		if err := streams.feed(); what != "dashboard" &&
			status.Code(err) != codes.PermissionDenied {
			t.Errorf("%s of a client without an entry: %v", what, err)
		}
	}
	if _, err := queries[agenttest.FeedKey].ask(ctx, ncfQuery(1), 0); err == nil {
		t.Error("a connection for queries of a client without an entry is open")
	}
}

// A rawClient speaks HTTP/2 as it likes: it lets the agent send nothing on a stream.
type rawClient struct {
	t      *testing.T
	conn   net.Conn
	stream uint32

	mu     sync.Mutex // of writing
	framer *http2.Framer
}

// write sends frames.
func (c *rawClient) write(frames func(*http2.Framer) error) {
	c.t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := frames(c.framer); err != nil {
		c.t.Error(err)
	}
}

func newRawClient(t *testing.T, address string) *rawClient {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	// so that a failure is no hang
	if err := conn.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	c := &rawClient{
		t: t, conn: conn, framer: http2.NewFramer(conn, bufio.NewReader(conn)), stream: 1,
	}
	c.framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	_, err = io.WriteString(conn, http2.ClientPreface)
	c.check(err)
	c.check(c.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}))
	return c
}

func (c *rawClient) check(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

// begin opens a call and sends bytes of its message.
func (c *rawClient) begin(method string, body []byte, whole bool) {
	c.t.Helper()
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	for _, h := range [][2]string{
		{":method", "POST"}, {":scheme", "http"}, {":path", method}, {":authority", "localhost"},
		{"content-type", "application/grpc"}, {"te", "trailers"},
	} {
		if err := encoder.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]}); err != nil {
			c.t.Error(err)
		}
	}
	c.write(func(f *http2.Framer) error {
		return f.WriteHeaders(http2.HeadersFrameParam{
			StreamID: c.stream, BlockFragment: block.Bytes(), EndHeaders: true,
		})
	})
	for len(body) > 0 {
		n := min(len(body), 16<<10)
		c.write(func(f *http2.Framer) error {
			return f.WriteData(c.stream, whole && n == len(body), body[:n])
		})
		body = body[n:]
	}
	c.stream += 2
}

// next is the next end of a call: its code, "" for none, as the agent has sent only what comes
// before the data. gone: the connection has ended.
func (c *rawClient) next() (code string, gone bool) {
	for {
		f, err := c.framer.ReadFrame()
		if err != nil {
			return err.Error(), true
		}
		switch f := f.(type) {
		case *http2.SettingsFrame:
			if !f.IsAck() {
				c.write((*http2.Framer).WriteSettingsAck)
			}
		case *http2.MetaHeadersFrame:
			for _, h := range f.Fields {
				if h.Name == "grpc-status" {
					n := 0
					_, err := fmt.Sscan(h.Value, &n)
					c.check(err)
					return codes.Code(n).String(), false
				}
			}
			return "", false
		}
	}
}

// liveBytes is what is in use of the heap.
func liveBytes() int64 {
	goruntime.GC()
	sample := []heap.Sample{{Name: "/gc/heap/live:bytes"}}
	heap.Read(sample)
	return int64(sample[0].Value.Uint64())
}

// TestStalledQueries: those who send all of a query but its last byte take no more than the bound,
// and whoever comes then is refused at once.
func TestStalledQueries(t *testing.T) {
	config := agenttest.Config(t)
	config.MaxWaitingBytes = 16 << 20
	a := agenttest.Start(t, config, agenttest.Emulated())
	const size, calls = 4 << 20, 40 // a query of wnd may have as many bytes
	body := append(append([]byte{0}, binary.BigEndian.AppendUint32(nil, size)...),
		make([]byte, size-64)...)
	before := liveBytes()
	c := newRawClient(t, a.Addresses().GRPC)
	sent := make(chan struct{})
	go func() { // or neither side would read
		defer close(sent)
		for range calls {
			c.begin(inference.GRPCInferenceService_ModelInfer_FullMethodName, body, false)
		}
	}()
	for i := range calls - int(config.MaxWaitingBytes/size) {
		if code, _ := c.next(); code != "ResourceExhausted" {
			t.Fatalf("refusal %d: got %q, want ResourceExhausted", i+1, code)
		}
	}
	<-sent // a call is refused before the whole of it has been sent
	if held := agenttest.Held(a.Inside,
		"serve: bytes of queries"); int64(held) != config.MaxWaitingBytes {
		t.Errorf("%d bytes are held, want %d", held, config.MaxWaitingBytes)
	}
	more := liveBytes() - before
	t.Logf("%d MiB have been sent, %d MiB are in use", calls*size>>20, more>>20)
	if more > config.MaxWaitingBytes+64<<20 {
		t.Errorf("%d bytes more are in use, want at most those held and 64 MiB", more)
	}
	_ = c.conn.Close()
	for agenttest.Held(a.Inside, "serve: bytes of queries") > 0 { // the calls end
		goruntime.Gosched()
	}
	if err := a.InferGRPC(agenttest.NCFRequest(1)); err != nil {
		t.Errorf("next query: %v", err)
	}
}

// TestLargerModel: once a model is there that takes larger queries they are accepted, on
// connections that were open before, too.
func TestLargerModel(t *testing.T) {
	dir, err := agenttest.NCFDir()
	if err != nil {
		t.Fatal(err)
	}
	config := agenttest.Config(t)
	config.ModelDir = dir
	a := agenttest.Start(t, config, agenttest.Emulated())
	c := newRawClient(t, a.Addresses().GRPC)
	const size = 3 << 20
	query := append(binary.BigEndian.AppendUint32([]byte{0}, size), make([]byte, size)...)
	ask := func(want string) {
		t.Helper()
		c.begin(inference.GRPCInferenceService_ModelInfer_FullMethodName, query, true)
		if code, gone := c.next(); code != want {
			t.Fatalf("got %q, the connection gone: %v, want %s", code, gone, want)
		}
	}
	ask("ResourceExhausted")
	a.Server().Loaded(&models.Version{
		Inputs: []models.TensorSpec{
			{Name: "ids", DataType: tensor.Int64, Shape: []int64{models.Dynamic, 1000}},
		},
		Config: models.Config{LargestBatchSize: 1000},
	})
	ask("InvalidArgument") // it is read, and is no query
	ask("InvalidArgument")
}

// TestAnswersWithoutRoom: a query whose answer finds no room is refused, and counts as failed
// alone.
func TestAnswersWithoutRoom(t *testing.T) {
	config := agenttest.Config(t)
	config.MaxWaitingBytes = 64 << 10
	g := agenttest.NewGate()
	a := agenttest.Start(t, config, g)
	query, err := proto.Marshal(agenttest.NCFRequest(16)) // 512 bytes, answered with 4 KiB
	if err != nil {
		t.Fatal(err)
	}
	const n = 20
	g.Close()
	c := newRawClient(t, a.Addresses().GRPC)
	for range n {
		c.begin(inference.GRPCInferenceService_ModelInfer_FullMethodName, frame(query), true)
	}
	for agenttest.Held(a.Inside, "serve: bytes of queries") < n*16*4*8 {
		goruntime.Gosched()
	}
	g.Open()
	refused := 0
	for range n {
		code, gone := c.next()
		if gone || code != "" && code != "ResourceExhausted" {
			t.Fatalf("got %s, gone: %v", code, gone)
		}
		if code != "" {
			refused++
		}
	}
	if refused < n-17 {
		t.Errorf("%d of %d queries are refused, want those whose answers are above the limit",
			refused, n)
	}
	for series, want := range map[string]float64{
		`muster_queries_total{model="ncf",version="1"}`: float64(n -
			refused),
		`muster_failed_queries_total{model="ncf",reason="overloaded",version="1"}`: float64(refused),
	} {
		wantMetric(a, series, want)
	}
	stats, err := a.GRPC.ModelStatistics(t.Context(),
		&inference.ModelStatisticsRequest{Name: "ncf"})
	if err != nil {
		t.Fatal(err)
	}
	if s := stats.GetModelStats()[0].GetInferenceStats(); s.GetSuccess().GetCount() != uint64(n-refused) ||
		s.GetFail().GetCount() != uint64(refused) {
		t.Errorf("the statistics have %v, want %d successes and %d failures", s, n-refused, refused)
	}
}

// TestUnreadAnswers: answers that their client does not read are counted until its connection ends,
// which it soon does.
func TestUnreadAnswers(t *testing.T) {
	config := agenttest.Config(t)
	config.MaxWaitingBytes = 64 << 10
	a := agenttest.Start(t, config, agenttest.Emulated(),
		func(a agent.Inside) { a.Environment().SendTimeout = 3 * time.Second })
	query, err := proto.Marshal(agenttest.NCFRequest(16)) // answered with 4 KiB
	if err != nil {
		t.Fatal(err)
	}
	c := newRawClient(t, a.Addresses().GRPC)
	refused := 0
	for range 40 {
		c.begin(inference.GRPCInferenceService_ModelInfer_FullMethodName, frame(query), true)
		if code, gone := c.next(); gone {
			t.Fatalf("the connection has ended with %s", code)
		} else if code == "ResourceExhausted" {
			refused++
		}
		if held := agenttest.Held(a.Inside,
			"serve: bytes of answers"); int64(held) > config.MaxWaitingBytes {
			t.Fatalf("answers of %d bytes are held, want at most %d", held, config.MaxWaitingBytes)
		}
	}
	if refused == 0 {
		t.Error("no query is refused for the answers that nobody reads")
	}
	for gone := false; !gone; {
		var code string
		if code, gone = c.next(); strings.Contains(code, "timeout") {
			t.Fatal("the connection goes on")
		}
	}
	for agenttest.Held(a.Inside, "serve: bytes of answers") > 0 {
		goruntime.Gosched()
	}
	if err := a.InferGRPC(agenttest.NCFRequest(1)); err != nil {
		t.Errorf("next query: %v", err)
	}
}

// TestInflation: compressed queries are counted while they are inflated, by both protocols.
func TestInflation(t *testing.T) {
	config := agenttest.Config(t)
	config.MaxWaitingBytes = 2 << 20
	a := agenttest.Start(t, config, agenttest.Emulated())
	others := oipCharge(t, a, 1<<20)
	defer others()
	// Of it a query of wnd may have 2 MiB, and that compresses to a hundredth.
	text := strings.Repeat(strings.Repeat("x", 64)+strings.Repeat("y", 64), 14<<10)
	compressed := gzipped(text)
	resp, body := a.Exchange("POST", "/v2/models/wnd/infer", compressed, map[string]string{
		"Content-Encoding": "gzip",
	})
	if resp.StatusCode != http.StatusTooManyRequests &&
		resp.StatusCode != http.StatusRequestEntityTooLarge {
		t.Errorf("REST: got %d %s, want a refusal for what is held, or for the ratio",
			resp.StatusCode, body)
	}
	if held := agenttest.Held(a.Inside, "serve: bytes of queries"); held != 1<<20 {
		t.Errorf("%d bytes are held, want those of others", held)
	}
}

// oipCharge has others hold so many bytes until the function returned is called.
func oipCharge(t *testing.T, a *agenttest.Agent, n int64) func() {
	t.Helper()
	c := newRawClient(t, a.Addresses().GRPC)
	begun := append(binary.BigEndian.AppendUint32([]byte{0}, uint32(n)), make([]byte, 64)...)
	c.begin(inference.GRPCInferenceService_ModelInfer_FullMethodName, begun, false)
	for agenttest.Held(a.Inside, "serve: bytes of queries") != int(n) {
		goruntime.Gosched()
	}
	return sync.OnceFunc(func() { _ = c.conn.Close() })
}

// TestForgedAttempt: who says that an attempt has waited for years spoils no metric.
func TestForgedAttempt(t *testing.T) {
	a := agenttest.Start(t, agenttest.Config(t), agenttest.Emulated())
	attempt := control.Attempt{Gateway: 7, Sequence: 1, Attempt: 1, Waited: 1 << 62}
	ctx := metadata.AppendToOutgoingContext(t.Context(), control.AttemptHeader, attempt.String())
	if _, err := a.GRPC.ModelInfer(ctx, agenttest.WithTimeout(agenttest.NCFRequest(1),
		time.Hour)); err != nil {
		t.Fatal(err)
	}
	resp, err := a.GRPC.ModelStatistics(t.Context(), &inference.ModelStatisticsRequest{Name: "ncf"})
	if err != nil {
		t.Fatal(err)
	}
	if s := resp.ModelStats[0].GetInferenceStats().GetSuccess(); s.GetCount() != 1 ||
		time.Duration(s.GetNs()) > time.Minute {
		t.Errorf("the query is said to have taken %v", s)
	}
}

// TestRefusedWithTimeout: calls that are refused leave nothing behind, however far away their
// deadline is, and are refused as those without one.
func TestRefusedWithTimeout(t *testing.T) {
	if testing.Short() {
		t.Skip("long")
	}
	files := agenttest.NewCA(t)
	config := agenttest.Config(t)
	config.Security.APIKeysFile = files.Write("keys", "feed: feed-feed-feed-feed\n")
	a := agenttest.Start(t, config, agenttest.Emulated())
	ctl := control.NewControlClient(a.Conn)
	const callers, each = 8, 500
	// flood is how many bytes stay of a call.
	flood := func(timeout time.Duration) int64 {
		before := liveBytes()
		var all sync.WaitGroup
		for range callers {
			all.Go(func() {
				for range each {
					ctx, cancel := context.WithTimeout(t.Context(), timeout)
					_, err := a.GRPC.ModelInfer(ctx, agenttest.NCFRequest(1))
					cancel()
					if status.Code(err) != codes.Unauthenticated {
						t.Errorf("a query of nobody: got %v", err)
					}
				}
			})
		}
		all.Wait()
		return (liveBytes() - before) / (callers * each)
	}
	flood(time.Hour) // what grows once
	stay := flood(1000 * time.Hour)
	if t.Logf("%d bytes stay of each call", stay); stay > 100 {
		t.Errorf("%d bytes stay of each call that was refused", stay)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	stream, err := ctl.Watch(ctx, &control.WatchRequest{})
	if err == nil {
		_, err = stream.Recv()
	}
	agenttest.WantCode(t, err, "Unauthenticated", "no credentials")
	if got := agenttest.Counted(a.Inside, "muster_refusals_total",
		secure.ReasonUnauthenticated); got != 2*callers*
		each+1 {
		t.Errorf("%v refusals are counted, want one for each call", got)
	}
}

// TestStalledStream: who sends all of a query on a stream but its end loses the connection, and so
// does not hold the bytes for good; others are served then.
func TestStalledStream(t *testing.T) {
	config := agenttest.Config(t)
	config.MaxWaitingBytes = 1 << 20
	a := agenttest.Start(t, config, agenttest.Emulated(),
		func(a agent.Inside) { a.Environment().ReceiveTimeout = time.Second })
	c := newRawClient(t, a.Addresses().GRPC)
	begun := append(binary.BigEndian.AppendUint32([]byte{0}, 1<<20), make([]byte, 64)...)
	c.begin(inference.GRPCInferenceService_ModelStreamInfer_FullMethodName, begun, false)
	for gone := false; !gone; {
		var why string
		if why, gone = c.next(); strings.Contains(why, "timeout") {
			t.Fatal("the connection goes on")
		}
	}
	for agenttest.Held(a.Inside, "serve: bytes of queries") > 0 { // the call ends
		goruntime.Gosched()
	}
	if err := a.InferGRPC(agenttest.NCFRequest(1)); err != nil {
		t.Errorf("next query: %v", err)
	}
}

// TestUnreadRefusals: who reads no answers on a stream of queries has hardly more queries begun
// than calls could be open, though refusals count no bytes.
func TestUnreadRefusals(t *testing.T) {
	a := agenttest.Start(t, agenttest.Config(t), agenttest.Emulated())
	const most = 1024 // what one connection may have of calls
	var body []byte
	for id := range uint64(4 * most) {
		q := streamed(id, 1)
		q.Query.ModelName = "missing"
		b, err := proto.Marshal(q)
		if err != nil {
			t.Fatal(err)
		}
		body = append(body, frame(b)...)
	}
	c := newRawClient(t, a.Addresses().GRPC)
	c.begin(control.Control_Queries_FullMethodName, body, false)
	const arrived = "muster_arrived_queries_total"
	for agenttest.Counted(a.Inside, arrived) < most {
		goruntime.Gosched()
	}
	for range 100 { // time for more
		if err := a.InferGRPC(agenttest.NCFRequest(1)); err != nil {
			t.Fatal(err)
		}
	}
	// gRPC takes 64 KiB of answers that it cannot send yet: those of some 400 queries.
	if n := agenttest.Counted(a.Inside, arrived) - 100; n > 2*most {
		t.Errorf("%v queries have begun, want %d and as many as gRPC takes answers of", n, most)
	}
}
