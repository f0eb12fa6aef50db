//go:build linux

package main

import (
	"context"
	"encoding/json"
	"io"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/gossip"
)

// startFleet starts emulated agents of one fleet, with more settings, and waits until the
// last one sees all of them with their model.
func startFleet(t *testing.T, n int, settings ...string) []*process {
	t.Helper()
	models := smallNCF(t)
	var agents []*process
	for range n {
		all := append(
			[]string{
				"--executor", "emulated", "--profile", "shipped", "--instance-type", "r5n.large",
			}, settings...)
		if len(agents) > 0 {
			all = append(all, "--join", agents[0].gossip)
		}
		agents = append(agents, startAgent(t, models, all...))
	}
	agents[n-1].waitForView(t, func(v *control.View) bool {
		return len(v.GetMembers()) == n &&
			!slices.ContainsFunc(v.GetMembers(),
				func(m *control.Member) bool { return len(m.GetModels()) == 0 })
	})
	return agents
}

// waitForView waits until an agent sees the fleet as it should be.
func (p *process) waitForView(t *testing.T, good func(*control.View) bool) {
	t.Helper()
	settings := clientSettings{servers: []string{p.grpc}}
	conn, err := settings.dialFirst(t.Output())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stream, err := control.NewControlClient(conn).Watch(ctx, &control.WatchRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for {
		v, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if good(v) {
			return
		}
	}
}

func hasLeader(v *control.View) bool { return v.GetLeadership().GetLeader() != "" }

// wantOutput runs muster and looks for the pattern in what it prints, or in
// its error if it is to fail.
func wantOutput(t *testing.T, ok bool, pattern string, args ...string) string {
	t.Helper()
	out, _, err := execute(t, args...)
	if err != nil {
		out = err.Error()
	}
	if (err == nil) != ok || !regexp.MustCompile("(?m)"+pattern).MatchString(out) {
		t.Errorf("%s: got %v and %q, want a match of %q", strings.Join(args, " "), err, out,
			pattern)
	}
	return out
}

// wantWhileLed is wantOutput for what only a leader knows. On a busy machine a leader may be
// taken for lost at any time, so it asks again.
func (p *process) wantWhileLed(t *testing.T, pattern string, args ...string) {
	t.Helper()
	for range 20 {
		p.waitForView(t, hasLeader)
		if out, _, err := execute(t, args...); err == nil &&
			regexp.MustCompile("(?m)"+pattern).MatchString(out) {
			return
		}
	}
	wantOutput(t, true, pattern, args...)
}

// statusJSON is what `muster status --json` prints, and all the numbers in it.
func statusJSON(t *testing.T) (*control.FleetStatus, []float64) {
	t.Helper()
	out, _, err := execute(t, "status", "--json")
	if err != nil {
		t.Fatal(err)
	}
	var s control.FleetStatus
	if err := protojson.Unmarshal([]byte(out), &s); err != nil {
		t.Fatalf("status --json: %v in %s", err, out)
	}
	var value any
	if err := json.Unmarshal([]byte(out), &value); err != nil {
		t.Fatal(err)
	}
	var numbers []float64
	var walk func(any)
	walk = func(v any) {
		switch v := v.(type) {
		case map[string]any:
			for _, x := range v {
				walk(x)
			}
		case []any:
			for _, x := range v {
				walk(x)
			}
		case string: // as protojson writes what JSON has no number for
			if v == "NaN" || strings.HasSuffix(v, "Infinity") {
				numbers = append(numbers, math.NaN())
			}
		case float64:
			numbers = append(numbers, v)
		}
	}
	walk(value)
	return &s, numbers
}

// wantNumbers checks that a status has numbers, and none that JSON does not know.
func wantNumbers(t *testing.T, when string) *control.FleetStatus {
	t.Helper()
	s, numbers := statusJSON(t)
	if len(numbers) == 0 || slices.ContainsFunc(numbers, math.IsNaN) {
		t.Errorf("status --json %s: got numbers %v, want finite ones", when, numbers)
	}
	return s
}

// TestFleetCommands: what an operator does with a fleet, and asks of it.
func TestFleetCommands(t *testing.T) {
	agents := startFleet(t, 4)
	t.Chdir(t.TempDir())
	last := agents[3]
	t.Setenv("MUSTER_SERVER", last.grpc)

	last.waitForView(t, hasLeader)
	s := wantNumbers(t, "of an idle fleet")
	if len(s.GetView().GetMembers()) != 4 || s.GetRate() != 0 ||
		len(s.GetModels()) > 0 && s.GetModels()[0].WithinQos != nil {
		t.Errorf("status --json of an idle fleet: got %v", s)
	}
	wantOutput(t, true, `^ncf version 1 answered[^\n]*\nemulated: no model has run`, "infer", "ncf")
	wantOutput(t, true, `"parameters":{"emulated":true}`, "infer", "ncf", "--json")
	last.wantWhileLed(
		t,
		// The first queries may be late, as clients see it: they wait for connections.
		`^leader \S+, epoch \d+, successor \S+\n\d+\.\d queries/s.*; 0 waiting, 0 of them late\n`+
			`(\d+(\.\d)? % late: .*\n)?\nAGENT +TYPE +LANES +FREE IN `, "status")
	last.wantWhileLed(t, `^ncf +1 +\d+\.\d +(-|\d+\.\d %) +\d+ +\d+ +\d+ +\d+$`, "status")
	last.wantWhileLed(
		t, `^4 emulated agents, 4 lanes, \$0\.60/hr; leader \S+, epoch \d+, next \S+$`, "top",
		"--once")
	for _, a := range agents {
		last.wantWhileLed(t, `^`+a.name+` +r5n\.large +1 x \d+ +\S+ +\d+ +\d+\.\d % +\S+ +emulated`,
			"status")
		last.wantWhileLed(t, `^`+a.name+` r5n\.large +\[[-#]+\] +\S+ +\d+ +\d+% +\S+ +emulated`,
			"top", "--once")
	}

	resp, err := http.Get("http://" + last.metrics + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	metrics, err := io.ReadAll(resp.Body)
	if err != nil || !regexp.MustCompile(`(?m)^go_sched_gomaxprocs_threads 1$`).Match(metrics) {
		t.Errorf("metrics of an emulated agent: got %s, %v, want one thread for Go's code",
			regexp.MustCompile(`(?m)^go_sched_gomax.*$`).Find(metrics), err)
	}
	resp.Body.Close()

	everybody := regexp.QuoteMeta(
		strings.Join(
			slices.Sorted(slices.Values([]string{
				agents[0].name, agents[1].name, agents[2].name, last.name,
			})), ", ")) + "$"
	wantOutput(t, false, `^\S+: agent "nobody": not found in the fleet; there are `+everybody,
		"drain", agents[0].name, "nobody")
	wantOutput(t, false, `^\S+: agent "nobody": not found in the fleet; there are `+everybody,
		"models", "unload", "ncf", "--agent", "nobody")
	wantOutput(t, false, `^\S+: models: not found on any agent: model "nfc"; there are ncf$`,
		"infer", "nfc")
	wantOutput(t, false, `version 7 of model "ncf"; there are 1$`, "infer", "ncf",
		"--model-version", "7")
	wantOutput(t, true, `^`+last.name+` .*not encrypted`, "keys", "list")
	for _, command := range []string{
		"status", "top --once", "drain", "models load ncf", "keys list", "infer ncf", "events",
	} {
		wantOutput(t, false, `127\.0\.0\.1:1\b.*: connect: connection refused$`,
			append(strings.Fields(command), "--server", "127.0.0.1:1")...)
	}

	holds := func(name string, n int) func(*control.View) bool {
		return func(v *control.View) bool {
			return slices.ContainsFunc(v.GetMembers(),
				func(m *control.Member) bool {
					return m.GetName() == name && len(m.GetModels()) == n
				})
		}
	}
	wantOutput(t, true, `^ncf: unloaded$`, "models", "unload", "ncf", "--agent", agents[1].name)
	last.waitForView(t, holds(agents[1].name, 0))
	wantOutput(t, true, agents[1].name+` .*no models, emulated`, "status")
	wantOutput(t, true, `scores`, "infer", "ncf") // of the others
	wantOutput(t, true, `^ncf: loaded$`, "models", "load", "ncf", "--agent", agents[1].name)
	last.waitForView(t, holds(agents[1].name, 1))

	const when = `^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}  `
	wantOutput(
		t, true,
		when+`unload     an unnamed client at 127\.0\.0\.1:\d+ asked to unload ncf on `+
			agents[1].name+`$`, "events")
	wantOutput(
		t, true,
		when+`unloaded   `+agents[1].name+
			`  ncf: version 1 no longer serves: unloaded by call$`, "events",
		"--fleet")
	wantOutput(
		t, true,
		`^{"time":"[^"]*","agent":"`+last.name+
			`","sequence":\d+,"kind":"unload","what":"asked to unload a model",`+
			`"sentence":"an unnamed client at 127\.0\.0\.1:\d+ asked to unload ncf on `+
			agents[1].name+`",`+
			`"from":"127\.0\.0\.1:\d+","details":{"model":"ncf","on":"`+agents[1].name+`"}}$`,
		"events", "--json")

	// One freezes, the leader perhaps; the others say what they can.
	frozen := agents[0]
	if err := frozen.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	wantNumbers(t, "with a frozen agent")
	if err := frozen.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	last.waitForView(t, func(v *control.View) bool { return len(v.GetMembers()) == 4 })

	// Named ones drain, then the one that is asked, at last all that are left.
	drained := func(p *process) {
		t.Helper()
		p.waitForLog(t, "event=drained")
		if err := p.Wait(); err != nil {
			t.Errorf("%s after a drain: %v", p.name, err)
		}
	}
	wantOutput(t, true, `^`+frozen.name+": draining\n"+frozen.name+": gone\n$", "drain",
		frozen.name,
		"--wait")
	drained(frozen)
	wantOutput(t, true, `^`+last.name+": draining\n$", "drain")
	drained(last)
	left := agents[1:3]
	t.Setenv("MUSTER_SERVER", left[0].grpc)
	left[0].waitForView(t, func(v *control.View) bool { return len(v.GetMembers()) == 2 })
	// Nobody is left to say that the last ones have gone.
	wantOutput(t, true, `(?s)^`+left[1].name+": draining\n"+left[0].name+": draining\n"+
		`(\S+: gone\n){2}$`, "drain", "--wait", left[1].name, left[0].name)
	drained(left[1])
	drained(left[0])
}

// TestStatusWithoutLeader: status says that rates are unknown while nobody knows them.
func TestStatusWithoutLeader(t *testing.T) {
	agents := startFleet(t, 2, "--leader", "never")
	t.Chdir(t.TempDir())
	t.Setenv("MUSTER_SERVER", agents[0].grpc)
	agents[0].waitForView(t, func(v *control.View) bool { return len(v.GetMembers()) == 2 })
	if s := wantNumbers(t, "without a leader"); s.GetView().GetLeadership().GetLeader() != "" {
		t.Errorf("got the leader %v", s.GetView().GetLeadership())
	}
	wantOutput(
		t, true,
		`(?s)^no leader \(last epoch 0\): gateways decide alone\n\n`+
			`AGENT.*r5n\.large +1 x \d+ +\S+ +0 +- +- +emulated\n`, "status")
	wantOutput(t, true, `NO LEADER`, "top", "--once")
	wantOutput(t, true, `scores`, "infer", "ncf")
}

// TestKeysOfFleet: which keys the agents hold, and that a new one is taken.
func TestKeysOfFleet(t *testing.T) {
	file := filepath.Join(t.TempDir(), "key")
	write(t, file, gossip.FormatKey(gossip.NewKey())+"\n")
	if err := os.Chmod(file, 0o600); err != nil {
		t.Fatal(err)
	}
	agents := startFleet(t, 2, "--gossip-key", file)
	t.Chdir(t.TempDir())
	t.Setenv("MUSTER_SERVER", agents[1].grpc)
	held := regexp.MustCompile(`(?m)^\S+ +([0-9a-f]{16}) +- +file +-$`)
	keys := func() []string {
		t.Helper()
		rows := held.FindAllStringSubmatch(
			wantOutput(t, true, `^AGENT +ENCRYPTS WITH`, "keys", "list"), -1)
		if len(rows) != 2 || rows[0][1] != rows[1][1] {
			t.Fatalf("keys list: got %q", rows)
		}
		return rows[0]
	}
	before := keys()[1]
	wantOutput(t, true, `^done: 2 agents use key`, "keys", "rotate")
	if after := keys()[1]; after == before {
		t.Errorf("after rotate: got the key %s still", after)
	}
}
