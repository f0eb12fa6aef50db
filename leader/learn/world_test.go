package learn

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader"
	"github.com/muster-serve/muster/profiles"
)

// A world tells a state what happens to the members that it describes, and keeps its advice.
type world struct {
	*State
	t       testing.TB
	now     time.Time
	random  *rand.Rand
	members map[names.AgentName]*leader.Member
	seen    Seen
	last    *leader.Advice // of the last look
	advised map[names.TableKey]*leader.Latency
	slow    map[names.AgentName]names.LaneType
}

func newWorld(t testing.TB, seed uint64) *world {
	return &world{
		State: New(profiles.NewBook(profiles.ShippedLibrary())), t: t, now: time.Unix(1000, 0),
		random: rand.New(rand.NewPCG(seed, 1)), members: map[names.AgentName]*leader.Member{},
		advised: map[names.TableKey]*leader.Latency{},
	}
}

// m and n are versions of models.
var (
	m = leader.ModelID{Name: "m", Version: 1}
	n = leader.ModelID{Name: "n", Version: 1}
)

const (
	target  = 13 * time.Millisecond
	largest = 100
)

// member describes a member of a type that holds versions of models, from files of a checksum.
func member(name names.AgentName, typ names.LaneType, checksum string,
	holds ...leader.ModelID) *leader.Member {
	out := &leader.Member{Name: name, Type: typ, OwnType: typ.Own(name), Lanes: 1}
	for _, id := range holds {
		out.Models = append(out.Models, leader.HeldModel{
			ModelID: id, QoSTarget: target, Share: 0.99, Largest: largest,
			Profile: profiles.Key{
				Model: id.Name, Version: id.Version, Checksum: checksum,
				InstanceType: profiles.InstanceType(typ), Provider: "cpu",
			},
		})
	}
	return out
}

// are has the pool consist of these members.
func (w *world) are(members ...*leader.Member) {
	clear(w.members)
	for _, x := range members {
		w.members[x.Name] = x
	}
	w.poolIs()
}

// poolIs tells of the members there are, and of all models that there were.
func (w *world) poolIs() {
	models := map[leader.ModelID]leader.HeldModel{}
	for _, x := range w.State.pool.Models {
		models[x.ModelID] = x
	}
	p := &leader.Pool{}
	for _, name := range slices.Sorted(maps.Keys(w.members)) {
		x := leader.PoolMember{Member: w.members[name]}
		for _, held := range x.Models {
			x.Holds = append(x.Holds, held.ModelID)
			held.Profile = profiles.Key{}
			models[held.ModelID] = held
		}
		p.Members = append(p.Members, x)
	}
	p.Models = slices.SortedFunc(maps.Values(models), func(a, b leader.HeldModel) int {
		return cmp.Compare(a.Key(), b.Key())
	})
	w.seen.Pool = p
}

// arrives has a query arrive.
func (w *world) arrives(id leader.ModelID, batch int) {
	w.seen.Arrivals = append(w.seen.Arrivals, Arrival{id, batch, w.now})
}

// runs has a query run for so long.
func (w *world) runs(on *leader.Member, id leader.ModelID, batch int, execution time.Duration) {
	w.seen.Observations = append(w.seen.Observations, Observation{
		Member: on, Model: id, BatchSize: batch, Execution: execution, At: w.now,
	})
}

// look has the state look at what was seen.
func (w *world) look() {
	w.t.Helper()
	a, _, err := w.Look(w.now, w.seen)
	if err != nil {
		w.t.Fatal(err)
	}
	w.seen = Seen{}
	if w.last = a; a == nil {
		w.last = &leader.Advice{}
	}
	for _, l := range w.last.Latencies {
		w.advised[l.TableKey] = l
	}
	if w.last.Factors != nil {
		w.slow = w.last.Slow
	}
}

// forget has the state forget, and returns what the leader is to.
func (w *world) forget() string {
	models, tables := w.Forget(w.now)
	for _, key := range tables {
		delete(w.advised, key)
	}
	for key := range w.advised {
		if slices.ContainsFunc(models,
			func(id leader.ModelID) bool { return id.Key() == key.Model }) {
			delete(w.advised, key)
		}
	}
	pool := *w.pool
	pool.Models = slices.DeleteFunc(slices.Clone(pool.Models), func(x leader.HeldModel) bool {
		return slices.Contains(models, x.ModelID)
	})
	if len(models) > 0 {
		w.seen.Pool = &pool
	}
	text := ""
	for _, id := range models {
		text += " " + string(id.Key())
	}
	for _, key := range tables {
		text += fmt.Sprintf(" %s on %s", key.Model, key.Type)
	}
	return strings.TrimSpace(text)
}

// linear is how long a query takes on average.
func linear(batch int) time.Duration {
	return 2*time.Millisecond + time.Duration(batch)*100*time.Microsecond
}

// latency is how long a query takes, of which the average is factor times linear.
func (w *world) latency(batch int, factor float64) time.Duration {
	return time.Duration(float64(linear(batch)) * factor * (1 + 0.05*w.random.NormFloat64()))
}
