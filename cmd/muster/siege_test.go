package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-msgpack/v2/codec"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/inference"
	"github.com/muster-serve/muster/runtime/runtimetest"
)

// siegeVariable makes the test binary attack the agent whose gossip, http, grpc and metrics
// addresses it has, with spaces between, until its input ends.
const siegeVariable = "RUN_SIEGE"

const (
	// siegeMemory is by how many bytes an agent may grow, whatever those without a credential do. 64 MiB
	// are wanted, and it was 54 MB when this was written; how much garbage there is varies.
	siegeMemory = 96 << 20
	// siegeShare of the CPUs is the attacker's.
	siegeShare = 0.25
	siegeTime  = 12 * time.Second
)

// TestSiege attacks an agent from several addresses, as anybody can who reaches it: streams, idle
// connections, TLS handshakes and requests that are not finished, forged members and states of
// gossip. Its memory must hold and no query fail; how late they are is told.
func TestSiege(t *testing.T) {
	if testing.Short() || raceDetector {
		t.Skip("it takes half a minute, and measures memory, of which the race detector takes some")
	}
	library, dir := runtimetest.Library(t), t.TempDir()
	for _, args := range [][]string{{"certs", "init", "--dir", dir}, {"certs", "issue", "agent", "node", "--dir", dir}} {
		if _, _, err := execute(t, args...); err != nil {
			t.Fatal(err)
		}
	}
	file := func(name string) string { return filepath.Join(dir, name) }
	p := startAgent(t, smallNCF(t), "--onnxruntime-lib", library,
		"--tls-cert", file("node.crt"), "--tls-key", file("node.key"), "--tls-ca", file("ca.crt"))
	lines := make(chan int)
	go func() {
		n := 0
		for _, err := p.log.ReadString('\n'); err == nil; _, err = p.log.ReadString('\n') {
			n++
		}
		lines <- n
	}()
	pem, err := os.ReadFile(file("ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	good := &goodClient{t: t, address: p.grpc, proof: credentials.NewTLS(&tls.Config{RootCAs: roots})}
	defer good.close()

	good.query(0) // to be warm
	took := good.query(0)
	interval := 10 * took[len(took)/2]
	before := good.query(interval)
	usual := p.memory(t)

	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	attacker := exec.Command(self)
	attacker.Env = append(os.Environ(), siegeVariable+"="+strings.Join([]string{p.gossip, p.http, p.grpc, p.metrics}, " "))
	attacker.Stderr = os.Stderr
	input, err := attacker.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := attacker.Start(); err != nil {
		t.Fatal(err)
	}
	most, watched := usual, make(chan struct{})
	watching, enough := context.WithCancel(t.Context())
	go func() {
		defer close(watched)
		for watching.Err() == nil {
			most = max(most, p.memory(t))
			time.Sleep(50 * time.Millisecond) // this samples, and waits for nothing
		}
	}()
	during := good.query(interval)
	enough()
	<-watched
	_ = input.Close() // its end is the attacker's
	if err := attacker.Wait(); err != nil {
		t.Errorf("attacker: %v", err)
	}
	refused := good.metric(p.metrics, roots)
	if err := p.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	logged := <-lines
	if err := p.Wait(); err != nil {
		t.Errorf("the agent ended with %v", err)
	}

	p99 := func(took []time.Duration) time.Duration { return took[len(took)*99/100] }
	t.Logf("%d and %d queries, one in %v: p99 %v before, %v under attack (x %.1f); memory %d MB, at most %d MB; %d lines of log; attacker's CPU %v; %s",
		len(before), len(during), interval, p99(before), p99(during), float64(p99(during))/float64(p99(before)), usual>>20, most>>20, logged,
		attacker.ProcessState.UserTime()+attacker.ProcessState.SystemTime(), refused)
	if grown := most - usual; grown > siegeMemory {
		t.Errorf("the agent's memory has grown by %d MB, want at most %d", grown>>20, siegeMemory>>20)
	}
	if logged > 100 {
		t.Errorf("%d lines of log, want at most 100", logged)
	}
	if !strings.Contains(refused, "calls") || !strings.Contains(refused, "connections") {
		t.Errorf("refused were %s: want calls and connections among them", refused)
	}
}

// memory is what the process has in memory, in bytes.
func (p *process) memory(t *testing.T) int {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.Process.Pid))
	if err != nil {
		t.Error(err)
		return 0
	}
	kib := regexp.MustCompile(`VmRSS:\s+(\d+) kB`).FindSubmatch(status)
	if kib == nil {
		t.Skip("this system does not tell what a process has in memory")
	}
	n, _ := strconv.Atoi(string(kib[1])) // digits alone
	return n << 10
}

// A goodClient sends queries, as a client that has a connection and now and then opens another.
type goodClient struct {
	t       *testing.T
	address string
	proof   credentials.TransportCredentials
	conn    *grpc.ClientConn
	sent    int
}

func (c *goodClient) close() {
	if c.conn != nil {
		_ = c.conn.Close() // it is of no use any more
	}
}

// query sends a query each interval for siegeTime, or for interval 0 a few, and returns how long they
// took, in order. Each must be answered.
func (c *goodClient) query(interval time.Duration) []time.Duration {
	c.t.Helper()
	ids := make([]int64, 4*8)
	request := &inference.ModelInferRequest{
		ModelName:  "ncf",
		Parameters: map[string]*inference.InferParameter{"timeout": {ParameterChoice: &inference.InferParameter_Int64Param{Int64Param: 5_000_000}}},
		Inputs: []*inference.ModelInferRequest_InferInputTensor{{
			Name: "ids", Datatype: "INT64", Shape: []int64{8, 4}, Contents: &inference.InferTensorContents{Int64Contents: ids},
		}},
	}
	var took []time.Duration
	failed := 0
	ticker := time.NewTicker(max(interval, time.Nanosecond))
	defer ticker.Stop()
	for first := time.Now(); interval == 0 && len(took) < 200 || interval > 0 && time.Since(first) < siegeTime; {
		if interval > 0 {
			<-ticker.C
		}
		if c.sent%100 == 0 {
			c.close()
			var err error
			if c.conn, err = grpc.NewClient(c.address, grpc.WithTransportCredentials(c.proof)); err != nil {
				c.t.Fatal(err)
			}
		}
		c.sent++
		begun := time.Now()
		if _, err := inference.NewGRPCInferenceServiceClient(c.conn).ModelInfer(c.t.Context(), request); err != nil {
			if failed++; failed < 5 {
				c.t.Errorf("a query failed: %v", err)
			}
			if failed == 200 {
				break
			}
			continue
		}
		took = append(took, time.Since(begun))
	}
	if failed > 0 {
		c.t.Fatalf("%d queries failed, %d were answered", failed, len(took))
	}
	slices.Sort(took)
	return took
}

// metric is what the agent has refused.
func (c *goodClient) metric(address string, roots *x509.CertPool) string {
	c.t.Helper()
	conn, err := tls.Dial("tcp", address, &tls.Config{RootCAs: roots})
	if err != nil {
		c.t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n")
	page, err := io.ReadAll(conn)
	if err != nil {
		c.t.Fatal(err)
	}
	return strings.Join(regexp.MustCompile(`(?m)^muster_refusals_total.* [1-9].*$`).FindAllString(string(page), -1), " ")
}

// besiege attacks until its input ends.
func besiege(addresses []string) {
	gossip, http, rpc, metrics := addresses[0], addresses[1], addresses[2], addresses[3]
	attacks := []func(i int){
		siegeStreams(rpc), siegeSilence([]string{http, rpc, metrics}), siegeIdle([]string{http, rpc, metrics}),
		siegeMembers(gossip), siegeStates(gossip),
	}
	var attacking sync.WaitGroup
	ended := make(chan struct{})
	begun := time.Now()
	for _, attack := range attacks {
		attacking.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-ended:
					return
				default:
				}
				attack(i)
				// What it has used of the CPUs stays below its share.
				for time.Duration(siegeShare*float64(runtime.NumCPU())*float64(time.Since(begun))) < used() {
					time.Sleep(time.Millisecond)
				}
			}
		})
	}
	_, _ = io.Copy(io.Discard, os.Stdin) // until the test ends it
	close(ended)
	attacking.Wait()
}

// used is this process's CPU time.
func used() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err) // it has no other error than bad arguments
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// siegeDial connects from the i-th of seven addresses; nil if that fails, as where the agent or the
// system has enough of it.
func siegeDial(i int, to string) net.Conn {
	from := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, byte(2+i%7))}, Timeout: time.Second}
	conn, err := from.Dial("tcp", to)
	if err != nil {
		return nil
	}
	return conn
}

var siegeTLS = &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2", "http/1.1"}}

// siegeStreams opens streams that are never read, 20,000 in all.
func siegeStreams(to string) func(int) {
	var conns []*grpc.ClientConn
	for c := range 70 {
		conn, err := grpc.NewClient("passthrough:///"+to, grpc.WithTransportCredentials(credentials.NewTLS(siegeTLS)), grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
			if conn := siegeDial(c, to); conn != nil {
				return conn, nil
			}
			return nil, io.EOF
		}))
		if err != nil {
			panic(err)
		}
		conns = append(conns, conn)
	}
	return func(i int) {
		if i >= 20000 {
			time.Sleep(time.Millisecond)
			return
		}
		conn := conns[i%len(conns)]
		if i%2 == 0 {
			_, _ = healthpb.NewHealthClient(conn).Watch(context.Background(), &healthpb.HealthCheckRequest{})
		} else {
			_, _ = control.NewControlClient(conn).Watch(context.Background(), &control.WatchRequest{})
		}
	}
}

// hold keeps up to n connections, in the place of those before.
func hold(n int) func(net.Conn) {
	held := make([]net.Conn, n)
	next := 0
	return func(conn net.Conn) {
		if conn == nil {
			time.Sleep(time.Millisecond)
			return
		}
		if held[next] != nil {
			_ = held[next].Close()
		}
		held[next], next = conn, (next+1)%n
	}
}

// siegeSilence opens connections and says nothing, or the beginning of a handshake.
func siegeSilence(to []string) func(int) {
	keep := hold(4000)
	return func(i int) {
		conn := siegeDial(i, to[i%len(to)])
		if conn != nil && i%2 == 0 {
			_, _ = conn.Write([]byte{22, 3, 1, 2, 0, 1, 0})
		}
		keep(conn)
	}
}

// siegeIdle opens connections, makes the handshake and begins a request, or HTTP/2.
func siegeIdle(to []string) func(int) {
	keep := hold(4000)
	return func(i int) {
		raw := siegeDial(i, to[i%len(to)])
		if raw == nil {
			keep(nil)
			return
		}
		_ = raw.SetDeadline(time.Now().Add(time.Second))
		conn := tls.Client(raw, siegeTLS)
		if conn.Handshake() == nil {
			if i%len(to) == 1 {
				_, _ = io.WriteString(conn, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")
			} else {
				_, _ = io.WriteString(conn, "GET /v2 HTTP/1.1\r\nHost: localhost\r\nX: "+strings.Repeat("x", 1000))
			}
		}
		keep(conn)
	}
}

func siegePacked(kind byte, message any) []byte {
	b := bytes.NewBuffer([]byte{kind})
	if err := codec.NewEncoder(b, &codec.MsgpackHandle{}).Encode(message); err != nil {
		panic(err)
	}
	return b.Bytes()
}

// siegeMembers says that there are agents.
func siegeMembers(to string) func(int) {
	conn, err := net.Dial("udp", to)
	if err != nil {
		panic(err)
	}
	return func(i int) {
		meta := binary.AppendUvarint(nil, uint64(control.Spoken.Oldest))
		for _, s := range []string{fmt.Sprintf("127.1.%d.%d:8001", i/250%250, i%250), "c5.large", "must"} {
			meta = append(binary.AppendUvarint(meta, uint64(len(s))), s...)
		}
		_, _ = conn.Write(siegePacked(4, struct {
			Incarnation uint32
			Node        string
			Addr        []byte
			Port        uint16
			Meta        []byte
			Vsn         []byte
		}{1, fmt.Sprint("forged-", i), []byte{127, 1, 0, byte(i)}, 7946, append(meta, 0, 0), []byte{1, 5, 2, 0, 0, 0}}))
	}
}

// siegeStates begins states of a million members.
func siegeStates(to string) func(int) {
	keep := hold(200)
	header := siegePacked(6, struct {
		Nodes, UserStateLen int
		Join                bool
	}{1 << 20, 20 << 20, true})
	return func(i int) {
		conn := siegeDial(i, to)
		if conn != nil {
			_, _ = conn.Write(header)
		}
		keep(conn)
	}
}
