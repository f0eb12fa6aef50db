package main

import (
	"strings"
	"testing"
)

// TestFormerSpellings: a former spelling does what the present one does, and a note gives that. A
// value that looks like a selector is none.
func TestFormerSpellings(t *testing.T) {
	const own = "--types r5n.large,c5.large"
	table := writeFiles(t, map[string]string{
		"t.json": `{"1, 0": [0.15, 99.5], "0, 1": [0.09, 50], "1, 1": [0.24, 99.9]}`,
	}) + "/t.json"
	for former, now := range map[string]string{
		"plan --evaluator table:" + table + " " + own: "plan table " + table + " " + own,
		"plan " + own + " --evaluator=table:" + table: "plan table " + table + " " + own,
		"plan --place --model rm2 --rate 100 --budget 2 --evaluator bound": "plan place --model rm2 " +
			"--rate 100 --budget 2 --evaluator bound",
		"plan --live --server 127.0.0.1:1": "plan live --server 127.0.0.1:1",
		"sim --find-throughput --model x":  "sim throughput --model x",
		"sim --model x --fault kill-leader@1s --fault y": "sim faults --model x --fault kill-leader@1s " +
			"--fault y",
		"sim --model rm2 --pool r5n.large=1 --rate 1 --fits 0 --place": "sim place --model rm2 " +
			"--pool r5n.large=1 --rate 1 --fits 0",
	} {
		want, _, wantErr := execute(t, strings.Fields(now)...)
		got, stderr, err := execute(t, strings.Fields(former)...)
		if got != want || (err == nil) != (wantErr == nil) ||
			err != nil && err.Error() != wantErr.Error() {
			t.Errorf("%s: printed %s, %v; want as of %s: %s, %v", former, got, err, now, want, wantErr)
		}
		command := "muster " + strings.Join(strings.Fields(now)[:2], " ")
		if !strings.Contains(stderr, "muster: note: \"muster ") ||
			!strings.Contains(stderr, "is now \""+command) {
			t.Errorf("%s: noted %q, want the spelling %s", former, stderr, command)
		}
	}
	for _, args := range []string{
		"plan --model --live", "plan --place=false", "plan", "config print", "sim --pool --place",
	} {
		if _, stderr, _ := execute(t, strings.Fields(args)...); strings.Contains(stderr, "is now") {
			t.Errorf("%s: noted %q, want nothing", args, stderr)
		}
	}
	_, _, err := execute(t, "plan", "--place", "--live")
	if want := `it is the command "muster plan live" now`; err == nil ||
		!strings.Contains(err.Error(), want) {
		t.Errorf("two selectors: %v, want %q", err, want)
	}
}
