package secure

import (
	"context"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// TestLimits: what the access file may say of limits, and what it may not.
func TestLimits(t *testing.T) {
	a, err := ParseAccess("access", []byte(`clients:
  ads: {models: [wnd], limits: {queries_per_second: 200, burst: 400, bytes_per_second: 50MB, streams: 16}}
  slow: {limits: {queries_per_second: 0.5, bytes_per_second: 64 KiB}}
  few: {limits: {streams: 1}}
  fast: {limits: {queries_per_second: 300}}
  none: {limits: {}}
  "*": {limits: {bytes_per_second: 1000}}
`))
	if err != nil {
		t.Fatal(err)
	}
	for client, want := range map[string]*allowance{
		"ads":   {200, 400, 50e6, 16},
		"slow":  {0.5, 1, 64 << 10, 0},
		"few":   {0, 1, 0, 1},
		"fast":  {300, 300, 0, 0},
		"none":  nil,
		"other": {0, 1, 1000, 0},
	} {
		if got := a.rightsOf(client).limits; (got == nil) != (want == nil) ||
			got != nil && *got != *want {
			t.Errorf("%s: got %v, want %v", client, got, want)
		}
	}
	for limits, want := range map[string]string{
		"16": `access:3: want client "ads": limits: {queries_per_second: ..., burst`,
		"{queries: 5}": `access:3: client "ads": unknown limit "queries", ` +
			`want queries_per_second, burst, bytes_per_second or streams`,
		"{queries_per_second: many}": `access:3: client "ads": queries_per_second: ` +
			`"many", want a number above 0`,
		"{queries_per_second: 0}": `queries_per_second: "0", want a number above 0, such as 200; ` +
			`without one there is no limit`,
		"{queries_per_second: -1}":           `queries_per_second: "-1", want`,
		"{queries_per_second: .nan}":         `queries_per_second: ".nan", want`,
		"{queries_per_second: NaN}":          `queries_per_second: "NaN", want`,
		"{queries_per_second: inf}":          `queries_per_second: "inf", want`,
		"{queries_per_second: [1]}":          `queries_per_second: "", want`,
		"{burst: 5}":                         `access:3: client "ads": burst without queries_per_second, want both`,
		"{queries_per_second: 1, burst: .5}": `burst: .5, want a number of at least 1`,
		"{bytes_per_second: 50M}": `access:3: client "ads": bytes_per_second: "50M", ` +
			`want bytes, such as 50MB or 64KiB`,
		"{bytes_per_second: 0}":       `bytes_per_second: "0", want bytes`,
		"{bytes_per_second: MB}":      `bytes_per_second: "MB", want bytes`,
		"{bytes_per_second: 1e300GB}": `bytes_per_second: "1e300GB", want bytes`,
		"{streams: 0}":                `access:3: client "ads": streams: "0", want a whole number above 0`,
		"{streams: 1.5}":              `streams: "1.5", want a whole number`,
		"{streams: 2, streams: 3}":    `"streams" is set twice, first at line 3`,
	} {
		_, err := ParseAccess("access",
			[]byte("clients:\n  feed: {}\n  ads: {models: [wnd], limits: "+limits+"}\n"))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", limits, err, want)
		}
	}
}

// guardOf has an access file of that content; ctx makes contexts of calls of its clients.
func guardOf(t testing.TB, access string) (g *Guard, ctx func(client string) context.Context) {
	t.Helper()
	g, _ = openGuard(t, Config{})
	allow(t, g, access)
	return g, func(client string) context.Context {
		return context.WithValue(t.Context(), callerKey{}, caller{name: client, apiKey: true})
	}
}

// allow has the access file say something else.
func allow(t testing.TB, g *Guard, access string) {
	t.Helper()
	a, err := ParseAccess("access", []byte(access))
	if err != nil {
		t.Fatal(err)
	}
	g.access.value.Store(&a)
}

// TestQueriesASecond: over any time a client has its rate and once the burst, by each way; who
// waits as long as it is told gets in; and another client does not notice.
func TestQueriesASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, of := guardOf(
			t,
			"clients: {ads: {limits: {queries_per_second: 3, burst: 10}}, '*': {limits: "+
				"{queries_per_second: 1}}, feed: {}}\n")
		// taken is how many of many tries, made within the time, are let in.
		taken := func(client string, w Way, within time.Duration) (n int) {
			const tries = 1000
			for range tries {
				if g.Query(of(client), w, 0) == nil {
					n++
				}
				time.Sleep(within / tries)
			}
			return n
		}
		if got := taken("ads", Asked, 100*time.Second); got != 10+3*100-1 && got != 10+3*100 {
			t.Errorf("ads got %d queries in 100 s, want 310", got)
		}
		if got := taken("ads", Attempted, 0); got != 10+3 {
			t.Errorf(
				"ads got %d attempts at once, want the burst and what may have waited for a "+
					"second, 13", got)
		}
		if got := taken("ads", Probed, 0); got != 10+3 {
			t.Errorf("ads got %d probes at once, want 13", got)
		}
		for _, client := range []string{"x", "y"} {
			if got := taken(client, Asked, 0); got != 1 {
				t.Errorf("%s, one of *, got %d queries at once, want 1 of its own", client, got)
			}
		}
		if got := taken("feed", Asked, 0); got != 1000 {
			t.Errorf("feed, which has no limits, got %d queries of 1000", got)
		}
		agent := context.WithValue(t.Context(), callerKey{}, caller{name: "ads", agent: true})
		for range 100 {
			if err := g.Query(agent, Asked, 0); err != nil {
				t.Fatalf("an agent of a client's name: %v", err)
			}
		}

		for g.Query(of("ads"), Asked, 0) == nil { // what is left
		}
		err, ok := g.Query(of("ads"), Asked, 0).(*LimitError)
		if !ok || err.Error() != `client "ads" is over its limit of 3 queries a second` {
			t.Fatalf("got %v, want a LimitError", err)
		}
		for range 50 {
			time.Sleep(err.RetryAfter - 1)
			if g.Query(of("ads"), Asked, 0) == nil {
				t.Fatal("let in before it was time")
			}
			time.Sleep(time.Nanosecond)
			if again := g.Query(of("ads"), Asked, 0); again != nil {
				t.Fatalf("after the wait: %v", again)
			}
			err = g.Query(of("ads"), Asked, 0).(*LimitError)
		}
	})
}

// TestBytesASecond: a query larger than a second's worth is let in, and paid for by a wait; pieces
// of one that has begun are never refused, and paid for as well.
func TestBytesASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, of := guardOf(t, "clients: {ads: {limits: {bytes_per_second: 1kB}}}\n")
		ads := of("ads")
		sent, begun := 0, time.Now()
		for range 100 {
			for _, size := range []int64{300, 5000, 1} {
				for {
					err := g.Bytes(ads, Asked, size, true)
					if err == nil {
						break
					}
					time.Sleep(err.(*LimitError).RetryAfter)
				}
				if err := g.Bytes(ads, Asked, size, false); err != nil {
					t.Fatalf("the second half of a query: %v", err)
				}
				sent += int(2 * size)
			}
		}
		if seconds := time.Since(begun).Seconds(); float64(sent) > 1000*(seconds+1)+2 ||
			float64(sent) < 1000*(seconds-11) {
			t.Errorf("%d bytes were sent in %.1f s at 1000 a second", sent, seconds)
		}
		// Of a submit bytes are what its client says: no debt lasts for ever.
		time.Sleep(time.Hour)
		if err := g.Query(ads, Asked, math.MaxInt64); err != nil {
			t.Fatal(err)
		}
		err, _ := g.Query(ads, Asked, 1).(*LimitError)
		if err == nil || err.RetryAfter > longestWait+1 {
			t.Errorf("after a query of %d bytes: %v", int64(math.MaxInt64), err)
		}
		time.Sleep(maxBytes / 1000 * time.Second)
		if err := g.Query(ads, Asked, 1); err != nil {
			t.Errorf("much later: %v", err)
		}
		if err := g.Query(ads, Asked, -1); err != nil {
			t.Errorf("of -1 bytes: %v", err)
		}
	})
}

// TestLimitsChange: changed limits hold from the next call on, whatever was used under those
// before.
func TestLimitsChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, of := guardOf(t, "clients: {ads: {limits: {queries_per_second: 0.001, burst: 5}}}\n")
		ads := of("ads")
		letIn := func() (n int) {
			for n < 100 && g.Query(ads, Asked, 1) == nil {
				n++
			}
			return n
		}
		for i, step := range []struct {
			limits string
			want   int
		}{
			{"queries_per_second: 0.001, burst: 5", 5},
			{"queries_per_second: 0.001, burst: 50", 0}, // nothing was saved up
			{"", 100},
			{"streams: 1", 100},
			{"queries_per_second: 20, burst: 2", 0},
			{"bytes_per_second: 3", 3},
			{"bytes_per_second: 3", 0},
		} {
			allow(t, g, "clients: {ads: {limits: {"+step.limits+"}}}\n")
			if got := letIn(); got != step.want {
				t.Errorf("step %d, %q: %d queries are let in at once, want %d", i+1, step.limits,
					got, step.want)
			}
		}
		allow(t, g, "clients: {ads: {limits: {queries_per_second: 10}}}\n")
		letIn()
		time.Sleep(time.Second)
		if got := letIn(); got != 10 {
			t.Errorf("a second later %d are let in at a rate of 10", got)
		}
	})
}

// TestOpenCalls: calls are counted while they are open, and an end makes room.
func TestOpenCalls(t *testing.T) {
	g, of := guardOf(t, "clients: {'*': {limits: {streams: 2}}}\n")
	for _, client := range []string{"x", "y"} {
		first, err := g.holdCall(of(client))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := g.holdCall(of(client)); err != nil {
			t.Fatal(err)
		}
		if done, err := g.holdCall(of(client)); err == nil || done != nil ||
			!strings.Contains(err.Error(), "2 calls and streams open at a time") {
			t.Errorf("%s: a third call: %v", client, err)
		}
		first()
		if _, err := g.holdCall(of(client)); err != nil {
			t.Errorf("%s: after an end: %v", client, err)
		}
	}
}

// TestManyClients: however many names come, those whose use is remembered have a bound; one that is
// in use is not forgotten by it.
func TestManyClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, of := guardOf(
			t, "clients: {'*': {limits: {queries_per_second: 0.1, burst: 2, streams: 1}}}\n")
		if _, err := g.holdCall(of("open")); err != nil {
			t.Fatal(err)
		}
		letIn := 0
		for i := range 3 * maxMeters {
			if g.Query(of(fmt.Sprint("client ", i)), Asked, 0) == nil {
				letIn++
			}
		}
		if n := len(g.meters.of); n > maxMeters+1 {
			t.Errorf("%d clients are remembered, want at most %d", n, maxMeters+1)
		}
		if want := maxMeters - 1 + 2; letIn != want {
			t.Errorf(
				"%d queries are let in, want %d: one of each that there is room for, and the "+
					"others have one meter", letIn, want)
		}
		time.Sleep(time.Minute) // all but one are as if they had never been
		if err := g.Query(of("late"), Asked, 0); err != nil {
			t.Error(err)
		}
		if n := len(g.meters.of); n != 2 {
			t.Errorf("%d clients are remembered a minute later, want 2", n)
		}
		if _, err := g.holdCall(of("open")); err == nil {
			t.Error("a call that is open was forgotten")
		}
	})
}

// TestNoLimitsCostNothing: without limits nothing is allocated or remembered.
func TestNoLimitsCostNothing(t *testing.T) {
	g, of := guardOf(t, "clients: {ads: {models: ['*']}}\n")
	ads := of("ads")
	if n := testing.AllocsPerRun(100, func() {
		if g.Query(ads, Asked, 0) != nil || g.Bytes(ads, Asked, 1000, true) != nil ||
			g.Bytes(ads, Asked, 1000, false) != nil {
			t.Error("refused")
		}
		if done, err := g.holdCall(ads); done != nil || err != nil {
			t.Error("counted")
		}
	}); n != 0 {
		t.Errorf("%v allocations for a query", n)
	}
	if len(g.meters.of) != 0 {
		t.Error("a client without limits is remembered")
	}
}

// TestPartsAtOnce: of the parts of a query that come at the same time one counts; no more than the
// last queries are remembered.
func TestPartsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, of := guardOf(t, "clients: {ads: {limits: {queries_per_second: 0.001, burst: 300}}}\n")
		for query := range uint64(300) {
			var parts sync.WaitGroup
			for number := range uint(3) {
				parts.Go(func() {
					if err := g.QueryPart(of("ads"), QueryPart{7, query, 1 + number}); err != nil {
						t.Errorf("part %d of query %d: %v", 1+number, query, err)
					}
				})
			}
			parts.Wait()
		}
		if err := g.QueryPart(of("ads"), QueryPart{7, 300, 1}); err == nil {
			t.Error("a part of one query more is let in")
		}
		if err := g.QueryPart(of("ads"), QueryPart{7, 0, 2}); err == nil {
			t.Error("a part that comes again is let in")
		}
		if split := g.meters.of["ads"].split; len(split.of) != maxSplit ||
			len(split.order) != maxSplit {
			t.Errorf("%d and %d queries are remembered, want %d", len(split.of), len(split.order),
				maxSplit)
		}
	})
}
