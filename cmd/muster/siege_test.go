//go:build linux

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
	// siegeMemory is by how many bytes an agent may grow, whatever those without a credential do.
	// It was 35 to 43 MB when this was written; how much garbage there is varies.
	siegeMemory = 64 << 20
	// siegeShare of the CPUs is the attacker's.
	siegeShare = 0.25
	siegeTime  = 12 * time.Second
	// calmTime passes before the attack, where the two are not compared.
	calmTime = 2 * time.Second
)

// TestSiege attacks an agent from several addresses, as anybody can who reaches it: streams, idle
// connections, TLS handshakes and requests that are not finished, forged members and states of
// gossip. Its memory must hold and no query fail; how late they are is told.
func TestSiege(t *testing.T) {
	if testing.Short() || raceDetector {
		t.Skip("it takes half a minute, and measures memory, of which the race detector takes some")
	}
	o := siege(t, calmTime, []string{"all"})
	t.Log(o)
	if o.grown > siegeMemory {
		t.Errorf("the agent's memory has grown by %d MB, want at most %d", o.grown>>20,
			siegeMemory>>20)
	}
	if o.logged > 100 {
		t.Errorf("%d lines of log, want at most 100", o.logged)
	}
	if !strings.Contains(o.refused, "calls") || !strings.Contains(o.refused, "connections") {
		t.Errorf("refused were %s: want calls and connections among them", o.refused)
	}
}

// BenchmarkSiege measures each attack alone and all at once, beside an attacker that only burns its
// share of the CPUs ("burn"), which is the least that any can do. Each round has a new agent, and
// queries before the attack and during it; what is told is the median of -benchtime=Nx rounds.
func BenchmarkSiege(b *testing.B) {
	for _, attack := range append([]string{"none", "burn"}, append(siegeAttacks(), "all")...) {
		b.Run(attack, func(b *testing.B) {
			var late, cpu, grown []float64
			for range b.N {
				o := siege(b, siegeTime, []string{attack})
				b.Log(o)
				late = append(late, float64(o.during)/float64(o.before))
				cpu = append(cpu, o.cpu-o.usualCPU)
				grown = append(grown, float64(o.grown>>20))
			}
			for _, values := range [][]float64{late, cpu, grown} {
				slices.Sort(values)
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(late[len(late)/2], "x-p99")
			b.ReportMetric(cpu[len(cpu)/2], "more-CPUs")
			b.ReportMetric(grown[len(grown)/2], "MB-grown")
		})
	}
}

// A siegeOutcome is what an attack did to an agent.
type siegeOutcome struct {
	queries        int
	interval       time.Duration
	before, during time.Duration // p99 of the good queries
	usual, grown   int           // bytes of the agent's memory, and how many more it had
	usualCPU, cpu  float64       // that the agent took, before and under attack
	attacker       float64       // CPUs that the attacker took
	logged         int           // lines of log
	refused        string
}

func (o siegeOutcome) String() string {
	return fmt.Sprintf(
		"%d queries, one in %v: p99 %v before, %v under attack (x %.1f); memory %d MB, grown by "+
			"%d MB; %.2f CPUs before, %.2f under attack, the attacker's %.2f; %d lines of log; %s",
		o.queries, o.interval, o.before, o.during, float64(o.during)/float64(o.before), o.usual>>20,
		o.grown>>20, o.usualCPU, o.cpu, o.attacker, o.logged, o.refused)
}

// siege starts an agent and has it attacked, after so long a calm. A query that fails is
// an error of t's.
func siege(t testing.TB, calm time.Duration, attacks []string) siegeOutcome {
	t.Helper()
	t.Setenv("GOGC", "") // the agent's memory is to be as it usually is
	library, dir := runtimetest.Library(t), t.TempDir()
	for _, args := range [][]string{
		{"certs", "init", "--dir", dir}, {"certs", "issue", "agent", "node", "--dir", dir},
	} {
		if err := run(t.Context(), args, strings.NewReader(""), io.Discard,
			io.Discard); err != nil {
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
	good := &goodClient{
		t: t, address: p.grpc, proof: credentials.NewTLS(&tls.Config{RootCAs: roots}),
	}
	defer good.close()

	good.query(0, 0) // to be warm
	took := good.query(0, 0)
	o := siegeOutcome{interval: 10 * took[len(took)/2]}
	p99 := func(took []time.Duration) time.Duration { return took[len(took)*99/100] }
	cpus := func(begun time.Time, from time.Duration) float64 {
		return float64(p.cpu(t)-from) / float64(time.Since(begun))
	}
	begun, used := time.Now(), p.cpu(t)
	o.before, o.usualCPU, o.usual = p99(good.query(o.interval, calm)), cpus(begun,
		used), p.memory(t)

	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	attacker := exec.Command(self)
	attacker.Env = append(os.Environ(),
		siegeVariable+"="+
			strings.Join(append([]string{p.gossip, p.http, p.grpc, p.metrics}, attacks...), " "))
	attacker.Stderr = os.Stderr
	input, err := attacker.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := attacker.Start(); err != nil {
		t.Fatal(err)
	}
	most, watched := o.usual, make(chan struct{})
	watching, enough := context.WithCancel(t.Context())
	go func() {
		defer close(watched)
		for watching.Err() == nil {
			most = max(most, p.memory(t))
			time.Sleep(50 * time.Millisecond) // this samples, and waits for nothing
		}
	}()
	begun, used = time.Now(), p.cpu(t)
	during := good.query(o.interval, siegeTime)
	o.queries, o.during, o.cpu = len(during), p99(during), cpus(begun, used)
	lasted := time.Since(begun)
	enough()
	<-watched
	_ = input.Close() // its end is the attacker's
	if err := attacker.Wait(); err != nil {
		t.Errorf("attacker: %v", err)
	}
	o.attacker = float64(attacker.ProcessState.UserTime()+
		attacker.ProcessState.SystemTime()) / float64(lasted)
	o.grown = most - o.usual
	o.refused = good.metric(p.metrics, roots)
	if err := p.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	o.logged = <-lines
	if err := p.Wait(); err != nil {
		t.Errorf("the agent ended with %v", err)
	}
	return o
}

// cpu is the CPU time that the process has taken.
func (p *process) cpu(t testing.TB) time.Duration {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.Process.Pid))
	if err != nil {
		t.Skip("this system does not tell what a process takes of the CPUs")
	}
	// The name, in parentheses, may have spaces. Times are in hundredths of a second.
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	user, _ := strconv.Atoi(fields[11]) // digits alone
	system, _ := strconv.Atoi(fields[12])
	return time.Duration(user+system) * 10 * time.Millisecond
}

// memory is what the process has in memory, in bytes.
func (p *process) memory(t testing.TB) int {
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
	t       testing.TB
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

// query sends a query each interval for so long, or for interval 0 a few, and returns how long they
// took, in order. Each must be answered.
func (c *goodClient) query(interval, long time.Duration) []time.Duration {
	c.t.Helper()
	ids := make([]int64, 4*8)
	request := &inference.ModelInferRequest{
		ModelName: "ncf",
		Parameters: map[string]*inference.InferParameter{
			"timeout": {
				ParameterChoice: &inference.InferParameter_Int64Param{Int64Param: 5_000_000},
			},
		},
		Inputs: []*inference.ModelInferRequest_InferInputTensor{{
			Name: "ids", Datatype: "INT64", Shape: []int64{8, 4},
			Contents: &inference.InferTensorContents{Int64Contents: ids},
		}},
	}
	var took []time.Duration
	failed := 0
	ticker := time.NewTicker(max(interval, time.Nanosecond))
	defer ticker.Stop()
	for first := time.Now(); interval == 0 && len(took) < 200 ||
		interval > 0 && time.Since(first) < long; {
		if interval > 0 {
			<-ticker.C
		}
		if c.sent%100 == 0 {
			c.close()
			var err error
			if c.conn, err = grpc.NewClient(c.address,
				grpc.WithTransportCredentials(c.proof)); err != nil {
				c.t.Fatal(err)
			}
		}
		c.sent++
		begun := time.Now()
		if _, err := inference.NewGRPCInferenceServiceClient(c.conn).ModelInfer(c.t.Context(),
			request); err != nil {
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
	return strings.Join(
		regexp.MustCompile(`(?m)^muster_refusals_total.* [1-9].*$`).FindAllString(string(page), -1),
		" ")
}

// A siegeAttack does a little to the agent, again and again.
type siegeAttack struct {
	name string
	make func(gossip, http, rpc, metrics string) func(i int)
}

var sieges = []siegeAttack{
	{"streams", func(_, _, rpc, _ string) func(int) { return siegeStreams(rpc) }},
	{"silence", func(_, http, rpc, metrics string) func(int) {
		return siegeSilence([]string{
			http, rpc, metrics,
		})
	}},
	{"idle", func(_, http, rpc, metrics string) func(int) {
		return siegeIdle([]string{
			http, rpc, metrics,
		})
	}},
	{"handshakes", func(_, http, rpc, metrics string) func(int) {
		return siegeHandshakes([]string{
			http, rpc, metrics,
		})
	}},
	{"members", func(gossip, _, _, _ string) func(int) { return siegeMembers(gossip) }},
	{"states", func(gossip, _, _, _ string) func(int) { return siegeStates(gossip) }},
}

func siegeAttacks() (names []string) {
	for _, s := range sieges {
		names = append(names, s.name)
	}
	return names
}

// siegeBurn touches nothing.
func siegeBurn(int) {
	for begun := time.Now(); time.Since(begun) < 100*time.Microsecond; {
	}
}

// besiege attacks until its input ends: what the addresses end with says how.
func besiege(arguments []string) {
	gossip, http, rpc, metrics := arguments[0], arguments[1], arguments[2], arguments[3]
	var attacks []func(i int)
	for _, name := range arguments[4:] {
		for _, s := range sieges {
			if name == "all" || name == s.name {
				attacks = append(attacks, s.make(gossip, http, rpc, metrics))
			}
		}
		for range sieges {
			if name == "burn" {
				attacks = append(attacks, siegeBurn)
			}
		}
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
				for time.Duration(siegeShare*float64(runtime.NumCPU())*
					float64(time.Since(begun))) < used() {
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
	from := net.Dialer{
		LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, byte(2+i%7))}, Timeout: time.Second,
	}
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
		conn, err := grpc.NewClient("passthrough:///"+to,
			grpc.WithTransportCredentials(credentials.NewTLS(siegeTLS)),
			grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
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
			_, _ = healthpb.NewHealthClient(conn).Watch(context.Background(),
				&healthpb.HealthCheckRequest{})
		} else {
			_, _ = control.NewControlClient(conn).Watch(context.Background(),
				&control.WatchRequest{})
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
				_, _ = io.WriteString(conn,
					"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")
			} else {
				_, _ = io.WriteString(conn,
					"GET /v2 HTTP/1.1\r\nHost: localhost\r\nX: "+strings.Repeat("x", 1000))
			}
		}
		keep(conn)
	}
}

// siegeHandshakes makes handshakes and ends the connection.
func siegeHandshakes(to []string) func(int) {
	return func(i int) {
		conn := siegeDial(i, to[i%len(to)])
		if conn == nil {
			time.Sleep(time.Millisecond)
			return
		}
		_ = conn.SetDeadline(time.Now().Add(time.Second))
		_ = tls.Client(conn, siegeTLS).Handshake() // whatever comes of it
		_ = conn.Close()
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
		for _, s := range []string{
			fmt.Sprintf("127.1.%d.%d:8001", i/250%250, i%250), "c5.large", "must",
		} {
			meta = append(binary.AppendUvarint(meta, uint64(len(s))), s...)
		}
		_, _ = conn.Write(siegePacked(4, struct {
			Incarnation uint32
			Node        string
			Addr        []byte
			Port        uint16
			Meta        []byte
			Vsn         []byte
		}{1, fmt.Sprint("forged-", i), []byte{127, 1, 0, byte(i)}, 7946, append(meta, 0, 0), []byte{
			1, 5, 2, 0, 0, 0,
		}}))
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
