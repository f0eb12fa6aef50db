package wakeup

import (
	"testing"
	"testing/synctest"
)

// TestSignal: signals before a receive count as one, and one after it wakes again.
func TestSignal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, woken := New(), 0
		wait := func() {
			for range s {
				woken++
				if woken == 2 {
					return
				}
			}
		}
		s.Send()
		s.Send()
		go wait()
		synctest.Wait()
		if woken != 1 {
			t.Errorf("woken %d times, want once for what came before", woken)
		}
		s.Send()
		synctest.Wait()
		if woken != 2 {
			t.Errorf("woken %d times, want twice", woken)
		}
	})
}
