//go:build fleet

package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/status"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/client"
	"github.com/muster-serve/muster/scripts/test/harness"
)

// testMetrics sends an agent that is alone, and then a fleet, three times the queries that they can
// serve, and asks a real Prometheus every question of docs/metrics.md, one with native histograms
// and one without. Wanted: the answers are what the clients have counted, and the status has the
// same failures by reason. The short form takes less time, and allows for what a busy machine does:
// agents answer queries that clients have given up, late.
func (r *run) testMetrics(ctx context.Context) error {
	document, err := os.ReadFile("docs/metrics.md")
	if err != nil {
		return err
	}
	questions := questionsOf(string(document))
	r.checkWanted(len(questions) == len(answers), "docs/metrics.md has %d questions, want %d",
		len(questions),
		len(answers))
	files, err := harness.Output(ctx, "", "scripts/debian.sh", "prometheus")
	if err != nil {
		return skip{err}
	}
	for _, types := range [][]string{{"g4dn.xlarge"}, pool(1, 2)} {
		if err := r.overloadedMetrics(ctx, filepath.Join(files, "usr/bin/prometheus"), types,
			questions); err != nil {
			return err
		}
	}
	return nil
}

// A question is a query of docs/metrics.md, with the first words of what it asks.
type question struct{ asks, query string }

func questionsOf(document string) (all []question) {
	_, section, _ := strings.Cut(document, "## Questions they answer")
	section, _, _ = strings.Cut(section, "\n## ")
	block := regexp.MustCompile("(?s)\n([^\n]+(?:\n[^\n]+)*):\n\n```\n(.*?)```")
	for _, m := range block.FindAllStringSubmatch(section, -1) {
		all = append(all, question{strings.ReplaceAll(m[1], "\n", " "), m[2]})
	}
	return all
}

// An overloadCounts is what clients have counted in an overload of 300 s: rates over 5 minutes of
// it are its counts by 300.
type overloadCounts struct {
	harness.Count
	took    []time.Duration   // of those answered
	agents  map[string]int    // by instance type
	reasons map[string]uint64 // of failures
	unread  float64           // queries of which agents know no model, by what Prometheus has
	lasted  time.Duration
	// given is how many queries clients have given up, in a short run; else 0. Agents have answered
	// them, refused them for another reason, or never read them.
	given float64
	short bool
}

func (o *overloadCounts) countAnswered() float64 { return float64(o.OnTime + o.Late) }

// p99Seconds is the 99th percentile of the latency, in seconds, of those answered.
func (o *overloadCounts) p99Seconds() float64 {
	slices.Sort(o.took)
	return o.took[len(o.took)*99/100].Seconds()
}

func (o *overloadCounts) countFailures() (sum float64) {
	for _, n := range o.reasons {
		sum += float64(n)
	}
	return sum
}

// rateTolerance is by how much a rate may differ, of 1.
func (o *overloadCounts) rateTolerance() float64 {
	if o.short {
		return 0.2
	}
	return 0.05
}

// outcome is the reason of a failure, or "deadline" for a query that was cancelled: an agent may
// see that its client has gone before it sees that the deadline has passed.
func outcome(reason string) string {
	if reason == "cancelled" {
		return "deadline"
	}
	return reason
}

// window is the time, in seconds, over which the questions average.
const window = 300

// answers say what is wrong with the answer to a question that begins with these words; nil:
// nothing.
var answers = map[string]func(*overloadCounts, []harness.Sample) error{
	"Queries that arrive each second": func(o *overloadCounts, got []harness.Sample) error {
		got = slices.DeleteFunc(got, func(s harness.Sample) bool { return s.Labels["model"] == "" })
		return about(got, map[string]string{"model": "dien"},
			float64(o.Queries)-o.unread, o)
	},
	"Share of them that is answered within": func(o *overloadCounts, got []harness.Sample) error {
		return within(got, map[string]string{"model": "dien"}, 1, o)
	},
	"Models whose share is below": func(o *overloadCounts, got []harness.Sample) error {
		if read := float64(o.Queries) - o.unread; len(got) == 0 &&
			o.countAnswered()+o.given >= .96*read {
			return nil // the agents may have read none of those that failed
		}
		return within(got, map[string]string{"model": "dien"}, 100, o)
	},
	"Queries that fail each second": func(o *overloadCounts, got []harness.Sample) error {
		sum := harness.Sample{Labels: map[string]string{"model": "dien"}}
		for _, s := range got {
			known := o.reasons[outcome(s.Labels["reason"])] > 0 && s.Labels["model"] == "dien"
			if !known && s.Labels["model"] != "" {
				return fmt.Errorf("there is %v, clients were told %v", s, o.reasons)
			}
			sum.Value += s.Value
		}
		return about([]harness.Sample{sum}, sum.Labels, o.countFailures(), o)
	},
	"99th percentile": func(o *overloadCounts, got []harness.Sample) error {
		return slowest(got, o, 1.5) // a bucket is that wide
	},
	"The same of a Prometheus that takes native": func(o *overloadCounts, got []harness.Sample) error {
		return slowest(got, o, 1.1)
	},
	"Queries answered each second, by instance": func(o *overloadCounts, got []harness.Sample) error {
		sum := harness.Sample{}
		for _, s := range got {
			if o.agents[s.Labels["instance_type"]] == 0 {
				return fmt.Errorf("there is %v, agents are %v", s, o.agents)
			}
			sum.Value += s.Value
		}
		return about([]harness.Sample{sum}, nil, o.countAnswered(), o)
	},
	"Instances, by type": func(o *overloadCounts, got []harness.Sample) error {
		for typ, n := range o.agents {
			if !slices.ContainsFunc(got, func(s harness.Sample) bool {
				return s.Labels["instance_type"] == typ && s.Value == float64(n) &&
					s.Labels["price"] > "0"
			}) {
				return fmt.Errorf("no %d x %s with a price in %v", n, typ, got)
			}
		}
		return nil
	},
	"How busy": func(o *overloadCounts, got []harness.Sample) error {
		most, least := 0.0, 0.6
		for _, s := range got {
			most = max(most, s.Value*window/o.lasted.Seconds())
		}
		if o.short { // a lane waits while the machine has no time for its agent
			least = 0.05
		}
		if len(got) == 0 || most < least || most > 1.3 {
			return fmt.Errorf("the busiest lanes were busy for %.2f of the time, want nearly 1",
				most)
		}
		return nil
	},
	"Share of attempts whose lane": func(o *overloadCounts, got []harness.Sample) error {
		// It is not a number of an agent that is alone, and above 0 where a busy machine keeps a
		// leader from answering in time.
		if len(got) != 1 || got[0].Value < 0 || got[0].Value > 1 ||
			math.IsNaN(got[0].Value) != (len(o.agents) == 1) {
			return fmt.Errorf("got %v of agents %v, want one share", got, o.agents)
		}
		return nil
	},
	"Whether agents see different": func(_ *overloadCounts, got []harness.Sample) error {
		if len(got) > 0 {
			return fmt.Errorf("got %v, want nothing: they do not", got)
		}
		return nil
	},
}

// about is nil if got is one sample with the labels, near the rate of so many queries.
func about(got []harness.Sample, labels map[string]string, queries float64,
	o *overloadCounts) error {
	want, most := queries/window, (o.rateTolerance()*queries+o.given)/window
	if len(got) != 1 || !maps.Equal(got[0].Labels, labels) ||
		!(math.Abs(got[0].Value-want) <= most) {
		return fmt.Errorf("got %v, want %.3f of %v, by %.3f at most", got, want, labels, most)
	}
	return nil
}

// slowest is nil if got is one sample that is near the p99 of clients, by a factor at most. The way
// to the agent and back is not in got. A short run wants any time: on a busy machine that way is
// long, and agents answer late what clients have given up.
func slowest(got []harness.Sample, o *overloadCounts, factor float64) error {
	want := o.p99Seconds()
	near := len(got) == 1 && got[0].Value > 0
	if !o.short {
		near = near && got[0].Value <= want*factor && got[0].Value >= want/2/factor
	}
	if !near {
		return fmt.Errorf("got %v, want %.3f, by a factor of %.1f at most", got, want, factor)
	}
	return nil
}

// within is nil if got is one sample with the labels, near the share within the QoS target. Clients
// also count the way to the agent and back, and that on a busy machine.
func within(got []harness.Sample, labels map[string]string, unit float64, o *overloadCounts) error {
	read := float64(o.Queries) - o.unread
	least, most := float64(o.OnTime)/float64(o.Queries), (o.countAnswered()+o.given)/read
	if len(got) != 1 || !maps.Equal(got[0].Labels, labels) ||
		!(got[0].Value/unit >= least-0.03 && got[0].Value/unit <= most+0.03) {
		return fmt.Errorf("got %v, want between %.3f and %.3f of %v", got, least*unit, most*unit,
			labels)
	}
	return nil
}

// overloadedMetrics is metrics of one fleet.
func (r *run) overloadedMetrics(ctx context.Context, binary string, types []string,
	questions []question) error {
	dir := r.dir
	defer func() { r.dir = dir }()
	r.dir = filepath.Join(dir, fmt.Sprintf("agents-%d", len(types)))
	f, err := r.newFleet(ctx, "dien")
	if err != nil {
		return err
	}
	if err := r.start(ctx, f, types); err != nil {
		return err
	}
	var targets []string
	o := &overloadCounts{agents: map[string]int{}, reasons: map[string]uint64{}}
	for _, n := range f.Nodes {
		targets = append(targets, n.Metrics)
		o.agents[n.InstanceType]++
	}
	prometheus := map[bool]*harness.Prometheus{}
	for _, native := range []bool{false, true} {
		rules := "deploy/prometheus/muster.rules.yml"
		if native {
			rules = ""
		}
		p, err := harness.StartPrometheus(ctx, binary,
			filepath.Join(r.dir, fmt.Sprintf("prometheus-native-%t", native)), native, targets,
			rules)
		if p != nil {
			defer p.Stop()
		}
		if err != nil {
			return err
		}
		prometheus[native] = p
	}

	sdk, err := r.newClient(f.Addresses())
	if err != nil {
		return err
	}
	plain, err := r.newClient(f.Addresses(), client.WithoutFleet())
	if err != nil {
		return err
	}
	var mu sync.Mutex
	counted := func(c *client.Client) func(context.Context, *oip.Request) (*oip.Response, error) {
		return func(ctx context.Context, req *oip.Request) (*oip.Response, error) {
			sent := time.Now()
			resp, err := c.Infer(ctx, req)
			took := time.Since(sent)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				o.reasons[oip.Reason(status.Convert(err))]++
			} else {
				o.took = append(o.took, took)
			}
			return resp, err
		}
	}
	clients := []harness.Client{{Name: "plain", Share: 1, Infer: counted(plain)}}
	if len(types) > 1 {
		clients = append(clients, harness.Client{Name: "SDK", Share: 1, Infer: counted(sdk)})
	}
	d, err := harness.NewDriver(ctx, plain, map[string]float64{"dien": 1}, 0, clients...)
	if err != nil {
		return err
	}
	limit, err := harness.FluidLimit(ctx, r.muster, harness.Pool(types), map[string]float64{
		"dien": 1,
	})
	if err != nil {
		return err
	}
	o.lasted = pick(r, time.Minute, 5*time.Second)
	o.short = r.short
	status := func() (s *control.FleetStatus, err error) {
		conn, err := f.Dial(ctx, f.Nodes[0])
		if err != nil {
			return nil, err
		}
		defer conn.Close()
		return control.NewControlClient(conn).Status(ctx, &control.StatusRequest{})
	}
	before, err := status()
	if err != nil {
		return err
	}
	begin := time.Now()
	if _, err := d.Run(ctx,
		harness.Load{Rate: 3 * limit, Duration: o.lasted, Seed: r.seed}); err != nil {
		return err
	}
	o.Count = d.Between(begin, time.Now())
	r.printLine("  at three times the fluid limit of %.0f queries/s: %v; failures %v", limit,
		o.Count,
		o.reasons)
	if r.short && o.countAnswered() == 0 {
		return skip{errors.New("this machine is too busy: no query was answered in time")}
	}
	r.checkWanted(o.countFailures() > 0 && o.countAnswered() > 0,
		"%.0f queries failed, %.0f were answered: want both",
		o.countFailures(), o.countAnswered())
	if r.short {
		o.lasted, o.given = time.Since(begin), float64(o.reasons["deadline"]+o.reasons["cancelled"])
	}
	for _, p := range prometheus {
		if err := p.AwaitScrape(ctx, time.Now()); err != nil {
			return err
		}
	}
	unread, err := prometheus[false].Query(ctx, `sum(muster_arrived_queries_total{model=""})`)
	if err != nil {
		return err
	}
	for _, s := range unread {
		o.unread = s.Value
	}
	for _, q := range questions {
		native := strings.Contains(q.asks, "native histograms")
		got, err := prometheus[native].Query(ctx, strings.ReplaceAll(q.query, `"ncf"`, `"dien"`))
		check := errors.New("no answer is known")
		for asks, wrong := range answers {
			if strings.HasPrefix(q.asks, asks) {
				check = wrong(o, got)
			}
		}
		r.wantNil(errors.Join(err, check), "%s", q.asks)
	}
	// oneLed reports whether the same agent has led all the while. On a busy machine, in a short
	// run, another one may, which does not know what was before.
	oneLed := func() bool {
		now, err := status()
		return !r.short || err == nil && now.GetView().GetLeadership().GetEpoch() ==
			before.GetView().GetLeadership().GetEpoch()
	}
	if err := r.boardAndRules(ctx, prometheus[false], len(types) > 1, oneLed); err != nil {
		return err
	}
	if !oneLed() {
		r.printLine("  another agent leads now: it has not counted what was before")
		return nil
	}
	return r.statusCounts(ctx, f, o)
}

// boardAndRules asks what the panels of deploy/grafana ask, and looks at the rules of
// deploy/prometheus. Wanted: Prometheus evaluates all of them without an error; of a fleet that was
// overloaded all panels but those of plans, of rented machines and of cards have an answer, and all
// that is recorded, if one leader has led all the while.
func (r *run) boardAndRules(ctx context.Context, p *harness.Prometheus, fleet bool,
	oneLed func() bool) error {
	content, err := os.ReadFile("deploy/grafana/muster.json")
	if err != nil {
		return err
	}
	var board struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(content, &board); err != nil {
		return err
	}
	variables := strings.NewReplacer("$job", "muster", "$model", ".*", "$__rate_interval", "5m")
	for _, panel := range board.Panels {
		for _, target := range panel.Targets {
			got, err := p.Query(ctx, variables.Replace(target.Expr))
			if err == nil && len(got) == 0 && fleet &&
				!strings.Contains(target.Expr, "muster_proposed_") &&
				!strings.Contains(target.Expr, "muster_fleet_") &&
				!strings.Contains(target.Expr, "muster_gpu_") && oneLed() {
				err = errors.New("no answer")
			}
			r.wantNil(err, "the board asks for %s: %s", panel.Title, target.Expr)
		}
	}
	rules, err := p.Rules(ctx)
	if err != nil {
		return err
	}
	for _, rule := range rules {
		r.checkWanted(rule.Health == "ok", "%s is evaluated %s", rule.Name, rule.LastError)
		if rule.Type != "recording" || !fleet {
			continue
		}
		got, err := p.Query(ctx, rule.Name)
		if err == nil && len(got) == 0 && oneLed() {
			err = errors.New("no answer")
		}
		r.wantNil(err, "%s is recorded", rule.Name)
	}
	r.printLine("  Prometheus evaluates %d panels and %d rules", len(board.Panels), len(rules))
	return nil
}

// statusCounts wants that `muster status --json` has the failures by reason that clients were told,
// when the leader has heard of all of them. A query whose deadline passes at its client may be
// cancelled before it is read, refused for another reason, or answered at the same time: by reason,
// a tenth of all failures may differ.
func (r *run) statusCounts(ctx context.Context, f *harness.Fleet, o *overloadCounts) error {
	want := map[string]float64{"answered": o.countAnswered(), "failed": o.countFailures()}
	for reason, n := range o.reasons {
		want[outcome(reason)] += float64(n)
	}
	near := func(told map[string]float64, what string) bool {
		differ := 5 + 0.1*o.countFailures() + o.given
		if what == "failed" {
			differ = 5 + 0.03*o.countFailures() + o.given
		}
		return math.Abs(told[what]-want[what]) <= differ
	}
	var told map[string]float64
	for begin := time.Now(); time.Since(begin) < time.Minute; {
		var err error
		if told, err = r.readStatusCounts(ctx, f); err != nil {
			return err
		}
		far := func(what string) bool { return !near(told, what) }
		if !slices.ContainsFunc(slices.Collect(maps.Keys(want)), far) {
			break
		}
		if err := harness.Settle(ctx, 200*time.Millisecond); err != nil {
			return err
		}
	}
	for _, what := range slices.Sorted(maps.Keys(want)) {
		r.checkWanted(near(told, what), "muster status has %.0f queries %s, clients have %.0f",
			told[what],
			what, want[what])
	}
	return nil
}

// readStatusCounts is how many queries `muster status --json` has answered and failed, and failed
// by reason.
func (r *run) readStatusCounts(ctx context.Context, f *harness.Fleet) (map[string]float64, error) {
	text, err := harness.Output(ctx, "", r.muster, "status", "--json", "--server", f.Nodes[0].GRPC)
	if err != nil {
		return nil, err
	}
	var status struct {
		Models []struct {
			Model    string
			Answered json.Number
			Refusals []struct {
				Reason string
				Count  json.Number
			}
		}
	}
	if err := json.Unmarshal([]byte(text), &status); err != nil {
		return nil, err
	}
	told := map[string]float64{}
	for _, m := range status.Models {
		n, _ := m.Answered.Float64()
		told["answered"] += n
		for _, refused := range m.Refusals {
			n, _ := refused.Count.Float64()
			told[outcome(refused.Reason)] += n
			told["failed"] += n
		}
	}
	return told, nil
}
