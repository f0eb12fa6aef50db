package serve

import (
	"context"
	"math"
	"testing"

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
	check("empty", in.full(anyone), true)
	check("larger than the limit, alone", in.Take(anyone, 150, 0), true)
	check("its next part", in.Take(anyone, 10, 150), true)
	check("full", in.full(anyone), false)
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
	check("its next query", in.full(ads), false)
	check("another's", in.full(feed), true)
	check("another's half", in.Take(feed, 50, 0), true)
	check("anyone's", in.full(anyone), false)
	in.Give(ads, 50)
	in.Give(feed, 50)
	check("a client's own, alone", in.Take(ads, 150, 0), true)
	in.Give(ads, 150)
	if held := in.held.Load(); held != 0 || len(in.of) != 0 {
		t.Errorf("%d bytes are held, and of clients %v, want none", held, in.of)
	}
}
