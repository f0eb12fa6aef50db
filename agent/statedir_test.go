package agent_test

import (
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/muster-serve/muster/agent"
	"github.com/muster-serve/muster/agent/agenttest"
)

// TestStateDirNotWritable: an agent whose state directory takes nothing says so, serves, and does
// not stand for leader. It is not ready while no agent leads that it knows of.
func TestStateDirNotWritable(t *testing.T) {
	agenttest.InFleet(t, func(f *agenttest.Fleet) {
		stateless := func(a agent.Inside) {
			a.Config().ProbeAddress = "10.0.0.1:8003"
			a.Config().StateDir = filepath.Join(f.TempDir(), "state")
			// not even root can write there
			if err := os.Symlink("nowhere", a.Config().StateDir); err != nil {
				f.Fatal(err)
			}
		}
		a := f.Start(stateless)
		f.Settled(a)
		ready := func(want int) {
			f.Helper()
			f.Eventually(20*time.Second, func() string {
				status, body := probe(f, a, "/v2/health/ready")
				health, err := healthpb.NewHealthClient(a.Conn).Check(f.Context(),
					&healthpb.HealthCheckRequest{})
				if err != nil {
					return err.Error()
				}
				serves := health.GetStatus() == healthpb.HealthCheckResponse_SERVING
				if status != want || serves != (want == http.StatusOK) {
					return fmt.Sprintf("ready answers %d (%s), gRPC %v, want %d", status, body,
						health.GetStatus(), want)
				}
				return ""
			})
		}
		ready(http.StatusServiceUnavailable)
		if _, body := probe(f, a, "/readyz"); !strings.Contains(body, a.Config().StateDir) {
			f.Errorf("the answer does not say why: %s", body)
		}
		for _, want := range []string{
			"cannot lead: it cannot write its state directory " + a.Config().StateDir,
			"and never leads\" may_lead=false",
		} {
			if log := a.Log.String(); !strings.Contains(log, want) {
				f.Errorf("no %q in the log", want)
			}
		}
		if role := a.Members().Own().Role; role != "never" {
			f.Errorf("its role is told as %q, want never", role)
		}
		if got := agenttest.Counted(a.Inside, "muster_state_dir_writable"); got != 0 {
			f.Errorf("muster_state_dir_writable is %v, want 0", got)
		}
		for failure, n := range f.Send(1, 0, a) {
			f.Errorf("%d queries failed: %s", n, failure)
		}
		leader := f.Start()
		f.Settled(a, leader)
		ready(http.StatusOK)
		f.Kill(leader)
		ready(http.StatusServiceUnavailable)
	})
}

// TestStateDirOfAnother: an agent does not run with the state directory of one that runs, whatever its
// role, and says whose it is; it does once that one has ended.
func TestStateDirOfAnother(t *testing.T) {
	config := agenttest.Config(t)
	first := agenttest.Start(t, config, agenttest.Emulated())
	second := agenttest.Config(t)
	second.StateDir = config.StateDir
	for _, role := range []string{"may", "never"} {
		second.Leader = role
		a, err := agent.New(second, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		err = a.Run(t.Context())
		if err == nil {
			t.Fatal("two agents run with one state directory")
		}
		for _, want := range []string{
			config.StateDir, fmt.Sprintf("process %d", os.Getpid()), "--state-dir of its own",
		} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("no %q in %q", want, err)
			}
		}
	}
	if err := first.Stop(); err != nil {
		t.Fatal(err)
	}
	agenttest.Start(t, second, agenttest.Emulated())
}
