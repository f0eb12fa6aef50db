package lateness

import (
	"flag"
	"os"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "write the golden file")

// TestTexts: the sentence, the evidence and the remedy of each cause, with and without an agent,
// are those of the golden file.
func TestTexts(t *testing.T) {
	var b strings.Builder
	for _, c := range All {
		if !c.Known() {
			t.Errorf("cause %q has no text", c)
		}
		for _, agent := range []string{"vm-2", ""} {
			s := Summary{
				Last: time.Minute, Ended: map[string]uint64{"ncf": 200},
				Missed: []CauseCount{{Key{"ncf", c, agent}, Sum{3, 3 * 240 * ms}}},
			}
			b.WriteString("# " + string(c) + " " + agent + "\n" + strings.Join(s.Explain(),
				"\n") + "\n\n")
		}
	}
	const path = "testdata/texts.txt"
	if *update {
		if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got := b.String(); got != string(want) {
		t.Errorf("got\n%s\nwant what is in %s", got, path)
	}
	if strings.Contains(b.String(), "%!") {
		t.Error("a text has a wrong verb")
	}
}

// TestSentence: shares are of all queries that have ended, the largest cause first.
func TestSentence(t *testing.T) {
	s := Summary{Last: time.Minute, Ended: map[string]uint64{"a": 900, "b": 100}}
	if got := s.Sentence(3); got != "" {
		t.Errorf("of nothing late: %q", got)
	}
	s.Missed = []CauseCount{
		{Key{"a", CPU, "vm-2"}, Sum{14, 14 * 100 * ms}}, {Key{"b", CPU, "vm-2"}, Sum{10, 0}},
		{Key{"a", Lane, ""}, Sum{7, 0}}, {Key{"a", Limit, ""}, Sum{1, 0}},
	}
	for _, c := range []struct{ model, want string }{
		{"", "3.2 % late: 2.4 % vm-2 lacks CPU, 0.7 % waited for a lane"},
		{"b", "10 % late: vm-2 lacks CPU"}, {"c", ""},
	} {
		of := s.Of(c.model)
		if got := of.Sentence(3); got != c.want {
			t.Errorf("of %q: %q, want %q", c.model, got, c.want)
		}
	}
	of := Summary{Missed: []CauseCount{{Key{"", Rights, ""}, Sum{2, 0}}}}
	if got, want := of.Sentence(1), "100 % late: refused: the client may not do that"; got != want {
		t.Errorf("of queries that nobody has counted as ended: %q, want %q", got, want)
	}
}

// TestWindow: a summary has what was counted in its time, and the window stays bounded.
func TestWindow(t *testing.T) {
	w := &Window{}
	key := Key{"ncf", Lane, ""}
	for s := range 100 {
		now := time.Duration(s) * time.Minute
		w.Miss(now, key, Sum{1, ms})
		w.End(now, "ncf", 10)
	}
	now := 99 * time.Minute
	for _, c := range []struct {
		last time.Duration
		want uint64
	}{
		{time.Second, 1}, {time.Minute, 2}, {10 * time.Minute, 11}, {time.Hour, 16},
	} {
		s := w.Summary(now, c.last)
		if ended, missed := s.Total(); missed != c.want || ended != 10*c.want {
			t.Errorf("last %v: %d of %d, want %d of %d", c.last, missed, ended, c.want, 10*c.want)
		}
	}
	for i := range 10_000 {
		name := strings.Repeat("a", i)
		w.Miss(now, Key{Model: name, Cause: CPU, Agent: name}, Sum{1, 0})
		w.End(now, strings.Repeat("m", i), 1)
	}
	s := w.slotAt(now)
	if len(s.missed) > 2*maxKeys+len(All)+1 || len(s.ended) > maxKeys+1 {
		t.Errorf("%d and %d keys, want them bounded", len(s.missed), len(s.ended))
	}
	if _, missed := w.Summary(now, 0).Total(); missed != 10_001 {
		t.Errorf("%d missed, want all counted", missed)
	}
	w.Miss(now, Key{Cause: "of tomorrow"}, Sum{1, 0})
	if w.slotAt(now).missed[Key{Cause: Unknown}].Count != 1 {
		t.Error("an unknown cause is not counted as Unknown")
	}
}
