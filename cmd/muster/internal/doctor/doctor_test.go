package doctor

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/muster-serve/muster/agent"
	"github.com/muster-serve/muster/api/control"
)

// TestFleet: what differs between agents and what is missing is found, and a healthy fleet is well.
func TestFleet(t *testing.T) {
	fleet := func(change func(s *control.FleetStatus)) *control.FleetStatus {
		s := &control.FleetStatus{
			View:       &control.View{Leadership: &control.Leadership{Leader: "a", Epoch: 1}},
			FluidLimit: 100, Rate: 50,
		}
		for _, name := range []string{"a", "b"} {
			s.View.Members = append(s.View.Members, &control.Member{
				Name: name, DisplayName: "vm-" + name, Software: "0.1.0", PriceUsdPerHour: 1,
				InstanceType: "r5n.large", Lanes: 1, Models: []*control.Model{{
					Name: "ncf", Version: 1, Checksum: "c", QosTargetNs: 5e6,
				}},
			})
		}
		s.View.Profiles = []*control.Profile{{
			Model: "ncf/1", Type: string(s.View.Members[0].LaneType()) + "@a",
		}}
		change(s)
		return s
	}
	for want, change := range map[string]func(s *control.FleetStatus){
		"": func(*control.FleetStatus) {},
		"leader: none": func(s *control.FleetStatus) {
			s.View.Leadership = &control.Leadership{}
		},
		"load: 200.0 queries/s": func(s *control.FleetStatus) { s.Rate = 200 },
		"versions: 2 versions of Muster: 0.1.0: vm-a; 0.2.0: vm-b": func(s *control.FleetStatus) {
			s.View.Members[1].Software = "0.2.0"
		},
		"certificate: that of vm-b is named node1": func(s *control.FleetStatus) {
			s.View.Members[1].CertificateName = "node1"
		},
		"names: vm-a is the name of a, b": func(s *control.FleetStatus) {
			s.View.Members[1].DisplayName = "vm-a"
		},
		"price: vm-b, a r5n.large, has none": func(s *control.FleetStatus) {
			s.View.Members[1].PriceUsdPerHour = 0
		},
		"model: ncf/1 has different files at a | b": func(s *control.FleetStatus) {
			s.View.Members[1].Models[0].Checksum = "d"
		},
		"model: ncf/1 has different settings in model.yaml": func(s *control.FleetStatus) {
			s.View.Members[1].Models[0].QosTargetNs = 6e6
		},
		"model: vm-b does not serve ncf/2: no": func(s *control.FleetStatus) {
			s.View.Members[1].Problems = []*control.ModelProblem{{
				Model: "ncf", Version: 2, Reason: "no",
			}}
		},
		"profile: ncf/1 has none for": func(s *control.FleetStatus) {
			s.View.Profiles[0].Type = "other"
		},
		"agent: vm-b does not end": func(s *control.FleetStatus) {
			s.Agents = []*control.AgentStatus{{Name: "b", Overdue: true}}
		},
	} {
		var got []string
		for _, f := range Fleet(fleet(change)) {
			if f.Level != OK || f.Check == "certificate" {
				got = append(got, f.Check+": "+f.Found)
			}
		}
		if want == "" && len(got) > 0 || want != "" &&
			(len(got) != 1 || !strings.HasPrefix(got[0], want)) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// TestFleetOfOne: one agent is "1 agent".
func TestFleetOfOne(t *testing.T) {
	status := &control.FleetStatus{View: &control.View{
		Members: []*control.Member{{Name: "vm-1", Software: "0.1.0"}},
	}}
	for _, f := range Fleet(status) {
		if f.Check == "versions" && !strings.HasPrefix(f.Found, "1 agent with") {
			t.Errorf("found %q, want 1 agent with its version", f.Found)
		}
	}
}

// TestMachine: what a machine lacks is found by its files and settings.
func TestMachine(t *testing.T) {
	host := Host{
		Root: fstest.MapFS{
			"sys/kernel/mm/transparent_hugepage/enabled": {Data: []byte("always [never]\n")},
			"proc/meminfo":              {Data: []byte("MemAvailable:    1 kB\n")},
			"proc/self/cgroup":          {Data: []byte("0::/box\n")},
			"sys/fs/cgroup/box/cpu.max": {Data: []byte("50000 100000\n")},
		},
		Now: time.Now(),
		Listen: func(address string) error {
			if strings.HasSuffix(address, ":8000") {
				return errors.New("in use")
			}
			return nil
		},
		Resolve: func(context.Context, string) ([]string, error) { return nil, errors.New("no") },
	}
	c := agent.DefaultConfig()
	c.ModelDir, c.StateDir, c.Provider = t.TempDir(), t.TempDir(), "cuda"
	c.Join = []string{"nowhere.example:7946"}
	var got []string
	for _, f := range Machine(t.Context(), host, c, false) {
		if f.Level == Fault || f.Level == Warning && f.Check != "clock" && f.Check != "disk" {
			got = append(got, string(f.Level)+" "+f.Check)
		}
	}
	want := []string{
		"warning cores", "warning huge pages", "fault port", "fault dns", "fault gpu",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
