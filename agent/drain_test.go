package agent_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	goruntime "runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-serve/muster/agent/agenttest"
)

// A keptConn is a client's connection for HTTP, as a proxy keeps them.
type keptConn struct {
	net.Conn
	t      testing.TB
	reader *bufio.Reader
}

func keep(t testing.TB, dial func() (net.Conn, error)) *keptConn {
	t.Helper()
	conn, err := dial()
	if err != nil {
		t.Fatal(err)
	}
	return &keptConn{conn, t, bufio.NewReader(conn)}
}

// send sends a query for NCF, and not all of it: sent sends the rest.
func (c *keptConn) send() (sent func()) {
	c.t.Helper()
	body := strings.Replace(agenttest.NCFBody(1), `{"inputs"`, `{"parameters":{"timeout":60000000},"inputs"`, 1)
	text := fmt.Sprintf("POST /v2/models/ncf/infer HTTP/1.1\r\nHost: localhost\r\n"+
		"Content-Length: %d\r\n\r\n%s", len(body), body)
	write := func(s string) {
		c.t.Helper()
		if _, err := io.WriteString(c, s); err != nil {
			c.t.Fatalf("a query on a kept connection is lost: %v", err)
		}
	}
	write(text[:len(text)-1])
	return func() { c.t.Helper(); write(text[len(text)-1:]) }
}

// want reads an answer with the status, and whether it says that the server closes the connection.
func (c *keptConn) want(status int, closes bool) *http.Response {
	c.t.Helper()
	resp, err := http.ReadResponse(c.reader, nil)
	if err != nil {
		c.t.Fatalf("a query on a kept connection has no answer: %v", err)
	}
	body, _ := io.ReadAll(resp.Body)
	if resp.StatusCode != status || resp.Close != closes {
		c.t.Errorf("got %s, Connection: close %t (%s), want %d, %t", resp.Status, resp.Close, body,
			status, closes)
	}
	return resp
}

// wantEnd fails the test if the server has not closed the connection without another answer.
func (c *keptConn) wantEnd() {
	c.t.Helper()
	if b, err := c.reader.ReadByte(); err != io.EOF {
		c.t.Errorf("got byte %q, %v, want the end of the connection", b, err)
	}
}

// TestDrainKeepsConnections: an agent that is alone leaves the connections of HTTP clients open while
// it drains. Each gets one more answer, which says that the connection is closed, and when to try
// again.
func TestDrainKeepsConnections(t *testing.T) {
	g, config := agenttest.NewGate(), agenttest.Config(t)
	config.DrainTimeout = time.Minute // longer than a busy machine needs; nothing waits for it
	a := agenttest.Start(t, config, g)
	dial := func() (net.Conn, error) { return net.Dial("tcp", a.Addresses().HTTP) }
	used, idle, asking := keep(t, dial), keep(t, dial), keep(t, dial)
	for _, c := range []*keptConn{used, idle} {
		c.send()()
		c.want(http.StatusOK, false)
	}
	probe := keep(t, dial) // a health check's, which needs no care
	fmt.Fprint(probe, "GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
	probe.want(http.StatusOK, false)
	g.Close()
	asking.send()()
	<-g.Entered

	stopped := make(chan error, 1)
	go func() { stopped <- a.Stop() }()
	for !a.Draining() {
		goruntime.Gosched()
	}
	g.Open()
	asking.want(http.StatusOK, true) // it was answered before the lanes were closed
	asking.wantEnd()
	for !strings.Contains(a.Log.String(), "the agent waits until HTTP clients") {
		select {
		case err := <-stopped:
			t.Fatalf("the agent ended with idle connections: %v", err)
		default:
			goruntime.Gosched()
		}
	}
	used.send()()
	resp := used.want(http.StatusServiceUnavailable, true)
	if after := resp.Header.Get("Retry-After"); after != "1" {
		t.Errorf("Retry-After: got %q, want 1", after)
	}
	used.wantEnd()
	select {
	case err := <-stopped:
		t.Fatalf("the agent ended with an idle connection: %v", err)
	default:
	}
	idle.Close()
	if err := <-stopped; err != nil { // it does not wait for the probe's
		t.Error(err)
	}
	probe.wantEnd()
}

// TestDrainBehindProxy: while an agent of a fleet drains, another one answers all that proxies still
// send to it: on connections that they have kept for long, and on new ones, until they have noticed.
func TestDrainBehindProxy(t *testing.T) {
	agenttest.InFleet(t, func(f *agenttest.Fleet) {
		a, other := f.Start(), f.Start()
		f.Settled(a, other)
		dial := func() (net.Conn, error) {
			return f.Network.Dial(context.Background(), "proxy", a.Host+":8000")
		}
		long, forgotten := keep(f.T, dial), keep(f.T, dial)
		for _, c := range []*keptConn{forgotten, long} {
			c.send()()
			c.want(http.StatusOK, false)
		}
		begin, ended := time.Now(), time.Duration(0)
		stopped := make(chan error, 1)
		go func() {
			err := a.Stop()
			ended = time.Since(begin)
			stopped <- err
		}()
		for range 20 { // until the proxy's health check takes it out
			time.Sleep(time.Second)
			c := keep(f.T, dial)
			c.send()()
			c.want(http.StatusOK, true)
			c.wantEnd()
		}
		time.Sleep(4 * time.Second)
		long.send()()
		long.want(http.StatusOK, true)
		long.wantEnd()
		forgotten.wantEnd() // at the end of the drain
		if err := <-stopped; err != nil {
			f.Error(err)
		}
		// 30 s without the tenth for the last answers; leaving the fleet takes up to 2 s more.
		if ended < 27*time.Second || ended > 29*time.Second {
			f.Errorf("the agent ended after %v, want 27 s to 29 s", ended)
		}
	})
}

// TestDrainOfQuietAgent: an agent of a fleet ends when no query has come by HTTP for five seconds,
// and at once if none has come lately.
func TestDrainOfQuietAgent(t *testing.T) {
	for _, tt := range []struct {
		name        string
		quiet, want time.Duration
	}{
		{"query a second ago", time.Second, 4 * time.Second},
		{"query a minute ago", time.Minute, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			agenttest.InFleet(t, func(f *agenttest.Fleet) {
				a, other := f.Start(), f.Start()
				f.Settled(a, other)
				c := keep(f.T, func() (net.Conn, error) {
					return f.Network.Dial(context.Background(), "client", a.Host+":8000")
				})
				c.send()()
				c.want(http.StatusOK, false)
				kept := tt.quiet > 5*time.Second // that long unused, it does not count
				if !kept {
					c.Close()
				}
				time.Sleep(tt.quiet)
				begin := time.Now()
				if err := a.Stop(); err != nil {
					f.Error(err)
				}
				if took := time.Since(begin); took < tt.want || took > tt.want+3*time.Second {
					f.Errorf("the drain took %v, want %v and at most 3 s to leave", took, tt.want)
				}
				c.Close()
				synctest.Wait()
			})
		})
	}
}
