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
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/leader/place"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/models/zoo"
	"github.com/muster-serve/muster/profiles"
	"github.com/muster-serve/muster/profiles/workload"
	"github.com/muster-serve/muster/scripts/test/harness"
)

// The families of placement, and their variants: the accuracy of each, and how long it runs.
var (
	placedFamilies = []string{"ads", "feed", "search"}
	placedVariants = []struct {
		suffix   string
		accuracy float64
		latency  time.Duration
	}{
		{"large", 1, 80 * time.Millisecond}, {"medium", .98, 32 * time.Millisecond},
		{"small", .95, 16 * time.Millisecond},
	}
)

const (
	placedType   = "r5n.large"
	placedTarget = 400 * time.Millisecond
	// placedPeriod is the time between two plans.
	placedPeriod = 10 * time.Second
	// placedPatience is how long a busy machine may take to get somewhere.
	placedPatience = 4 * time.Minute
)

// testPlacement has six agents, which hold what the leader places on them, of three families of
// three variants. The load is what the largest variants can serve, then three times as much, and
// then as before; soon after it has risen, while agents change, the leader is killed. Wanted: the
// accuracy falls and comes back; no query fails; no agent takes a layout that is older than its
// last; the next leader goes on with the placement; and, in the long form, at most 1 % are late
// outside two periods after each step, and the simulator finds the same within 5 %.
func (r *run) testPlacement(ctx context.Context) error {
	f := &harness.Fleet{Muster: r.muster, Dir: r.dir, Args: []string{
		"--executor", "emulated", "--profile", filepath.Join(r.dir, "profiles.json"),
		"--model-control", "leader",
	}}
	r.atEnd = append(r.atEnd, f.Stop)
	bytes, err := r.placedModels(ctx)
	if err != nil {
		return err
	}
	// Two models at a time, so that one is loaded before the other is unloaded.
	f.Args = append(f.Args, "--model-memory", fmt.Sprint(2*bytes))
	const agents = 6
	for i := range agents {
		if err := r.addPlaced(ctx, f, i); err != nil {
			return err
		}
	}
	if err := f.WaitComplete(ctx); err != nil {
		return err
	}
	r.printLine(
		"%d emulated agents hold what the leader places, of %d families of %d variants; logs in %s",
		agents, len(placedFamilies), len(placedVariants), r.dir)
	p := &placedRun{run: r, fleet: f}
	c, err := r.newClient(f.Addresses())
	if err != nil {
		return err
	}
	shares := map[string]float64{}
	for _, family := range placedFamilies {
		shares[family] = 1
	}
	var d *harness.Driver
	if err := p.awaitStatus(ctx, "every family is served", func(s *control.FleetStatus) bool {
		d, err = harness.NewDriver(ctx, c, shares, harness.Patience)
		return err == nil && len(s.GetFamilies()) == len(placedFamilies)
	}); err != nil {
		return err
	}
	return p.load(ctx, d)
}

// placedModels writes the models and their profiles. It returns how many bytes one model takes.
func (r *run) placedModels(ctx context.Context) (bytes int64, err error) {
	base := filepath.Join(r.dir, "base")
	if _, err := zoo.Generate(ctx, base, "ncf", zoo.Options{Scale: zoo.Small}); err != nil {
		return 0, err
	}
	if bytes, err = sizeOfFiles(filepath.Join(base, "ncf", "1")); err != nil {
		return 0, err
	}
	var infos []profiles.ModelInfo
	var tables []*profiles.Table
	book := profiles.NewBook(nil)
	for _, family := range placedFamilies {
		for _, v := range placedVariants {
			name := family + "-" + v.suffix
			to := filepath.Join(r.dir, "models", name)
			if err := os.CopyFS(to, os.DirFS(filepath.Join(base, "ncf"))); err != nil {
				return 0, err
			}
			config := filepath.Join(to, models.ConfigFile)
			text, err := os.ReadFile(config)
			if err != nil {
				return 0, err
			}
			// Alone on a lane, so that the capacity is that of the latencies.
			changed := regexp.MustCompile(`(?m)^(qos_target_ms|deadline_ms|merge):.*\n`).ReplaceAll(
				text,
				nil)
			changed = fmt.Appendf(changed, "qos_target_ms: %d\ndeadline_ms: %d\nmerge: none\n",
				placedTarget.Milliseconds(), harness.Patience.Milliseconds())
			err = errors.Join(os.WriteFile(config, changed, 0o644),
				models.WriteRating(config, models.Rating{Family: family, Accuracy: v.accuracy}))
			if err != nil {
				return 0, err
			}
			key := profiles.Key{Model: name, InstanceType: placedType, Provider: "cpu"}
			knot := func(batch int) profiles.Knot {
				return profiles.Knot{
					BatchSize: batch, Mean: v.latency, P50: v.latency, P90: v.latency * 105 / 100,
					P99: v.latency * 110 / 100,
				}
			}
			table, err := profiles.NewTable(key, profiles.Measured, "placement",
				[]profiles.Knot{knot(1), knot(profiles.MaxBatchSize)})
			if err != nil {
				return 0, err
			}
			infos = append(infos, profiles.ModelInfo{
				Name: name, QoSTarget: placedTarget, LargestBatchSize: profiles.MaxBatchSize,
			})
			tables = append(tables, table)
			key.Version = 1
			book.Begin(key, table.As(key))
		}
	}
	library, err := profiles.NewLibrary("scripts/test/fleet placement", "", infos, tables)
	if err != nil {
		return 0, err
	}
	out, err := os.Create(filepath.Join(r.dir, "profiles.json"))
	if err != nil {
		return 0, err
	}
	// The fleet has run the models before.
	return bytes, errors.Join(library.Write(out), out.Close(),
		book.Save(filepath.Join(r.dir, "learned.json")))
}

// sizeOfFiles is that of the files in a folder, in bytes.
func sizeOfFiles(folder string) (bytes int64, err error) {
	return bytes, filepath.WalkDir(folder, func(path string, e os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err == nil && info.Mode().IsRegular() {
			bytes += info.Size()
		}
		return err
	})
}

// addPlaced starts an agent that knows the latencies.
func (r *run) addPlaced(ctx context.Context, f *harness.Fleet, i int) error {
	state := filepath.Join(r.dir, fmt.Sprintf("placed-%d", i))
	learned, err := os.ReadFile(filepath.Join(r.dir, "learned.json"))
	if err != nil {
		return err
	}
	if err := errors.Join(os.MkdirAll(state, 0o755),
		os.WriteFile(filepath.Join(state, "profiles.json"), learned, 0o644)); err != nil {
		return err
	}
	_, err = f.Add(ctx, placedType, "--state-dir", state)
	return err
}

// A placedRun follows a placement.
type placedRun struct {
	*run
	fleet *harness.Fleet
	last  *control.FleetStatus
}

// fleetStatus is the fleet's, as an agent says that is there.
func (p *placedRun) fleetStatus(ctx context.Context) (*control.FleetStatus, error) {
	var errs []error
	for _, n := range p.fleet.Nodes {
		conn, err := p.fleet.Dial(ctx, n)
		if err != nil {
			return nil, err
		}
		asking, cancel := context.WithTimeout(ctx, 5*time.Second)
		s, err := control.NewControlClient(conn).Status(asking, &control.StatusRequest{})
		cancel()
		conn.Close()
		if err == nil {
			return s, nil
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

// awaitStatus waits until good.
func (p *placedRun) awaitStatus(ctx context.Context, what string,
	good func(*control.FleetStatus) bool) error {
	start := time.Now()
	var last *control.FleetStatus
	for time.Since(start) < placedPatience {
		s, err := p.fleetStatus(ctx)
		if err == nil && s.GetPlacement() != nil {
			if last = s; good(s) {
				p.printLine("  after %.1f s: %s; placement %d, accuracy %s%s",
					time.Since(start).Seconds(),
					what, s.GetPlacement().GetVersion(), accuracies(s), refusals(s))
				p.last = s
				return nil
			}
		}
		if err := harness.Settle(ctx, 200*time.Millisecond); err != nil {
			return err
		}
	}
	return fmt.Errorf("after %v not: %s; %v, %v", placedPatience, what, last.GetPlacement(),
		last.GetFamilies())
}

// arrived is whether all agents hold what they should.
func arrived(s *control.FleetStatus) bool {
	return len(s.GetPlacement().GetAgents()) == 6 &&
		!slices.ContainsFunc(s.GetPlacement().GetAgents(),
			func(a *control.PlacementStatus_AgentPlaced) bool {
				return a.GetWanted() != "" || a.GetWaits() != ""
			})
}

// accuracy is the mean effective accuracy of the families; 0 if one has answered nothing lately.
func accuracy(s *control.FleetStatus) float64 {
	sum := 0.
	for _, f := range s.GetFamilies() {
		if f.Accuracy == nil {
			return 0
		}
		sum += f.GetAccuracy()
	}
	return sum / float64(max(1, len(s.GetFamilies())))
}

func accuracies(s *control.FleetStatus) string {
	var all []string
	for _, f := range s.GetFamilies() {
		all = append(all, fmt.Sprintf("%s %.4f", f.GetFamily(), f.GetAccuracy()))
	}
	return strings.Join(all, ", ")
}

// refusals says how many queries were refused and why, as far as the leader knows.
func refusals(s *control.FleetStatus) (text string) {
	for _, m := range s.GetModels() {
		for _, why := range m.GetRefusals() {
			text += fmt.Sprintf("; refused of %q: %s %d", m.GetModel(), why.GetReason(),
				why.GetCount())
		}
	}
	return text
}

// load sends the steps of load, kills the leader in the second, and says what was found.
func (p *placedRun) load(ctx context.Context, d *harness.Driver) error {
	one, err := workload.Weighted("1", []workload.Probability{{BatchSize: 1, P: 1}})
	if err != nil {
		return err
	}
	// rate is so low that the largest variants can serve the most that comes in a second, of which
	// placements are made; accurate is nearly all by the largest.
	const rate, accurate = 24, .995
	phases := []placedPhase{
		{what: "at the first rate", times: 1}, {what: "at three times the rate", times: 3},
		{what: "at the first rate again", times: 1},
	}
	var began time.Time
	end := func(phase *placedPhase) error {
		report, err := d.StopAndReport()
		if err == nil {
			phase.addReport(report, d.Between(began, time.Now()))
		}
		return err
	}
	step := func(times float64) error {
		p.seed++
		began = time.Now()
		return d.Start(ctx, harness.Load{Rate: times * rate, Seed: p.seed, BatchSizes: one})
	}
	begin := time.Now()
	if err := step(1); err != nil {
		return err
	}
	if err := p.awaitStatus(ctx, "the largest variants answer", func(s *control.FleetStatus) bool {
		return s.GetPlacement().GetVersion() > 1 && accuracy(s) > accurate
	}); err != nil {
		return err
	}
	if err := errors.Join(d.Stop(), step(1)); err != nil {
		return err
	}
	calm := time.Now()
	if err := harness.Settle(ctx, pick(p.run, time.Minute, time.Second)); err != nil {
		return err
	}
	p.onTime(d, "at the first rate", calm, time.Now())

	version, rise := p.last.GetPlacement().GetVersion(), time.Now()
	if err := errors.Join(end(&phases[0]), step(3)); err != nil {
		return err
	}
	if err := p.awaitStatus(ctx, "agents change", func(s *control.FleetStatus) bool {
		return s.GetPlacement().GetVersion() > version && !arrived(s)
	}); err != nil {
		return err
	}
	if err := p.killLeader(ctx); err != nil {
		return err
	}
	killed := time.Now()
	if err := p.awaitStatus(ctx, "the accuracy has fallen", func(s *control.FleetStatus) bool {
		return accuracy(s) > 0 && accuracy(s) < accurate-.005
	}); err != nil {
		return err
	}
	if err := harness.Settle(ctx, pick(p.run, time.Minute, time.Second)-time.Since(rise)); err !=
		nil {
		return err
	}
	after := killed.Add(2 * placedPeriod)
	if time.Now().After(after) {
		p.onTime(d, "at three times the rate, two periods after the leader was killed", after,
			time.Now())
	}

	fall := time.Now()
	if err := errors.Join(end(&phases[1]), step(1)); err != nil {
		return err
	}
	if err := p.awaitStatus(ctx, "the accuracy has come back", func(s *control.FleetStatus) bool {
		return accuracy(s) > accurate
	}); err != nil {
		return err
	}
	if err := harness.Settle(ctx, pick(p.run, time.Minute, time.Second)-time.Since(fall)); err !=
		nil {
		return err
	}
	if after := fall.Add(2 * placedPeriod); time.Now().After(after) {
		p.onTime(d, "at the first rate again, after two periods", after, time.Now())
	}
	if err := end(&phases[2]); err != nil {
		return err
	}
	all := d.Between(begin, time.Now())
	p.printLine("  all: %v", all)
	p.checkWanted(all.Wrong == 0 && all.Queries > 0,
		"%d answers of %d queries were wrong, want none",
		all.Wrong, all.Queries)
	p.checkWanted(d.NotFound() == 0, "%d queries were not found, want none", d.NotFound())
	p.wantQuiet(all.Failed+all.Refused+all.Robbed == 0,
		"%d of %d queries failed or were refused, want none",
		all.Failed+all.Refused, all.Queries)
	p.checkWanted(d.Twice() == 0, "%d queries were answered twice, want none", d.Twice())
	return errors.Join(p.checkFenced(), p.compareWithSimulated(ctx, rate, phases))
}

// onTime wants that at most 1 % of the queries sent in [from, to) are late.
func (p *placedRun) onTime(d *harness.Driver, when string, from, to time.Time) {
	c := d.Between(from, to)
	p.wantQuiet(c.PercentLate() <= 1, "%s %.2f %% of %d queries are late, want at most 1 %%", when,
		c.PercentLate(), c.Queries)
}

// killLeader kills the leader while agents change, starts an agent in its place, and wants that the
// next leader goes on with the placement.
func (p *placedRun) killLeader(ctx context.Context) error {
	leader, epoch, err := p.fleet.Leader(ctx)
	if err != nil {
		return err
	}
	before := wants(p.last)
	leader.Signal(syscall.SIGKILL)
	took, err := p.fleet.AwaitLeader(ctx, leader, epoch)
	if err != nil {
		return err
	}
	<-leader.Exited()
	p.fleet.Remove(leader)
	p.printLine("  the leader, %v, was killed while agents changed; another leads after %v", leader,
		took.Round(time.Millisecond))
	version := p.last.GetPlacement().GetVersion()
	if err := p.awaitStatus(ctx, "the next leader has a placement",
		func(s *control.FleetStatus) bool {
			return s.GetPlacement().GetVersion() >= version
		}); err != nil {
		return err
	}
	goesOn := true
	for agent, wanted := range wants(p.last) {
		if before[agent] != "" && p.last.GetPlacement().GetVersion() == version {
			goesOn = goesOn && before[agent] == wanted
		}
	}
	p.checkWanted(goesOn,
		"the next leader goes on with placement %d, and wants the same of the agents",
		version)
	return p.addPlaced(ctx, p.fleet, 6)
}

// wants is what each agent should hold.
func wants(s *control.FleetStatus) map[string]string {
	all := map[string]string{}
	for _, a := range s.GetPlacement().GetAgents() {
		all[a.GetAgent()] = a.GetHolds()
		if a.GetWanted() != "" {
			all[a.GetAgent()] = a.GetWanted()
		}
	}
	return all
}

var orderTaken = regexp.MustCompile(
	`changes to layout.* layout=(\S+) epoch=(\d+) version=(\d+)`)

// checkFenced wants that no agent has taken a layout that was older than its last.
func (p *placedRun) checkFenced() error {
	logs, err := filepath.Glob(filepath.Join(p.dir, "agent-*.log"))
	if err != nil {
		return err
	}
	orders, older := 0, 0
	for _, path := range logs {
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		var last place.Stamp
		for _, m := range orderTaken.FindAllStringSubmatch(string(text), -1) {
			epoch, _ := strconv.ParseUint(m[2], 10, 64) // the expression matches digits
			version, _ := strconv.ParseUint(m[3], 10, 64)
			now := place.Stamp{Epoch: epoch, Version: version}
			if orders++; now.Compare(last) <= 0 {
				older++
			}
			last = now
		}
	}
	p.checkWanted(orders > 0 && older == 0,
		"agents took %d layouts, %d of them older than the one before, "+
			"want some and none", orders, older)
	return nil
}
