package plugin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"

	"github.com/muster-serve/muster/api/provider"
	"github.com/muster-serve/muster/api/version"
	"github.com/muster-serve/muster/cloud"
)

// A Program is what a program muster-NAME serves.
type Program struct {
	// Name is that of the section of fleet.yaml.
	Name string
	// Open returns the provider of a fleet.
	Open func(context.Context, Fleet, *slog.Logger) (cloud.Provider, error)
	// Policy returns the text of the rights that renting for a fleet needs. account is the
	// account's number, "" where the provider is to ask; workerRole is the role of rented machines.
	// nil: there is none.
	Policy func(ctx context.Context, f Fleet, account, workerRole string) (string, error)
}

// Serve is the main function of a provider's program. It returns the status to exit with: when its
// parent has closed standard input, or has ended.
func Serve(p Program) (status int) {
	if len(os.Args) > 1 {
		if len(os.Args) == 2 && strings.TrimLeft(os.Args[1], "-") == "version" {
			fmt.Printf("%s %s %s %s/%s\n", programName(p.Name), version.Current(),
				runtime.Version(),
				runtime.GOOS, runtime.GOARCH)
			return 0
		}
		fmt.Fprintln(os.Stderr, refusalByHand(p.Name))
		return 2
	}
	if why := p.refusal(os.Getenv(variable)); why != "" {
		fmt.Fprintln(os.Stderr, why)
		return 2
	}
	// It lives as long as its input: a terminal's Ctrl-C, or a service manager's SIGTERM, is for
	// the parent, which needs the provider while it drains.
	signal.Ignore(os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	conn := &stdio{in: os.Stdin, out: os.Stdout}
	// Whatever else reads or prints, such as a program that the SDK starts for credentials, must
	// not touch the connection.
	os.Stdin, _ = os.Open(os.DevNull)
	os.Stdout = os.Stderr
	os.Unsetenv(variable)
	log := slog.New(slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	slog.SetDefault(log)
	if _, err := fmt.Fprintf(conn.out, "%s %d %s %s\n", greeting, protocol, p.Name,
		version.Current()); err != nil {
		return 1
	}
	serveConn(p, conn, log)
	return 0
}

// refusal says why the program does not serve a parent that says this; "": it does.
func (p Program) refusal(said string) string {
	words := strings.Fields(said)
	switch {
	case len(words) != 3 || words[0] != cookie:
		return refusalByHand(p.Name)
	case words[1] != fmt.Sprint(protocol):
		return fmt.Sprintf("%s %s speaks protocol %d, and muster %s asks for protocol %s: install "+
			"both of the same version", programName(p.Name), version.Current(), protocol, words[2],
			words[1])
	}
	return ""
}

func refusalByHand(name string) string {
	return fmt.Sprintf("%s is a part of Muster, and not run by hand: muster starts it where "+
		"fleet.yaml has a section %s. \"%s --version\" shows its version.", programName(name), name,
		programName(name))
}

// serveConn serves the program's provider on one connection until that is closed.
func serveConn(p Program, conn net.Conn, log *slog.Logger) {
	s := grpc.NewServer(grpc.MaxRecvMsgSize(maxMessage), grpc.MaxSendMsgSize(maxMessage),
		grpc.UnaryInterceptor(intercept))
	provider.RegisterProviderServer(s, &server{program: p, log: log})
	_ = s.Serve(newListener(conn)) // io.EOF
	s.Stop()                       // ends the calls that run
}

// intercept ends a call's work before its deadline, and makes its error a status.
func intercept(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (
	any, error) {
	if deadline, ok := ctx.Deadline(); ok {
		margin := min(maxMargin, time.Until(deadline)/10)
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, deadline.Add(-margin))
		defer cancel()
	}
	answer, err := handler(ctx, req)
	if err != nil {
		return nil, toStatus(err)
	}
	return answer, nil
}

// A server answers for a provider.
type server struct {
	program Program
	log     *slog.Logger

	mu   sync.Mutex
	open cloud.Provider // nil before Open
}

func (s *server) Open(ctx context.Context, req *provider.OpenRequest) (*provider.OpenResponse,
	error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open != nil {
		return nil, errors.New("open: called a second time")
	}
	// The provider may keep the context: it ends with the process.
	opened, err := s.program.Open(context.WithoutCancel(ctx), fleetOf(req.GetFleet()), s.log)
	if err != nil {
		return nil, err
	}
	s.open = opened
	return &provider.OpenResponse{}, nil
}

func (s *server) openedProvider() (cloud.Provider, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open == nil {
		return nil, errors.New("called before open")
	}
	return s.open, nil
}

func (s *server) Offers(ctx context.Context, req *provider.OffersRequest) (
	*provider.OffersResponse, error) {
	p, err := s.openedProvider()
	if err != nil {
		return nil, err
	}
	offers, err := p.Offers(ctx, typesOf(req.GetTypes()))
	if err != nil {
		return nil, err
	}
	answer := &provider.OffersResponse{}
	for _, o := range offers {
		answer.Offers = append(answer.Offers, &provider.Offer{
			Kind: toKind(o.Kind), Zone: o.Zone, PriceUsdPerHour: o.Price,
		})
	}
	return answer, nil
}

func (s *server) List(ctx context.Context, _ *provider.ListRequest) (*provider.ListResponse,
	error) {
	p, err := s.openedProvider()
	if err != nil {
		return nil, err
	}
	list, err := p.List(ctx)
	if err != nil {
		return nil, err
	}
	answer := &provider.ListResponse{}
	for _, i := range list {
		answer.Instances = append(answer.Instances, toInstance(i))
	}
	return answer, nil
}

func (s *server) Launch(ctx context.Context, req *provider.LaunchRequest) (
	*provider.LaunchResponse, error) {
	p, err := s.openedProvider()
	if err != nil {
		return nil, err
	}
	slot, err := slotOf(req.GetSlot())
	if err != nil {
		return nil, err
	}
	i, err := p.Launch(ctx, slot, cloud.Spec{
		Zones: req.GetZones(), By: req.GetBy(), Version: req.GetVersion(),
	})
	if err != nil {
		return nil, err
	}
	return &provider.LaunchResponse{Instance: toInstance(i)}, nil
}

func (s *server) Mark(ctx context.Context, req *provider.MarkRequest) (*provider.MarkResponse,
	error) {
	p, err := s.openedProvider()
	if err != nil {
		return nil, err
	}
	return &provider.MarkResponse{}, p.Mark(ctx, req.GetIds()...)
}

func (s *server) Return(ctx context.Context, req *provider.ReturnRequest) (
	*provider.ReturnResponse, error) {
	p, err := s.openedProvider()
	if err != nil {
		return nil, err
	}
	return &provider.ReturnResponse{}, p.Return(ctx, req.GetIds()...)
}

func (s *server) Check(ctx context.Context, _ *provider.CheckRequest) (*provider.CheckResponse,
	error) {
	p, err := s.openedProvider()
	if err != nil {
		return nil, err
	}
	answer := &provider.CheckResponse{}
	for _, f := range p.Check(ctx) {
		answer.Faults = append(answer.Faults, &provider.Fault{
			What: strings.ToValidUTF8(f.What, "?"), Why: strings.ToValidUTF8(f.Why, "?"),
		})
	}
	return answer, nil
}

func (s *server) Policy(ctx context.Context, req *provider.PolicyRequest) (
	*provider.PolicyResponse, error) {
	if s.program.Policy == nil {
		return nil, fmt.Errorf("provider %s has no policies", s.program.Name)
	}
	text, err := s.program.Policy(ctx, fleetOf(req.GetFleet()), req.GetAccount(),
		req.GetWorkerRole())
	if err != nil {
		return nil, err
	}
	return &provider.PolicyResponse{Text: text}, nil
}

// A listener hands out one connection, and ends once that is closed.
type listener struct {
	conn  net.Conn
	given sync.Once
	ended chan struct{} // closed when conn is
}

func newListener(conn net.Conn) *listener {
	l := &listener{ended: make(chan struct{})}
	l.conn = &closeNoticer{Conn: conn, closed: sync.OnceFunc(func() { close(l.ended) })}
	return l
}

func (l *listener) Accept() (net.Conn, error) {
	var conn net.Conn
	l.given.Do(func() { conn = l.conn })
	if conn != nil {
		return conn, nil
	}
	<-l.ended
	return nil, io.EOF
}

func (l *listener) Close() error { return l.conn.Close() }

func (l *listener) Addr() net.Addr { return l.conn.LocalAddr() }

// A closeNoticer calls closed when it is closed.
type closeNoticer struct {
	net.Conn
	closed func()
}

func (c *closeNoticer) Close() error {
	err := c.Conn.Close()
	c.closed()
	return err
}
