//go:build fleet

package fleet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/client"
	"github.com/muster-serve/muster/cloud/process"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/scripts/test/harness"
)

// One machine of each type stays, whatever is planned.
const upgradedFleet = `fleet: upgraded
mode: auto
limits:
  max_price_usd_per_hour: 3
  types: {g4dn.xlarge: {min: 1, max: 2}, r5n.large: {min: 1, max: 4}}
calm: 5m
process: {dir: %q, models: %q, boots: 1s}
`

// upgradedFloor is a floor that excludes the less accurate variant of the family.
const upgradedFloor = "families: {rank: {min_accuracy: .99}}\n"

// testUpgradeRented has three agents of the previous version rent machines for a family, whose
// variants the leader places. They are replaced in place, with the files that they keep, by agents
// of this version, and later back again, while an SDK of each version sends queries. Wanted: no
// query fails; the commands of each version understand the agents of the other; the machines that
// the previous version has rented go on to serve, and each leader, of either version, replaces one
// that ends; this version has one plan, with a state, which all agents tell; a floor of accuracy
// that the fleet's policy states is told by all agents that rent; and what is desired of the fleet
// never goes back to what it was before. The short form is the same.
func (r *run) testUpgradeRented(ctx context.Context) error {
	previous, err := r.findPrevious(ctx)
	if err != nil {
		return err
	}
	u, err := r.startUpgraded(ctx, previous)
	if err != nil {
		return err
	}
	begin := time.Now()
	old, err := r.startPrevious(previous, "rank", u.fleet, 5)
	if err != nil {
		return err
	}
	r.atEnd = append(r.atEnd, func() { _ = old.cmd.Process.Kill() }) // if it still runs
	d, err := harness.NewDriver(ctx, u.client, map[string]float64{"rank": 1}, harness.Patience)
	if err != nil {
		return err
	}
	if err := d.Start(ctx, harness.Load{Rate: 15, Seed: r.seed}); err != nil {
		return err
	}
	for _, step := range []func(context.Context) error{
		u.rentAsPrevious, u.upgrade, u.demandFloor, u.downgrade,
	} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	if err := r.endLoad(d, begin); err != nil {
		return err
	}
	if err := r.wantNoneFailed(old); err != nil {
		return err
	}
	r.checkWanted(u.backwards == "", "what is desired never goes back%s", u.backwards)
	return r.destroyRented(ctx, u.client)
}

// startUpgraded starts three agents of the previous version that rent.
func (r *run) startUpgraded(ctx context.Context, previous string) (*upgradedRun, error) {
	machines := r.killAtEnd()
	f, err := r.newFleet(ctx, "rm2", "dien")
	if err != nil {
		return nil, err
	}
	if err := r.rateVariants("rank", 350*time.Millisecond, f.Models, 1, .98); err != nil {
		return nil, err
	}
	f.Models = nil // that every agent serves
	u := &upgradedRun{previous: previous,
		text: fmt.Sprintf(upgradedFleet, machines, filepath.Join(r.dir, "models")),
		rentedRun: &rentedRun{run: r, fleet: f, machines: machines,
			file: filepath.Join(r.dir, "fleet.yaml")},
	}
	err = errors.Join(os.WriteFile(u.file, []byte(u.text), 0o644),
		os.Setenv("MUSTER_MODEL_CONTROL", "leader")) // of the machines, too
	if err != nil {
		return nil, err
	}
	f.Muster, f.Args = previous, append(f.Args, "--rent", u.file)
	if err := r.start(ctx, f, pool(0, 3)); err != nil {
		return nil, err
	}
	return u, u.awaitFamily(ctx)
}

var settingsOfTime = regexp.MustCompile(`(?m)^(qos_target_ms|deadline_ms):.*\n`)

// rateVariants makes variants of a family of models, with the same QoS target and a deadline that a
// busy machine keeps.
func (r *run) rateVariants(family string, target time.Duration, names []string,
	accuracies ...float64) error {
	for i, name := range names {
		config := filepath.Join(r.dir, "models", name, models.ConfigFile)
		text, err := os.ReadFile(config)
		if err != nil {
			return err
		}
		text = fmt.Appendf(settingsOfTime.ReplaceAll(text, nil),
			"qos_target_ms: %d\ndeadline_ms: %d\n", target.Milliseconds(),
			harness.Patience.Milliseconds())
		if err := errors.Join(os.WriteFile(config, text, 0o644), models.WriteRating(config,
			models.Rating{Family: family, Accuracy: accuracies[i]})); err != nil {
			return err
		}
	}
	return nil
}

// killAtEnd returns the folder for rented machines, which are killed at the end. Call it before the
// agents that rent are there: these end first then, and do not replace what is killed.
func (r *run) killAtEnd() (machines string) {
	machines = filepath.Join(r.dir, "machines")
	r.atEnd = append(r.atEnd, func() { process.KillAll(machines) })
	return machines
}

// A rentedRun follows a fleet of agents that rent.
type rentedRun struct {
	*run
	fleet          *harness.Fleet
	client         *client.Client
	machines, file string // the folder of the machines, and fleet.yaml

	desired   *control.DesiredFleet // the newest seen
	backwards string                // what was desired after it and is older; "": nothing
}

// awaitFamily makes the client, and waits until a family is served.
func (u *rentedRun) awaitFamily(ctx context.Context) (err error) {
	if u.client, err = u.newClient(u.fleet.Addresses()); err != nil {
		return err
	}
	return u.await(ctx, "the family is served", func(*control.FleetState) bool {
		s, err := u.client.Status(ctx)
		return err == nil && len(s.GetFamilies()) == 1
	})
}

// await waits until good, for placedPatience at most, and watches what is desired.
func (u *rentedRun) await(ctx context.Context, what string,
	good func(*control.FleetState) bool) error {
	start := time.Now()
	var last *control.FleetState
	var err error
	for time.Since(start) < placedPatience {
		var s *control.FleetState
		if s, err = u.client.Fleet(ctx); err == nil {
			u.watchDesired(s.GetDesired())
			if last = s; good(s) {
				u.printLine("  after %.1f s: %s; %s, $%.3f/hr", time.Since(start).Seconds(), what,
					countMachines(s), s.GetPriceUsdPerHour())
				return nil
			}
		}
		if err := harness.Settle(ctx, 200*time.Millisecond); err != nil {
			return err
		}
	}
	return errors.Join(fmt.Errorf("after %v not: %s; %v", placedPatience, what, last), err)
}

// setPolicy applies a fleet.yaml. Soon after a change of leader, an agent may not know yet whom to
// ask, or the connection to the one asked may be about to end.
func (u *rentedRun) setPolicy(ctx context.Context, text string) error {
	return u.await(ctx, "another policy is applied", func(*control.FleetState) bool {
		_, err := u.client.SetFleet(ctx, &control.SetFleetRequest{
			Change: &control.SetFleetRequest_Policy{Policy: text}})
		return err == nil
	})
}

// watchDesired notes where what a leader desires is older than what one has desired before.
func (u *rentedRun) watchDesired(d *control.DesiredFleet) {
	if u.desired != nil && (d.GetVersion() < u.desired.GetVersion() ||
		d.GetIdentity() != u.desired.GetIdentity()) {
		u.backwards = fmt.Sprintf(": version %d of %s, then %d of %s", u.desired.GetVersion(),
			u.desired.GetIdentity(), d.GetVersion(), d.GetIdentity())
	}
	if d.GetIdentity() != "" {
		u.desired = d
	}
}

// serving are the machines that serve, by slot, as text.
func serving(s *control.FleetState) map[string]string {
	all := map[string]string{}
	for _, m := range s.GetMachines() {
		if m.GetPhase() == "serving" {
			all[m.GetSlot()] = m.GetInstance()
		}
	}
	return all
}

// An upgradedRun follows a fleet through its upgrade.
type upgradedRun struct {
	*rentedRun
	previous, text string
}

// awaitBoth waits until a machine of each type serves.
func (u *upgradedRun) awaitBoth(ctx context.Context, what string) (map[string]string, error) {
	var all map[string]string
	return all, u.await(ctx, what, func(s *control.FleetState) bool {
		all = serving(s)
		types := map[string]bool{}
		for slot := range all {
			kind, _, _ := strings.Cut(slot, "/")
			types[kind] = true
		}
		return len(types) == 2
	})
}

// rentAsPrevious waits until the previous version has rented.
func (u *upgradedRun) rentAsPrevious(ctx context.Context) error {
	_, err := u.awaitBoth(ctx, "the previous version serves with rented machines")
	return err
}

// replaceAll replaces the agents that rent in place. After each, the commands of both versions ask
// the fleet. It wants that a machine of each type goes on to serve.
func (u *upgradedRun) replaceAll(ctx context.Context, way, muster string) error {
	state, err := u.client.Fleet(ctx)
	if err != nil {
		return err
	}
	before := serving(state)
	u.fleet.Muster = muster
	for i, n := range slices.Clone(u.fleet.Nodes) {
		if err := u.replaceAgent(ctx, u.fleet, n, true); err != nil {
			return err
		}
		for _, version := range []string{u.previous, u.muster} {
			for _, command := range [][]string{{"status", "--json"}, {"fleet", "status", "--json"}} {
				u.askEach(ctx, version, way, i+1, command)
			}
		}
	}
	after, err := u.awaitBoth(ctx, "all agents that rent are "+way)
	if err != nil {
		return err
	}
	kept := map[string]bool{}
	for slot, instance := range before {
		if after[slot] == instance {
			kind, _, _ := strings.Cut(slot, "/")
			kept[kind] = true
		}
	}
	u.checkWanted(len(kept) == 2, "machines of %d types serve as before, want 2: %v, then %v",
		len(kept), before, after)
	return nil
}

// askEach has a command ask each agent, and wants an answer. A leader may be about to be elected:
// that the command then says so is an answer that comes again.
func (u *upgradedRun) askEach(ctx context.Context, muster, way string, replaced int,
	command []string) {
	for _, n := range u.fleet.Nodes {
		var err error
		for range 50 {
			_, err = harness.Output(ctx, "", muster, append(command, "--server", n.GRPC)...)
			if err == nil || !strings.Contains(err.Error(), "leader") {
				break
			}
			if err := harness.Settle(ctx, 200*time.Millisecond); err != nil {
				break
			}
		}
		if err != nil {
			u.wantNil(err, "with %d agents %s, %s %s succeeds", replaced, way, muster,
				strings.Join(command, " "))
		}
	}
}

// upgrade replaces the agents, has the leader replace a machine, and asks for the plan.
func (u *upgradedRun) upgrade(ctx context.Context) error {
	if err := u.replaceAll(ctx, "upgraded", u.muster); err != nil {
		return err
	}
	if err := u.loseMachine(ctx, "this version"); err != nil {
		return err
	}
	return u.await(ctx, "each agent tells the same plan, with a state",
		func(*control.FleetState) bool {
			told := map[string]bool{}
			for _, n := range u.fleet.Nodes {
				conn, err := u.fleet.Dial(ctx, n)
				if err != nil {
					return false
				}
				s, err := control.NewControlClient(conn).Status(ctx, &control.StatusRequest{})
				conn.Close()
				if err != nil || s.GetPlan().GetState() == "" {
					return false
				}
				told[fmt.Sprint(s.GetPlan().GetNumber(), s.GetPlan().GetState())] = true
			}
			return len(told) == 1
		})
}

// loseMachine kills an r5n.large and waits until there is another in its place.
func (u *upgradedRun) loseMachine(ctx context.Context, version string) error {
	const kind = "r5n.large/"
	s, err := u.client.Fleet(ctx)
	if err != nil {
		return err
	}
	before := map[string]bool{}
	lost := ""
	for slot, instance := range serving(s) {
		before[instance] = true
		if strings.HasPrefix(slot, kind) {
			lost = instance
		}
	}
	if err := process.Signal(u.machines, lost, syscall.SIGKILL); err != nil {
		return err
	}
	return u.await(ctx, version+" has replaced a machine that ended",
		func(s *control.FleetState) bool {
			for slot, instance := range serving(s) {
				if strings.HasPrefix(slot, kind) && !before[instance] {
					return true
				}
			}
			return false
		})
}

// demandFloor states a floor of accuracy in the fleet's policy.
func (u *upgradedRun) demandFloor(ctx context.Context) error {
	if err := u.setPolicy(ctx, u.text+upgradedFloor); err != nil {
		return err
	}
	return u.await(ctx, "all agents that rent state the floor", func(*control.FleetState) bool {
		view, err := u.fleet.View(ctx, u.fleet.Nodes[0])
		states := 0
		for _, m := range view.GetMembers() {
			for _, a := range m.GetAccuracies() {
				if a.GetFamily() == "rank" && a.GetMinAccuracy() == .99 {
					states++
				}
			}
		}
		return err == nil && states == len(u.fleet.Nodes)
	})
}

// downgrade takes the floor away and replaces the agents. As the leader, the previous version rents
// nothing by a policy that states a floor, and takes no other policy then.
func (u *upgradedRun) downgrade(ctx context.Context) error {
	if _, err := harness.Output(ctx, "", u.previous, "fleet", "apply", u.file, "--yes", "--server",
		strings.Join(u.fleet.Addresses(), ",")); err != nil {
		return err
	}
	if err := u.replaceAll(ctx, "downgraded", u.previous); err != nil {
		return err
	}
	return u.loseMachine(ctx, "the previous version")
}
