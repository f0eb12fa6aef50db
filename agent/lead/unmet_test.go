package lead_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/muster-serve/muster/agent/agenttest"
	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/profiles/workload"
)

// TestTargetUnmet: of queries that no agent's type answers in time the leader's log, status and
// metrics tell.
func TestTargetUnmet(t *testing.T) {
	large, err := workload.Gaussian(900, 20, workload.LargestBatchSize)
	if err != nil {
		t.Fatal(err)
	}
	agenttest.InFleet(t, func(f *agenttest.Fleet) {
		r := rand.New(rand.NewPCG(1, 7))
		agents := []*agenttest.Member{f.Start(), f.Start()}
		f.Settled(agents...)
		leader := f.Led(agents...)
		ask(f, r, large, 50, 500, agents[0], nil)
		f.Eventually(5*time.Second, func() string {
			s, err := agents[0].Control.Status(f.Context(), &control.StatusRequest{})
			if err != nil || len(s.Models) != 1 {
				return fmt.Sprint(s, err)
			}
			m, series := s.Models[0], series(f, leader, "muster_leader_unmet_share")
			if m.GetUnmetShare() != 1 || series != 1 || m.GetWhyUnmet() == "" || s.FluidLimit == 0 {
				return fmt.Sprintf("got %v, %d series, limit %v; want a share of 1", m, series,
					s.FluidLimit)
			}
			return ""
		})
		_, documented := agenttest.DocumentedMetrics(f)
		families, err := leader.Registry().Gather()
		if err != nil {
			f.Fatal(err)
		}
		for _, family := range families {
			if name := family.GetName(); name == "muster_leader_unmet_share" &&
				documented[name] != agenttest.TypeAndLabels(family) {
				f.Errorf("%s is a %q, docs/metrics.md has %q", name, agenttest.TypeAndLabels(family),
					documented[name])
			}
		}
		if log := leader.Log.String(); strings.Count(log, "cannot meet its QoS target") != 1 ||
			!strings.Contains(log, "event=target") {
			f.Error("the log does not say so, or more than once")
		}
	})
}
