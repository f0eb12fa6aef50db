package rent_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/muster-serve/muster/agent"
	"github.com/muster-serve/muster/agent/agenttest"
	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/cloud"
	"github.com/muster-serve/muster/cloud/cloudtest"
	"github.com/muster-serve/muster/cloud/policy"
	"github.com/muster-serve/muster/leader/rent"
	"github.com/muster-serve/muster/profiles"
)

const rentPolicy = `fleet: test
mode: approve
limits:
  max_price_usd_per_hour: 3
  types: {r5n.large: {}, g4dn.xlarge: {}, c5n.2xlarge: {}, t3.xlarge: {}}
calm: 20s
process: {dir: unused, models: unused}
`

func kindOf(name string) rent.Kind { return rent.Kind{Type: profiles.InstanceType(name)} }

// A rentedFleet is a testFleet with three keepers, and machines that they rent.
type rentedFleet struct {
	*agenttest.Fleet
	cloud   *cloudtest.Provider
	keepers []*agenttest.Member
	dead    map[string]*atomic.Bool // keepers whose calls reach nobody any more
	boots   chan func()
	booted  chan struct{}

	mu     sync.Mutex
	rented map[string]*agenttest.Member // by instance
}

// A caller is a keeper's way to the provider.
type caller struct {
	*cloudtest.Provider
	dead *atomic.Bool
}

func (c caller) alive(ctx context.Context) error {
	if c.dead.Load() {
		<-ctx.Done()
		return ctx.Err()
	}
	return nil
}

func (c caller) List(ctx context.Context) ([]rent.Instance, error) {
	if err := c.alive(ctx); err != nil {
		return nil, err
	}
	return c.Provider.List(ctx)
}

func (c caller) Launch(ctx context.Context, s rent.Slot, x cloud.Spec) (rent.Instance, error) {
	if err := c.alive(ctx); err != nil {
		return rent.Instance{}, err
	}
	return c.Provider.Launch(ctx, s, x)
}

func (c caller) Mark(ctx context.Context, ids ...string) error {
	return errors.Join(c.alive(ctx), c.Provider.Mark(ctx, ids...))
}

func (c caller) Return(ctx context.Context, ids ...string) error {
	if err := c.alive(ctx); err != nil {
		return err
	}
	return c.Provider.Return(ctx, ids...)
}

// testRenting runs a test with three keepers of a policy.
func testRenting(t *testing.T, text string, test func(*rentedFleet)) {
	agenttest.InFleet(t, func(f *agenttest.Fleet) {
		r := &rentedFleet{Fleet: f, dead: map[string]*atomic.Bool{},
			boots: make(chan func()), booted: make(chan struct{}), rented: map[string]*agenttest.Member{}}
		r.cloud = &cloudtest.Provider{
			Fleet: "test", Lag: time.Second, Boots: 2 * time.Second, Zones: []string{"a", "b"},
			Prices: map[rent.Kind]float64{kindOf("r5n.large"): 0.149, kindOf("g4dn.xlarge"): 0.526,
				// the catalogue says 0.1664
				kindOf("c5n.2xlarge"): 0.432, kindOf("t3.xlarge"): 0.125},
			Start: r.boot,
		}
		go func() { // the only one that starts agents
			defer close(r.booted)
			for boot := range r.boots {
				boot()
			}
		}()
		file := filepath.Join(f.TempDir(), "fleet.yaml")
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			f.Fatal(err)
		}
		for range 3 {
			r.keepers = append(r.keepers, f.Start(func(a agent.Inside) {
				dead := &atomic.Bool{}
				r.dead[a.Name()] = dead
				a.Config().Rent = file
				a.Rent(findUnlessEC2, func(*policy.Policy, string) (cloud.Provider, error) {
					return caller{r.cloud, dead}, nil
				})
			}))
		}
		f.Settled(r.keepers...)
		test(r)
		for _, dead := range r.dead { // nothing is rented any more
			dead.Store(true)
		}
		r.cloud.Close()
		close(r.boots)
		<-r.booted
	})
}

// findUnlessEC2 finds what all providers but EC2 need.
func findUnlessEC2(p *policy.Policy) error {
	if p.EC2 != nil {
		return errors.New("no program muster-ec2")
	}
	return nil
}

// boot runs an agent on a rented machine.
func (r *rentedFleet) boot(i rent.Instance) func() {
	started := make(chan *agenttest.Member)
	r.boots <- func() {
		started <- r.Start(func(a agent.Inside) {
			a.Config().Leader, a.Config().InstanceType = "never", string(i.Slot.Type)
			a.Config().Join = nil
			for _, k := range r.keepers {
				a.Config().Join = append(a.Config().Join, k.Host+":7946")
			}
			a.SetRented(&control.Rented{Instance: i.ID, Slot: i.Slot.String(), Zone: i.Zone})
		})
	}
	a := <-started
	r.mu.Lock()
	r.rented[i.ID] = a
	r.mu.Unlock()
	return func() { r.Kill(a) }
}

// want gives the leader counts to desire.
func (r *rentedFleet) want(by *agenttest.Member, counts map[string]uint32) {
	r.Helper()
	all := &control.FleetCounts{}
	for kind, n := range counts {
		all.Counts = append(all.Counts, &control.FleetCount{Kind: kind, Count: n})
	}
	r.Eventually(20*time.Second, func() string { // as a person does whose call was cut off
		if _, err := by.Control.SetFleet(r.Context(), &control.SetFleetRequest{
			Change: &control.SetFleetRequest_Counts{Counts: all}}); err != nil {
			return err.Error()
		}
		return ""
	})
}

// exact waits until what is rented is as desired and serves, as the leader says.
func (r *rentedFleet) exact(limit time.Duration, asked *agenttest.Member, counts map[string]uint32) {
	r.Helper()
	want := map[rent.Kind]int{}
	for kind, n := range counts {
		want[kindOf(kind)] = int(n)
	}
	for end := time.Now().Add(limit); ; time.Sleep(100 * time.Millisecond) {
		s, err := asked.Control.Fleet(r.Context(), &control.FleetRequest{})
		if err == nil && s.GetExact() && maps.Equal(r.cloud.Live(), want) {
			return
		}
		if time.Now().After(end) {
			r.Fatalf("after %v: %v of %v; %v, %v", limit, r.cloud.Live(), want, s, err)
		}
	}
}

// TestLeaderDiesAtEachAction: the fleet changes from two types to four under load, and the leader
// dies before or after each call of the change. No query is lost, no slot is rented twice, the price
// limit holds, and the fleet ends as desired.
func TestLeaderDiesAtEachAction(t *testing.T) {
	before := map[string]uint32{"r5n.large": 2, "g4dn.xlarge": 1}
	after := map[string]uint32{"r5n.large": 1, "g4dn.xlarge": 1, "c5n.2xlarge": 1, "t3.xlarge": 1}
	deaths := []int{1, 4} // a launch and a drain
	if os.Getenv("MUSTER_SLOW_TESTS") != "" {
		deaths = []int{0, 1, 2, 3, 4, 5, 6, 7}
	}
	if testing.Short() {
		deaths = deaths[:1]
	}
	for _, death := range deaths {
		t.Run(fmt.Sprint(death), func(t *testing.T) {
			testRenting(t, rentPolicy, func(r *rentedFleet) {
				leader := r.Led(r.keepers...)
				rest := agenttest.Others(r.keepers, leader)
				r.want(rest[0], before)
				r.exact(2*time.Minute, rest[0], before)
				var calls atomic.Int32
				died := ""
				dies := func(name, of string) error {
					if name == "list" || name == "prices" || calls.Add(1) != int32(death/2+1) {
						return nil
					}
					died = name + " of " + of
					r.dead[leader.Name()].Store(true)
					r.Kill(leader)
					return cloudtest.ErrLost
				}
				sent, _, late, failed := r.Lately(50*time.Millisecond, func() {
					time.Sleep(15 * time.Second)
					if death%2 == 0 {
						r.cloud.Intercept(dies, nil)
					} else {
						r.cloud.Intercept(nil, dies)
					}
					r.want(rest[0], after)
					r.exact(5*time.Minute, rest[1], after)
				}, rest...)
				r.Logf("the leader died at %s: %d queries, %d late", died, sent, late)
				if len(failed) > 0 {
					r.Errorf("of %d queries failed: %v", sent, failed)
				}
				if died == "" {
					r.Error("the leader did not die")
				}
				if n, most := r.cloud.Duplicates(), r.cloud.Most(); n > 0 || most > 3 {
					r.Errorf("%d duplicates, $%.3f/hr paid of at most $3", n, most)
				}
			})
		})
	}
}

// TestMachineTaken: the provider says that it takes a machine in two minutes, under load. Another is
// there before, no query is lost, and at most 1 % are late. The slow form has .7 of the load that six
// machines can answer, and a shorter notice.
func TestMachineTaken(t *testing.T) {
	if testing.Short() {
		t.Skip("it sends thousands of queries")
	}
	interval, notice, step := 40*time.Millisecond, 120*time.Second, 5*time.Second
	if os.Getenv("MUSTER_SLOW_TESTS") != "" {
		interval = 1100 * time.Microsecond * 10 / 7 / 6 // 1.1 ms each
		notice, step = 30*time.Second, time.Second
	}
	fleet := map[string]uint32{"r5n.large": 3}
	testRenting(t, rentPolicy, func(r *rentedFleet) {
		r.Led(r.keepers...)
		r.want(r.keepers[0], fleet)
		r.exact(2*time.Minute, r.keepers[0], fleet)
		sent, _, late, failed := r.Lately(interval, func() {
			time.Sleep(3 * time.Second)
			var taken *agenttest.Member
			r.mu.Lock()
			taken = r.rented["i-0001"]
			r.mu.Unlock()
			rented := taken.Rented()
			replaced := 0
			for left := notice; left > 0; left -= step {
				taken.SetRented(&control.Rented{Instance: rented.Instance, Slot: rented.Slot,
					Zone: rented.Zone, EndsNs: int64(left)})
				taken.Members().SelfChanged()
				time.Sleep(step)
				replaced = max(replaced, r.cloud.Live()[kindOf("r5n.large")])
			}
			if replaced != 4 {
				r.Errorf("between the notice and the end there were %d, want one more than 3",
					replaced)
			}
			r.cloud.TakeBack("i-0001")
			r.exact(time.Minute, r.keepers[1], fleet)
		}, r.keepers...)
		r.Logf("%d queries, %d late", sent, late)
		if len(failed) > 0 || late > sent/100 {
			r.Errorf("of %d queries %d late, and failed: %v", sent, late, failed)
		}
	})
}

// TestAppliedOutlivesLeader: when a change is answered, most of those that may lead know it, so that it
// is still desired under the next leader if this one dies at that moment. A leader that most of them
// do not hear says that it may be lost, and a new one changes nothing before it has heard of most.
func TestAppliedOutlivesLeader(t *testing.T) {
	testRenting(t, rentPolicy, func(r *rentedFleet) {
		leader := r.Led(r.keepers...)
		rest := agenttest.Others(r.keepers, leader)
		r.cloud.Short(kindOf("r5n.large"), true) // keepers alone matter here
		r.want(leader, map[string]uint32{"r5n.large": 1})
		r.Partition([]*agenttest.Member{leader}, rest)
		_, err := leader.Renter().Set(setCounts("r5n.large", 2))
		if status.Code(err) != codes.DeadlineExceeded ||
			!strings.Contains(err.Error(), "1 of the 3 agents that may lead") {
			r.Errorf("a change that only the leader knows: %v", err)
		}
		r.Heal()
		r.Settled(r.keepers...)
		leader = r.Led(r.keepers...)
		for n, alive := uint32(3), r.keepers; n <= 4; n++ {
			r.want(leader, map[string]uint32{"r5n.large": n})
			r.Kill(leader)
			know := 1 // the leader did
			for _, k := range agenttest.Others(alive, leader) {
				if c := k.Renter().Desired().GetCounts(); len(c) == 1 && c[0].GetCount() == n {
					know++
				}
			}
			if 2*know <= len(alive) {
				r.Errorf("%d of %d know the change when it is answered", know, len(alive))
			}
			if alive = agenttest.Others(alive, leader); len(alive) < 2 {
				break
			}
			leader = r.Led(alive...)
			r.Eventually(20*time.Second, func() string {
				s, err := alive[0].Control.Fleet(r.Context(), &control.FleetRequest{})
				if c := s.GetDesired().GetCounts(); err != nil || len(c) != 1 || c[0].Count != n {
					return fmt.Sprintf("under the next leader: %v, %v", s.GetDesired(), err)
				}
				return ""
			})
		}
	})
}

// TestRentingRefuses: what cannot be done is named, and changes nothing.
func TestRentingRefuses(t *testing.T) {
	testRenting(t, rentPolicy, func(r *rentedFleet) {
		leader := r.Led(r.keepers...)
		r.want(leader, map[string]uint32{"r5n.large": 1})
		r.exact(time.Minute, leader, map[string]uint32{"r5n.large": 1})
		if s, err := leader.Renter().Set(setCounts("r5n.large", 2)); err != nil || s.GetExact() {
			r.Errorf("exact is %v before there was a step for what is desired, %v", s.GetExact(), err)
		}
		r.want(leader, map[string]uint32{"r5n.large": 1})
		r.exact(2*time.Minute, leader, map[string]uint32{"r5n.large": 1})
		now, err := leader.Control.Fleet(r.Context(), &control.FleetRequest{})
		if err != nil {
			r.Fatal(err)
		}
		for _, tt := range []struct {
			req  *control.SetFleetRequest
			code codes.Code
			want string
		}{
			{&control.SetFleetRequest{}, codes.InvalidArgument, "no change: want counts"},
			{&control.SetFleetRequest{ExpectedVersion: now.Desired.Version + 7,
				Change: &control.SetFleetRequest_PauseNs{PauseNs: -1}}, codes.Aborted,
				"the desired fleet is now version"},
			{&control.SetFleetRequest{Change: &control.SetFleetRequest_Approve{Approve: 99}},
				codes.FailedPrecondition, "the leader has no proposal"},
			{setCounts("g4dn.xlarge", 9), codes.OutOfRange,
				"$4.734/hr: limits.max_price_usd_per_hour is 3"},
			{setCounts("p5.48xlarge", 1), codes.OutOfRange, "does not have the type"},
			{setCounts("r5n.large", 0), codes.OutOfRange, "limits.min_instances is 1"},
			{setPolicy(strings.Replace(rentPolicy, "fleet: test", "fleet: other", 1)),
				codes.InvalidArgument, `"other", but this fleet is "test"`},
			{setPolicy(strings.Replace(rentPolicy, "hour: 3", "hour: 0.01", 1)), codes.OutOfRange,
				"0.01 $/hr does not pay for the minimum"},
			{setPolicy(rentPolicy[:strings.Index(rentPolicy, "process:")] + "ec2: {region: us-east-1, " +
				`template: t, template_version: "1", subnets: [subnet-1]}`), codes.FailedPrecondition,
				"the leader cannot rent by this fleet.yaml: no program muster-ec2"},
			{setPolicy("mode: on"), codes.InvalidArgument, `fleet.yaml:1: "on", want one of off`},
		} {
			_, err := r.keepers[1].Control.SetFleet(r.Context(), tt.req)
			if status.Code(err) != tt.code || !strings.Contains(status.Convert(err).Message(), tt.want) {
				r.Errorf("%v: %v, want %v with %q", tt.req, err, tt.code, tt.want)
			}
		}
		after, err := leader.Control.Fleet(r.Context(), &control.FleetRequest{})
		if err != nil || after.Desired.Version != now.Desired.Version {
			r.Errorf("version %d after, %d before, %v", after.Desired.Version, now.Desired.Version,
				err)
		}
	})
}

// TestRentedPrice: what the page says that the fleet costs has of a rented machine what is paid for it,
// not what its type costs by the catalogue.
func TestRentedPrice(t *testing.T) {
	testRenting(t, rentPolicy, func(r *rentedFleet) {
		leader := r.Led(r.keepers...)
		var costs atomic.Uint64
		stop := agenttest.WatchPage(r.Fleet, agenttest.Others(r.keepers, leader)[0], func(s *agenttest.Shown) {
			costs.Store(math.Float64bits(s.Beat.Price))
		})
		defer stop()
		cost := func(want float64) {
			r.Helper()
			r.Eventually(time.Minute, func() string {
				if got := math.Float64frombits(costs.Load()); math.Abs(got-want) > 1e-6 {
					return fmt.Sprintf("the fleet costs $%v/hr, want $%v", got, want)
				}
				return ""
			})
		}
		keepers := 0.0
		for _, k := range r.keepers {
			keepers += k.Members().Own().GetPriceUsdPerHour()
		}
		cost(keepers)
		r.want(leader, map[string]uint32{"t3.xlarge": 2})
		r.exact(time.Minute, leader, map[string]uint32{"t3.xlarge": 2})
		cost(keepers + 2*0.125)
	})
}

// TestRentingMetrics holds docs/metrics.md against what an agent that rents serves.
func TestRentingMetrics(t *testing.T) {
	testRenting(t, rentPolicy, func(r *rentedFleet) {
		leader := r.Led(r.keepers...)
		r.want(leader, map[string]uint32{"r5n.large": 2})
		r.exact(time.Minute, leader, map[string]uint32{"r5n.large": 2})
		r.want(leader, map[string]uint32{"r5n.large": 1})
		r.exact(2*time.Minute, leader, map[string]uint32{"r5n.large": 1})
		r.cloud.Short(kindOf("t3.xlarge"), true)
		r.want(leader, map[string]uint32{"r5n.large": 1, "t3.xlarge": 1})
		time.Sleep(30 * time.Second)
		agenttest.ServesAsDocumented(r, leader.Inside, "muster_fleet_")
	})
}

func setCounts(kind string, n uint32) *control.SetFleetRequest {
	return &control.SetFleetRequest{Change: &control.SetFleetRequest_Counts{
		Counts: &control.FleetCounts{Counts: []*control.FleetCount{{Kind: kind, Count: n}}}}}
}

func setPolicy(text string) *control.SetFleetRequest {
	return &control.SetFleetRequest{Change: &control.SetFleetRequest_Policy{Policy: text}}
}
