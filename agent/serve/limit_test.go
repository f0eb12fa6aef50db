package serve_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/muster-serve/muster/agent/agenttest"
	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/api/secure"
	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/client"
	"github.com/muster-serve/muster/leader/match"
)

// startLimited starts an agent with these limits for the client ads, and none for the client feed.
// The returned function changes the limits of ads.
func startLimited(t *testing.T, limits string) (*agenttest.Agent, func(limits string)) {
	t.Helper()
	files := agenttest.NewCA(t)
	content := func(limits string) string {
		return "clients:\n  ads: {models: [ncf], limits: {" + limits +
			"}}\n  feed: {models: [ncf]}\n"
	}
	config := agenttest.Config(t)
	config.Security.APIKeysFile = files.Write("keys", "ads: "+agenttest.AdsKey+"\nfeed: "+agenttest.FeedKey+"\n")
	config.Security.AccessFile = files.Write("access", content(limits))
	a := agenttest.Start(t, config, agenttest.Emulated())
	return a, func(limits string) {
		files.Write("access", content(limits))
		a.Guard().Refresh()
		a.Guard().Refresh()
	}
}

// wantLimit fails the test unless err refuses a query for a limit of ads, and says when to try
// again.
func wantLimit(t *testing.T, what string, err error, limit string) {
	t.Helper()
	s := status.Convert(err)
	if s.Code() != codes.ResourceExhausted ||
		!strings.Contains(s.Message(), `client "ads" is over its limit of `+limit) {
		t.Errorf("%s: got %v, want RESOURCE_EXHAUSTED for the limit of %s", what, err, limit)
		return
	}
	for _, detail := range s.Details() {
		if info, ok := detail.(*errdetails.RetryInfo); ok && info.GetRetryDelay().AsDuration() > 0 {
			return
		}
	}
	t.Errorf("%s: no RetryInfo in %v", what, err)
}

// TestQueryLimit: queries by gRPC and REST count together; the agent refuses and counts those
// beyond the limit, and a changed limit applies at once. Other clients are served.
func TestQueryLimit(t *testing.T) {
	a, change := startLimited(t, "queries_per_second: 0.001, burst: 4")
	ads, feed := agenttest.WithKey(t.Context(), agenttest.AdsKey), agenttest.WithKey(t.Context(), agenttest.FeedKey)
	byREST := func(key string) (*http.Response, string) {
		return a.Exchange("POST", "/v2/models/ncf/infer", agenttest.NCFBody(1), map[string]string{
			"Authorization": "Bearer " + key,
		})
	}
	for range 2 {
		if _, err := a.GRPC.ModelInfer(ads, agenttest.NCFRequest(1)); err != nil {
			t.Fatal(err)
		}
		if resp, body := byREST(agenttest.AdsKey); resp.StatusCode != http.StatusOK {
			t.Fatalf("REST: %d %s", resp.StatusCode, body)
		}
	}
	_, err := a.GRPC.ModelInfer(ads, agenttest.NCFRequest(1))
	wantLimit(t, "gRPC", err, "0.001 queries a second")
	resp, body := byREST(agenttest.AdsKey)
	if seconds, err := strconv.Atoi(
		resp.Header.Get("Retry-After")); resp.StatusCode != http.StatusTooManyRequests ||
		err != nil || seconds < 900 || seconds > 1000 ||
		!strings.Contains(body, "over its limit of 0.001 queries a second") {
		t.Errorf("REST: got %d, Retry-After %q, %s", resp.StatusCode,
			resp.Header.Get("Retry-After"), body)
	}
	if got := agenttest.Counted(a.Inside, "muster_refusals_total", secure.ReasonLimit); got != 2 {
		t.Errorf("%v refusals are counted, want 2", got)
	}
	if n := strings.Count(a.Log.String(), `reason="over its client's limit"`); n != 1 {
		t.Errorf("the log tells it %d times, want once:\n%s", n, a.Log)
	}
	for range 20 {
		if _, err := a.GRPC.ModelInfer(feed, agenttest.NCFRequest(1)); err != nil {
			t.Fatalf("another client: %v", err)
		}
	}
	if _, err := a.GRPC.ModelInfer(ads, agenttest.NCFRequest(1)); status.Code(
		err) != codes.ResourceExhausted {
		t.Errorf("later: %v", err)
	}
	change("")
	for range 20 {
		if _, err := a.GRPC.ModelInfer(ads, agenttest.NCFRequest(1)); err != nil {
			t.Fatalf("once the limit is gone: %v", err)
		}
	}
	change("queries_per_second: 0.001, burst: 0.5")
	if !strings.Contains(a.Log.String(),
		`client \"ads\": burst: 0.5, want a number of at least 1`) {
		t.Errorf("a file that makes no sense is not in the log:\n%s", a.Log)
	}
	if _, err := a.GRPC.ModelInfer(ads, agenttest.NCFRequest(1)); err != nil {
		t.Errorf("after a file that makes no sense: %v", err)
	}
}

// TestByteLimit: bytes count in both protocols before they are read, with and without an announced
// length.
func TestByteLimit(t *testing.T) {
	a, change := startLimited(t, "bytes_per_second: 1")
	ads := agenttest.WithKey(t.Context(), agenttest.AdsKey)
	if _, err := a.GRPC.ModelInfer(ads, agenttest.NCFRequest(8)); err != nil {
		t.Fatalf("the first query, larger than a second's worth: %v", err)
	}
	_, err := a.GRPC.ModelInfer(ads, agenttest.NCFRequest(1))
	wantLimit(t, "gRPC", err, "1 bytes a second")
	for _, length := range []string{"announced", "not announced"} {
		var body io.Reader = strings.NewReader(agenttest.NCFBody(1))
		if length == "not announced" {
			body = io.MultiReader(body)
		}
		req, err := http.NewRequest("POST", "http://"+a.Addresses().HTTP+"/v2/models/ncf/infer", body)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+agenttest.AdsKey)
		resp, err := a.HTTP.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(resp.Body) // a body cut short fails the checks below
		resp.Body.Close()
		if resp.StatusCode != http.StatusTooManyRequests ||
			!strings.Contains(string(text), "over its limit of 1 bytes a second") ||
			resp.Header.Get("Retry-After") == "" {
			t.Errorf("REST, length %s: got %d %s", length, resp.StatusCode, text)
		}
	}
	if n := a.Runs.Load(); n != 1 {
		t.Errorf("%d queries were run, want the first alone", n)
	}
	if held := agenttest.Held(a.Inside, "serve: bytes of queries"); held != 0 {
		t.Errorf("%d bytes are held", held)
	}
	if n := agenttest.Held(a.Inside, "serve: clients with queries"); n != 0 {
		t.Errorf("%d clients hold some", n)
	}
	change("bytes_per_second: 1GB")
	if _, err := a.GRPC.ModelInfer(ads, agenttest.NCFRequest(1)); err != nil {
		t.Errorf("under another limit: %v", err)
	}
}

// TestLimitOfSDKs: the leader counts every submit of an SDK, also one that claims to be repeated;
// workers count the attempts and probes of SDKs that ask no leader.
func TestLimitOfSDKs(t *testing.T) {
	a, change := startLimited(t, "queries_per_second: 0.001, burst: 3, bytes_per_second: 1kB")
	ctx, cancel := context.WithTimeout(agenttest.WithKey(t.Context(), agenttest.AdsKey), 20*time.Second)
	defer cancel()
	a.Leads() // before it does, Match is refused
	ctl := control.NewControlClient(a.Conn)
	s, err := ctl.Match(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Send(&control.GatewayMessage{
		Hello: &control.GatewayHello{Gateway: 7, Protocol: control.Spoken.Oldest},
	}); err != nil {
		t.Fatal(err)
	}
	// outcome submits a query and returns its rejection; nil if it was assigned.
	outcome := func(submit *control.Submit) *control.Reject {
		t.Helper()
		submit.Model, submit.BatchSize = "ncf", 1
		if err := s.Send(&control.GatewayMessage{Submit: []*control.Submit{submit}}); err != nil {
			t.Fatal(err)
		}
		for {
			m, err := s.Recv()
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range m.GetReject() {
				if r.GetSequence() == submit.GetSequence() {
					return r
				}
			}
			for _, x := range m.GetAssign() {
				if x.GetSequence() == submit.GetSequence() {
					unused := &control.GatewayMessage{
						Unused: []*control.Assign{x}, Cancel: []uint64{x.GetSequence()},
					}
					if err := s.Send(unused); err != nil {
						t.Fatal(err)
					}
					return nil
				}
			}
		}
	}
	wantRefused := func(what, limit string, r *control.Reject) {
		t.Helper()
		if r.GetReason() != "limit" || r.GetRetryAfterNs() <= 0 ||
			!strings.Contains(r.GetMessage(), `client "ads" is over its limit of `+limit) {
			t.Errorf("%s: got %v, want a rejection for the limit of %s", what, r, limit)
		}
	}
	for sequence := range uint64(3) {
		if r := outcome(&control.Submit{Sequence: 1 + sequence}); r != nil {
			t.Fatalf("query %d: %v", 1+sequence, r)
		}
	}
	wantRefused("a fourth", "0.001 queries a second", outcome(&control.Submit{Sequence: 4}))
	wantRefused("one said to be made again", "0.001 queries a second", outcome(&control.Submit{
		Sequence: 1, Attempts: 1,
	}))
	wantRefused("one said to be sent", "0.001 queries a second", outcome(&control.Submit{
		Sequence: 5, Attempts: 1, Agent: string(a.AgentName()),
	}))
	_, err = a.GRPC.ModelInfer(ctx, agenttest.NCFRequest(1)) // the same count: both ask the leader's agent
	wantLimit(t, "gRPC", err, "0.001 queries a second")

	// Attempts have a count of their own, because the leader has counted their queries.
	attempt := func(sequence uint64) error {
		header := control.Attempt{Gateway: 7, Sequence: sequence, Attempt: 1}
		_, err := a.GRPC.ModelInfer(
			metadata.AppendToOutgoingContext(ctx, control.AttemptHeader, header.String()),
			agenttest.NCFRequest(1))
		return err
	}
	for i := range uint64(3) {
		if err := attempt(1 + i); err != nil {
			t.Errorf("attempt %d: %v", i+1, err)
		}
	}
	// its gateway tries elsewhere
	agenttest.WantCode(t, attempt(4), "Unavailable", "refused",
		`client "ads" is over its limit of 0.001 queries a second`)

	probe, err := ctl.Probe(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for i := range uint64(5) {
		if err := probe.Send(&control.ProbeRequest{
			Id: 1 + i, Model: "ncf", BatchSize: 1, Gateway: 7,
		}); err != nil {
			t.Fatal(err)
		}
		answer, err := probe.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if takes := answer.GetFinishNs() >= 0; takes != (i < 3) {
			t.Errorf("probe %d: got %v, want a place %v", i+1, answer, i < 3)
		}
	}

	change("bytes_per_second: 1kB")
	if r := outcome(&control.Submit{Sequence: 10, Bytes: 5000}); r != nil {
		t.Fatal(r)
	}
	wantRefused("one after a large one", "1000 bytes a second", outcome(&control.Submit{
		Sequence: 11, Bytes: 1,
	}))
}

// TestPartsWithinLimit: a client may send its queries to an agent whole or in parts, as many a second
// either way. What it calls parts and are queries counts as queries: parts of ever other queries, the
// same part again, and parts with more rows than one query may have.
func TestPartsWithinLimit(t *testing.T) {
	const queries, largest = 3, 1000
	for name, part := range map[string]func(i int) (query uint64, number uint32, rows int){
		"parts":           func(i int) (uint64, uint32, int) { return uint64(i / 3), uint32(1 + i%3), 1 },
		"each of another": func(i int) (uint64, uint32, int) { return uint64(i), 1, 1 },
		"the same again":  func(int) (uint64, uint32, int) { return 1, 2, 1 },
		"too many rows": func(i int) (uint64, uint32, int) {
			return uint64(i / 3), uint32(1 + i%3), largest
		},
		"numbered as whole queries": func(i int) (uint64, uint32, int) { return uint64(i), 0, 1 },
	} {
		t.Run(name, func(t *testing.T) {
			a, _ := startLimited(t, "queries_per_second: 0.001, burst: 3")
			ctx := agenttest.WithKey(t.Context(), agenttest.AdsKey)
			want := queries
			if name == "parts" {
				want *= match.MostParts
			}
			for i := range want + 1 {
				query, number, rows := part(i)
				header := control.Attempt{
					Gateway: 7, Sequence: control.Numbering*query + uint64(number),
					Attempt: 1, Part: max(1, number),
				}
				_, err := a.GRPC.ModelInfer(metadata.AppendToOutgoingContext(ctx,
					control.AttemptHeader, header.String(), control.PartHeader,
					header.PartString()), agenttest.NCFRequest(rows))
				if i < want && err != nil {
					t.Fatalf("attempt %d: %v", i+1, err)
				}
				if i == want {
					agenttest.WantCode(t, err, "Unavailable", "over its limit of 0.001 queries a second")
				}
			}
		})
	}
}

// TestSDKOverLimit: an SDK reports a refusal for a limit to its client like one for overload.
func TestSDKOverLimit(t *testing.T) {
	a, _ := startLimited(t, "queries_per_second: 0.001, burst: 3")
	options, err := secure.ClientConfig{APIKey: agenttest.AdsKey}.DialOptions(slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.New([]string{a.Addresses().GRPC}, client.WithDialOptions(options...))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ids, err := tensor.Of("ids", agenttest.NCFIDs(1), 1, 4)
	if err != nil {
		t.Fatal(err)
	}
	infer := func() error {
		resp, err := c.Infer(t.Context(), &oip.Request{Model: "ncf", Inputs: []tensor.Tensor{ids}})
		if err == nil {
			resp.Release()
		}
		return err
	}
	for i := range 3 {
		if err := infer(); err != nil {
			t.Fatalf("query %d: %v", i+1, err)
		}
	}
	err = infer()
	var e *client.Error
	if !errors.As(err, &e) || !errors.Is(err, client.ErrOverloaded) ||
		e.RetryAfter < 900*time.Second {
		t.Errorf("got %v, retry after %v; want ErrOverloaded, and to wait for 1000 s", err,
			e.RetryAfter)
	}
}

// TestStreamLimit: a client's open calls and streams are bounded, at all servers together. A
// refused call gets the reason. The end of a call, or its refusal for another reason, makes room.
func TestStreamLimit(t *testing.T) {
	a, _ := startLimited(t, "streams: 3, queries_per_second: 0.001, burst: 2")
	ctl := control.NewControlClient(a.Conn)
	type open struct {
		control.Control_WatchClient
		end context.CancelFunc
	}
	watch := func(key string) (open, error) {
		ctx, end := context.WithCancel(agenttest.WithKey(t.Context(), key))
		t.Cleanup(end)
		s, err := ctl.Watch(ctx, &control.WatchRequest{})
		if err == nil {
			_, err = s.Recv()
		}
		return open{s, end}, err
	}
	for range 2 {
		if _, err := a.GRPC.ModelInfer(agenttest.WithKey(t.Context(), agenttest.AdsKey),
			agenttest.NCFRequest(1)); err != nil {
			t.Fatal(err)
		}
	}
	for range 10 { // more than the limit allows if ended calls still counted
		_, err := a.GRPC.ModelInfer(agenttest.WithKey(t.Context(), agenttest.AdsKey), agenttest.NCFRequest(1))
		wantLimit(t, "a query too many", err, "0.001 queries a second")
	}
	var streams []open
	for range 3 {
		s, err := watch(agenttest.AdsKey)
		if err != nil {
			t.Fatal(err)
		}
		streams = append(streams, s)
	}
	_, err := watch(agenttest.AdsKey)
	wantLimit(t, "a fourth stream", err, "3 calls and streams open at a time")
	_, err = ctl.Status(agenttest.WithKey(t.Context(), agenttest.AdsKey), &control.StatusRequest{})
	wantLimit(t, "a call beside three streams", err, "3 calls and streams open at a time")
	for _, url := range []string{a.Addresses().HTTP + "/v2", a.Addresses().Metrics + "/metrics"} {
		req, err := http.NewRequest("GET", "http://"+url, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+agenttest.AdsKey)
		resp, err := a.HTTP.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusTooManyRequests || resp.Header.Get("Retry-After") != "1" {
			t.Errorf("%s: got %d, Retry-After %q, want 429 and 1", url, resp.StatusCode,
				resp.Header.Get("Retry-After"))
		}
	}
	if _, err := a.GRPC.ServerLive(t.Context(), nil); err != nil {
		t.Errorf("health: %v", err)
	}
	if _, err := watch(agenttest.FeedKey); err != nil {
		t.Errorf("another client: %v", err)
	}
	streams[0].end()
	for { // the agent notices the end of the stream after a while
		if _, err := watch(agenttest.AdsKey); err == nil {
			break
		} else if status.Code(err) != codes.ResourceExhausted {
			t.Fatal(fmt.Errorf("after an end: %w", err))
		}
	}
}

// TestStreamedOverLimit: queries of a stream that exceed the number of open calls are refused as
// calls are, and leave nothing behind.
func TestStreamedOverLimit(t *testing.T) {
	a, _ := startLimited(t, "streams: 1") // which is the stream itself
	stream, err := control.NewControlClient(a.Conn).Queries(agenttest.WithKey(t.Context(), agenttest.AdsKey))
	if err != nil {
		t.Fatal(err)
	}
	const queries = 10
	for id := range uint64(queries) {
		if err := stream.Send(streamed(id, 8)); err != nil {
			t.Fatal(err)
		}
	}
	for id, answer := range received(t, stream, queries) {
		code, message := codeOf(t, answer)
		if code != codes.ResourceExhausted || !strings.Contains(message, "open at a time") {
			t.Errorf("query %d: got %v %q, want a refusal for the limit", id, code, message)
		}
	}
	if held := agenttest.Held(a.Inside, "serve: bytes of queries"); held != 0 {
		t.Errorf("%d bytes of queries are held though all are refused", held)
	}
}
