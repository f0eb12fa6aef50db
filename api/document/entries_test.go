package document

import (
	"fmt"
	"slices"
	"testing"
)

func TestEntries(t *testing.T) {
	doc, err := YAML("f", []byte("a: &x {c: 1,\n  d: 2}\nb: *x\na: [1]\n"))
	if err != nil {
		t.Fatal(err)
	}
	f := Faults{Path: "f"}
	if f.JoinFaults() != nil || f.CountFaults() != 0 {
		t.Errorf("got %v before any fault", f.JoinFaults())
	}
	var got []string
	for e := range Entries(doc.Content[0]) {
		got = append(got, fmt.Sprint(e.Key.Value, " ", e.First))
		for inner := range Entries(e.Value) {
			got = append(got, fmt.Sprint(e.Key.Value, ".", inner.Key.Value, " ", inner.First))
		}
		if e.First != 0 {
			f.Fault(e.Key, "%s is there at line %d", e.Key.Value, e.First)
			f.Fault(e.Value, "it is %s", Found(e.Value))
		}
	}
	if want := []string{
		"a 0", "a.c 0", "a.d 0", "b 0", "b.c 0", "b.d 0", "a 1",
	}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if err, want := f.JoinFaults(), "f:4: a is there at line 1\nf:4: it is a list"; err == nil ||
		err.Error() != want || f.CountFaults() != 2 {
		t.Errorf("got %d faults: %v, want %q", f.CountFaults(), err, want)
	}
}
