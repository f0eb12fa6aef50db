package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	"github.com/muster-serve/muster/gossip"
)

// execute runs muster with args in an empty directory of its own.
func execute(t *testing.T, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	var out, errs bytes.Buffer
	err = run(t.Context(), args, strings.NewReader(""), &out, &errs)
	return out.String(), errs.String(), err
}

func write(t *testing.T, name, content string) string {
	t.Helper()
	if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	return name
}

// printed are the settings that `config print` shows, as value and origin.
func printed(t *testing.T, args ...string) map[string][2]string {
	t.Helper()
	out, _, err := execute(t, append([]string{"config", "print", "--json"}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	var list []struct {
		Name  string
		Value any
		From  string
	}
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		t.Fatal(err)
	}
	settings := map[string][2]string{}
	for _, s := range list {
		value, err := json.Marshal(s.Value)
		if err != nil {
			t.Fatal(err)
		}
		settings[s.Name] = [2]string{strings.Trim(string(value), `"`), s.From}
	}
	return settings
}

func TestPrecedence(t *testing.T) {
	t.Chdir(t.TempDir())
	write(t, "muster.yaml",
		"# comment\ngrpc: 127.0.0.1:1\nhttp: 127.0.0.1:2\nmetrics: 127.0.0.1:3\nserver: [a:1, "+
			"b:2]\n")
	t.Setenv("MUSTER_HTTP", "127.0.0.1:4")
	t.Setenv("MUSTER_METRICS", "127.0.0.1:5")
	t.Setenv("MUSTER_STATE_DIR", "") // empty is unset
	got := printed(t, "--metrics", "127.0.0.1:6")
	for name, want := range map[string][2]string{
		"grpc":      {"127.0.0.1:1", "muster.yaml:2"},
		"http":      {"127.0.0.1:4", "MUSTER_HTTP"},
		"metrics":   {"127.0.0.1:6", "flag --metrics"},
		"server":    {`["a:1","b:2"]`, "muster.yaml:5"},
		"state-dir": {"./state", "default"},
	} {
		if got[name] != want {
			t.Errorf("%s: got %q, want %q", name, got[name], want)
		}
	}
}

// TestListsWithSpaces: a list is read alike wherever it is given, and spaces and a comma too many are
// no part of it.
func TestListsWithSpaces(t *testing.T) {
	t.Chdir(t.TempDir())
	const want = `["10.0.0.1:7946","10.0.0.2:7946"]`
	if got := printed(t, "--join", "10.0.0.1:7946, 10.0.0.2:7946,")["join"][0]; got != want {
		t.Errorf("as a flag: got %s", got)
	}
	for _, text := range []string{
		`join: "10.0.0.1:7946 , 10.0.0.2:7946"`, `join: ["10.0.0.1:7946 ", "", " 10.0.0.2:7946"]`,
	} {
		write(t, "muster.yaml", text+"\n")
		if got := printed(t)["join"][0]; got != want {
			t.Errorf("%s: got %s", text, got)
		}
	}
	t.Setenv("MUSTER_JOIN", ",10.0.0.1:7946,\t10.0.0.2:7946")
	if got := printed(t)["join"][0]; got != want {
		t.Errorf("as a variable: got %s", got)
	}
}

// TestNoOtherLists: all commands read lists alike.
func TestNoOtherLists(t *testing.T) {
	found := 0
	var check func(*cobra.Command)
	check = func(cmd *cobra.Command) {
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if f.Value.Type() != "stringSlice" {
				return
			}
			found++
			if got := fmt.Sprintf("%T", f.Value); got != "lists.list" {
				t.Errorf("%s --%s is a %s; define it with lists.Var", cmd.CommandPath(), f.Name, got)
			}
		})
		for _, child := range cmd.Commands() {
			check(child)
		}
	}
	check(newRoot())
	if found < 10 {
		t.Errorf("found %d lists, want 10 or more", found)
	}
}

func TestConfigFileChoice(t *testing.T) {
	t.Chdir(t.TempDir())
	write(t, "a.yaml", "lanes: 1\n")
	write(t, "b.yaml", "cores: 1\n")
	t.Setenv("MUSTER_CONFIG", "a.yaml")
	if got := printed(t)["lanes"][1]; got != "a.yaml:1" {
		t.Errorf("with MUSTER_CONFIG: lanes comes from %q", got)
	}
	if got := printed(t, "--config", "b.yaml"); got["cores"][1] != "b.yaml:1" ||
		got["lanes"][1] != "default" {
		t.Errorf("with --config too: got %v", got)
	}
	if _, _, err := execute(t, "config", "print", "--config", "missing.yaml"); err == nil ||
		!strings.Contains(err.Error(), "missing.yaml") {
		t.Errorf("missing file: got %v", err)
	}
}

// TestPrintIsAConfigFile has config print's output read back.
func TestPrintIsAConfigFile(t *testing.T) {
	t.Chdir(t.TempDir())
	out, _, err := execute(t, "config", "print", "--grpc", "127.0.0.1:7", "--server", "x:1,y:2")
	if err != nil {
		t.Fatal(err)
	}
	if want := "grpc: 127.0.0.1:7 # flag --grpc\n"; !strings.Contains(out, want) {
		t.Errorf("got %q, want a line %q", out, want)
	}
	var any map[string]any
	if err := yaml.Unmarshal([]byte(out), &any); err != nil {
		t.Fatal(err)
	}
	write(t, "muster.yaml", out)
	if _, _, err := execute(t, "config", "check", "muster.yaml"); err != nil {
		t.Errorf("config check of its own output: %v", err)
	}
	if got := printed(t)["server"][0]; got != `["x:1","y:2"]` {
		t.Errorf("server: got %s", got)
	}
}

// TestPrintShowsNoSecrets: what config print says may be pasted anywhere.
func TestPrintShowsNoSecrets(t *testing.T) {
	t.Chdir(t.TempDir())
	gossipKey := gossip.FormatKey(bytes.Repeat([]byte{7}, gossip.KeySize))
	write(t, "muster.yaml", "gossip-key: "+gossipKey+"\n")
	t.Setenv("MUSTER_API_KEY", "feed-feed-feed-feed")
	for _, form := range [][]string{nil, {"--json"}} {
		out, _, err := execute(t, append([]string{"config", "print"}, form...)...)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(out, gossipKey) || strings.Contains(out, "feed-feed") {
			t.Errorf("shows a secret:\n%s", out)
		}
		if !strings.Contains(out, "MUSTER_API_KEY") || !strings.Contains(out, "muster.yaml:1") {
			t.Errorf("does not say that the secrets are set:\n%s", out)
		}
	}
	if err := os.WriteFile("gossip.key", []byte(gossipKey), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := printed(t, "--gossip-key", "gossip.key")["gossip-key"][0]; got != "gossip.key" {
		t.Errorf("the file of a secret: got %q", got)
	}
}

func TestConfigCheck(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, tt := range []struct {
		name, content string
		want          []string // all in one error
	}{
		{"unknown keys", "htpp: x\nmodel-dirs: y\nzzzzzzzzz: 1\n", []string{
			`f.yaml:1: unknown setting "htpp"; did you mean "http"?`,
			`f.yaml:2: unknown setting "model-dirs"; did you mean "model-dir"?`,
			`f.yaml:3: unknown setting "zzzzzzzzz"`,
		}},
		{"all faults at once",
			"lanes: many\ncores: 1000000\nprovider: tpu\nhttp: nowhere\nlog-level: loud\n",
			[]string{
				`f.yaml:1: lanes: got "many", want a whole number`, `cores: 1000000, want 1 to`,
				`provider: "tpu"`,
				`http: address "nowhere"`, `log-level: "loud"`,
			}},
		{"twice", "lanes: 1\nlanes: 2\n", []string{"f.yaml:2: lanes is already set, at line 1"}},
		{"types", "pprof: maybe\ndrain-timeout: 5\nlanes: 9999999999999999999\n", []string{
			`f.yaml:1: pprof: got "maybe", want true or false`,
			`f.yaml:2: drain-timeout: got "5", want a duration, such as 1m30s`,
			`f.yaml:3: lanes: "9999999999999999999" is too large`,
		}},
		{"mapping", "http: {a: b}\n", []string{"f.yaml:1: http: want a text"}},
		{"no value", "http:\n", []string{"f.yaml:1: http: want a text"}},
		{"list for one", "lanes: [1, 2]\n", []string{
			"f.yaml:1: lanes: got 2 values, want one: a whole number",
		}},
		{"list", "- 1\n", []string{"f.yaml:1: want lines of `setting: value`"}},
		{"two documents", "lanes: 1\n---\nlanes: 2\n", []string{"f.yaml: more than one document"}},
		{"no yaml", "lanes: 1\na: b: c\n", []string{"f.yaml: line 2"}},
		{"all in order", "qos_target_ms: 5\nlanes: x\nexecutor: onxn\nmodel_dir: m\nhttp: here\n" +
			"log-level: inf\n", []string{
			`f.yaml:1: unknown setting "qos_target_ms"; it is a key of a model's model.yaml` + "\n" +
				`f.yaml:2: lanes: got "x", want a whole number` + "\n" +
				`f.yaml:3: executor: "onxn", want one of ["onnx" "emulated"]; ` +
				`did you mean "onnx"?` + "\n" +
				`f.yaml:4: unknown setting "model_dir"; did you mean "model-dir"?` + "\n" +
				`f.yaml:5: http: address "here", want host:port` + "\n" +
				`f.yaml:6: log-level: "inf"`,
		}},
		{"same address", "http: 127.0.0.1:1\ngrpc: 127.0.0.1:1\n", []string{
			`grpc: address "127.0.0.1:1" is that of http too`,
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, _, err := execute(t, "config", "check", write(t, "f.yaml", tt.content))
			if err == nil {
				t.Fatal("got no error")
			}
			for _, want := range tt.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("got %q, want %q in it", err, want)
				}
			}
		})
	}
	for _, content := range []string{
		"", "# nothing\n", "---\n", "lanes: 1\n", "pprof: true\ndrain-timeout: 5s\n",
	} {
		if _, _, err := execute(t, "config", "check", write(t, "f.yaml", content)); err != nil {
			t.Errorf("%q: %v", content, err)
		}
	}
}

// TestUnknownSettings: an unknown key stops a command, an unknown variable
// only warns.
func TestUnknownSettings(t *testing.T) {
	t.Chdir(t.TempDir())
	t.Setenv("MUSTER_MODELDIR", "x")
	_, stderr, err := execute(t, "config", "print")
	if err != nil {
		t.Fatal(err)
	}
	if want := `MUSTER_MODELDIR is no setting; did you mean "MUSTER_MODEL_DIR"?`; !strings.Contains(
		stderr, want) {
		t.Errorf("got %q, want %q in it", stderr, want)
	}
	write(t, "muster.yaml", "model-dri: x\n")
	for _, command := range []string{"agent", "infer ncf", "models list"} {
		_, _, err := execute(t, strings.Fields(command)...)
		if err == nil ||
			!strings.Contains(err.Error(),
				`muster.yaml:1: unknown setting "model-dri"; did you mean "model-dir"?`) {
			t.Errorf("%s: got %v", command, err)
		}
	}
	if _, _, err := execute(t, "version"); err != nil {
		t.Errorf("version, which has no settings: %v", err)
	}
}

func TestUsageErrors(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, tt := range []struct{ args, want string }{
		{"agent --htpp x", `unknown flag: --htpp; did you mean "--http"?`},
		{"agent --foo x", `unknown flag: --foo; see "muster agent --help"`},
		{"agent --lanes x", `--lanes: got "x", want a whole number; see "muster agent --help"`},
		{"bench --rate fast", `--rate: got "fast", want a number`},
		{"agent extra", `unknown command "extra"`},
		{"bogus", `unknown command "bogus" for "muster"; see "muster --help"`},
		{"models generate", "requires at least 1 arg"},
		{"models generate dlrm", `unknown model "dlrm", want one of ncf`},
		{"models list --dir nowhere", "nowhere"},
		{"agent --provider tpu --lanes -1", "lanes: -1"},
		{"infer", "accepts 1 arg"},
		{"infer ncf --input nowhere.json", "nowhere.json"},
		{"infer ncf --input - --batch-size 3", "input"},
	} {
		stdout, stderr, err := execute(t, strings.Fields(tt.args)...)
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got error %v, want %q in it", tt.args, err, tt.want)
		}
		if stdout != "" || stderr != "" {
			t.Errorf("%s: printed %q and %q; main prints the error", tt.args, stdout, stderr)
		}
	}
}

// TestUnknownCommands: a mistyped command is an error that suggests the one that was meant, where
// one is near.
func TestUnknownCommands(t *testing.T) {
	for _, tt := range []struct{ args, want string }{
		{"modles", `unknown command "modles" for "muster"; did you mean "models"?`},
		{"models lisst", `unknown command "lisst" for "muster models"; did you mean "list"?`},
		{"keys foo", `unknown command "foo" for "muster keys"; see "muster keys --help"`},
		{"keys --config x rotat",
			`unknown command "rotat" for "muster keys"; did you mean "rotate"?`},
		{"certs foo", `unknown command "foo" for "muster certs"; see "muster certs --help"`},
		{"certs --dir x isue", `did you mean "issue"?`},
		{"config chekc", `did you mean "check"?`},
		{"sim comapre", `did you mean "compare"?`},
		{"completion bsh", `did you mean "bash"?`},
		{"help infr", `unknown command "infr" for "muster"; did you mean "infer"?`},
		{"help models lisst", `unknown command "lisst" for "muster models"; did you mean "list"?`},
		{"status --jsno", `unknown flag: --jsno; did you mean "--json"?`},
	} {
		stdout, stderr, err := execute(t, strings.Fields(tt.args)...)
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got error %v, want %q in it", tt.args, err, tt.want)
		} else if got := exitStatus(err); got != 2 {
			t.Errorf("%s: got exit status %d, want 2", tt.args, got)
		}
		if stdout != "" || stderr != "" {
			t.Errorf("%s: printed %q and %q; main prints the error", tt.args, stdout, stderr)
		}
	}
	for _, args := range []string{"", "models", "help", "help models list", "completion bash"} {
		if stdout, _, err := execute(t, strings.Fields(args)...); err != nil || stdout == "" {
			t.Errorf("%q: got %q and %v, want help", args, stdout, err)
		}
	}
	// The shell completes subcommands and, after help, commands.
	for _, tt := range []struct {
		args []string
		want string
	}{{[]string{"models", ""}, "list\t"}, {[]string{"help", "mod"}, "models\n"}} {
		stdout, _, err := execute(t, append([]string{"__complete"}, tt.args...)...)
		if err != nil || !strings.Contains(stdout, tt.want) {
			t.Errorf("completion of %q: got %q and %v, want %q in it", tt.args, stdout, err,
				tt.want)
		}
	}
}

// TestUnknownVariables: every command warns alike, and suggests only what is near.
func TestUnknownVariables(t *testing.T) {
	t.Chdir(t.TempDir())
	write(t, "f.yaml", "")
	t.Setenv("MUSTER_BNECH", "1")
	t.Setenv("MUSTER_GRCP", "1")
	t.Setenv("MUSTER_CONFIGS", "1")
	const want = `muster: warning: environment variable MUSTER_BNECH is no setting
muster: warning: environment variable MUSTER_CONFIGS is no setting; did you mean "MUSTER_CONFIG"?
muster: warning: environment variable MUSTER_GRCP is no setting; did you mean "MUSTER_GRPC"?
`
	for _, args := range []string{
		"version", "config print", "config check f.yaml", "sim",
		"status --server 127.0.0.1:1",
		"plan", "keys generate", "models list --dir .",
	} {
		if _, stderr, _ := execute(t, strings.Fields(args)...); stderr != want {
			t.Errorf("%s: got %q, want %q", args, stderr, want)
		}
	}
	if _, stderr, _ := execute(t, "__complete", "models", ""); strings.Contains(stderr, "warning") {
		t.Errorf("shell completion: printed %q", stderr)
	}
}

// TestPictureEnding: a picture's format is that of its file's ending, and a command that cannot draw
// it says so before it works for minutes.
func TestPictureEnding(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, command := range []string{
		"bench --model m --rate 1", "plan --model rm2 --budget 2", "sim compare --model rm2",
	} {
		for _, name := range []string{"x.gif", "x", "x.PNG.txt"} {
			_, _, err := execute(t, append(strings.Fields(command), "--plot", name)...)
			if err == nil || exitStatus(err) != 2 ||
				!strings.Contains(err.Error(), "plot: "+name+" has the ending") ||
				!strings.Contains(err.Error(), "want .png or .svg") {
				t.Errorf("%s: got %v, want that .png and .svg are known", command, err)
			}
		}
	}
}

// TestExitStatus: 2 is for what the user got wrong.
func TestExitStatus(t *testing.T) {
	t.Chdir(t.TempDir())
	write(t, "bad.yaml", "lanes: x\n")
	for args, want := range map[string]int{
		"infer": 2, "bench --rate 1 --find-throughput": 2, "agent --lanes x": 2,
		"agent --config bad.yaml": 2, "config print --config bad.yaml": 2,
		"config check bad.yaml": 2, "models list --dir nowhere": 1,
	} {
		_, _, err := execute(t, strings.Fields(args)...)
		if err == nil || exitStatus(err) != want {
			t.Errorf("%s: got %v, want an error of exit status %d", args, err, want)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := run(ctx, []string{"infer", "ncf"}, strings.NewReader(""), io.Discard, io.Discard)
	if err == nil || err.Error() != "interrupted" || exitStatus(err) != 130 {
		t.Errorf("after Ctrl-C: got %v, want an error of exit status 130", err)
	}
}

// TestMisuse: a value that is refused is misuse, whichever part of the program refuses it. No server
// is asked before, as nothing listens there.
func TestMisuse(t *testing.T) {
	t.Chdir(t.TempDir())
	write(t, "secret", "no key")
	write(t, "bad.csv", "no column\n")
	for args, want := range map[string]string{
		"agent --lanes 99":                                  "lanes: 99, want",
		"agent --log-level loud":                            `log-level: "loud", want`,
		"agent --traces x":                                  `traces: "x", want`,
		"agent --model-store ftp://x":                       `"ftp://x" has the scheme`,
		"plan --model rm2":                                  "budget: give --budget",
		"plan --model rm2 --budget -1":                      "budget: -1 $/hr, want",
		"plan --model rm2 --rate NaN":                       "rate: NaN queries/s, want",
		"plan --model rm2 --rate Inf":                       "rate",
		"plan --model rm2 --budget 2 --queries 0":           "queries is 0, want",
		"plan --model rm2 --budget 2 --seeds 0":             "number of seeds is 0, want",
		"plan --model rm2 --budget 2 --policy x":            `policy "x" is unknown`,
		"plan --model rm2 --budget 2 --planner x":           `planner "x" is unknown`,
		"plan --model rm2 --budget 2 --max x=1":             "max: x is not one",
		"plan --model x --budget 2":                         `"x"`,
		"plan --evaluator table:nowhere --types a":          "nowhere",
		"plan --place --model rm2":                          "rate: 0 queries/s, want",
		"plan --live --samples x":                           "unknown flag: --samples; it is a flag",
		"plan --live --rate -1 --server 127.0.0.1:1":        "rate: -1 queries/s, want",
		"plan --live --budget -1 --server 127.0.0.1:1":      "budget: -1 $/hr, want",
		"sim --model rm2 --pool g4dn.xlarge=1 --rate NaN":   "rate is NaN queries/s",
		"sim --model rm2 --rate 1":                          "pool: give --pool",
		"sim --model rm2 --rate 1 --pool x":                 `"x"`,
		"sim --model rm2 --pool g4dn.xlarge=1":              "rate: give --rate",
		"sim --pool g4dn.xlarge=1 --rate 1 --batch bad.csv": "bad.csv",

		"sim --model rm2 --pool g4dn.xlarge=1 --find-throughput --policy x": `policy "x"`,
		"sim --model rm2 --pool g4dn.xlarge=1 --rate 1 --seeds 0":           "seeds is 0, want",
		"sim --model rm2 --pool g4dn.xlarge=1 --rate 1 --log x":             "--seeds 1",
		"sim --model rm2 --pool g4dn.xlarge=1 --rate 1 --fits 0 --place":    "fits: 0, want",

		"sim compare --model rm2 --policies x":    `policy "x" is unknown`,
		"sim compare --model rm2 --budget NaN":    "budget: NaN $/hr, want",
		"infer m --batch-size 0":                  "batch-size: 0, want",
		"infer m --input nowhere":                 "nowhere",
		"infer m --tls-ca nowhere":                "nowhere",
		"models generate ncf --scale -1":          `scale is "-1", expected`,
		"models generate x":                       `unknown model "x", want`,
		"models generate ncf --variants x":        `"x"`,
		"models evaluate m --rows -1":             "--rows: got -1, want",
		"models train clicks --rows 5":            "got 5 rows to learn",
		"models train clicks --plot x.svg":        "want .png",
		"models promote m x":                      `version "x", want`,
		"models promote m 1 --share 2":            `share "2", want`,
		"models push m":                           "store: empty, want",
		"models pull m@x --store file:///nowhere": `"m@x", want`,
		"models list --store ftp://x":             `scheme "ftp"`,
		"profile m --rounds 0":                    "--rounds is 0, want",
		"place hera - --load 0":                   "--load is 0, want",
		"place rollback x":                        `version "x", want`,
		"place pin a wnd:x":                       `"wnd:x"`,
		"top --once --interval -1s":               "interval: -1s, want",
		"certs init --days 0":                     "days: 0, want",
		"certs issue client a/b":                  `name "a/b", want`,
		"keys rotate --key secret":                "key: secret: ",
		"fleet apply":                             "want a fleet.yaml, or",
		"fleet apply --count x":                   `count: "x", want TYPE=N`,
		"fleet pause x":                           `"x", want a duration`,
		"reproduce kairos-fig5 --seeds 1":         "go -C reproduce run . all",
	} {
		_, _, err := execute(t, strings.Fields(args)...)
		if err == nil || exitStatus(err) != 2 || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want an error of exit status 2 with %q", args, err, want)
		}
	}
	t.Setenv("MUSTER_LANES", "99")
	if _, _, err := execute(t, "agent"); err == nil || exitStatus(err) != 2 {
		t.Errorf("MUSTER_LANES=99: got %v, want an error of exit status 2", err)
	}
}

// TestHelp checks that every command says what it does, with an example.
func TestHelp(t *testing.T) {
	root := newRoot()
	root.InitDefaultCompletionCmd()
	for _, cmd := range root.Commands() {
		if cmd.Short == "" ||
			cmd.Name() != "version" && !cmd.HasSubCommands() && cmd.Example == "" {
			t.Errorf("%s has no summary or no example", cmd.Name())
		}
	}
	var names []string
	for _, cmd := range root.Commands() {
		names = append(names, cmd.Name())
	}
	if got := strings.Join(names, " "); !strings.Contains(got, "agent") ||
		!strings.Contains(got, "completion") {
		t.Errorf("commands: %s", got)
	}
}

func TestGenerate(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	out, _, err := execute(t, "models", "generate", "ncf", "--scale", "small")
	if err != nil {
		t.Fatal(err)
	}
	if want := "ncf: generated in ./model-repository\n"; out != want {
		t.Errorf("got %q, want %q", out, want)
	}
	if _, err := os.Stat(filepath.Join(dir, "model-repository", "ncf", "1", "model.onnx")); err !=
		nil {
		t.Error(err)
	}
	out, _, err = execute(t, "models", "generate", "ncf", "--scale", "small")
	if err != nil || !strings.Contains(out, "there already") {
		t.Errorf("again: got %q and %v", out, err)
	}
	if err := os.MkdirAll(filepath.Join("model-repository", "broken", "1"), 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join("model-repository", "broken", "1", "model.onnx"), "no model")
	out, _, err = execute(t, "models", "list", "--dir", "model-repository")
	if err != nil ||
		!regexp.MustCompile(`(?m)^broken +1 +BROKEN +.*model\.onnx`).MatchString(out) ||
		!regexp.MustCompile(`(?m)^ncf +1 +ON DISK +$`).MatchString(out) {
		t.Errorf("models list: got %q and %v", out, err)
	}
	write(t, filepath.Join("model-repository", "broken", "model.yaml"), "late: never\nqos: 5\n")
	out, _, err = execute(t, "models", "list", "--dir", "model-repository")
	if err != nil ||
		!regexp.MustCompile(`(?m)^broken +1 +BROKEN +(.*:1: late: .*\n)( +)(.*:2: unknown`+
			` key "qos".*\n)ncf `).MatchString(out) || strings.Contains(out, `\n`) {
		t.Errorf("models list of two faults: got %q and %v", out, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := run(ctx, []string{"models", "generate", "wnd", "--scale", "small"},
		strings.NewReader(""), &bytes.Buffer{}, &bytes.Buffer{}); err == nil {
		t.Error("cancelled: got no error")
	}
}
