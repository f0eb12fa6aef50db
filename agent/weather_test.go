package agent

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/gossip"
)

var (
	weatherSeeds = flag.Int("weather-seeds", 0, "how many seeds TestWeather runs")
	weatherSeed  = flag.Uint64("weather-seed", 0, "the one seed that TestWeather runs; 0: as many as -weather-seeds says")
)

// A weather is a fleet that things happen to, at random, while it serves. The seed says what
// happens and when; how the goroutines of the agents take turns it does not.
type weather struct {
	*testFleet
	*rand.Rand
	parted *fleetAgent // nil if none is
	events []string

	mu       sync.Mutex
	up       []*fleetAgent             // those that run, a parted one too
	troubled map[*fleetAgent]time.Time // until when; while it lasts, never
	outcomes map[string]int
}

var never = time.Unix(1<<40, 0)

func (w *weather) note(format string, args ...any) {
	w.events = append(w.events, fmt.Sprintf(format, args...))
}

// trouble says that queries to a may fail from now on, until calm.
func (w *weather) trouble(a *fleetAgent) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.troubled[a] = never
}

func (w *weather) calm(a *fleetAgent) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.troubled[a] = time.Now()
}

// query sends one query and judges how it ended. It must be answered, and with its own
// answer, or refused for want of lanes, unless its gateway was in trouble meanwhile.
func (w *weather) query(a *fleetAgent, id, batchSize int) {
	const patience = 5 * time.Second
	start := time.Now()
	ctx, cancel := context.WithTimeout(w.Context(), patience)
	defer cancel()
	req := ncfRequest(batchSize)
	req.Id = strconv.Itoa(id)
	resp, err := a.oip.ModelInfer(ctx, req)
	took := time.Since(start)

	w.mu.Lock()
	defer w.mu.Unlock()
	outcome := "answered on time"
	switch {
	case err == nil && took > 5*time.Millisecond: // NCF's QoS target
		outcome = "answered late"
	case status.Code(err) == codes.ResourceExhausted:
		outcome = "refused"
	case err != nil && !w.troubled[a].Before(start):
		outcome = "lost with its gateway"
	case err != nil:
		outcome = "failed"
		w.Errorf("query %s by %s failed after %v: %v", req.Id, a.name, took, err)
	}
	w.outcomes[outcome]++
	if err != nil {
		return
	}
	if outputs := resp.GetOutputs(); resp.GetId() != req.Id || resp.GetModelName() != "ncf" || len(outputs) != 1 ||
		len(outputs[0].GetShape()) == 0 || outputs[0].GetShape()[0] != int64(batchSize) {
		w.Errorf("query %s with batch size %d: got the answer to %q by %q, with outputs %v", req.Id, batchSize, resp.GetId(), resp.GetModelName(), outputs)
	}
}

// happen has one thing happen.
func (w *weather) happen(happening *sync.WaitGroup) {
	a := w.up[w.IntN(len(w.up))]
	switch what := w.IntN(6); {
	case what == 0 && len(w.up) > 3 && a != w.parted:
		w.note("kill %s", a.name)
		w.trouble(a)
		w.kill(a)
		w.restart(a)
	case what == 1 && len(w.up) > 3 && a != w.parted:
		happening.Wait() // an agent that leaves before a rotation ends would need the new key
		w.note("drain %s", a.name)
		w.trouble(a)
		if err := a.stop(); err != nil {
			w.Errorf("drain %s: %v", a.name, err)
		}
		w.restart(a)
	case what == 2 || what == 3:
		if w.parted == nil {
			w.note("part %s", a.name)
			w.trouble(a)
			w.partition([]*fleetAgent{a})
			w.parted = a
		} else {
			w.rejoin()
		}
	case what == 4 && a != w.parted:
		key := gossip.NewKey()
		w.note("rotate by %s to %s", a.name, gossip.Fingerprint(key))
		happening.Go(func() {
			// It may be that it has to stop. What it leaves behind must work.
			stream, err := a.ctl.RotateKeys(w.Context(), &control.RotateKeysRequest{Key: key})
			for err == nil {
				_, err = stream.Recv()
			}
		})
	}
}

// rejoin brings the parted agent back.
func (w *weather) rejoin() {
	if w.parted != nil {
		w.note("heal %s", w.parted.name)
		w.heal()
		w.calm(w.parted)
		w.parted = nil
	}
}

// restart runs an agent on the host of a, with its key file, after some time.
func (w *weather) restart(a *fleetAgent) {
	w.mu.Lock()
	w.up = slices.DeleteFunc(w.up, func(u *fleetAgent) bool { return u == a })
	w.mu.Unlock()
	time.Sleep(time.Duration(w.IntN(2000)) * time.Millisecond)
	again := w.startOn(a.host, func(b *Agent) { b.config.GossipKey = a.config.GossipKey })
	w.note("start %s", again.name)
	w.trouble(again)
	w.eventually(20*time.Second, func() string {
		if again.front == nil || !again.ready() {
			return again.name + " is not ready"
		}
		return ""
	})
	w.calm(again)
	w.mu.Lock()
	w.up = append(w.up, again)
	w.mu.Unlock()
}

// TestWeather has agents killed, drained, cut off, frozen and started anew, and gossip
// keys changed, at random, while the fleet serves: no query may be lost but with its gateway, or
// answered wrongly. When all is quiet the fleet is whole, led, of one key, and serves.
//
//	go test ./agent -run TestWeather -weather-seed 7        one seed again
//	go test ./agent -run TestWeather -weather-seeds 1000    many
func TestWeather(t *testing.T) {
	if *weatherSeed == 0 && *weatherSeeds == 0 {
		t.Skip("runs only with -weather-seeds or -weather-seed: a few seeds in a hundred fail, see the log of 11")
	}
	seeds := []uint64{*weatherSeed}
	if *weatherSeed == 0 {
		seeds = nil
		for i := range *weatherSeeds {
			seeds = append(seeds, uint64(i)+1)
		}
	}
	for _, seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			testInFleet(t, func(f *testFleet) {
				f.Logf("again: go test ./agent -run TestWeather -weather-seed %d", seed)
				w := &weather{
					testFleet: f, Rand: rand.New(rand.NewPCG(seed, 0)),
					troubled: map[*fleetAgent]time.Time{}, outcomes: map[string]int{},
				}
				w.run()
				if f.Failed() {
					f.Logf("what happened: %s", strings.Join(w.events, "; "))
				}
				f.Logf("queries: %v", w.outcomes)
			})
		})
	}
}

func (w *weather) run() {
	for range 4 {
		w.up = append(w.up, w.start(withKeyFile))
	}
	w.settled(w.up...)
	w.led(w.up...)

	stop, cancel := context.WithCancel(w.Context())
	var sending, happening sync.WaitGroup
	draws := rand.New(rand.NewPCG(w.Uint64(), 0))
	sending.Go(func() {
		for id := 0; stop.Err() == nil; id++ {
			w.mu.Lock()
			a, batchSize := w.up[id%len(w.up)], 1+draws.IntN(200)
			w.mu.Unlock()
			sending.Go(func() { w.query(a, id, batchSize) })
			time.Sleep(time.Duration(draws.ExpFloat64() * float64(4*time.Millisecond)))
		}
	})
	for end := time.Now().Add(4 * time.Second); time.Now().Before(end); {
		time.Sleep(time.Duration(w.IntN(700)) * time.Millisecond)
		w.happen(&happening)
	}
	w.rejoin()
	happening.Wait()
	cancel()
	sending.Wait()

	w.settled(w.up...)
	w.led(w.up...)
	time.Sleep(rotationPause) // a rotation may have died
	if _, faults, err := w.rotate(w.up[0], &control.RotateKeysRequest{Key: newerKey, Without: w.up[0].gossip.Lost()}, nil); err != nil {
		w.Errorf("rotation in calm weather: %v, %q", err, faults)
	}
	w.holds(w.up, newerKey)
	w.settled(w.up...)
	if failed := w.send(40, time.Millisecond, w.up...); len(failed) > 0 {
		w.Errorf("failed in calm weather: %v", failed)
	}
}
