package rent

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/cloud"
	"github.com/muster-serve/muster/cloud/cloudtest"
	"github.com/muster-serve/muster/cloud/policy"
	"github.com/muster-serve/muster/leader/plan"
	"github.com/muster-serve/muster/leader/rent"
	"github.com/muster-serve/muster/leader/rent/choose"
	"github.com/muster-serve/muster/profiles"
)

// renter returns a Manager that rents by a policy, with its state in dir.
func renter(t *testing.T, dir string) *Manager {
	t.Helper()
	r, err := New(Config{
		StateDir: dir, Registry: prometheus.NewRegistry(), Log: slog.New(slog.DiscardHandler),
		Policy: `
fleet: test
mode: auto
limits:
  max_price_usd_per_hour: 1
  types:
    g4dn.xlarge: {}
process:
  dir: /tmp/x
  models: /tmp/y
`,
	})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestPauseOutlastsRestart: an agent that restarts within a pause still pauses.
func TestPauseOutlastsRestart(t *testing.T) {
	d := &control.DesiredFleet{
		Epoch: 1, Version: 1, Identity: "a", Known: true, PausedNs: int64(24 * time.Hour),
		By: "ann",
	}
	dir := t.TempDir()
	for range 2 {
		r := renter(t, dir)
		r.Heard(d) // the second hears nothing new
		if r.pauseReason(r.Desired()) == "" {
			t.Error("it does not pause")
		}
	}
}

// TestAccuracies: an agent that rents states what the fleet.yaml in force states for families, and
// says when that may have changed.
func TestAccuracies(t *testing.T) {
	r := renter(t, t.TempDir())
	if all := r.Accuracies(); len(all) > 0 {
		t.Errorf("states %v without a line on families", all)
	}
	changed := 0
	r.config.Changed = func() { changed++ }
	r.Heard(&control.DesiredFleet{Epoch: 1, Version: 1, Policy: r.config.Policy +
		"families: {rank: {min_accuracy: .99, target_accuracy: .995}, feed: {min_accuracy: .9}}\n"})
	want := []*control.FamilyAccuracy{
		{Family: "feed", MinAccuracy: .9},
		{Family: "rank", MinAccuracy: .99, TargetAccuracy: .995},
	}
	if all := r.Accuracies(); changed != 1 || !slices.EqualFunc(all, want,
		func(a, b *control.FamilyAccuracy) bool { return proto.Equal(a, b) }) {
		t.Errorf("states %v, and said %d times that it has changed, want %v and once", all, changed,
			want)
	}
}

// TestDesiredByLaterVersion: an agent that goes back to this version knows what it desired.
func TestDesiredByLaterVersion(t *testing.T) {
	dir := t.TempDir()
	text := `{"epoch": "3", "identity": "a", "known": true, "later": {"more": 1}}`
	if err := os.WriteFile(filepath.Join(dir, "desired.json"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if d := renter(t, dir).Desired(); d.GetEpoch() != 3 || d.GetIdentity() != "a" {
		t.Errorf("desires %v", d)
	}
}

// TestListOfPolicyBefore: what the provider of an earlier policy has rented does not count under
// the next one, while that one's provider does not answer.
func TestListOfPolicyBefore(t *testing.T) {
	r := renter(t, t.TempDir())
	p := &cloudtest.Provider{Fleet: "test"}
	r.config.Open = func(*policy.Policy) (cloud.Provider, error) { return p, nil }
	slot := rent.Slot{Kind: rent.Kind{Type: "g4dn.xlarge"}}
	if _, err := p.Launch(t.Context(), slot, cloud.Spec{By: "us"}); err != nil {
		t.Fatal(err)
	}
	l := &loop{manager: r}
	use := func(text string) []string {
		l.usePolicy(&control.DesiredFleet{Policy: text})
		l.refresh(t.Context(), l.policy)
		return l.identities()
	}
	if got := use(r.config.Policy); !slices.Equal(got, []string{"us"}) {
		t.Fatalf("there are instances of %q", got)
	}
	p = &cloudtest.Provider{Fleet: "test"}
	p.Intercept(func(string, string) error { return cloudtest.ErrLost }, nil)
	if got := use(strings.Replace(r.config.Policy, "/tmp/x", "/tmp/z", 1)); len(got) > 0 {
		t.Errorf("under another policy there are instances of %q, want none", got)
	}
}

// TestPolicyOfLaterFormat: a leader that is told of a fleet.yaml for a later program rents by the
// one of before, and says so; where it knows none, it rents nothing.
func TestPolicyOfLaterFormat(t *testing.T) {
	r := renter(t, t.TempDir())
	r.config.Open = func(*policy.Policy) (cloud.Provider, error) {
		return &cloudtest.Provider{},
			nil
	}
	later := &control.DesiredFleet{Policy: "requires: 99\nlater: 1\n" + r.config.Policy}
	l := &loop{manager: r}
	l.usePolicy(&control.DesiredFleet{})
	before := l.policy
	for range 2 {
		l.usePolicy(later)
		if l.policy != before || l.provider == nil ||
			!strings.Contains(l.fault, "fleet.yaml:1: requires format 99") {
			t.Errorf("got the policy %v, provider %v, fault %q, want those of before, and why",
				l.policy,
				l.provider, l.fault)
		}
	}
	l.usePolicy(&control.DesiredFleet{})
	if l.policy == nil || l.fault != "" {
		t.Errorf("got the policy %v, fault %q of a file that it knows", l.policy, l.fault)
	}
	l = &loop{manager: r}
	l.usePolicy(later)
	if l.policy != nil || !strings.Contains(l.fault, "requires format 99") {
		t.Errorf("got the policy %v, fault %q without one before", l.policy, l.fault)
	}
}

// TestElectorsOfTwoTerms: an elector that is gone is forgotten after a day, however long the term
// before was.
func TestElectorsOfTwoTerms(t *testing.T) {
	var all []*control.Member
	for _, address := range []string{"a", "b", "c", "d", "e"} {
		all = append(all, &control.Member{Name: address, Address: address, Lanes: 1, Role: "may"})
	}
	var e electors
	e.beginTerm()
	e.hasMajority(30*24*time.Hour, all)
	e.beginTerm()
	e.hasMajority(0, all[:4])
	e.hasMajority(forgotten+time.Hour, all[:4])
	if got := e.sortedAddresses(); len(got) != 4 {
		t.Errorf("%v are known a day after e has gone", got)
	}
}

// TestStateWhileElected: an agent can be asked for the state as soon as it leads.
func TestStateWhileElected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, err := New(Config{
			Registry: prometheus.NewRegistry(), Log: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		go r.Run(ctx, Term{View: func() *control.View { return &control.View{} }})
		for {
			if state, err := r.State(); err == nil {
				if fault := state.GetFault(); !strings.Contains(fault, "without --rent") {
					t.Errorf("an agent that cannot rent says %q, want the flag", fault)
				}
				break
			}
			time.Sleep(time.Millisecond)
		}
		cancel()
	})
}

// A closer counts how often it is closed.
type closer struct {
	cloud.Provider
	closed int
}

func (c *closer) Close() error {
	c.closed++
	return nil
}

// TestProvidersAreClosed: a provider ends with the policy that names it, and with the term.
func TestProvidersAreClosed(t *testing.T) {
	r := renter(t, t.TempDir())
	var opened []*closer
	r.config.Open = func(*policy.Policy) (cloud.Provider, error) {
		opened = append(opened, &closer{})
		return opened[len(opened)-1], nil
	}
	l := &loop{manager: r, began: time.Now(), term: Term{
		Changed: func() <-chan struct{} { return nil },
	}}
	another := strings.Replace(r.config.Policy, "hour: 1", "hour: 2", 1)
	for _, text := range []string{"", "", another, "mode: of another world"} {
		l.usePolicy(&control.DesiredFleet{Policy: text})
	}
	if len(opened) != 2 || opened[0].closed != 1 || opened[1].closed != 1 {
		t.Fatalf("opened %+v, want two, each closed once", opened)
	}
	l.usePolicy(nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if l.run(ctx); len(opened) != 3 || opened[2].closed != 1 {
		t.Errorf("at the end of the term: %+v", opened)
	}
}

// TestProviderNotFound: an agent that lacks what its provider needs does not start.
func TestProviderNotFound(t *testing.T) {
	_, err := New(Config{
		Policy: renter(t, t.TempDir()).config.Policy, Registry: prometheus.NewRegistry(),
		Find: func(*policy.Policy) error { return errors.New("no program muster-ec2") },
	})
	if err == nil || err.Error() != "rent: no program muster-ec2" {
		t.Errorf("got %v", err)
	}
}

// TestLateFleetIsPlannedLarger: a leader that reads that a model misses its QoS target, on a fleet
// that is as desired and was planned for its load, proposes a larger fleet and says why.
func TestLateFleetIsPlannedLarger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := renter(t, t.TempDir())
		r.config.Policy = strings.Replace(r.config.Policy, "mode: auto", "mode: approve", 1)
		r.config.Policy = strings.Replace(r.config.Policy, "hour: 1", "hour: 9", 1)
		kind := rent.Kind{Type: "g4dn.xlarge"}
		r.config.Open = func(*policy.Policy) (cloud.Provider, error) {
			return &cloudtest.Provider{Fleet: "test", Prices: map[rent.Kind]float64{kind: .526}}, nil
		}
		table, err := profiles.ShippedLibrary().Table("rm2", kind.Type)
		if err != nil {
			t.Fatal(err)
		}
		within := 1.0
		l := &loop{manager: r, began: time.Now(), exact: true, shown: &control.FleetState{}}
		l.term.View = func() *control.View {
			return &control.View{Members: []*control.Member{{Models: []*control.Model{
				{Name: "rm2", Version: 1, QosPercentile: .99},
				{Name: "unmet", Version: 1, QosPercentile: .99},
			}}}}
		}
		l.term.Status = func() *control.FleetStatus {
			return &control.FleetStatus{Rate: 30, Models: []*control.ModelStatus{
				{Model: "rm2", Version: 1, Rate: 28, WithinQos: &within},
				// What no machine could mend does not count.
				{Model: "unmet", Version: 1, Rate: 2, WithinQos: new(float64), UnmetShare: 1},
			}}
		}
		l.term.Demand = func() (*choose.Fleet, error) {
			return &choose.Fleet{Problem: &plan.Problem{Types: []plan.Type{{Name: kind.Type, Price: .526}},
				Models: []plan.ModelDemand{{Name: "rm2", QoSTarget: 350 * time.Millisecond,
					Weight: 1, BatchSizes: []profiles.Share{{BatchSize: 100, Share: 1}},
					Latencies: []plan.Latencies{table}}}}}, nil
		}
		d := &control.DesiredFleet{Known: true}
		l.usePolicy(d)
		l.refresh(t.Context(), l.policy)
		propose := func(of time.Duration) *control.FleetProposal {
			for until := time.Now().Add(of); time.Now().Before(until); time.Sleep(loadEvery) {
				l.look()
				l.plan(t.Context(), l.policy, d)
			}
			return l.shown.GetProposal()
		}
		before := propose(10 * time.Minute)
		d.Counts = before.GetCounts()
		r.desired = d
		if p := propose(10 * time.Minute); p != nil || len(d.Counts) == 0 {
			t.Fatalf("desires %v, and in time %v is proposed", d.Counts, p)
		}
		within = .9
		after := propose(10 * time.Minute)
		if after.GetCounts()[0].GetCount() <= d.Counts[0].GetCount() ||
			!strings.Contains(after.GetWhy(), "10.0 % of the last minute's queries for rm2/1") {
			t.Errorf("late: desires %v, and is proposed %v", d.Counts, after)
		}
	})
}

// TestLatenessHasCause: where queries are late, the agent that holds their model and waits for a
// processor most is named.
func TestLatenessHasCause(t *testing.T) {
	status := &control.FleetStatus{Models: []*control.ModelStatus{
		{Model: "rm2", Version: 1, Rate: 1, WithinQos: proto.Float64(.98)},
	}}
	held := []*control.Model{{Name: "rm2", Version: 1, QosPercentile: .99}}
	other := []*control.Model{{Name: "wnd", Version: 1, QosPercentile: .99}}
	members := []*control.Member{
		{Name: "vm-1", Models: held}, {Name: "vm-2", Models: held}, {Name: "vm-3", Models: held},
		{Name: "vm-4", Models: other, CpuWait: .9},
	}
	if late := latenessOf(status, members); len(late) != 1 || late[0].Cause != "" {
		t.Errorf("without a cause: %+v", late)
	}
	members[1].CpuWait, members[2].CpuWait = .48, .4
	late := latenessOf(status, members)
	if len(late) != 1 || !strings.Contains(late[0].String(), "vm-2 lacks CPU") ||
		!strings.Contains(late[0].Cause, "48 %") {
		t.Errorf("with a cause: %+v", late)
	}
}

// TestHistoryOutlivesLeader: where a load repeats, the next leader foresees it as the one before
// would, though that changed nothing for an hour: from what it was told, and from its disk.
func TestHistoryOutlivesLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		open := func() *Manager {
			r := renter(t, dir)
			r.config.Open = func(*policy.Policy) (cloud.Provider, error) {
				return &cloudtest.Provider{Fleet: "test"}, nil
			}
			return r
		}
		first := leadAlone(open(), 1)
		first.manager.desired = &control.DesiredFleet{Known: true, Identity: "us"}
		began := time.Now()
		observe := func(l *loop) {
			rate := 20.0
			if time.Since(began)%(20*time.Minute) < 8*time.Minute {
				rate = 100
			}
			l.chooser.Observe(l.now(), rate)
		}
		for time.Since(began) < 90*time.Minute {
			observe(first)
			first.noteLearned()
			time.Sleep(2 * time.Second)
		}
		if n := first.manager.Desired().GetVersion(); n < 2 || n > 9 {
			t.Errorf("version %d was told in 90 min", n)
		}
		if s, err := first.manager.State(); err != nil ||
			len(s.GetDesired().GetLearned().GetLoad()) > 0 {
			t.Errorf("state for people: %v, %v", s, err)
		}
		// Nobody leads for three minutes. The disk has the time of the bubble.
		path := first.manager.statePath()
		if err := os.Chtimes(path, time.Time{}, first.manager.storedAt); err != nil {
			t.Fatal(err)
		}
		for range 90 {
			observe(first)
			time.Sleep(2 * time.Second)
		}
		message := first.manager.Message()
		told := open()
		told.desired = nil
		told.Heard(message)
		heirs := map[string]*loop{"told": leadAlone(told, 2), "by its disk": leadAlone(open(), 2)}
		amnesiac := open()
		amnesiac.desired = &control.DesiredFleet{Known: true, Identity: "us"}
		heirs["new"] = leadAlone(amnesiac, 2)
		differ := map[string]int{}
		for range 600 {
			observe(first)
			want, _ := first.chooser.Needed(first.now())
			for name, heir := range heirs {
				observe(heir)
				if got, _ := heir.chooser.Needed(heir.now()); math.Abs(got-want) > .1*want {
					differ[name]++
				}
			}
			time.Sleep(2 * time.Second)
		}
		if differ["told"] > 15 || differ["by its disk"] > 15 || differ["new"] < 60 {
			t.Errorf("of 600 times these need something else: %v", differ)
		}
	})
}

// leadAlone begins a term of the only agent of a fleet.
func leadAlone(r *Manager, epoch uint64) *loop {
	l := &loop{manager: r, began: time.Now(), shown: &control.FleetState{},
		starts: map[string]time.Time{}}
	l.term = Term{Self: "k", Epoch: epoch, Tell: func(*control.DesiredFleet) {},
		View: func() *control.View {
			return &control.View{Members: []*control.Member{
				{Name: "k", Lanes: 1, Role: "may"},
			}}
		}}
	l.usePolicy(r.Desired())
	r.term = l
	return l
}

// TestLearnedOutlivesLeader: how long machines boot and which load is safe go with what is desired,
// so that the next leader knows them; a boot that is as expected makes no other version.
func TestLearnedOutlivesLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := renter(t, t.TempDir())
		r.config.Open = func(*policy.Policy) (cloud.Provider, error) {
			return &cloudtest.Provider{Fleet: "test"}, nil
		}
		r.desired = &control.DesiredFleet{Known: true, Identity: "us"}
		kind := rent.Kind{Type: "g4dn.xlarge"}
		boot := func(l *loop, id string, took time.Duration) {
			m := rent.Machine{Instance: rent.Instance{ID: id, Slot: rent.Slot{Kind: kind}},
				Phase: rent.Starting}
			l.count(&rent.Step{Machines: []rent.Machine{m}})
			time.Sleep(took)
			m.Phase = rent.Serving
			l.count(&rent.Step{Machines: []rent.Machine{m}})
			l.noteLearned()
		}
		first := leadAlone(r, 1)
		boot(first, "i-1", 5*time.Minute)
		version := r.Desired().GetVersion()
		boot(first, "i-2", 5*time.Minute-10*time.Second)
		if r.Desired().GetVersion() != version || version != 1 {
			t.Errorf("version %d, then %d", version, r.Desired().GetVersion())
		}
		first.chooser.SetSafeLoad(.5, "late")
		first.noteLearned()
		next := leadAlone(r, 2)
		boots, safe := next.chooser.BootTimes(), next.chooser.SafeLoad()
		if boots[kind.Type] < 4*time.Minute || safe.Share != .5 || safe.Why != "late" {
			t.Errorf("the next leader knows boots %v, a safe load of %v: %s", boots, safe.Share,
				safe.Why)
		}
	})
}
