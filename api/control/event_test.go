package control

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write testdata/sentences.golden anew")

// detailUsed finds the details in a pattern.
var detailUsed = regexp.MustCompile(`[{\[]([a-z_0-9]+)[}:=]`)

// samples are values of the details that sentences have a form for, or a test for.
var samples = map[string]string{
	"after": "10s", "after_s": "600", "before": "0.30000000000000004", "canary": "2",
	"celsius": "84", "current": "1", "factor": "1.2999999999999998", "in_ms": "119995",
	"may_lead": "false", "now": "0.526", "older_load_serves": "true", "on": "all",
	"overdue_ms": "2013", "own_profile": "true", "previous": "1", "price": "1.0519999999999998",
	"share": "0.05", "share_of_queries": "0.031", "timeout_ms": "30000", "took_ms": "1234",
	"version": "3", "number": "7",
}

// sampleEvent returns an event of the table with a value for each detail of its sentence.
func sampleEvent(kind, what string) *Event {
	e := &Event{Agent: "pc-1", Kind: kind, What: what, Who: "admin (certificate)",
		From: "10.0.0.2:50412"}
	for _, m := range detailUsed.FindAllStringSubmatch(sentences[kind][what], -1) {
		if e.detail(m[1]) == "" {
			value, ok := samples[m[1]]
			if kind == "release" && m[1] == "what" {
				value, ok = "rolled back", true
			}
			if !ok || kind == "demand" && (m[1] == "before" || m[1] == "now") { // no prices
				value = strings.ToUpper(m[1])
			}
			e.Details = append(e.Details, &EventDetail{Key: m[1], Value: value})
		}
	}
	if what == "release" {
		e.Details = append(e.Details, &EventDetail{Key: "canary", Value: "2"})
	}
	return e
}

// TestSentences: every event of the table has a sentence, with numbers as a person writes them, and
// names all of its details.
func TestSentences(t *testing.T) {
	var out strings.Builder
	for _, kind := range slices.Sorted(maps.Keys(sentences)) {
		for _, what := range slices.Sorted(maps.Keys(sentences[kind])) {
			e := sampleEvent(kind, what)
			got := e.Sentence()
			fmt.Fprintf(&out, "%s: %s\n", kind, got)
			if strings.ContainsAny(got, "{}[]") || regexp.MustCompile(`\d\.\d{3}`).MatchString(got) ||
				strings.Contains(got, "  ") {
				t.Errorf("%s, %q: got %q", kind, what, got)
			}
		}
	}
	for _, why := range []string{
		"promoted", "rolled back", "on trial", "promoted by the rule: it was no worse in 2000 of its " +
			"queries and 1h0m0s; 0.0 % of its 2000 queries failed, 0.0 % of the current version's 40000",
		"rolled back by the rule: 3.1 % of its 2000 queries failed, 0.0 % of the current version's 40000",
		"undecided: none of its queries has ended yet",
	} {
		e := &Event{Kind: "release", What: "release", Details: []*EventDetail{
			{Key: "model", Value: "ncf"}, {Key: "what", Value: why}, {Key: "current", Value: "1"},
			{Key: "canary", Value: "2"}, {Key: "share", Value: "0.05"}, {Key: "previous", Value: "7"},
		}}
		fmt.Fprintf(&out, "release: %s\n", e.Sentence())
	}
	const golden = "testdata/sentences.golden"
	if *update {
		if err := os.WriteFile(golden, []byte(out.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if out.String() != string(want) {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
}

// TestSentenceOf: sentences agree with their numbers, leave out what is absent, and round.
func TestSentenceOf(t *testing.T) {
	lost := [2]string{"lane", "lanes are lost"}
	silent := [2]string{"lane", "lane does not answer, it gets no queries until it does"}
	refused := [2]string{"refused", "calls and connections refused"}
	gpu := [2]string{"gpu", "the GPU's memory has errors that were not corrected"}
	slowed := [2]string{"gpu", "the GPU is slowed"}
	stored := [2]string{"store", "a model is as the store has it"}
	price := [2]string{"fleet", "a price has changed"}
	gone := [2]string{"unloaded", "model serves no more"}
	leader := [2]string{"leader", "there is no leader"}
	roll := [2]string{"placement", "asked to rollback the placement"}
	target := [2]string{"target", "a model cannot meet its QoS target"}
	for _, tt := range []struct {
		of      [2]string // the kind and the words
		details string    // KEY=VALUE, separated by ";"
		want    string
	}{
		{lost, "agent=b;lanes=1;why=it left", "b lost 1 lane: it left"},
		{lost, "agent=b;lanes=4;why=", "b lost 4 lanes"},
		{lost, "agent=b;lanes=0", "b lost 0 lanes"},
		{lost, "agent=b", "b lost lanes"},
		{silent, "agent=b;lane=2;overdue_ms=1999.6;holds=1", "lane 2 of b does not answer 2 s " +
			"after it was due; it holds 1 query and gets no more"},
		{silent, "agent=b;lane=2;overdue_ms=50;holds=0", "lane 2 of b does not answer 50 ms " +
			"after it was due; it holds 0 queries and gets no more"},
		{refused, "refused=1;reasons=no certificate: 1",
			"a call or connection was refused: no certificate: 1"},
		{refused, "refused=12", "12 calls and connections were refused"},
		{gpu, "gpu=0;new=1;all=3",
			"the memory of GPU 0 of a has 1 new uncorrected error, 3 in all"},
		{slowed, "gpu=0;reasons=[heat power_brake];celsius=91",
			"GPU 0 of a is slowed (heat, power_brake) at 91 °C"},
		{slowed, "gpu=0;celsius=91", "GPU 0 of a is slowed at 91 °C"},
		{stored, "model=ncf;versions=[1 3];took_ms=61000",
			"ncf: the model store's versions are here after 61 s: 1, 3"},
		{price, "kind=t4g.nano spot;before=0.0041999999;now=0.0051",
			"the price of t4g.nano spot changed from $0.0042/hr to $0.0051/hr"},
		{price, "kind=r5n.large;before=0.149;now=12",
			"the price of r5n.large changed from $0.15/hr to $12.00/hr"},
		{gone, "model=ncf;version=2", "ncf: version 2 no longer serves"},
		{leader, "former=;epoch=0;why=it is not known", "the fleet has no leader: it is not known"},
		{leader, "former=b;epoch=3;why=it failed",
			"the fleet has no leader after b of epoch 3: it failed"},
		{roll, "version=0", "somebody asked to roll the placement back"},
		{target, "model=ncf;version=1;share_of_queries=0.30000000000000004;why=too slow",
			"ncf: version 1 cannot meet its QoS target for 30 % of its queries: too slow"},
		// A number that no form rounds is rounded all the same, and one that is short is not.
		{gone, "model=ncf;version=1.2999999999999998", "ncf: version 1.3 no longer serves"},
		{gone, "model=ncf;version=1.2345", "ncf: version 1.2345 no longer serves"},
		{gone, "model=10.20.30.40:8001;version=2", "10.20.30.40:8001: version 2 no longer serves"},
	} {
		e := &Event{Agent: "a", Kind: tt.of[0], What: tt.of[1]}
		for detail := range strings.SplitSeq(tt.details, ";") {
			key, value, _ := strings.Cut(detail, "=")
			e.Details = append(e.Details, &EventDetail{Key: key, Value: value})
		}
		if got := e.Sentence(); got != tt.want {
			t.Errorf("%v %s:\ngot  %q\nwant %q", tt.of, tt.details, got, tt.want)
		}
	}
}

// TestEventsHaveSentences: each event that this repository logs has a sentence, whose details it has;
// and each sentence has an event.
func TestEventsHaveSentences(t *testing.T) {
	emitted := map[[2]string]map[string]bool{}
	err := filepath.WalkDir("../..", func(path string, entry fs.DirEntry, err error) error {
		switch name := entry.Name(); {
		case err != nil:
			return err
		case entry.IsDir() && (name == "build" || name == "node_modules" || name == "testdata"):
			return filepath.SkipDir
		case !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go"):
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			return err
		}
		for _, declared := range file.Decls {
			findEvents(declared, func(kind, what string, keys map[string]bool) {
				emitted[[2]string{kind, what}] = keys
			})
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for event, keys := range emitted {
		pattern, ok := sentences[event[0]][event[1]]
		if !ok {
			t.Errorf("no sentence of the kind %s for %q", event[0], event[1])
		}
		for _, m := range detailUsed.FindAllStringSubmatch(pattern, -1) {
			if !keys[m[1]] {
				t.Errorf("%s, %q: the sentence has {%s}, the event has %v", event[0], event[1], m[1],
					slices.Sorted(maps.Keys(keys)))
			}
		}
	}
	for kind, whats := range sentences {
		for what := range whats {
			made := strings.HasPrefix(what, "asked to ") || kind == "silent" // by other code
			if emitted[[2]string{kind, what}] == nil && !made {
				t.Errorf("no event of the kind %s says %q", kind, what)
			}
		}
	}
}

// findEvents calls found for each log call in declared that is an event with fixed words. A variable
// made by With has its keys in the calls on it.
func findEvents(declared ast.Decl, found func(kind, what string, keys map[string]bool)) {
	with := map[string][]ast.Expr{}
	ast.Inspect(declared, func(n ast.Node) bool {
		if set, ok := n.(*ast.AssignStmt); ok && len(set.Lhs) == 1 && len(set.Rhs) == 1 {
			name, isName := set.Lhs[0].(*ast.Ident)
			call, isCall := set.Rhs[0].(*ast.CallExpr)
			if isName && isCall {
				if f, ok := call.Fun.(*ast.SelectorExpr); ok && f.Sel.Name == "With" {
					with[name.Name] = call.Args
				}
			}
		}
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		f, ok := call.Fun.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		args := call.Args
		switch f.Sel.Name {
		case "Info", "Warn", "Error":
		case "Log":
			args = args[min(2, len(args)):]
		case "logRequest":
			args = append([]ast.Expr{args[2], ast.NewIdent("eventKey"), args[1], str("error")},
				args[4:]...)
		default:
			return true
		}
		if name, ok := f.X.(*ast.Ident); ok {
			args = slices.Concat(args, with[name.Name])
		}
		what, kind, keys := "", "", map[string]bool{}
		for i, arg := range args {
			if inner, ok := arg.(*ast.CallExpr); ok && len(inner.Args) == 3 && isEventKey(inner.Args[1]) {
				kind = text(inner.Args[2]) // append(attrs, eventKey, kind)
			}
			if i == 0 {
				what = text(arg)
			} else if isEventKey(arg) && i+1 < len(args) {
				kind = text(args[i+1])
			} else {
				keys[text(arg)] = true
			}
		}
		if kind == "placement" && what == "placement" { // its attributes are in a variable
			keys["what"] = true
		}
		if kind != "" && what != "" {
			found(kind, what, keys)
		}
		return true
	})
}

func str(s string) ast.Expr { return &ast.BasicLit{Kind: token.STRING, Value: strconv.Quote(s)} }

func isEventKey(e ast.Expr) bool {
	name, ok := e.(*ast.Ident)
	return ok && name.Name == "eventKey" || text(e) == "event"
}

// text returns the value of a constant string expression, or "".
func text(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.BasicLit:
		s, _ := strconv.Unquote(e.Value)
		return s
	case *ast.BinaryExpr:
		if x, y := text(e.X), text(e.Y); x != "" && y != "" {
			return x + y
		}
	}
	return ""
}

// TestUnknownEvent: of an event that this version does not know its kind, words and details are
// shown; braces and brackets in details are no patterns, and what is absent leaves no gap.
func TestUnknownEvent(t *testing.T) {
	details := func(pairs ...string) (all []*EventDetail) {
		for i := 0; i < len(pairs); i += 2 {
			all = append(all, &EventDetail{Key: pairs[i], Value: pairs[i+1]})
		}
		return all
	}
	for want, e := range map[string]*Event{
		`tides: the sea has risen by_m=2 where="the \"coast\""`: {Kind: "tides",
			What: "the sea has risen", Details: details("by_m", "2", "where", `the "coast"`)},
		`leader: leads twice epoch=3, by an unnamed client at 1.2.3.4:5`: {Kind: "leader",
			What: "leads twice", From: "1.2.3.4:5", Details: details("epoch", "3")},
		`{b}[: {c}] at  failed: it no longer answers`: {Kind: "failed",
			What: "agent failed: it is not heard any more", Details: details("agent", "{b}[: {c}]")},
		`somebody asked to load ncf on , which failed: no`: {Kind: "load",
			What: "asked to load a model", Details: details("model", "ncf", "error", "no")},
	} {
		if got := e.Sentence(); got != want {
			t.Errorf("got  %q\nwant %q", got, want)
		}
	}
}

// TestTimeText: durations are written as a person would.
func TestTimeText(t *testing.T) {
	for value, want := range map[string]string{
		"0": "0 ms", "1": "1 ms", "9.96": "10 ms", "350": "350 ms", "1234": "1.2 s", "12340": "12 s",
		"119995": "2 min", "3600000": "60 min", "5400000": "1.5 h", "0.25": "250 µs", "x": "x",
	} {
		e := &Event{Details: []*EventDetail{{Key: "a", Value: value}}}
		if got := e.fill("{a:ms}"); got != want {
			t.Errorf("%s ms: got %s, want %s", value, got, want)
		}
	}
	for value, want := range map[string]string{
		"0": "0.0 %", "0.05": "5 %", "0.0004": "0.04 %", "0.031": "3.1 %", "0.0999": "10 %", "0.314": "31 %",
	} {
		e := &Event{Details: []*EventDetail{{Key: "a", Value: value}}}
		if got := e.fill("{a:percent}"); got != want {
			t.Errorf("share %s: got %s, want %s", value, got, want)
		}
	}
}
