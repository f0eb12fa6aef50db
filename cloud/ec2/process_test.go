package ec2

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/muster-serve/muster/cloud"
	"github.com/muster-serve/muster/cloud/cloudtest"
	"github.com/muster-serve/muster/cloud/plugin"
	"github.com/muster-serve/muster/leader/rent"
)

// TestMain has this test's program be muster-ec2 where a Provider of package plugin starts it.
func TestMain(m *testing.M) {
	if strings.HasPrefix(filepath.Base(os.Args[0]), "muster-") {
		os.Exit(plugin.Serve(Program()))
	}
	os.Exit(m.Run())
}

// openProcess returns the provider of a fleet in a process of its own, whose AWS is at url. The
// program is MUSTER_EC2, or this test's.
func openProcess(t *testing.T, c Config, url string) *plugin.Provider {
	t.Helper()
	file := os.Getenv("MUSTER_EC2")
	if file == "" {
		var err error
		if file, err = os.Executable(); err != nil {
			t.Fatal(err)
		}
	}
	dir := t.TempDir()
	if err := os.Symlink(file, filepath.Join(dir, "muster-ec2")); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir)
	t.Setenv("AWS_ENDPOINT_URL", url)
	settings, err := json.Marshal(c.Settings)
	if err != nil {
		t.Fatal(err)
	}
	p := plugin.Open("ec2", plugin.Fleet{
		Name: c.Fleet, Types: c.Types, Settings: settings, StateDir: c.StateDir, Prices: c.Prices,
	}, slog.New(slog.NewTextHandler(t.Output(), nil)))
	t.Cleanup(func() { _ = p.Close() })
	return p
}

// killChildren kills the processes that this test has started.
func killChildren(t *testing.T) {
	files, _ := filepath.Glob("/proc/self/task/*/children")
	killed := 0
	for _, file := range files {
		text, _ := os.ReadFile(file) // a thread that has ended has none
		for _, pid := range strings.Fields(string(text)) {
			if n, err := strconv.Atoi(pid); err == nil && syscall.Kill(n, syscall.SIGKILL) == nil {
				killed++
			}
		}
	}
	if killed == 0 {
		t.Error("no process to kill")
	}
}

// TestEveryProviderAsProcess: what all providers promise holds of two processes, as two leaders
// have them, and of a process after and before a provider inside the agent, as in an upgrade and
// back.
func TestEveryProviderAsProcess(t *testing.T) {
	noSettings(t)
	asProcess := func(t *testing.T, c Config, url string) cloud.Provider {
		return openProcess(t, c, url)
	}
	inside := func(t *testing.T, c Config, url string) cloud.Provider {
		c.Endpoint, c.client = url, nil
		return open(t, c)
	}
	for name, of := range map[string][2]func(*testing.T, Config, string) cloud.Provider{
		"two leaders": {asProcess, asProcess},
		"upgrade":     {inside, asProcess},
		"rollback":    {asProcess, inside},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(newFaults(newTinyEC2()))
			defer server.Close()
			c := testConfig(nil)
			cloudtest.Contract(t, rent.Kind{Type: "r5n.large"}, of[0](t, c, server.URL),
				of[1](t, c, server.URL))
		})
	}
}

// TestKilledWhileLaunching: a process that is killed after EC2 has launched for it, and before it
// could say so, loses no machine and brings no second one: the next process asks by the same token.
func TestKilledWhileLaunching(t *testing.T) {
	noSettings(t)
	f := newFaults(newTinyEC2())
	var armed atomic.Bool
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		before := len(f.calls("CreateFleet"))
		rec := httptest.NewRecorder()
		f.ServeHTTP(rec, r)
		if len(f.calls("CreateFleet")) > before && armed.CompareAndSwap(true, false) {
			killChildren(t)
			panic(http.ErrAbortHandler)
		}
		w.WriteHeader(rec.Code)
		_, _ = w.Write(rec.Body.Bytes())
	}))
	defer server.Close()
	p := openProcess(t, testConfig(nil), server.URL)
	one := slot("r5n.large", 3, 0)
	if list, err := p.List(t.Context()); err != nil || len(list) != 0 {
		t.Fatalf("an empty fleet lists %v, %v", list, err)
	}
	armed.Store(true)
	_, err := p.Launch(t.Context(), one, cloud.Spec{By: "f-1"})
	if err == nil || !strings.Contains(err.Error(), "signal: killed") {
		t.Fatalf("the launch during which it is killed: %v", err)
	}
	for _, kind := range []error{cloud.ErrQuota, cloud.ErrDenied, cloud.ErrThrottled,
		cloud.ErrSpent,
		context.DeadlineExceeded} {
		if errors.Is(err, kind) { // it would say that nothing was launched
			t.Errorf("%v is %v", err, kind)
		}
	}
	list, err := p.List(t.Context())
	if err != nil || len(list) != 1 || list[0].Slot != one {
		t.Fatalf("the next process lists %+v, %v", list, err)
	}
	again, err := p.Launch(t.Context(), one, cloud.Spec{By: "f-1"})
	if err != nil || again.ID != list[0].ID {
		t.Errorf("the same slot again: %+v, %v, want %s", again, err, list[0].ID)
	}
	calls := f.calls("CreateFleet")
	if len(calls) != 2 || calls[0].Get("ClientToken") != calls[1].Get("ClientToken") ||
		calls[0].Get("ClientToken") != cloud.Token("prod", one) {
		t.Errorf("calls %v, want two with one token", calls)
	}
}

// TestProcessKeepsPrices: the file of prices is where it was when the provider ran in the agent.
func TestProcessKeepsPrices(t *testing.T) {
	noSettings(t)
	server := httptest.NewServer(newFaults(newTinyEC2()))
	defer server.Close()
	c := testConfig(nil)
	c.StateDir = t.TempDir()
	if _, err := openProcess(t, c, server.URL).Offers(t.Context(), c.Types); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(c.StateDir, "ec2-prices-us-east-1.json")); err != nil {
		t.Error(err)
	}
}

// TestLaterSettings: a key that a later agent sends is refused by name.
func TestLaterSettings(t *testing.T) {
	_, err := fleetConfig(plugin.Fleet{Settings: []byte(`{"region": "us-east-1", "later": 1}`)})
	if err == nil || !strings.Contains(err.Error(), `"later"`) {
		t.Errorf("got %v", err)
	}
}
