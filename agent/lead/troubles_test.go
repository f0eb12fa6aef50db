package lead_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/muster-serve/muster/agent"
	"github.com/muster-serve/muster/agent/agenttest"
	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/inference"
	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/api/secure"
)

// TestUndescribed: an agent that gossips but cannot be asked what it holds is listed without models
// and gets no queries; the others say so once. When it can be asked it gets its share.
func TestUndescribed(t *testing.T) {
	agenttest.InFleet(t, func(f *agenttest.Fleet) {
		a, b := f.Start(), f.Start()
		f.Settled(a, b)
		cut := f.Start(func(a agent.Inside) { f.Network.Partition(map[string]int{string(a.AgentName()): 1}) })
		f.Eventually(10*time.Second, func() string {
			for _, x := range []*agenttest.Member{a, b} {
				if x.Members().Member(names.AgentName(cut.AgentName())) == nil {
					return string(x.AgentName() + " does not list " + cut.AgentName())
				}
			}
			return ""
		})
		if failed := f.Send(600, 100*time.Millisecond, a, b); len(failed) > 0 {
			f.Errorf("failed: %v", failed)
		}
		for _, x := range []*agenttest.Member{a, b} {
			if m := x.Members().Member(names.AgentName(cut.AgentName())); m == nil || len(m.Models) > 0 {
				f.Errorf("%s lists %v, want the agent without models", x.AgentName(), m)
			}
			if n := strings.Count(x.Log.String(), "event=silent"); n != 1 {
				f.Errorf("%s says %d times that an agent does not say what it serves, want once",
					x.AgentName(), n)
			}
		}
		if ran := agenttest.Counted(cut.Inside, "muster_attempts_total"); ran > 0 {
			f.Errorf("the agent that cannot be asked had %v attempts", ran)
		}
		f.Heal()
		f.Settled(a, b, cut)
		f.Led(a, b, cut)
		if failed := f.Send(300, time.Millisecond/2, a, b); len(failed) > 0 {
			f.Errorf("failed afterwards: %v", failed)
		}
		if ran := agenttest.Counted(cut.Inside, "muster_attempts_total"); ran < 30 {
			f.Errorf("reached again, it ran %v of 300 queries", ran)
		}
	})
}

// TestClockOff: an agent whose certificate was issued by a clock that is hours fast is listed
// without models and gets no queries; both sides' logs say that it may be the clock. With a
// good one it serves.
func TestClockOff(t *testing.T) {
	agenttest.InFleet(t, func(f *agenttest.Fleet) {
		ca := agenttest.NewCA(f)
		f.CallAs(ca, "client")
		one := func(name string) func(agent.Inside) {
			return func(a agent.Inside) { a.Config().Security = ca.Agent(name) }
		}
		a, b := f.Start(one("a")), f.Start(one("b"))
		f.Settled(a, b)
		off := f.Start(one("c"), func(a agent.Inside) {
			order := secure.Order{Name: "c", Agent: true, Life: 24 * time.Hour}
			cert, key, err := ca.Ca.Issue(order, time.Now().Add(3*time.Hour))
			if err != nil {
				f.Fatal(err)
			}
			ca.Write("c.crt", string(cert))
			ca.Write("c.key", string(key))
		})
		f.Eventually(10*time.Second, func() string {
			for _, x := range []*agenttest.Member{a, b} {
				if m := x.Members().Member(names.AgentName(off.AgentName())); m == nil || len(m.Models) > 0 {
					return fmt.Sprintf("%s lists %v, want %s without models", x.AgentName(), m, off.AgentName())
				}
				if !strings.Contains(x.Log.String(), "does not describe itself") {
					return string(x.AgentName() + " does not say that it cannot ask")
				}
			}
			return ""
		})
		if failed := f.Send(100, time.Millisecond, a, b); len(failed) > 0 {
			f.Errorf("failed: %v", failed)
		}
		if ran := agenttest.Counted(off.Inside, "muster_attempts_total"); ran > 0 {
			f.Errorf("the agent whose clock is off had %v attempts", ran)
		}
		for _, x := range []*agenttest.Member{a, b, off} {
			if !strings.Contains(x.Log.String(),
				"clock of this machine or of the one that issued it") &&
				!strings.Contains(x.Log.String(), "this machine's clock, which says") {
				f.Errorf("%s does not say that a clock may be wrong: %s", x.AgentName(), x.Log)
			}
		}
		ca.Agent("c")
		f.Settled(a, b, off)
		f.Led(a, b, off)
		if failed := f.Send(100, time.Millisecond, a, b, off); len(failed) > 0 {
			f.Errorf("failed afterwards: %v", failed)
		}
	})
}

// TestSlowWorker: one of three equal workers takes three times as long for a while. The leader
// finds out by how much, it gets less to do, and few queries are late; and all is as before
// when it is over.
func TestSlowWorker(t *testing.T) {
	if testing.Short() {
		t.Skip("it sends thousands of queries")
	}
	agenttest.InFleet(t, func(f *agenttest.Fleet) {
		var agents []*agenttest.Member
		sites := map[*agenttest.Member]*agenttest.Site{}
		for range 3 {
			s := &agenttest.Site{}
			s.Slower.Store(1)
			a := f.Start(func(a agent.Inside) { a.Environment().OpenExecutor = s.OpenEmulator })
			agents, sites[a] = append(agents, a), s
		}
		f.Settled(agents...)
		leader := f.Led(agents...)
		// during serves for a while and returns how many queries each agent ran.
		during := func(what string, rate int, long time.Duration) map[*agenttest.Member]float64 {
			ran := map[*agenttest.Member]float64{}
			for _, a := range agents {
				ran[a] = -agenttest.Counted(a.Inside, "muster_attempts_total")
			}
			sent, slowest, late, failed := f.Lately(time.Second/time.Duration(rate),
				func() { time.Sleep(long) }, agents...)
			if len(failed) > 0 || late > sent/100 {
				f.Errorf("%s: of %d queries %d were late, the slowest took %v; failed: %v", what,
					sent, late, slowest, failed)
			}
			for _, a := range agents {
				ran[a] += agenttest.Counted(a.Inside, "muster_attempts_total")
			}
			return ran
		}
		var slow *agenttest.Member
		factor := func() float64 {
			s, err := leader.Control.Status(f.Context(), &control.StatusRequest{
				Agent: string(slow.AgentName()),
			})
			if err != nil || len(s.GetAgents()) != 1 {
				f.Fatalf("status: %v, %v", s, err)
			}
			return s.GetAgents()[0].GetFactor()
		}
		ran := during("all are equal", 1000, time.Second)
		for _, a := range agents { // two would do
			if a != leader && (slow == nil || ran[a] > ran[slow]) {
				slow = a
			}
		}
		before := ran[slow]
		sites[slow].Slower.Store(3)
		during("one becomes slow", 1000, time.Second)
		if now := factor(); now < 1.5 { // of a mean that it is part of
			f.Errorf("the factor of the slow one is %v", now)
		}
		if ran := during("one is slow", 1000, time.Second); ran[slow] > before/3 {
			f.Errorf("the slow one ran %v of 1000 queries, %v before", ran[slow], before)
		}
		sites[slow].Slower.Store(1)
		// Two agents run 2,250 queries/s at most, by merging four of them.
		during("it is needed, and fast again", 2500, time.Second)
		if now := factor(); now > 1.1 {
			f.Errorf("the factor of the one that was slow is %v", now)
		}
		if ran := during("all are equal again", 2500, time.Second); ran[slow] < 600 {
			f.Errorf("the one that was slow ran %v of 2500 queries", ran[slow])
		}
	})
}

// TestCutOff: a gateway that gives up an attempt while the query is still on its way to the worker
// does not keep the lane: the worker, who knows of the attempt from the call's header, tells the
// leader at once, and once.
func TestCutOff(t *testing.T) {
	agenttest.InFleet(t, func(f *agenttest.Fleet) {
		agents := []*agenttest.Member{f.Start(), f.Start()}
		f.Settled(agents...)
		leads := f.Led(agents...)
		f.Eventually(10*time.Second, func() string {
			n := 0
			leads.Leading().Sizes(func(what string, size int) {
				if what == "state: members" {
					n = size
				}
			})
			if n < len(agents) {
				return fmt.Sprintf("the leader has %d members", n)
			}
			return ""
		})
		ctx, cancel := context.WithCancel(f.Context())
		defer cancel()
		gateway, err := leads.Control.Match(ctx)
		if err != nil {
			f.Fatal(err)
		}
		tell := func(m *control.GatewayMessage) {
			f.Helper()
			if err := gateway.Send(m); err != nil {
				f.Fatal(err)
			}
		}
		const id = 7
		tell(&control.GatewayMessage{
			Hello: &control.GatewayHello{Gateway: id, Protocol: control.Spoken.Oldest},
		})
		for sequence := range uint64(4) {
			tell(&control.GatewayMessage{
				Submit: []*control.Submit{{Sequence: sequence, Model: "ncf", BatchSize: 1}},
			})
			var assigned *control.Assign
			for assigned == nil {
				m, err := gateway.Recv()
				if err != nil {
					f.Fatal(err)
				}
				for _, a := range m.GetAssign() {
					assigned = a
				}
			}
			worker := agents[slices.IndexFunc(agents,
				func(a *agenttest.Member) bool { return a.Name() == assigned.Agent })]
			before := agenttest.Counted(worker.Inside, "muster_attempts_not_run_total", "cancelled")
			attempt := control.Attempt{
				Gateway: id, Sequence: sequence, Attempt: assigned.Attempt, Lane: assigned.Lane,
			}
			call, end := context.WithCancel(metadata.AppendToOutgoingContext(ctx,
				control.AttemptHeader, attempt.String()))
			stream, err := worker.Conn.NewStream(call, &grpc.StreamDesc{},
				inference.GRPCInferenceService_ModelInfer_FullMethodName)
			if err != nil {
				f.Fatal(err)
			}
			if sequence%2 == 1 { // a query that is too large to be read
				go func() {
					_ = stream.SendMsg(&inference.ModelInferRequest{
						RawInputContents: [][]byte{make([]byte, 64<<20)},
					})
				}()
			}
			synctest.Wait()
			end()
			tell(&control.GatewayMessage{Cancel: []uint64{sequence}})
			synctest.Wait()
			held := 0
			for _, a := range agents {
				for _, h := range leads.Leading().Holds(names.AgentName(a.AgentName()), 0) {
					if h.Sequence == sequence && h.Attempt == int(attempt.Attempt) {
						held++
					}
				}
			}
			if told := agenttest.Counted(worker.Inside, "muster_attempts_not_run_total", "cancelled") -
				before; held != 0 || told != 1 {
				f.Errorf(
					"query %d: it was given up, %d lanes are kept for it and the worker has told "+
						"of %v attempts; want 0 and 1", sequence, held, told)
			}
		}
	})
}
