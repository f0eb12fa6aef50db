package agent_test

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/muster-serve/muster/agent"
	"github.com/muster-serve/muster/agent/agenttest"
)

// probe asks an agent at port 8003, without TLS.
func probe(f *agenttest.Fleet, a *agenttest.Member, path string) (status int, body string) {
	f.Helper()
	transport := &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return f.Network.Dial(ctx, "kubelet", a.Host+":8003")
		},
	}
	resp, err := (&http.Client{Transport: transport}).Get("http://" + a.Host + path)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		f.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

// TestProbe: an agent that wants certificates answers probes of anybody, and nothing but probes.
func TestProbe(t *testing.T) {
	agenttest.InFleet(t, func(f *agenttest.Fleet) {
		ca := agenttest.NewCA(f.T)
		f.CallAs(ca, "tester")
		a := f.Start(func(a agent.Inside) {
			a.Config().Security = ca.Agent("10.0.0.1")
			a.Config().Security.RequireClientCert = true
			a.Config().ProbeAddress = "10.0.0.1:8003"
		})
		f.Settled(a)
		f.Led(a)
		for path, want := range map[string]int{
			"/livez": http.StatusOK, "/readyz": http.StatusOK,
			"/v2/health/live": http.StatusOK, "/v2/health/ready": http.StatusOK,
			"/": http.StatusNotFound, "/v2": http.StatusNotFound, "/v2/models/ncf": http.StatusNotFound,
			"/metrics": http.StatusNotFound, "/dashboard/": http.StatusNotFound,
		} {
			if got, body := probe(f, a, path); got != want {
				f.Errorf("%s: got %d (%s), want %d", path, got, body, want)
			}
		}
	})
}

// TestDrainDelay: an agent that is asked to stop is not ready at once, and takes queries for the
// time of its delay, also if it is alone.
func TestDrainDelay(t *testing.T) {
	agenttest.InFleet(t, func(f *agenttest.Fleet) {
		a := f.Start(func(a agent.Inside) {
			a.Config().ProbeAddress, a.Config().DrainDelay = "10.0.0.1:8003", 10*time.Second
		})
		f.Settled(a)
		f.Eventually(time.Minute, func() string {
			if status, body := probe(f, a, "/readyz"); status != http.StatusOK {
				return body
			}
			return ""
		})
		began, took := time.Now(), time.Duration(0)
		stopped := make(chan error, 1)
		go func() {
			err := a.Stop()
			took = time.Since(began)
			stopped <- err
		}()
		time.Sleep(time.Second)
		if status, _ := probe(f, a, "/readyz"); status != http.StatusServiceUnavailable {
			f.Errorf("the agent that is to stop answers %d to readiness, want %d", status,
				http.StatusServiceUnavailable)
		}
		if status, _ := probe(f, a, "/livez"); status != http.StatusOK {
			f.Errorf("the agent that is to stop answers %d to liveness, want %d", status,
				http.StatusOK)
		}
		for failure, n := range f.Send(80, 100*time.Millisecond, a) {
			f.Errorf("%d queries failed: %s", n, failure)
		}
		if err := <-stopped; err != nil {
			f.Error(err)
		}
		if took < 10*time.Second || took > 14*time.Second {
			f.Errorf("the drain took %v, want 10 s and a little", took)
		}
	})
}

// TestDrainDelayOfEndingMachine: the delay leaves a machine that ends the time to drain.
func TestDrainDelayOfEndingMachine(t *testing.T) {
	config := agenttest.Config(t)
	config.DrainDelay, config.DrainTimeout = time.Minute, time.Minute
	inner, err := agent.New(config, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	a := agent.Inside{Agent: inner}
	a.EndIn(23 * time.Second)
	delay, timeout := a.DrainTimes()
	if delay > 5*time.Second || timeout < 14*time.Second || delay+timeout > 20*time.Second {
		t.Errorf("got a delay of %v and %v to drain, want a quarter of 20 s and the rest", delay,
			timeout)
	}
}
