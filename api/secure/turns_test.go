package secure

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestTurnsShare: however many want turns, few have one at a time, they take their share of the
// time and no more, and who wants one seldom gets it before those who want many.
func TestTurnsShare(t *testing.T) {
	for _, tt := range []struct {
		cpus, most int
		share      float64 // of a second, in a second
	}{{1, 1, 0.25}, {2, 1, 0.5}, {4, 1, 1}, {16, 4, 4}} {
		t.Run(fmt.Sprint(tt.cpus, " CPUs"), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const cost, length = time.Millisecond, 10 * time.Second
				turns := newTurns(tt.cpus)
				ctx, end := context.WithCancel(t.Context())
				var all sync.WaitGroup
				var now, most, done atomic.Int64
				take := func(holder string) (waited time.Duration) {
					begun := time.Now()
					turn, err := turns.beginTurn(ctx, holder)
					if err != nil {
						return 0
					}
					waited = time.Since(begun)
					if n := now.Add(1); n > most.Load() {
						most.Store(n)
					}
					time.Sleep(cost) // what it does
					now.Add(-1)
					done.Add(1)
					turns.endTurn(turn)
					return waited
				}
				for i := range 350 {
					all.Go(func() {
						for ctx.Err() == nil {
							take(fmt.Sprint("many-", i%7))
						}
					})
				}
				begun := time.Now()
				time.Sleep(seldom) // until each of the many has had one
				for ; time.Since(begun) < length; time.Sleep(400 * time.Millisecond) {
					if waited := take("one"); waited > 2*cost {
						t.Errorf("after %v, who seldom wants a turn has waited %v",
							time.Since(begun), waited)
					}
				}
				took := time.Duration(done.Load()) * cost
				want := time.Duration(tt.share * float64(length))
				if took < want*9/10 ||
					took > want+2*turnsAhead+time.Duration(tt.share*float64(time.Second)) {
					t.Errorf("turns took %v in %v, want about %v", took, length, want)
				}
				if most.Load() != int64(tt.most) {
					t.Errorf("%d turns at a time, want %d", most.Load(), tt.most)
				}
				end()
				all.Wait()
				if len(turns.waiting) != 0 || turns.free != tt.most {
					t.Errorf("%d wait and %d are free once all have ended", len(turns.waiting),
						turns.free)
				}
				time.Sleep(seldom) // its timer
			})
		})
	}
}

// TestTurnsOfHandshakes: who begins a handshake and goes silent has no turn meanwhile, so a good
// one goes on; and one whose time is over while it waits for its turn ends.
func TestTurnsOfHandshakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := newTurns(1)
		for range 100 {
			here, there := net.Pipe()
			defer there.Close()
			slow := &turnConn{Conn: here, turns: turns, ctx: t.Context(), holder: "slow"}
			go tls.Server(slow, &tls.Config{}).Handshake() // it is cut off
			if _, err := there.Write([]byte{22, 3, 1, 2, 0, 1, 0}); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		turn, err := turns.beginTurn(t.Context(), "good")
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		here, there := net.Pipe()
		defer there.Close()
		late := &turnConn{Conn: here, turns: turns, ctx: ctx, holder: "late"}
		go there.Write([]byte{22}) // it is read
		if _, err := late.Read(make([]byte, 1)); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("one that waits for its turn too long: %v", err)
		}
		turns.endTurn(turn)
		if len(turns.waiting) != 0 || turns.free != 1 {
			t.Errorf("%d wait and %d are free in the end", len(turns.waiting), turns.free)
		}
	})
}

// TestPace: calls that cost their sender nothing are held up beyond so many a second.
func TestPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, err := Open(Config{}, Options{Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		for range paceBurst + 10*paceRate {
			g.paceCall()
		}
		if took := time.Since(begun).Round(time.Second); took != 10*time.Second {
			t.Errorf("%d calls took %v, want 10s", paceBurst+10*paceRate, took)
		}
	})
}
