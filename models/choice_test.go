package models

import (
	"slices"
	"testing"
	"testing/synctest"
)

// prefers chooses versions, the first of which queries get.
type prefers []int64

func (p prefers) Versions() []int64 { return p }

func (p prefers) Prefer(a, b int64) int64 {
	if b == p[0] || a != p[0] && b > a {
		return b
	}
	return a
}

// ready are the versions of ncf that are.
func (b *bench) ready() (all []int64) {
	for _, s := range b.Index() {
		if s.State == Ready {
			all = append(all, s.Version)
		}
	}
	return all
}

// TestChoice: a choice loads versions that the policy does not, and queries get the one that it
// prefers, also when a newer one appears; without it the policy holds again.
func TestChoice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.add("ncf/1", "ncf/2", "ncf/3")
		b.start()
		expect := func(what string, serves int64, ready ...int64) {
			t.Helper()
			if got := b.ready(); !slices.Equal(got, ready) {
				t.Errorf("%s: versions %v are ready, want %v", what, got, ready)
			}
			b.serves("ncf", serves)
			if got := b.OnDisk(); len(got) != 1 || got[0].Version.Number != serves {
				t.Errorf("%s: on disk are %+v, want version %d", what, got, serves)
			}
		}
		expect("no choice", 3, 3)
		b.Choose(map[string]Choice{"ncf": prefers{1, 2}, "other": prefers{1}})
		synctest.Wait()
		expect("1 with 2", 1, 1, 2, 3)
		b.add("ncf/4")
		b.polls(3)
		synctest.Wait()
		expect("4 has come", 1, 1, 2, 4)
		b.Choose(map[string]Choice{"ncf": prefers{7}})
		synctest.Wait()
		expect("7 is not there", 4, 4)
		b.Choose(nil)
		synctest.Wait()
		expect("no choice any more", 4, 4)
	})
}

// TestChoiceBefore: a choice that is made before a model appears holds for it.
func TestChoiceBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.start()
		b.Choose(map[string]Choice{"ncf": prefers{1}})
		b.add("ncf/1", "ncf/2")
		b.polls(3)
		synctest.Wait()
		b.serves("ncf", 1)
		if want := []string{"ncf/1", "ncf/2"}; !slices.Equal(b.loads, want) {
			t.Errorf("loads %q, want %q: what queries get comes first", b.loads, want)
		}
	})
}
