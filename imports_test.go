// Package muster_test holds what is true of the module as a whole.
package muster_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/muster-serve/muster/"

// A rule says what a folder's packages may import of ours, and which packages
// from elsewhere they must not. The rule of the longest matching folder holds;
// packages of one folder with a rule may import each other.
type rule struct {
	folder  string
	imports []string // folders, with what lies below them; "..." for all
	never   []string // import paths, with what lies below them
	reason  string
}

// exporters send spans; whoever makes some is handed a provider by cmd, or by the SDK's user.
const exporters = "go.opentelemetry.io/otel/sdk"

var network = []string{"net", "google.golang.org/grpc", "github.com/hashicorp/memberlist"}

// only says which folder alone may import a package from elsewhere, whatever the rules say.
var only = map[string]string{
	"github.com/aws/aws-sdk-go-v2/service/ec2":     "cloud/ec2",
	"github.com/aws/aws-sdk-go-v2/service/pricing": "cloud/ec2",
	"github.com/aws/aws-sdk-go-v2/service/sts":     "cloud/ec2",
	"github.com/aws/aws-sdk-go-v2/service/s3":      "models/store/remote",
	"github.com/Azure/azure-sdk-for-go":            "models/store/remote",
	"golang.org/x/oauth2":                          "models/store/remote",
	"oras.land/oras-go":                            "models/store/oci",
	"github.com/NVIDIA/go-nvml":                    "runtime/gpu",
	module + "cloud/ec2":                           "cmd/muster-ec2", // no agent has EC2's SDK in it
	// And tests: no agent may have a card that is made up.
	module + "runtime/gpu/fakenvidia": "runtime/gpu/fakenvidia",
	module + "agent/agenttest":        "agent/agenttest", // and tests
	module + "reproduce":              "reproduce",
}

// rules are the design's arrows, inwards. Tests may import more.
var rules = []rule{
	{
		folder: ".", never: network,
		reason: "the licences' texts, for whoever prints them",
	},
	{
		folder: "api/names",
		never:  append([]string{"log", "os", "github.com", "golang.org", "gonum.org"}, network...),
		reason: "all parts name things alike, so the names can depend on none",
	},
	{
		folder: "api/accuracy",
		never:  append([]string{"log", "os", "github.com", "golang.org", "gonum.org"}, network...),
		reason: "agents, gateways and leaders agree in which variants answer, so none of them has " +
			"a say in it",
	},
	{
		folder: "api/lateness",
		never:  append([]string{"log", "os", "golang.org", "gonum.org"}, network...),
		reason: "agents, gateways, leaders and commands name the same cause, so none of them has a " +
			"say in it",
	},
	{
		folder: "api", imports: []string{"api/accuracy", "api/lateness", "api/names"},
		reason: "the protocol is what all parts share, so it can depend on none",
	},
	{
		folder: "api/list",
		never:  append([]string{"log", "os", "github.com", "golang.org", "gonum.org"}, network...),
		reason: "whoever keeps queries in order uses it, so it can depend on none",
	},
	{
		folder: "api/picture", never: network,
		reason: "how pictures look has nothing to do with what they show; the load tool and the " +
			"simulator draw alike",
	},
	{
		folder: "models", imports: []string{"api"}, never: network,
		reason: "what can be served is a matter of files; how it runs and who asks is for others",
	},
	{
		folder: "models/store", imports: []string{"api/files", "models/dirlock"}, never: network,
		reason: "what a store holds is a matter of documents and sums, whichever store it is",
	},
	{
		folder: "models/store/releases", imports: []string{"api", "models/store"}, never: network,
		reason: "what is released is a document in a store, whichever store it is",
	},
	{
		folder: "models/store/oci", imports: []string{"models/store"},
		reason: "one package speaks to registries, and knows what a store keeps there",
	},
	{
		folder: "models/store/remote", imports: []string{"models/store"},
		reason: "one package speaks to the clouds' stores, and cmd alone brings it along",
	},
	{
		folder: "runtime",
		imports: []string{
			"api", "models", "api/names", "runtime/lane", "runtime/queue", "runtime/gpu",
		},
		never:  network,
		reason: "running a model needs no network, and must be testable without one",
	},
	{
		folder: "runtime/gpu", imports: []string{"api/files"}, never: append([]string{"log"}, network...),
		reason: "what a card is and how it fares has nothing to do with what runs on it",
	},
	{
		folder: "runtime/lane", imports: []string{"api/names", "runtime/queue"},
		never: append([]string{"log", "os", "golang.org", "gonum.org"}, network...),
		reason: "what lanes run and refuse is arithmetic on what they are told, so that it can be " +
			"simulated and replayed",
	},
	{
		folder: "runtime/queue",
		never:  append([]string{"log", "os", "github.com", "golang.org", "gonum.org"}, network...),
		reason: "the order of a lane's queue is arithmetic, and whoever reckons with lanes " +
			"shares it",
	},
	{
		folder: "runtime/load",
		never:  append([]string{"log", "os", "github.com", "golang.org", "gonum.org"}, network...),
		reason: "how busy lanes are is arithmetic, and the simulator's lanes report it too",
	},
	{
		folder: "runtime/queue/merge", imports: []string{"api/names", "runtime/queue"},
		never:  append([]string{"log", "os", "golang.org", "gonum.org"}, network...),
		reason: "which queries run as one is arithmetic, and whoever reckons with lanes shares it",
	},
	{
		folder: "profiles", imports: []string{"api/document", "api/files", "api/names"},
		never:  append([]string{"log"}, network...),
		reason: "leader, simulator and client all read profiles; they are values, not a service",
	},
	{
		folder: "profiles/workload", imports: []string{"api/document"},
		never:  append([]string{"log"}, network...),
		reason: "the simulator and the load tool share the queries, so these belong to neither",
	},
	{
		folder: "leader", imports: []string{"leader", "api/accuracy", "api/names", "profiles"},
		never: append([]string{"log", "os"}, network...),
		reason: "the leader is a pure state machine: the simulator runs the very code that " +
			"production runs",
	},
	{
		folder:  "leader/fleetplan",
		imports: []string{"api/names", "leader/internal", "leader/place", "leader/staffing"},
		never:   append([]string{"log", "os"}, network...),
		reason:  "a plan is arithmetic on types, variants and demand",
	},
	{
		folder: "leader/match",
		imports: []string{
			"leader/fluid", "leader/internal", "api/list", "api/names", "profiles", "runtime/queue",
		},
		never:  append([]string{"log", "os"}, network...),
		reason: "matching is pure, and what else the leader does builds on it",
	},
	{
		folder: "leader/place", imports: []string{
			"api/names", "leader/fleetplan", "leader/internal", "leader/staffing", "profiles",
		},
		never:  append([]string{"log", "os", "golang.org", "gonum.org"}, network...),
		reason: "what agents should hold is arithmetic on types, rates and demand",
	},
	{
		folder: "leader/inquire", imports: []string{"leader/match", "api/names"},
		never:  append([]string{"log", "os"}, network...),
		reason: "a gateway without a leader decides by the same prices and latencies",
	},
	{
		folder: "leader/canary",
		never:  append([]string{"log", "os", "golang.org", "gonum.org"}, network...),
		reason: "which version a query gets is arithmetic that gateways, leaders and workers share",
	},
	{
		folder: "leader/rent", imports: []string{"profiles"},
		never:  append([]string{"log", "os", "golang.org", "gonum.org"}, network...),
		reason: "what to rent and to return is arithmetic on what is seen",
	},
	{
		folder: "leader/rent/choose",
		imports: []string{
			"api/names", "leader/fleetplan", "leader/fluid", "leader/plan", "leader/rent",
			"leader/staffing", "profiles",
		},
		never:  append([]string{"log", "os", "golang.org", "gonum.org"}, network...),
		reason: "how many of each type to rent is arithmetic on demand and prices",
	},
	{
		folder: "cloud", imports: []string{
			"api/document", "api/files", "cloud", "leader/rent", "leader/staffing", "profiles",
		},
		reason: "renting machines is a matter of a provider's calls; what to rent is decided " +
			"elsewhere",
	},
	{
		folder: "cloud/plugin",
		imports: []string{
			"api/provider", "api/version", "cloud", "leader/rent", "profiles",
		},
		never: []string{module + "cloud/ec2"},
		reason: "how a provider runs in a process of its own has nothing to do with whose machines " +
			"it rents",
	},
	{
		folder: "cloud/ec2", imports: []string{"api/files", "cloud", "leader/rent", "profiles"},
		reason: "one package speaks to AWS, and what it says to it is in one place",
	},
	{
		folder: "gossip", imports: []string{"api/wakeup"}, never: nil,
		reason: "gossip carries bytes; the agent knows what they mean",
	},
	{
		folder: "client", imports: []string{
			"api", "client/queries", "api/names", "profiles", "leader/inquire", "leader/match",
			"leader/election", "leader/canary", "runtime/queue",
		},
		never:  []string{"github.com/spf13", exporters, module + "profiles/published"},
		reason: "users import the SDK: it brings neither the agent nor ONNX Runtime along",
	},
	{
		folder: "client/queries", imports: []string{"api/list", "api/names", "leader/election", "leader/match"},
		never: append([]string{"log", "os"}, network...),
		reason: "a gateway's decisions are pure: the simulator runs the very code that " +
			"production runs",
	},
	{
		folder:  "client/bench",
		imports: []string{"api", "client", "profiles/workload"},
		never:   []string{"github.com/spf13"},
		reason:  "load is made by the SDK, from the queries that the simulator draws too",
	},
	{
		folder: "sim",
		imports: []string{
			"api/accuracy", "api/names", "api/picture", "client/queries", "leader", "profiles",
			"runtime/lane", "runtime/load", "runtime/queue",
		},
		never: append([]string{"log"}, network...),
		reason: "the simulator drives the leader, gateways and the lanes' queues in virtual " +
			"time, without a machine or a network",
	},
	{
		folder: "agent/outcome", imports: []string{"api", "gossip", "models", "runtime"},
		never:  []string{module + "agent"},
		reason: "all rooms of the agent wrap its errors, so it can know none of them",
	},
	{
		folder: "agent/dashboard", imports: []string{"agent/members", "api", "profiles"},
		never:  []string{exporters},
		reason: "the page shows what the other rooms hand in, and none of them needs it",
	},
	{
		folder: "agent/members", imports: []string{
			"agent/outcome", "api", "client/stream", "gossip", "models", "api/names", "profiles",
		},
		reason: "who is there does not depend on what this agent does for others, nor on who " +
			"leads; it keeps the connections to the others",
	},
	{
		folder: "agent/worker", imports: []string{
			"agent/members", "agent/outcome", "api", "models", "api/names", "profiles", "runtime",
			"leader/canary", "leader/place",
		},
		never: []string{module + "leader/place/replan"},
		reason: "what an agent does for others does not depend on who leads, nor on how clients " +
			"reach it; of placement it knows the form of layouts",
	},
	{
		folder: "agent/serve", imports: []string{
			"agent/capture", "agent/members", "agent/modelstore", "agent/outcome", "agent/picker", "agent/shadow",
			"agent/slowlog",
			"agent/worker",
			"api", "client", "models", "api/names",
			"runtime",
		},
		never: []string{"github.com/spf13", exporters},
		reason: "how clients reach an agent does not depend on who leads, and gossip is the " +
			"members'",
	},
	{
		folder: "agent/rent", imports: []string{"api", "cloud", "leader", "profiles"},
		never:  []string{module + "agent", module + "cloud/ec2", module + "cloud/process"},
		reason: "the leader rents from whichever provider it is handed",
	},
	{
		folder: "agent/modelstore", imports: []string{"api", "models"},
		never:  []string{module + "agent", module + "models/store/remote"},
		reason: "which versions are fetched follows from what it is told of the fleet",
	},
	{
		folder: "agent/shadow", imports: []string{"api", "client"},
		never:  []string{module + "agent"},
		reason: "answers are compared without knowing who serves or leads",
	},
	{
		folder: "agent/slowlog", imports: []string{"api/lateness"},
		never:  append([]string{module + "agent"}, network...),
		reason: "what is written of a query follows from what it is told",
	},
	{
		folder: "agent/capture", imports: []string{"api", "models/store"},
		never:  append([]string{module + "agent", module + "models/store/remote"}, network...),
		reason: "what is kept of a query follows from what it is told, wherever it goes",
	},
	{
		folder: "agent/release", imports: []string{"api", "leader"},
		never:  []string{module + "agent", module + "models/store"},
		reason: "which versions are released is known without knowing where they are kept",
	},
	{
		folder: "agent/release/stored", imports: []string{"agent/release", "api", "models/store"},
		reason: "one package knows that releases are kept in a model store, and how it trusts them",
	},
	{
		folder: "agent/lead", imports: []string{
			"agent/members", "agent/outcome", "agent/release", "agent/rent", "api", "leader",
			"api/names", "profiles",
		},
		reason: "who leads, and what a leader tells whom, does not depend on what this agent " +
			"does for others",
	},
	{
		folder: "agent",
		imports: []string{
			"agent", "api", "client", "gossip", "leader", "models", "api/names", "profiles",
			"runtime",
			"cloud",
		}, never: []string{"github.com/spf13", exporters, module + "cloud/ec2",
			module + "cloud/process", module + "models/store/remote"},
		reason: "the agent wires the parts; what needs the simulator is handed in by cmd, and so " +
			"are its settings",
	},
	{
		folder: "examples", imports: []string{"api", "client"},
		reason: "an example shows a user's program, with what a user's program imports",
	},
	{
		folder: "cmd", imports: []string{"..."},
		reason: "commands put everything together; nobody imports them",
	},
	{
		folder: "reproduce",
		imports: []string{
			"api/names", "api/picture", "client/queries", "leader", "profiles", "runtime/lane",
			"runtime/load", "runtime/queue", "sim",
		},
		never: network,
		reason: "the papers' figures are simulated by the parts that decide; nothing of Muster " +
			"imports them",
	},
	{
		folder: "scripts", imports: []string{"..."},
		reason: "scripts make what is committed; nobody imports them",
	},
}

// ruleOf is the rule of the package in folder dir, nil if there is none.
func ruleOf(dir string) *rule {
	var best *rule
	for i := range rules {
		if under(dir, rules[i].folder) && (best == nil || len(rules[i].folder) > len(best.folder)) {
			best = &rules[i]
		}
	}
	return best
}

// under reports whether the path is folder or lies below it.
func under(path, folder string) bool {
	return path == folder || strings.HasPrefix(path, folder+"/")
}

// fault is why the package in folder dir must not import the package path; nil
// if it may.
func fault(dir, imported string) error {
	r := ruleOf(dir)
	if r == nil {
		return fmt.Errorf("%s has no rule: add one to the list, with its reason", dir)
	}
	for path, folder := range only {
		if under(imported, path) && !under(dir, folder) {
			return fmt.Errorf("%s imports %s, which is for %s alone", dir, imported, folder)
		}
	}
	for _, never := range r.never {
		if under(imported, never) {
			return fmt.Errorf("%s imports %s: %s", dir, imported, r.reason)
		}
	}
	ours, ok := strings.CutPrefix(imported, module)
	if !ok || ruleOf(ours) == r || slices.Contains(r.imports, "...") {
		return nil
	}
	if !slices.ContainsFunc(r.imports, func(folder string) bool { return under(ours, folder) }) {
		return fmt.Errorf("%s imports %s: %s", dir, imported, r.reason)
	}
	return nil
}

func TestImports(t *testing.T) {
	seen := map[string]bool{}
	eachImport(t, func(file, dir, imported string) {
		seen[dir] = true
		if err := fault(dir, imported); err != nil {
			t.Errorf("%s: %v", file, err)
		}
	})
	if len(seen) < len(rules)/2 {
		t.Errorf("found only the packages %v", slices.Sorted(maps.Keys(seen)))
	}
}

// eachImport calls do for each import of each file of the module that is no test, whatever its
// build tags, with the file's folder.
func eachImport(t *testing.T, do func(file, dir, imported string)) {
	t.Helper()
	eachFile(t, ".", parser.ImportsOnly, func(file string, _ *token.FileSet, parsed *ast.File) {
		for _, spec := range parsed.Imports {
			do(file, filepath.ToSlash(filepath.Dir(file)), strings.Trim(spec.Path.Value, `"`))
		}
	})
}

// eachFile parses each Go file below a folder of the module that is no test, whatever its build
// tags, and calls do with it. It returns how many there are.
func eachFile(t *testing.T, folder string, mode parser.Mode,
	do func(file string, set *token.FileSet, parsed *ast.File)) (files int) {
	t.Helper()
	err := filepath.WalkDir(filepath.FromSlash(folder), func(file string, d fs.DirEntry,
		err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && file != "." && (strings.HasPrefix(d.Name(), ".") ||
			d.Name() == "testdata" || file == "build") {
			return fs.SkipDir
		}
		if d.IsDir() || path.Ext(file) != ".go" || strings.HasSuffix(file, "_test.go") {
			return nil
		}
		set := token.NewFileSet()
		parsed, err := parser.ParseFile(set, file, nil, mode)
		if err != nil {
			return err
		}
		files++
		do(file, set, parsed)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// TestFoldersAcyclic: no two top-level folders import each other, neither directly nor by way of
// others. So the folders have an order, in which each can be read and built on those before it.
func TestFoldersAcyclic(t *testing.T) {
	imports := folderImports{}
	eachImport(t, func(file, dir, imported string) {
		if ours, ok := strings.CutPrefix(imported, module); ok {
			imports.add(dir, ours, file)
		}
	})
	if len(imports) < 8 {
		t.Errorf("found the imports of only %v", slices.Sorted(maps.Keys(imports)))
	}
	for _, cycle := range imports.cycles() {
		t.Errorf("folders import each other: %s", cycle)
	}
}

// folderImports are the imports between top-level folders: for each folder those that it imports, with a
// file that does.
type folderImports map[string]map[string]string

// add notes that a file of the package in folder dir imports the package in folder imported.
func (f folderImports) add(dir, imported, file string) {
	from, _, _ := strings.Cut(dir, "/")
	to, _, _ := strings.Cut(imported, "/")
	if from == to {
		return
	}
	if f[from] == nil {
		f[from] = map[string]string{}
	}
	if first := f[from][to]; first == "" || file < first {
		f[from][to] = file
	}
}

// cycles are the shortest cycle through each folder that lies on one, each cycle once, with the
// file behind each import.
func (f folderImports) cycles() (found []string) {
	listed := map[string]bool{} // folders of the cycles found
	for _, start := range slices.Sorted(maps.Keys(f)) {
		if listed[start] {
			continue
		}
		paths := [][]string{{start}}
		seen := map[string]bool{}
		for len(paths) > 0 {
			path := paths[0]
			paths = paths[1:]
			last := path[len(path)-1]
			if last == start && len(path) > 1 {
				text := start
				for i, to := range path[1:] {
					listed[to] = true
					text += fmt.Sprintf(" -> %s (%s)", to, f[path[i]][to])
				}
				found = append(found, text)
				break
			}
			for _, to := range slices.Sorted(maps.Keys(f[last])) {
				if !seen[to] {
					seen[to] = true
					paths = append(paths, append(slices.Clone(path), to))
				}
			}
		}
	}
	return found
}

// TestCycles checks that cycles are found.
func TestCycles(t *testing.T) {
	f := folderImports{}
	for _, edge := range []string{
		"a/x b/y", "b c", "b d/z", "d e", "e/v b/w", "a a/x", "g a", "h i", "i h",
	} {
		from, to, _ := strings.Cut(edge, " ")
		f.add(from, to, from+".go")
	}
	want := []string{
		"b -> d (b.go) -> e (d.go) -> b (e/v.go)", "h -> i (h.go) -> h (i.go)",
	}
	if got := f.cycles(); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestStandsAlone: no file of the repository names the folder beside our own checkouts, which no
// user's clone has.
func TestStandsAlone(t *testing.T) {
	outside := regexp.MustCompile(`\.\./shared\b|"shared", ?"|shared/reference`)
	err := filepath.WalkDir(".", func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if slices.Contains([]string{".git", "bin", "build", "fuzz"}, d.Name()) {
				return fs.SkipDir
			}
			return nil
		}
		if file == "imports_test.go" ||
			!slices.Contains([]string{".go", ".md", ".sh", ".py", ".yaml", "", ".proto"},
				path.Ext(file)) {
			return nil
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		if found := outside.Find(text); found != nil {
			t.Errorf("%s names %s, which a clone does not have", file, found)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestAgentWithoutEC2: nothing that the agent's binary is built of is for EC2 alone, in other modules
// neither. The SDK's package ec2 compiles for two minutes of CPU time.
func TestAgentWithoutEC2(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", "./cmd/muster").CombinedOutput()
	if err != nil {
		t.Fatalf("go list: %v: %s", err, out)
	}
	packages := strings.Fields(string(out))
	if !slices.Contains(packages, module+"cloud/plugin") {
		t.Errorf("cmd/muster is not built of cloud/plugin, but of %d packages", len(packages))
	}
	for _, p := range packages {
		for _, never := range []string{
			"github.com/aws/aws-sdk-go-v2/service/ec2", "github.com/aws/aws-sdk-go-v2/service/pricing",
			module + "cloud/ec2",
		} {
			if under(p, never) {
				t.Errorf("cmd/muster is built of %s", p)
			}
		}
	}
}

// TestImportRules checks that the rules catch what they are there to catch.
func TestImportRules(t *testing.T) {
	for _, tt := range []struct {
		dir, imported string
		allowed       bool
	}{
		{"leader/match", module + "profiles", true},
		{"leader/match", module + "leader/fluid", true},
		{"leader/match", module + "agent", false},
		{"api/names", module + "profiles", false},
		{"api", module + "api/names", true},
		{"api", module + "profiles", false},
		{"leader/plan", module + "runtime", false},
		{"leader", module + "gossip", false},
		{"gossip", module + "api/control", false},
		{"leader/match", module + "runtime/queue", true},
		{"leader/match", module + "runtime", false},
		{"leader/match", module + "leader/plan", false},
		{"leader/plan", module + "runtime/queue", false},
		{"leader/plan", module + "leader/match", true},
		{"leader/learn", module + "leader", true},
		{"leader/learn", "os", false},
		{"leader/learn", "log/slog", false},
		{"leader/learn", module + "api", false},
		{"client", module + "leader/learn", false},
		{"leader", "net", false},
		{"leader", "net/http", false},
		{"leader", "log/slog", false},
		{"leader", "google.golang.org/grpc/codes", false},
		{"leader", "math/bits", true},
		{"profiles", module + "models", false},
		{"sim", module + "leader/match", true},
		{"sim", module + "profiles/workload", true},
		{"sim", module + "runtime/queue", true},
		{"sim", module + "runtime", false},
		{"sim", module + "client/queries", true},
		{"sim", module + "client", false},
		{"sim", module + "agent", false},
		{"sim", module + "reproduce/policies", false},
		{"cmd/muster", module + "reproduce/figures", false},
		{"scripts/bench", module + "reproduce/figures", false},
		{"reproduce/figures", module + "sim", true},
		{"reproduce/figures", module + "reproduce/scaling", true},
		{"reproduce/figures", module + "agent", false},
		{"reproduce/figures", module + "cmd/muster", false},
		{"profiles/workload", module + "sim", false},
		{"api/picture", module + "sim", false},
		{"client/bench", module + "sim", false},
		{"agent", module + "sim", false},
		{"agent", module + "cmd/muster", false},
		{"agent", module + "leader/match", true},
		{"agent", module + "agent/outcome", true},
		{"agent/outcome", module + "agent", false},
		{"agent/members", module + "agent", false},
		{"agent/members", module + "agent/lead", false},
		{"agent/members", module + "runtime", false},
		{"agent/members", module + "agent/worker", false},
		{"agent/worker", module + "agent/members", true},
		{"agent/worker", module + "agent/lead", false},
		{"agent/worker", module + "agent/serve", false},
		{"agent/worker", module + "gossip", false},
		{"agent/serve", module + "agent/worker", true},
		{"agent/serve", module + "agent/lead", false},
		{"agent/serve", module + "leader/match", false},
		{"agent/outcome", module + "runtime", true},
		{"client", module + "leader/match", true},
		{"client", module + "leader/plan", false},
		{"client", module + "models", false},
		{"client", module + "runtime/queue", true},
		{"client", module + "runtime", false},
		{"client", "go.opentelemetry.io/otel/trace", true},
		{"client", "go.opentelemetry.io/otel/sdk/trace", false},
		{"client", module + "profiles/published", false},
		{"client", module + "client/queries", true},
		{"client/queries", module + "leader/match", true},
		{"client/queries", module + "leader", false},
		{"client/queries", module + "client", false},
		{"client/queries", module + "api/control", false},
		{"client/queries", "google.golang.org/grpc/codes", false},
		{"client/bench", module + "client", true},
		{"client", module + "client/bench", false},
		{"models", module + "runtime", false},
		{"models/zoo", module + "models/onnx", true},
		{"runtime", module + "models", true},
		{"runtime", module + "agent", false},
		{"runtime", module + "runtime/queue", true},
		{"runtime", module + "runtime/lane", true},
		{"runtime/lane", module + "runtime/queue/merge", true},
		{"runtime/lane", module + "runtime", false},
		{"runtime/lane", module + "api/tensor", false},
		{"runtime/lane", "os", false},
		{"runtime/queue", "container/heap", true},
		{"runtime/queue", module + "runtime/queue/merge", false},
		{"runtime/queue/merge", module + "runtime/queue", true},
		{"runtime/queue/merge", module + "profiles", false},
		{"leader/match", module + "runtime/queue/merge", true},
		{"leader", module + "runtime/queue/merge", false},
		{"leader/place", "math/rand/v2", true},
		{"leader/place", module + "leader/match", false},
		{"leader/place", "gonum.org/v1/gonum/optimize", false},
		{"sim", module + "runtime/queue/merge", true},
		{"client", module + "runtime/queue/merge", true},
		{"models", module + "runtime/queue/merge", false},
		{"models", module + "runtime", false},
		{"runtime/queue", module + "runtime", false},
		{"runtime/queue", module + "profiles", false},
		{"runtime/queue", "gonum.org/v1/gonum/stat", false},
		{"api/oip", module + "models", false},
		{"cmd/muster", module + "sim", true},
		{"cloud/ec2", "github.com/aws/aws-sdk-go-v2/service/ec2/types", true},
		{"cloud/process", "github.com/aws/aws-sdk-go-v2/service/ec2", false},
		{"cmd/muster", "github.com/aws/aws-sdk-go-v2/service/pricing", false},
		{"cmd/muster", module + "cloud/ec2", false},
		{"cmd/muster", module + "cloud/plugin", true},
		{"cmd/muster-ec2", module + "cloud/ec2", true},
		{"cloud/plugin", module + "cloud/ec2", false},
		{"cloud", module + "agent", false},
		{"stray", "fmt", false},
	} {
		if err := fault(tt.dir, tt.imported); (err == nil) != tt.allowed {
			t.Errorf("%s imports %s: got %v, want allowed = %v", tt.dir, tt.imported, err,
				tt.allowed)
		}
	}
}
