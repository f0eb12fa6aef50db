package agent

import (
	"io"
	"log/slog"
	"testing"
	"time"

	"github.com/muster-serve/muster/runtime/gpu"
)

// TestGPUIsCalm: what comes and goes each second is told once.
func TestGPUIsCalm(t *testing.T) {
	told := 0
	w := &cardWatch{
		card: &gpu.Card{Name: "Fake"}, log: slog.New(slog.NewTextHandler(io.Discard, nil)),
		changed: func() { told++ }, slowed: map[string]time.Time{},
	}
	w.told = w.describeCard()
	at := time.Now()
	see := func(after time.Duration, s gpu.Status, want int, why string) {
		t.Helper()
		s.Memory = 16 << 30
		at = at.Add(after)
		if w.noteStatus(s, at); told != want {
			t.Errorf("%s: told %d times, want %d", why, told, want)
		}
	}
	hot := gpu.Status{Slowed: []string{gpu.Heat}}
	see(0, gpu.Status{Slowed: []string{gpu.PowerCap}}, 0, "the limit of power is usual")
	see(time.Second, gpu.Status{Used: 100 << 20}, 0, "a little memory")
	see(time.Second, gpu.Status{Used: 2 << 30}, 1, "much memory")
	see(time.Second, gpu.Status{Used: 2<<30 + 100<<20}, 1, "a little more")
	hot.Used = 2 << 30
	see(time.Second, hot, 2, "hot")
	see(time.Second, gpu.Status{Used: 2 << 30}, 2, "cooler")
	see(time.Second, hot, 2, "hot again")
	see(calmAfter-time.Second, gpu.Status{Used: 2 << 30}, 2, "cool for not so long")
	see(2*time.Second, gpu.Status{Used: 2 << 30}, 3, "cool for a minute")
}
