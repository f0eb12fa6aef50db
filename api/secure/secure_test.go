package secure

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"
	"google.golang.org/grpc/test/bufconn"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/inference"
	"github.com/muster-serve/muster/api/oip"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A logBuffer is a log that several goroutines write.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func (l *logBuffer) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

// A pki is a directory of certificates.
type pki struct {
	t   testing.TB
	dir string
	ca  *CA
}

// newPKI makes a CA, in ca.crt.
func newPKI(t testing.TB) *pki {
	t.Helper()
	ca, cert, _, err := NewCA("test CA", time.Now(), 24*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	p := &pki{t, t.TempDir(), ca}
	p.write("ca.crt", string(cert), 0o644)
	return p
}

func (p *pki) path(name string) string { return filepath.Join(p.dir, name) }

func (p *pki) write(name, content string, mode os.FileMode) string {
	p.t.Helper()
	if err := os.WriteFile(p.path(name), []byte(content), mode); err != nil {
		p.t.Fatal(err)
	}
	if err := os.Chmod(p.path(name), mode); err != nil { // a file that was there keeps its mode
		p.t.Fatal(err)
	}
	return p.path(name)
}

// issue makes NAME.crt and NAME.key, as of age ago.
func (p *pki) issue(file string, order Order, age time.Duration) {
	p.t.Helper()
	if order.Life == 0 {
		order.Life = time.Hour
	}
	cert, key, err := p.ca.Issue(order, time.Now().Add(-age))
	if err != nil {
		p.t.Fatal(err)
	}
	p.write(file+".crt", string(cert), 0o644)
	p.write(file+".key", string(key), 0o600)
}

// agent is the config of an agent with a certificate of the CA.
func (p *pki) agent() Config {
	p.issue("agent", Order{Name: "a1", Agent: true}, 0)
	return Config{
		CertFile: p.path("agent.crt"), KeyFile: p.path("agent.key"), CAFile: p.path("ca.crt"),
	}
}

// client is the config of a client with the certificate.
func (p *pki) client(file string) ClientConfig {
	c := ClientConfig{CAFile: p.path("ca.crt")}
	if file != "" {
		c.CertFile, c.KeyFile = p.path(file+".crt"), p.path(file+".key")
	}
	return c
}

func openGuard(t testing.TB, config Config) (*Guard, *logBuffer) {
	t.Helper()
	log := &logBuffer{}
	g, err := Open(config, Options{Logger: log.logger()})
	if err != nil {
		t.Fatal(err)
	}
	return g, log
}

// A guarded is a gRPC server behind a guard.
type guarded struct {
	t testing.TB
	*Guard
	log      *logBuffer
	listener *bufconn.Listener
}

// fakeService answers the calls that the tests make.
type fakeService struct{ oip.Server }

func (fakeService) ServerLive(context.Context, *inference.ServerLiveRequest) (
	*inference.ServerLiveResponse, error) {
	return &inference.ServerLiveResponse{Live: true}, nil
}
func (fakeService) ServerMetadata(context.Context, *inference.ServerMetadataRequest) (
	*inference.ServerMetadataResponse, error) {
	return &inference.ServerMetadataResponse{}, nil
}
func (fakeService) ModelMetadata(context.Context, *inference.ModelMetadataRequest) (
	*inference.ModelMetadataResponse, error) {
	return &inference.ModelMetadataResponse{}, nil
}
func (fakeService) ModelStatistics(context.Context, *inference.ModelStatisticsRequest) (
	*inference.ModelStatisticsResponse, error) {
	return &inference.ModelStatisticsResponse{}, nil
}
func (fakeService) ModelInfer(_ context.Context, r *oip.Request) (*oip.Response, error) {
	defer r.Release()
	return &oip.Response{Model: r.Model}, nil
}
func (fakeService) RepositoryModelLoad(context.Context, *inference.RepositoryModelLoadRequest) (
	*inference.RepositoryModelLoadResponse, error) {
	return &inference.RepositoryModelLoadResponse{}, nil
}
func (fakeService) RepositoryModelUnload(context.Context, *inference.RepositoryModelUnloadRequest) (
	*inference.RepositoryModelUnloadResponse, error) {
	return &inference.RepositoryModelUnloadResponse{}, nil
}

type fakeControl struct {
	control.UnimplementedControlServer
}

func (fakeControl) Describe(context.Context, *control.DescribeRequest) (*control.Member, error) {
	return &control.Member{}, nil
}
func (fakeControl) Status(context.Context, *control.StatusRequest) (*control.FleetStatus, error) {
	return &control.FleetStatus{}, nil
}
func (fakeControl) Drain(context.Context, *control.DrainRequest) (*control.DrainResponse, error) {
	return &control.DrainResponse{}, nil
}

// serve has a guard of config before a server, with the tap or without.
func serve(t testing.TB, config Config, tapped bool) *guarded {
	t.Helper()
	s := &guarded{t: t, listener: bufconn.Listen(1 << 20)}
	s.Guard, s.log = openGuard(t, config)
	options := append(oip.ServerOptions(1<<20), s.ServerOptions(nil)...)
	if tapped {
		options = append(options,
			grpc.InTapHandle(func(ctx context.Context, info *tap.Info) (context.Context, error) {
				ctx, err := s.Tap(ctx, info)
				if err != nil {
					return ctx, err
				}
				return s.Count(ctx, info.FullMethodName)
			}))
	}
	server := grpc.NewServer(options...)
	oip.RegisterServer(server, fakeService{})
	control.RegisterControlServer(server, fakeControl{})
	healthpb.RegisterHealthServer(server, health.NewServer())
	var running sync.WaitGroup
	running.Go(func() {
		if err := server.Serve(s.listener); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		server.Stop()
		running.Wait()
	})
	return s
}

// dial connects to the server as if it were at the address.
func (s *guarded) dial(address string, options ...grpc.DialOption) *grpc.ClientConn {
	s.t.Helper()
	options = append(append(oip.DialOptions(), options...),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return s.listener.DialContext(ctx)
		}))
	conn, err := grpc.NewClient("passthrough:///"+address, options...)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = conn.Close() }) // some tests close it before
	return conn
}

func (s *guarded) as(config ClientConfig) *grpc.ClientConn {
	s.t.Helper()
	options, err := config.DialOptions(s.log.logger())
	if err != nil {
		s.t.Fatal(err)
	}
	return s.dial("127.0.0.1:1", options...)
}

func plainText() grpc.DialOption { return grpc.WithTransportCredentials(insecure.NewCredentials()) }

func peerOf(g *Guard) grpc.DialOption { return grpc.WithTransportCredentials(g.PeerCredentials()) }

// The calls that the tests make, and how each ended.
var calls = map[string]func(context.Context, *grpc.ClientConn) error{
	"health": func(ctx context.Context, c *grpc.ClientConn) error {
		_, err := healthpb.NewHealthClient(c).Check(ctx, &healthpb.HealthCheckRequest{},
			grpc.ForceCodecV2(oip.Codec{}))
		return err
	},
	"live": func(ctx context.Context, c *grpc.ClientConn) error {
		_, err := inference.NewGRPCInferenceServiceClient(c).ServerLive(ctx,
			&inference.ServerLiveRequest{})
		return err
	},
	"metadata": func(ctx context.Context, c *grpc.ClientConn) error {
		_, err := inference.NewGRPCInferenceServiceClient(c).ServerMetadata(ctx,
			&inference.ServerMetadataRequest{})
		return err
	},
	"ncf": func(ctx context.Context, c *grpc.ClientConn) error {
		return c.Invoke(ctx, inference.GRPCInferenceService_ModelInfer_FullMethodName,
			&oip.Request{Model: "ncf"}, new(oip.Response))
	},
	"wnd": func(ctx context.Context, c *grpc.ClientConn) error {
		return c.Invoke(ctx, inference.GRPCInferenceService_ModelInfer_FullMethodName,
			&oip.Request{Model: "wnd"}, new(oip.Response))
	},
	"wnd metadata": func(ctx context.Context, c *grpc.ClientConn) error {
		_, err := inference.NewGRPCInferenceServiceClient(c).ModelMetadata(ctx,
			&inference.ModelMetadataRequest{Name: "wnd"})
		return err
	},
	"all statistics": func(ctx context.Context, c *grpc.ClientConn) error {
		_, err := inference.NewGRPCInferenceServiceClient(c).ModelStatistics(ctx,
			&inference.ModelStatisticsRequest{})
		return err
	},
	"load": func(ctx context.Context, c *grpc.ClientConn) error {
		_, err := inference.NewGRPCInferenceServiceClient(c).RepositoryModelLoad(ctx,
			&inference.RepositoryModelLoadRequest{ModelName: "ncf"})
		return err
	},
	"unload": func(ctx context.Context, c *grpc.ClientConn) error {
		_, err := inference.NewGRPCInferenceServiceClient(c).RepositoryModelUnload(ctx,
			&inference.RepositoryModelUnloadRequest{ModelName: "ncf"})
		return err
	},
	"drain": func(ctx context.Context, c *grpc.ClientConn) error {
		_, err := control.NewControlClient(c).Drain(ctx, &control.DrainRequest{})
		return err
	},
	"demand": func(ctx context.Context, c *grpc.ClientConn) error {
		_, err := control.NewControlClient(c).Demand(ctx, &control.DemandRequest{})
		return err
	},
	"rented": func(ctx context.Context, c *grpc.ClientConn) error {
		_, err := control.NewControlClient(c).Fleet(ctx, &control.FleetRequest{})
		return err
	},
	"set fleet": func(ctx context.Context, c *grpc.ClientConn) error {
		_, err := control.NewControlClient(c).SetFleet(ctx, &control.SetFleetRequest{})
		return err
	},
	"list keys": func(ctx context.Context, c *grpc.ClientConn) error {
		_, err := control.NewControlClient(c).ListKeys(ctx, &control.ListKeysRequest{})
		return err
	},
	"events": func(ctx context.Context, c *grpc.ClientConn) error {
		s, err := control.NewControlClient(c).Events(ctx, &control.EventsRequest{})
		if err != nil {
			return err
		}
		_, err = s.Recv()
		return err
	},
	"rotate keys": func(ctx context.Context, c *grpc.ClientConn) error {
		s, err := control.NewControlClient(c).RotateKeys(ctx, &control.RotateKeysRequest{})
		if err != nil {
			return err
		}
		_, err = s.Recv()
		return err
	},
	"keyring": func(ctx context.Context, c *grpc.ClientConn) error {
		_, err := control.NewControlClient(c).Keyring(ctx, &control.KeyringRequest{})
		return err
	},
	"status": func(ctx context.Context, c *grpc.ClientConn) error {
		_, err := control.NewControlClient(c).Status(ctx, &control.StatusRequest{})
		return err
	},
	"describe": func(ctx context.Context, c *grpc.ClientConn) error {
		_, err := control.NewControlClient(c).Describe(ctx, &control.DescribeRequest{})
		return err
	},
	"link": func(ctx context.Context, c *grpc.ClientConn) error {
		s, err := control.NewControlClient(c).Link(ctx)
		if err != nil {
			return err
		}
		_, err = s.Recv()
		return err
	},
	"watch": func(ctx context.Context, c *grpc.ClientConn) error {
		s, err := control.NewControlClient(c).Watch(ctx, &control.WatchRequest{})
		if err != nil {
			return err
		}
		_, err = s.Recv()
		return err
	},
	"control that is not there": func(ctx context.Context, c *grpc.ClientConn) error {
		return c.Invoke(ctx, "/muster.control.v1.Control/Nothing", &control.DrainRequest{},
			&control.DrainResponse{})
	},
}

// call makes one of them. The fake service does not have the streams, so
// Unimplemented is as good as OK: the call was let through.
func call(t testing.TB, c *grpc.ClientConn, name string) (codes.Code, string) {
	t.Helper()
	s := status.Convert(calls[name](t.Context(), c))
	if s.Code() == codes.Unimplemented {
		return codes.OK, s.Message()
	}
	return s.Code(), s.Message()
}

// checkCalls makes each of the calls, separated by commas, and wants the code.
func checkCalls(t testing.TB, c *grpc.ClientConn, want codes.Code, names string) {
	t.Helper()
	for name := range strings.SplitSeq(names, ",") {
		if code, message := call(t, c, strings.TrimSpace(name)); code != want {
			t.Errorf("%s: got %v (%s), want %v", name, code, message, want)
		}
	}
}

// named makes FILE.crt and FILE.key of a server with the DNS name that is no
// agent.
func (p *pki) named(file, name string) {
	p.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		p.t.Fatal(err)
	}
	template := &x509.Certificate{
		DNSNames: []string{name}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter:    time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	cert, err := sign(template, p.ca.cert, key.Public(), p.ca.key)
	if err != nil {
		p.t.Fatal(err)
	}
	encoded, err := encodeKey(key)
	if err != nil {
		p.t.Fatal(err)
	}
	p.write(file+".crt", string(cert), 0o644)
	p.write(file+".key", string(encoded), 0o600)
}
