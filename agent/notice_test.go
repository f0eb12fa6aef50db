package agent_test

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/muster-serve/muster/agent"
	"github.com/muster-serve/muster/agent/agenttest"
	"github.com/muster-serve/muster/agent/agenttest/metadata"
	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/runtime"
)

// rentedFrom makes an agent ask the service what machine it is on.
func rentedFrom(s *metadata.Service) func(agent.Inside) {
	return func(a agent.Inside) {
		a.Config().Rented, a.Environment().Network.MetadataClient = "ec2", s
		a.Config().Leader = "never"
	}
}

// member is what of sees of the agent called name; nil if it does not see it.
func member(of *agenttest.Member, name string) *control.Member {
	for _, m := range of.Members().View().Members {
		if m.Name == name {
			return m
		}
	}
	return nil
}

// TestSpotNotice: the fleet hears within seconds that a machine ends, the agent goes on serving,
// and it drains in time; no query is lost.
func TestSpotNotice(t *testing.T) {
	agenttest.InFleet(t, func(f *agenttest.Fleet) {
		service := metadata.New("spot")
		keeper, spot := f.Start(), f.Start(rentedFrom(service))
		f.Settled(keeper, spot)
		f.Eventually(10*time.Second, func() string {
			r := member(keeper, spot.Name()).GetRented()
			if r.GetInstance() != "i-0123456789abcdef0" || r.GetSlot() != "r5n.large/spot/3/0" ||
				r.GetZone() != "us-east-1a" || r.GetEndsNs() != 0 {
				return fmt.Sprintf("the fleet sees the machine %v", r)
			}
			return ""
		})
		told, ends := time.Now(), time.Now().Add(110*time.Second)
		service.Set("spot/instance-action", fmt.Sprintf(`{"action": "terminate", "time": %q}`,
			ends.UTC().Format(time.RFC3339)))
		f.Eventually(8*time.Second, func() string {
			r := member(keeper, spot.Name()).GetRented()
			if left := time.Duration(r.GetEndsNs()); left <= 0 || left > time.Until(told.Add(2*
				time.Minute)) || !r.GetAdvised() {
				return fmt.Sprintf("the fleet sees the machine %v", r)
			}
			return ""
		})
		for failure, n := range f.Send(500, 300*time.Millisecond, keeper) {
			f.Errorf("%d queries failed: %s", n, failure)
		}
		log := spot.Log.String()
		for _, want := range []string{
			"the provider takes the machine of", "event=draining", "event=drained",
		} {
			if !strings.Contains(log, want) {
				f.Errorf("the log lacks %q", want)
			}
		}
		if strings.Contains(log, "were cut off") {
			f.Error("queries were cut off")
		}
		if member(keeper, spot.Name()) != nil {
			f.Error("the machine's agent is still there after its end")
		}
		if err := spot.Stop(); err != nil {
			f.Error(err)
		}
	})
}

// TestDrainsBeforeTheEnd: a notice comes late, and the drain has only what is left of the time.
func TestDrainsBeforeTheEnd(t *testing.T) {
	agenttest.InFleet(t, func(f *agenttest.Fleet) {
		service := metadata.New("spot")
		keeper, spot := f.Start(), f.Start(rentedFrom(service))
		f.Settled(keeper, spot)
		service.Set("spot/instance-action", fmt.Sprintf(`{"action": "terminate", "time": %q}`,
			time.Now().Add(12*time.Second).UTC().Format(time.RFC3339)))
		f.Eventually(7*time.Second, func() string {
			if !spot.Draining() {
				return "it does not drain"
			}
			return ""
		})
		if timeout := spot.DrainTimeout(); timeout > 9*time.Second || timeout < 2*time.Second {
			f.Errorf("the drain may take %v, and 12 s were left", timeout)
		}
	})
}

// TestMaintenance: maintenance next week is advice to leave; when it is near, the machine ends; a
// cancelled one is none. A machine that is no spot instance is asked once a minute.
func TestMaintenance(t *testing.T) {
	agenttest.InFleet(t, func(f *agenttest.Fleet) {
		service := metadata.New("on-demand")
		keeper, other := f.Start(), f.Start(rentedFrom(service))
		f.Settled(keeper, other)
		const path = "events/maintenance/scheduled"
		event := func(in time.Duration, state string) string {
			return fmt.Sprintf(
				`[{"Code": "system-maintenance", "NotBefore": "1 Jan 2000 00:00:00 GMT",
				"State": "completed"}, {"Code": "instance-retirement", "NotBefore": %q, "State": %q}]`,
				time.Now().Add(in).UTC().Format("2 Jan 2006 15:04:05")+" GMT", state)
		}
		sees := func(what string, advised, ends bool) {
			f.Helper()
			time.Sleep(65 * time.Second)
			f.Eventually(5*time.Second, func() string {
				r := member(keeper, other.Name()).GetRented()
				if r.GetAdvised() != advised || (r.GetEndsNs() > 0) != ends ||
					r.GetInstance() == "" {
					return fmt.Sprintf("%s: the fleet sees the machine %v", what, r)
				}
				return ""
			})
		}
		sees("nothing", false, false)
		service.Set(path, event(7*24*time.Hour, "active"))
		sees("next week", true, false)
		service.Set(path, event(7*24*time.Hour, "canceled"))
		sees("cancelled", false, false)
		near := 10 * time.Minute
		if testing.Short() {
			near = 4 * time.Minute
		}
		service.Set(path, event(near, "active"))
		sees("in some minutes", true, true)
		n := service.Asked(path)
		if n < 2 || n > 6 {
			f.Errorf("asked %d times in some minutes", n)
		}
		time.Sleep(near - 2*time.Minute)
		f.Eventually(time.Minute, func() string {
			if !other.Draining() {
				return "it does not drain"
			}
			return ""
		})
	})
}

// TestMetadataInPod: an agent in a pod asks no metadata service, unless it is told to.
func TestMetadataInPod(t *testing.T) {
	agenttest.InFleet(t, func(f *agenttest.Fleet) {
		start := func(rented string) *metadata.Service {
			service := metadata.New("on-demand")
			f.Settled(f.Start(func(a agent.Inside) {
				rentedFrom(service)(a)
				a.Config().Rented, a.Config().InstanceType, a.Environment().Pod = rented, "", true
				a.Environment().OpenExecutor = func(agent.Config, *slog.Logger) (runtime.Executor,
					error) {
					return agenttest.Emulated(), nil
				}
				a.Config().Join = nil
			}))
			time.Sleep(time.Minute)
			return service
		}
		if n := start("").Asked("instance-id"); n > 0 {
			f.Errorf("the metadata service was asked %d times in a pod", n)
		}
		if n := start("ec2").Asked("instance-id"); n == 0 {
			f.Error("the metadata service was not asked although the agent is told to")
		}
	})
}

// TestNoMetadataService: without one the agent serves; where it is told to be on EC2, it says so.
func TestNoMetadataService(t *testing.T) {
	agenttest.InFleet(t, func(f *agenttest.Fleet) {
		service := metadata.New("spot")
		service.SetBroken(true)
		keeper, spot := f.Start(), f.Start(rentedFrom(service))
		f.Settled(keeper, spot)
		time.Sleep(time.Minute)
		if !strings.Contains(spot.Log.String(), "cannot reach the metadata service") {
			f.Error("the log does not say so")
		}
		service.SetBroken(false)
		f.Eventually(10*time.Second, func() string {
			if member(keeper, spot.Name()).GetRented() == nil {
				return "it does not ask again"
			}
			return ""
		})
		for failure, n := range f.Send(50, 20*time.Millisecond, keeper, spot) {
			f.Errorf("%d queries failed: %s", n, failure)
		}
	})
}

// TestNoFleet: a rented machine that finds no fleet drains, since nobody may know of it; one that
// has found it once goes on without it, also after a restart.
func TestNoFleet(t *testing.T) {
	agenttest.InFleet(t, func(f *agenttest.Fleet) {
		state := f.TempDir()
		rented := func(join string) func(agent.Inside) {
			return func(a agent.Inside) {
				rentedFrom(metadata.New("on-demand"))(a)
				a.Config().StateDir, a.Config().Join = state, []string{join}
			}
		}
		// stays looks at the agent while it may look for its fleet, and after that.
		stays := func(a *agenttest.Member, want bool) {
			f.Helper()
			time.Sleep(agent.Homeless - 2*time.Minute)
			if a.Draining() {
				f.Errorf("%s drains too early", a.Host)
			}
			time.Sleep(4 * time.Minute)
			if a.Draining() == want {
				f.Errorf("%s stays: %t, want %t", a.Host, !want, want)
			}
		}
		stays(f.Start(rented("10.0.0.99:7946")), false)
		keeper := f.Start(func(a agent.Inside) { a.Config().Join = nil })
		found := f.Start(rented(keeper.Host + ":7946"))
		f.Settled(keeper, found)
		time.Sleep(2 * time.Minute)
		if err := keeper.Stop(); err != nil {
			f.Error(err)
		}
		stays(found, true)
		if err := found.Stop(); err != nil {
			f.Error(err)
		}
		stays(f.Start(rented(keeper.Host+":7946")), true)
	})
}
