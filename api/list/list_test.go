package list_test

import (
	"cmp"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/muster-serve/muster/api/list"
)

type number struct {
	value    int
	a, other list.Node[number]
}

func byValue(a, b *number) int { return cmp.Compare(a.value, b.value) }

// TestList compares a list with a slice, through any operations; the elements are in a second list
// all the while, which must not notice.
func TestList(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var l, all list.List[number]
		var want []*number
		for range rapid.IntRange(0, 50).Draw(t, "operations") {
			n := &number{value: rapid.IntRange(0, 5).Draw(t, "value")}
			at := rapid.IntRange(0, len(want)).Draw(t, "at")
			switch rapid.SampledFrom([]string{"append", "insert", "sort", "remove"}).Draw(t, "do") {
			case "append":
				l.Append(n, &n.a)
				want = append(want, n)
			case "insert":
				if at == 0 {
					l.InsertAfter(n, &n.a, nil)
				} else {
					l.InsertAfter(n, &n.a, &want[at-1].a)
				}
				want = slices.Insert(want, at, n)
			case "sort":
				if !slices.IsSortedFunc(want, byValue) {
					continue
				}
				l.InsertSorted(n, &n.a, byValue)
				want = append(want, n)
				slices.SortStableFunc(want, byValue)
			case "remove":
				if at == len(want) {
					continue
				}
				n = want[at]
				l.Remove(&n.a)
				if n.a.InList() || n.a.Next() != nil || !n.other.InList() {
					t.Fatalf("removed: in the list %v, in the other %v", n.a.InList(),
						n.other.InList())
				}
				want = slices.Delete(want, at, at+1)
				all.Remove(&n.other)
				check(t, &l, want)
				continue
			}
			all.Append(n, &n.other)
			check(t, &l, want)
		}
		if all.Len() != len(want) {
			t.Fatalf("the other list has %d elements, want %d", all.Len(), len(want))
		}
	})
}

func check(t *rapid.T, l *list.List[number], want []*number) {
	var got []*number
	for n := l.First(); n != nil; n = n.a.Next() {
		got = append(got, n)
	}
	if !slices.Equal(got, want) || l.Len() != len(want) {
		t.Fatalf("got %v and %d elements, want %v", got, l.Len(), want)
	}
	if len(want) == 0 {
		if l.First() != nil || l.Last() != nil {
			t.Fatalf("an empty list begins with %v and ends with %v", l.First(), l.Last())
		}
	} else if l.First() != want[0] || l.Last() != want[len(want)-1] {
		t.Fatalf("the list begins with %v and ends with %v", l.First(), l.Last())
	}
}

// TestMisuse: who adds an element twice, or removes one that is not there, learns it at once.
func TestMisuse(t *testing.T) {
	var l list.List[number]
	in, out := &number{}, &number{}
	l.Append(in, &in.a)
	for what, misuse := range map[string]func(){
		"added twice": func() { l.Append(in, &in.a) },
		"not there":   func() { l.Remove(&out.a) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", what)
				}
			}()
			misuse()
		}()
	}
}

// TestAllocations: joining and leaving allocate nothing.
func TestAllocations(t *testing.T) {
	var l list.List[number]
	n, o := &number{value: 1}, &number{value: 2}
	if got := testing.AllocsPerRun(100, func() {
		l.Append(o, &o.a)
		l.InsertSorted(n, &n.a, byValue)
		l.Remove(&n.a)
		l.Remove(&o.a)
	}); got != 0 {
		t.Errorf("%v allocations, want none", got)
	}
}
