package client

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/muster-serve/muster/api/inference"
	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/api/tensor"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A fake is a server whose one model, "sum", adds up each row of its input.
type fake struct {
	name  string
	infer func(context.Context, *oip.Request) (*oip.Response, error) // in place of the model
	calls atomic.Int64
}

func (f *fake) ModelInfer(ctx context.Context, req *oip.Request) (*oip.Response, error) {
	f.calls.Add(1)
	if f.infer != nil {
		defer req.Release()
		return f.infer(ctx, req)
	}
	return f.sum(req)
}

func (f *fake) sum(req *oip.Request) (*oip.Response, error) {
	defer req.Release()
	if req.Model != "sum" {
		return nil, status.Errorf(codes.NotFound, "model %q is not in the repository", req.Model)
	}
	x, err := tensor.Values[float32](req.Inputs[0])
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	sums := make([]float32, req.Inputs[0].Shape[0])
	for i := range sums {
		for _, v := range x[i*len(x)/len(sums) : (i+1)*len(x)/len(sums)] {
			sums[i] += v
		}
	}
	out, err := tensor.Of("sum", sums, int64(len(sums)), 1)
	return &oip.Response{Model: "sum", Version: "1", ID: req.ID, Outputs: []tensor.Tensor{out}}, err
}

func (f *fake) ServerLive(context.Context, *inference.ServerLiveRequest) (
	*inference.ServerLiveResponse, error) {
	return &inference.ServerLiveResponse{Live: true}, nil
}

func (f *fake) ServerReady(context.Context, *inference.ServerReadyRequest) (
	*inference.ServerReadyResponse, error) {
	return &inference.ServerReadyResponse{Ready: true}, nil
}

func (f *fake) ModelReady(_ context.Context, req *inference.ModelReadyRequest) (
	*inference.ModelReadyResponse, error) {
	return &inference.ModelReadyResponse{Ready: req.Name == "sum" && req.Version == "1"}, nil
}

func (f *fake) ServerMetadata(context.Context, *inference.ServerMetadataRequest) (
	*inference.ServerMetadataResponse, error) {
	return &inference.ServerMetadataResponse{Name: f.name}, nil
}

func (f *fake) ModelMetadata(_ context.Context, req *inference.ModelMetadataRequest) (
	*inference.ModelMetadataResponse, error) {
	if req.Name != "sum" {
		return nil, status.Errorf(codes.NotFound, "model %q is not in the repository", req.Name)
	}
	return &inference.ModelMetadataResponse{Name: "sum", Versions: []string{"1"}}, nil
}

func (f *fake) ModelStreamInfer(oip.InferStream) error {
	return status.Error(codes.Unimplemented, "no streams")
}

func (f *fake) ModelConfig(context.Context, *inference.ModelConfigRequest) (
	*inference.ModelConfigResponse, error) {
	return nil, status.Error(codes.Unimplemented, "no configurations")
}

func (f *fake) ModelStatistics(context.Context, *inference.ModelStatisticsRequest) (
	*inference.ModelStatisticsResponse, error) {
	return &inference.ModelStatisticsResponse{
		ModelStats: []*inference.ModelStatistics{{Name: "sum", InferenceCount: 3}},
	}, nil
}

func (f *fake) RepositoryIndex(_ context.Context, req *inference.RepositoryIndexRequest) (
	*inference.RepositoryIndexResponse, error) {
	index := []*inference.RepositoryIndexResponse_ModelIndex{{Name: "sum", State: "READY"}}
	if !req.Ready {
		index = append(index, &inference.RepositoryIndexResponse_ModelIndex{
			Name: "broken", State: "UNAVAILABLE",
		})
	}
	return &inference.RepositoryIndexResponse{Models: index}, nil
}

func (f *fake) RepositoryModelLoad(_ context.Context, req *inference.RepositoryModelLoadRequest) (
	*inference.RepositoryModelLoadResponse, error) {
	if req.ModelName != "sum" {
		return nil, status.Errorf(codes.NotFound, "model %q is not in the repository",
			req.ModelName)
	}
	return &inference.RepositoryModelLoadResponse{}, nil
}

func (f *fake) RepositoryModelUnload(context.Context, *inference.RepositoryModelUnloadRequest) (
	*inference.RepositoryModelUnloadResponse, error) {
	return &inference.RepositoryModelUnloadResponse{}, nil
}

// connect starts servers in memory and makes a client of them. A nil server is
// an address where nobody listens.
func connect(t *testing.T, servers []*fake, opts ...Option) *Client {
	t.Helper()
	listeners := map[string]*bufconn.Listener{}
	var addresses []string
	for i, f := range servers {
		address := string(rune('a' + i))
		addresses = append(addresses, "passthrough:///"+address)
		if f == nil {
			continue
		}
		f.name = address
		lis := bufconn.Listen(1 << 20)
		listeners[address] = lis
		s := grpc.NewServer(oip.ServerOptions(32 << 20)...)
		oip.RegisterServer(s, f)
		done := make(chan struct{})
		go func() { defer close(done); s.Serve(lis) }()
		t.Cleanup(func() { s.Stop(); <-done })
	}
	dial := func(ctx context.Context, address string) (net.Conn, error) {
		if lis := listeners[address]; lis != nil {
			return lis.DialContext(ctx)
		}
		return nil, errors.New("connection refused")
	}
	c, err := New(addresses, append(opts, WithDialOptions(grpc.WithContextDialer(dial)))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// sumQuery asks for the sums of rows of four ones.
func sumQuery(rows int) *oip.Request {
	ones := slices.Repeat([]float32{1}, 4*rows)
	x, err := tensor.Of("x", ones, int64(rows), 4)
	if err != nil {
		panic(err)
	}
	return &oip.Request{Model: "sum", ID: "7", Inputs: []tensor.Tensor{x}}
}

func TestInfer(t *testing.T) {
	c := connect(t, []*fake{{}})
	// The last is beyond grpc's own limit of 4 MiB.
	for _, rows := range []int{0, 1, 1000, 1 << 20} {
		req := sumQuery(rows)
		released := make(chan struct{})
		req.OnRelease(func() { close(released) })
		resp, err := c.Infer(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		req.Release()
		<-released
		out, ok := resp.Output("sum")
		sums, err := tensor.Values[float32](out)
		if err != nil || !ok || len(sums) != rows || resp.Model != "sum" || resp.Version != "1" ||
			resp.ID != "7" {
			t.Fatalf("%d rows: got %d sums, %v, of %q version %q id %q", rows, len(sums), err,
				resp.Model, resp.Version, resp.ID)
		}
		for i, v := range sums {
			if v != 4 {
				t.Fatalf("row %d sums up to %v, want 4", i, v)
			}
		}
		resp.Release()
		resp.Release()
	}
}

// TestErrors checks the kind of each error, and that none but an unavailable
// server is tried again.
func TestErrors(t *testing.T) {
	answer := func(code codes.Code, message string) func(context.Context,
		*oip.Request) (*oip.Response, error) {
		return func(context.Context, *oip.Request) (*oip.Response, error) {
			return nil, status.Error(code, message)
		}
	}
	kinds := []error{
		ErrInvalid, ErrTooLarge, ErrNotFound, ErrOverloaded, ErrLimit, ErrDeadline, ErrUnavailable,
		ErrDenied, ErrClosed, context.Canceled, context.DeadlineExceeded,
	}
	for _, tt := range []struct {
		infer func(context.Context, *oip.Request) (*oip.Response, error)
		want  []error
		text  string
	}{
		{answer(codes.InvalidArgument, "input x"), []error{ErrInvalid}, "invalid request: input x"},
		{answer(codes.NotFound, "model y"), []error{ErrNotFound}, "not found: model y"},
		{answer(codes.ResourceExhausted, "queue full"), []error{ErrOverloaded},
			"server overloaded: queue full"},
		{func(context.Context, *oip.Request) (*oip.Response, error) {
			return nil, oip.Explain(status.New(codes.ResourceExhausted, "ads: 10/s of all models"),
				"limit", time.Second).Err()
		}, []error{ErrLimit, ErrOverloaded}, "limit exceeded: ads: 10/s of all models"},
		{answer(codes.DeadlineExceeded, "dropped"), []error{ErrDeadline, context.DeadlineExceeded},
			"deadline exceeded: dropped"},
		{answer(codes.Unauthenticated, "who is that?"), []error{ErrDenied},
			"not allowed: who is that?"},
		{answer(codes.PermissionDenied, "not this model"), []error{ErrDenied},
			"not allowed: not this model"},
		{answer(codes.Internal, "broken"), nil, "Internal: broken"},
	} {
		a, b := &fake{infer: tt.infer}, &fake{infer: tt.infer}
		c := connect(t, []*fake{a, b})
		_, err := c.Infer(t.Context(), sumQuery(1))
		for _, k := range kinds {
			if errors.Is(err, k) != slices.Contains(tt.want, k) {
				t.Errorf("%v: errors.Is(err, %v) is %v", err, k, errors.Is(err, k))
			}
		}
		var e *Error
		if !errors.As(err, &e) || !strings.HasSuffix(err.Error(), tt.text) ||
			!strings.HasPrefix(err.Error(), e.Address+": ") {
			t.Errorf("got %q, want it to end with %q", err, tt.text)
		}
		if n := a.calls.Load() + b.calls.Load(); n != 1 {
			t.Errorf("%v: tried %d times, want once", err, n)
		}
	}
}

func TestRetryAfter(t *testing.T) {
	c := connect(t, []*fake{{infer: func(context.Context, *oip.Request) (*oip.Response, error) {
		s, err := status.New(codes.ResourceExhausted,
			"queue full").WithDetails(&errdetails.RetryInfo{
			RetryDelay: durationpb.New(40 * time.Millisecond),
		})
		if err != nil {
			return nil, err
		}
		return nil, s.Err()
	}}})
	_, err := c.Infer(t.Context(), sumQuery(1))
	var e *Error
	if !errors.As(err, &e) || !errors.Is(err, ErrOverloaded) ||
		e.RetryAfter != 40*time.Millisecond || e.Message() != "queue full" {
		t.Errorf("got %v, want ErrOverloaded to retry after 40ms", err)
	}
	if status.Code(err) != codes.ResourceExhausted {
		t.Errorf("status is %v", status.Code(err))
	}
}

func TestInvalidIsNotSent(t *testing.T) {
	f := &fake{}
	c := connect(t, []*fake{f})
	req := sumQuery(2)
	req.Inputs[0].Shape = []int64{3, 4}
	_, err := c.Infer(t.Context(), req)
	if want :=
		`invalid request: input "x": data has 32 bytes, expected 48 for FP32 [3 4]`; !errors.Is(err,
		ErrInvalid) || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
	if f.calls.Load() != 0 {
		t.Error("the query was sent")
	}
}

func TestTooLarge(t *testing.T) {
	c := connect(t, []*fake{{}})
	if _, err := c.Infer(t.Context(), sumQuery(2<<20)); !errors.Is(err, ErrTooLarge) ||
		errors.Is(err, ErrOverloaded) {
		t.Errorf("got %v, want ErrTooLarge", err)
	}
}

func TestFailover(t *testing.T) {
	live := &fake{}
	c := connect(t, []*fake{nil, nil, live})
	for range 10 {
		resp, err := c.Infer(t.Context(), sumQuery(1))
		if err != nil {
			t.Fatal(err)
		}
		resp.Release()
	}
	if n := live.calls.Load(); n != 10 {
		t.Errorf("the live server had %d calls, want 10", n)
	}
}

func TestFailoverGivesUp(t *testing.T) {
	draining := func(context.Context, *oip.Request) (*oip.Response, error) {
		return nil, status.Error(codes.Unavailable, "draining")
	}
	servers := []*fake{{infer: draining}, {infer: draining}, {infer: draining}, {infer: draining}}
	c := connect(t, servers)
	_, err := c.Infer(t.Context(), sumQuery(1))
	if !errors.Is(err, ErrUnavailable) {
		t.Errorf("got %v, want ErrUnavailable", err)
	}
	total := int64(0)
	for _, f := range servers {
		n := f.calls.Load()
		if n > 1 {
			t.Errorf("server %s was tried %d times, want once", f.name, n)
		}
		total += n
	}
	if total != maxAttempts {
		t.Errorf("%d attempts, want %d", total, maxAttempts)
	}

	c = connect(t, []*fake{nil})
	if _, err := c.Infer(t.Context(), sumQuery(1)); !errors.Is(err, ErrUnavailable) {
		t.Errorf("got %v, want ErrUnavailable", err)
	}
}

// TestSpread checks that queries go to all servers that are connected.
func TestSpread(t *testing.T) {
	servers := []*fake{{}, {}, {}}
	c := connect(t, servers)
	for _, s := range c.servers {
		for state := s.conn.GetState(); state != connectivity.Ready; state = s.conn.GetState() {
			if !s.conn.WaitForStateChange(t.Context(), state) {
				t.Fatal("not connected")
			}
		}
	}
	for range 30 {
		if _, err := c.Infer(t.Context(), sumQuery(1)); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range servers {
		if n := f.calls.Load(); n != 10 {
			t.Errorf("server %s had %d calls, want 10", f.name, n)
		}
	}
}

// TestDeadlines lets a query wait for longer than its caller does, in virtual
// time, for each way to say how long that is.
func TestDeadlines(t *testing.T) {
	for _, tt := range []struct {
		name    string
		ctx     time.Duration
		req     time.Duration
		client  time.Duration
		expects time.Duration
	}{
		{"context", 3 * time.Second, 0, 0, 3 * time.Second},
		{"context before the default", 3 * time.Second, 0, time.Second, 3 * time.Second},
		{"default", 0, 0, time.Second, time.Second},
		{"request", 0, 2 * time.Second, 5 * time.Second, 2 * time.Second},
		{"context before the request", time.Second, 2 * time.Second, 0, time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				seen := make(chan time.Duration, 1)
				f := &fake{infer: func(ctx context.Context, req *oip.Request) (*oip.Response,
					error) {
					deadline, _ := ctx.Deadline()
					seen <- time.Until(deadline)
					<-ctx.Done()
					return nil, status.FromContextError(ctx.Err()).Err()
				}}
				c := connect(t, []*fake{f}, WithTimeout(tt.client))
				ctx := t.Context()
				if tt.ctx > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, tt.ctx)
					defer cancel()
				}
				req := sumQuery(1)
				req.Timeout = tt.req
				start := time.Now()
				_, err := c.Infer(ctx, req)
				if !errors.Is(err, ErrDeadline) || !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("got %v, want ErrDeadline", err)
				}
				if got := time.Since(start); got != tt.expects {
					t.Errorf("waited %v, want %v", got, tt.expects)
				}
				if got := <-seen; got != tt.expects {
					t.Errorf("the server was given %v, want %v", got, tt.expects)
				}
			})
		})
	}
}

func TestCancel(t *testing.T) {
	started := make(chan struct{})
	c := connect(
		t, []*fake{{infer: func(ctx context.Context, req *oip.Request) (*oip.Response, error) {
			close(started)
			<-ctx.Done()
			return nil, status.FromContextError(ctx.Err()).Err()
		}}})
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-started; cancel() }()
	if _, err := c.Infer(ctx, sumQuery(1)); !errors.Is(err, context.Canceled) ||
		errors.Is(err, ErrClosed) {
		t.Errorf("got %v, want context.Canceled", err)
	}
}

func TestClose(t *testing.T) {
	started := make(chan struct{})
	c := connect(
		t, []*fake{{infer: func(ctx context.Context, req *oip.Request) (*oip.Response, error) {
			close(started)
			<-ctx.Done()
			return nil, status.FromContextError(ctx.Err()).Err()
		}}})
	closed := make(chan error)
	go func() { <-started; closed <- c.Close() }()
	if _, err := c.Infer(t.Context(), sumQuery(1)); !errors.Is(err, ErrClosed) {
		t.Errorf("in flight: got %v, want ErrClosed", err)
	}
	if err := <-closed; err != nil {
		t.Error(err)
	}
	if _, err := c.Infer(t.Context(), sumQuery(1)); !errors.Is(err, ErrClosed) {
		t.Errorf("afterwards: got %v, want ErrClosed", err)
	}
}

func TestNew(t *testing.T) {
	if _, err := New(nil); err == nil {
		t.Error("no addresses: no error")
	}
	if _, err := New([]string{"127.0.0.1:1", "%zz://"}); err == nil ||
		!strings.Contains(err.Error(), `"%zz://"`) {
		t.Errorf("got %v, want an error that names the address", err)
	}
}

func TestOtherCalls(t *testing.T) {
	ctx := t.Context()
	c := connect(t, []*fake{{}})
	if ok, err := c.Live(ctx); !ok || err != nil {
		t.Error("Live:", ok, err)
	}
	if ok, err := c.Ready(ctx); !ok || err != nil {
		t.Error("Ready:", ok, err)
	}
	if ok, err := c.ModelReady(ctx, "sum", "1"); !ok || err != nil {
		t.Error("ModelReady:", ok, err)
	}
	if ok, err := c.ModelReady(ctx, "sum", "2"); ok || err != nil {
		t.Error("ModelReady:", ok, err)
	}
	if m, err := c.ServerMetadata(ctx); err != nil || m.Name != "a" {
		t.Error("ServerMetadata:", m, err)
	}
	if m, err := c.ModelMetadata(ctx, "sum", ""); err != nil || m.Name != "sum" {
		t.Error("ModelMetadata:", m, err)
	}
	if m, err := c.ModelMetadata(ctx, "x", ""); !errors.Is(err, ErrNotFound) || m != nil {
		t.Error("ModelMetadata of an unknown model:", m, err)
	}
	if s, err := c.ModelStatistics(ctx, "sum", ""); err != nil || len(s) != 1 ||
		s[0].InferenceCount != 3 {
		t.Error("ModelStatistics:", s, err)
	}
	if m, err := c.RepositoryIndex(ctx, false); err != nil || len(m) != 2 {
		t.Error("RepositoryIndex:", m, err)
	}
	if m, err := c.RepositoryIndex(ctx, true); err != nil || len(m) != 1 {
		t.Error("RepositoryIndex:", m, err)
	}
	if err := c.LoadModel(ctx, "sum"); err != nil {
		t.Error("LoadModel:", err)
	}
	if err := c.LoadModel(ctx, "x"); !errors.Is(err, ErrNotFound) {
		t.Error("LoadModel of an unknown model:", err)
	}
	if err := c.UnloadModel(ctx, "sum"); err != nil {
		t.Error("UnloadModel:", err)
	}
}

func TestReason(t *testing.T) {
	for _, tt := range []struct{ message, want string }{
		{"model \"x\"; there are y", "model \"x\"; there are y"},
		{`connection error: desc = "transport: Error while dialing: ` +
			`dial tcp 10.0.0.7:8001: connect: connection refused"`,
			"dial tcp 10.0.0.7:8001: connect: connection refused"},
		{`connection error: desc = "transport: authentication handshake failed: EOF"`,
			"authentication handshake failed: EOF"},
		{`connection error: desc = "error reading server preface: EOF"`,
			"the connection is closed at once, as by a server that wants TLS"},
		{
			`connection error: desc = "error reading server preface: ` +
				`read tcp 127.0.0.1:5->127.0.0.1:6: read: connection reset by peer"`,
			"the connection is closed at once, as by a server that wants TLS",
		},
		{
			`connection error: desc = "error reading server preface: ` +
				`http2: frame too large, note that the frame header looked like an HTTP/1.1 header"`,
			"the answer is HTTP/1.1, want gRPC: is it the port of REST?",
		},
	} {
		if got := Reason(status.Error(codes.Unavailable, tt.message)); got != tt.want {
			t.Errorf("%s: got %q, want %q", tt.message, got, tt.want)
		}
	}
}
