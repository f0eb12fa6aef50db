package serve

import (
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// An expiry notes that it has expired.
type expiry struct {
	timeout
	name string
	note func(name string)
}

func (l *expiry) expire() { l.note(l.name) }

// TestTimeouts: what has not ended expires when it is due, in whatever order others end, and the
// next ones too.
func TestTimeouts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var all timeouts
		var mu sync.Mutex
		var expired []string
		start := time.Now()
		begin := func(name string) *expiry {
			l := &expiry{name: name, note: func(name string) {
				mu.Lock()
				defer mu.Unlock()
				expired = append(expired, name+" after "+time.Since(start).String())
			}}
			all.addTimeout(&l.timeout, 10*time.Second, l)
			return l
		}
		a, b, c := begin("a"), begin("b"), begin("c")
		time.Sleep(3 * time.Second)
		d, e := begin("d"), begin("e")
		if !all.removeTimeout(&a.timeout) || !all.removeTimeout(&c.timeout) ||
			!all.removeTimeout(&e.timeout) ||
			all.removeTimeout(&a.timeout) {
			t.Error("those that have not expired end once")
		}
		time.Sleep(8 * time.Second) // at 11 s
		synctest.Wait()
		if all.removeTimeout(&b.timeout) {
			t.Error("b has expired")
		}
		all.addTimeout(&b.timeout, 10*time.Second, b) // may begin anew
		time.Sleep(time.Minute)
		synctest.Wait()
		if want := []string{
			"b after 10s", "d after 13s", "b after 21s",
		}; !slices.Equal(expired, want) {
			t.Errorf("expired: %q, want %q", expired, want)
		}
		if all.removeTimeout(&d.timeout) || all.begun.Len() > 0 || all.set {
			t.Errorf("something is left: %+v", &all)
		}
		begin("f") // after a while without any
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if want := "f after 1m21s"; expired[len(expired)-1] != want {
			t.Errorf("expired last: %q, want %q", expired[len(expired)-1], want)
		}
	})
}
