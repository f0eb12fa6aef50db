package lead_test

import (
	"context"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/muster-serve/muster/agent"
	"github.com/muster-serve/muster/agent/agenttest"
	"github.com/muster-serve/muster/agent/lead"
	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/client"
	"github.com/muster-serve/muster/profiles/workload"
)

// ends are the ways in which an agent may end.
var ends = map[string]func(*agenttest.Fleet, *agenttest.Member){
	"killed":      func(f *agenttest.Fleet, a *agenttest.Member) { f.Kill(a) },
	"unreachable": func(f *agenttest.Fleet, a *agenttest.Member) { f.Partition([]*agenttest.Member{a}) },
	"drained":     func(_ *agenttest.Fleet, a *agenttest.Member) { a.Drain() },
}

// TestLeaderEnds ends leaders in different ways, under load: no query fails, few are
// late, and within 2 s the others have one leader again.
func TestLeaderEnds(t *testing.T) {
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			agenttest.InFleet(t, func(f *agenttest.Fleet) {
				agents := []*agenttest.Member{f.Start(), f.Start(), f.Start(), f.Start()}
				f.Settled(agents...)
				leader := f.Led(agents...)
				rest := agenttest.Others(agents, leader)
				if failed := f.Send(agenttest.Paced(200), agenttest.Pace(), rest...); len(failed) > 0 {
					f.Fatalf("before: %v", failed)
				}
				epoch := leader.Leading().Leadership().GetEpoch()
				sent, slowest, late, failed := f.Lately(agenttest.Pace(), func() {
					time.Sleep(300 * time.Millisecond)
					end(f, leader)
					time.Sleep(2 * time.Second)
				}, rest...)
				if len(failed) > 0 {
					f.Errorf("of %d queries failed: %v", sent, failed)
				}
				next := rest[0].Leading().Leadership()
				for _, a := range rest {
					if l := a.Leading().Leadership(); l.GetLeader() != next.GetLeader() ||
						l.GetLeader() == leader.Name() || l.GetLeader() == "" ||
						l.GetEpoch() <= epoch {
						f.Errorf("after 2s %s follows %v", a.Host, l)
					}
				}
				f.Logf("%s: %d queries, the slowest %v, %d late", name, sent, slowest, late)
				if late > sent/20 || slowest > 250*time.Millisecond {
					f.Errorf("%d of %d queries late, the slowest %v", late, sent, slowest)
				}
			})
		})
	}
}

// TestLeadersFrozen freezes one leader after another, each of which has followed for a while when
// it is to lead again: one agent leads at once, and none beside it.
func TestLeadersFrozen(t *testing.T) {
	agenttest.InFleet(t, func(f *agenttest.Fleet) {
		agents := []*agenttest.Member{f.Start(), f.Start(), f.Start(), f.Start()}
		f.Settled(agents...)
		for range 4 {
			leader := f.Led(agents...)
			before := leader.Leading().Leadership()
			f.Partition([]*agenttest.Member{leader})
			time.Sleep(2 * time.Second)
			f.Heal()
			if next := f.Led(agents...); next.Name() != before.GetSuccessor() {
				f.Errorf("after epoch %d %s leads, want the successor %s", before.GetEpoch(),
					next.AgentName(), before.GetSuccessor())
			}
			time.Sleep(6 * time.Second) // links that only the election needed have ended
		}
		led := map[string]int{}
		for _, a := range agents {
			for line := range strings.Lines(a.Log.String()) {
				if _, epoch, ok := strings.Cut(line, ` leads the fleet in epoch `); ok {
					epoch, _, _ = strings.Cut(epoch, `"`)
					led[epoch]++
				}
			}
		}
		for epoch, n := range led {
			if n > 1 {
				f.Errorf("%d agents led epoch %s", n, epoch)
			}
		}
		if len(led) != 5 {
			f.Errorf("epochs were led as %v, want 5 of them", led)
		}
	})
}

// TestLinkHeardLate serves a link that its leader had given up for another after that other one:
// what ends is told on the one that lasts.
func TestLinkHeardLate(t *testing.T) {
	agenttest.InFleet(t, func(f *agenttest.Fleet) {
		member := f.Start(agenttest.NeverLeads)
		f.Settled(member)
		leads := &control.LeaderMessage{
			From: "x", Election: []*control.Election{
				{From: "x", Epoch: 1 << 30, Rank: 5, Leader: "x"},
			},
		}
		open := func() (leader *lead.PipeClient[control.LeaderMessage, control.WorkerMessage],
			end func()) {
			ctx, cancel := context.WithTimeout(f.Context(), time.Second)
			leader, server := lead.NewPipe[control.LeaderMessage, control.WorkerMessage](ctx)
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				server.End(member.Worker().Link(server, member.Leading()))
			}()
			if err := leader.Send(proto.CloneOf(leads)); err != nil {
				f.Fatal(err)
			}
			if m, err := leader.Recv(); m.GetMember() == nil {
				f.Fatalf("the link began with %v, %v, want a greeting", m, err)
			}
			return leader, func() { cancel(); <-ended }
		}
		lasts, end := open()
		defer end()
		_, giveUp := open()
		tell := func(sequence uint64) {
			attempt := control.Attempt{Gateway: 7, Sequence: sequence, Attempt: 1}
			ctx := metadata.AppendToOutgoingContext(f.Context(), control.AttemptHeader,
				attempt.String())
			if _, err := member.OIP.ModelInfer(ctx, agenttest.NCFRequest(1)); err != nil {
				f.Fatal(err)
			}
			for {
				m, err := lasts.Recv()
				if err != nil {
					f.Fatalf("%v, and the end of %d was not told", err, sequence)
				}
				if len(m.GetCompleted()) > 0 { // otherwise it is of the election
					return
				}
			}
		}
		tell(1)
		giveUp()
		tell(2)
	})
}

// TestCutOffRuns: the leader is told how long an attempt had run that was cut off.
func TestCutOffRuns(t *testing.T) {
	agenttest.InFleet(t, func(f *agenttest.Fleet) {
		member := f.Start(agenttest.NeverLeads)
		f.Settled(member)
		ctx, cancel := context.WithTimeout(f.Context(), time.Second)
		defer cancel()
		leader, server := lead.NewPipe[control.LeaderMessage, control.WorkerMessage](ctx)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			server.End(member.Worker().Link(server, member.Leading()))
		}()
		defer func() { cancel(); <-ended }()
		if err := leader.Send(&control.LeaderMessage{
			From: "x", Election: []*control.Election{
				{From: "x", Epoch: 1 << 30, Rank: 5, Leader: "x"},
			},
		}); err != nil {
			f.Fatal(err)
		}
		const after = 300 * time.Microsecond
		attempt := control.Attempt{Gateway: 7, Sequence: 4, Attempt: 1}
		cutOff, stop := context.WithTimeout(metadata.AppendToOutgoingContext(f.Context(),
			control.AttemptHeader, attempt.String()), after)
		defer stop()
		if _, err := member.OIP.ModelInfer(cutOff, agenttest.NCFRequest(1000)); err == nil {
			f.Fatalf("the query ran within %v, want it to be cut off", after)
		}
		for {
			m, err := leader.Recv()
			if err != nil {
				f.Fatalf("%v, and the end of the attempt was not told", err)
			}
			for _, c := range m.GetCompleted() {
				if ran := time.Duration(c.GetExecutionNs()); c.GetRefused() == "" || ran <= 0 ||
					ran > after || c.GetBatchSize() != 1000 {
					f.Errorf("told of %d items, refused as %q after a run of %v, want of 1000, refused, "+
						"after at most %v", c.GetBatchSize(), c.GetRefused(), ran, after)
				}
				return
			}
		}
	})
}

// TestWorkerEnds ends an agent that does not lead, under load: no query fails.
func TestWorkerEnds(t *testing.T) {
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			agenttest.InFleet(t, func(f *agenttest.Fleet) {
				agents := []*agenttest.Member{
					f.Start(), f.Start(agenttest.NeverLeads), f.Start(agenttest.NeverLeads),
					f.Start(agenttest.NeverLeads),
				}
				f.Settled(agents...)
				f.Led(agents...)
				if failed := f.Send(agenttest.Paced(200), agenttest.Pace(), agents...); len(failed) > 0 {
					f.Fatalf("before: %v", failed)
				}
				sent, slowest, late, failed := f.Lately(agenttest.Pace(), func() {
					time.Sleep(300 * time.Millisecond)
					end(f, agents[3])
					time.Sleep(2 * time.Second)
				}, agents[:3]...)
				if len(failed) > 0 {
					f.Errorf("of %d queries failed: %v", sent, failed)
				}
				f.Logf("%s: %d queries, the slowest %v, %d late", name, sent, slowest, late)
				if late > sent/50 {
					f.Errorf("%d of %d queries late, the slowest %v", late, sent, slowest)
				}
			})
		})
	}
}

// TestResignsUnderLoad has one agent after another lead, under load: a leader hears of the end of
// what it has not given to a lane itself, so no lane stands idle for it until it is overdue.
func TestResignsUnderLoad(t *testing.T) {
	agenttest.InFleet(t, func(f *agenttest.Fleet) {
		f.Network.OneWay = 3 * time.Millisecond
		agents := []*agenttest.Member{f.Start(), f.Start(), f.Start(), f.Start(), f.Start(), f.Start()}
		f.Settled(agents...)
		for range agents[1:] {
			leader := f.Led(agents...)
			sent, _, _, failed := f.Lately(agenttest.Pace(), func() {
				time.Sleep(100 * time.Millisecond)
				leader.Leading().Resign(f.Context())
				time.Sleep(50 * time.Millisecond)
			}, agents...)
			if len(failed) > 0 {
				f.Errorf("of %d queries failed: %v", sent, failed)
			}
			// longer than lanes of which little is known may be late
			time.Sleep(1200 * time.Millisecond)
		}
		for _, a := range agents {
			if n := strings.Count(a.Log.String(), "lane is overdue"); n > 0 {
				f.Errorf("%d lanes were overdue to %s", n, a.Host)
			}
		}
	})
}

// TestLeaderEndsInTime ends the leader of a fleet at 0.7 of its allowable throughput: of the
// queries of the next two seconds few are late; without any fault one in two hundred is. One of the
// cheap machines leads, since one of the two expensive ones alone could not serve what both do.
func TestLeaderEndsInTime(t *testing.T) {
	if testing.Short() {
		t.Skip("it sends thousands of queries; TestLeaderEnds does the same with fewer")
	}
	dir, err := agenttest.DienDir()
	if err != nil {
		t.Fatal(err)
	}
	const (
		rate         = 400 // queries/s
		before       = time.Second
		after        = 2 * time.Second
		target       = 35 * time.Millisecond
		mostLate     = 0.01
		oneWay       = 200 * time.Microsecond
		base, others = "g4dn.xlarge", "r5n.large"
	)
	for name, end := range map[string]func(*agenttest.Fleet, *agenttest.Member){
		"killed": func(f *agenttest.Fleet, a *agenttest.Member) { f.Kill(a) },
		"frozen": func(f *agenttest.Fleet, a *agenttest.Member) { f.Partition([]*agenttest.Member{a}) },
	} {
		t.Run(name, func(t *testing.T) {
			agenttest.InFleet(t, func(f *agenttest.Fleet) {
				f.Dir, f.Network.OneWay = dir, oneWay
				var agents []*agenttest.Member
				for i := range 11 {
					agents = append(agents, f.Start(func(a agent.Inside) {
						if a.Config().InstanceType = others; i < 2 {
							a.Config().InstanceType, a.Config().Leader = base, "never"
						}
					}))
				}
				f.Settled(agents...)
				leader := f.Led(agents...)
				dial := grpc.WithContextDialer(func(ctx context.Context, to string) (net.Conn,
					error) {
					return f.Network.Dial(ctx, "client", to)
				})
				c, err := client.New([]string{agents[0].Host + ":8001", agents[1].Host + ":8001"},
					client.WithDialOptions(dial,
						grpc.WithTransportCredentials(insecure.NewCredentials())))
				if err != nil {
					f.Fatal(err)
				}
				defer c.Close()
				time.Sleep(time.Second)
				arrivals, err := workload.ParseArrivals("poisson", rate)
				if err != nil {
					f.Fatal(err)
				}
				queries, err := workload.Queries(1, arrivals, workload.Load{
					Model: "dien", Share: 1, BatchSizes: workload.Trace(),
				})
				if err != nil {
					f.Fatal(err)
				}
				start := time.Now()
				time.AfterFunc(before, func() { end(f, leader) })
				var sending sync.WaitGroup
				var mu sync.Mutex
				sent, late := 0, 0
				for q := range queries {
					if q.At > before+after {
						break
					}
					time.Sleep(time.Until(start.Add(q.At)))
					sending.Go(func() {
						ids, err := tensor.Of("ids", agenttest.NCFIDs(q.BatchSize), int64(q.BatchSize), 4)
						if err != nil {
							f.Error(err)
							return
						}
						began := time.Now()
						if _, err = c.Infer(f.Context(),
							&oip.Request{Model: "dien", Inputs: []tensor.Tensor{ids}}); err != nil {
							f.Errorf("query %v after the leader was %s: %v", q.At-before, name, err)
						}
						mu.Lock()
						defer mu.Unlock()
						if q.At < before {
							return
						}
						if sent++; time.Since(began) > target {
							late++
						}
					})
				}
				sending.Wait()
				f.Logf("%s: %d of %d queries late", name, late, sent)
				if float64(late) > mostLate*float64(sent) {
					f.Errorf("%d of %d queries late, want at most %v", late, sent, mostLate)
				}
			})
		})
	}
}
