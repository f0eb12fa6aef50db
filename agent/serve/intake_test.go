package serve

import (
	"context"
	"errors"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-serve/muster/api/secure"
	"github.com/muster-serve/muster/runtime"
)

// named has calls be of the client that their context names.
type named struct{}

type nameKey struct{}

func (named) Client(ctx context.Context) string {
	name, _ := ctx.Value(nameKey{}).(string)
	return name
}

func (named) Bytes(context.Context, secure.Way, int64, bool) error { return nil }

// TestIntake: what is held has a bound, and what one client with a name holds half of it; but who
// is alone gets in.
func TestIntake(t *testing.T) {
	lanes, err := runtime.NewPartitions(runtime.Part{
		Partition: &runtime.Partition{Lanes: runtime.NewLanes(runtime.LanesConfig{})},
	})
	if err != nil {
		t.Fatal(err)
	}
	in := intake{limit: 100, lanes: lanes, clients: named{}}
	anyone, ads, feed := t.Context(), context.WithValue(t.Context(), nameKey{},
		"ads"), context.WithValue(t.Context(), nameKey{}, "feed")
	check := func(step string, err error, ok bool) {
		t.Helper()
		if (err == nil) != ok {
			t.Errorf("%s: got %v, want success = %v", step, err, ok)
		}
	}
	check("empty", in.checkRoom(anyone), true)
	check("larger than the limit, alone", in.Take(anyone, 150, 0), true)
	check("its next part", in.Take(anyone, 10, 150), true)
	check("full", in.checkRoom(anyone), false)
	check("one more", in.Take(anyone, 1, 0), false)
	in.Give(anyone, 160)
	check("part", in.Take(anyone, 60, 0), true)
	check("so many that they overflow", in.Take(anyone, math.MaxInt64-50, 0), false)
	check("beyond", in.Take(anyone, 41, 0), false)
	check("just within", in.Take(anyone, 40, 0), true)
	in.Give(anyone, 60)
	in.Give(anyone, 40)
	check("a client's half", in.Take(ads, 50, 0), true)
	check("more than its half", in.Take(ads, 1, 0), false)
	check("more than its half, of a query that it has begun", in.Take(ads, 1, 10), false)
	check("its next query", in.checkRoom(ads), false)
	check("another's", in.checkRoom(feed), true)
	check("another's half", in.Take(feed, 50, 0), true)
	check("anyone's", in.checkRoom(anyone), false)
	in.Give(ads, 50)
	in.Give(feed, 50)
	check("a client's own, alone", in.Take(ads, 150, 0), true)
	in.Give(ads, 150)
	if held := in.held.Load(); held != 0 || len(in.of) != 0 {
		t.Errorf("%d bytes are held, and of clients %v, want none", held, in.of)
	}
}

// TestIntakeBacksOff: who is refused because queries that arrive slowly take the room is not told
// to try again at once, again and again; and is once there was room.
func TestIntakeBacksOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lanes, err := runtime.NewPartitions(runtime.Part{
			Partition: &runtime.Partition{Lanes: runtime.NewLanes(runtime.LanesConfig{})},
		})
		if err != nil {
			t.Fatal(err)
		}
		const arrives = 29 * time.Second
		in := intake{limit: 100, lanes: lanes, clients: named{}}
		for _, client := range []string{"", "ads"} {
			ctx := context.WithValue(t.Context(), nameKey{}, client)
			tries := func(ask func() error) (n int) {
				t.Helper()
				for begin := time.Now(); time.Since(begin) < arrives; n++ {
					var over *runtime.OverloadedError
					if err := ask(); !errors.As(err, &over) {
						t.Fatalf("client %q: got %v", client, err)
					}
					time.Sleep(over.RetryAfter)
					// Smaller queries, for which there is room, change nothing.
					if err := in.Take(ctx, 1, 0); err == nil {
						in.Give(ctx, 1)
					}
				}
				return n
			}
			slow := int64(48)
			if client == "" {
				slow = 98
			}
			if err := in.Take(ctx, slow, 0); err != nil {
				t.Fatal(err)
			}
			if n := tries(func() error { return in.Take(ctx, 10, 0) }); n > 20 {
				t.Errorf("client %q tried %d times in %v, want at most 20", client, n, arrives)
			}
			in.Give(ctx, slow)
			if err := in.Take(ctx, 100, 0); err != nil { // alone it may have any size
				t.Fatal(err)
			}
			if n := tries(func() error { return in.checkRoom(ctx) }); n > 20 {
				t.Errorf("client %q tried %d times in %v at its headers, want at most 20", client,
					n,
					arrives)
			}
			in.Give(ctx, in.heldBytes())
			if err := in.Take(ctx, 100, 0); err != nil {
				t.Fatal(err)
			}
			var over *runtime.OverloadedError
			if err := in.checkRoom(ctx); !errors.As(err, &over) ||
				over.RetryAfter > time.Millisecond {
				t.Errorf("client %q: after there was room: got %v, want the shortest", client, err)
			}
			in.Give(ctx, 100)
			if len(in.refused) != 1 {
				t.Errorf("refusals of %d clients are kept, want those of the last", len(in.refused))
			}
			if err := in.Take(ctx, 1, 0); err != nil {
				t.Fatal(err)
			}
			in.Give(ctx, 1)
			if len(in.refused) > 0 || in.refusing.Load() != 0 {
				t.Errorf("refusals of %d clients are kept after the last was let in",
					len(in.refused))
			}
		}
	})
}
