package plugin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-serve/muster/cloud"
	"github.com/muster-serve/muster/cloud/cloudtest"
	"github.com/muster-serve/muster/leader/rent"
	"github.com/muster-serve/muster/profiles"
)

// programOf serves a provider.
func programOf(p cloud.Provider) Program {
	return Program{
		Name: "test",
		Open: func(context.Context, Fleet, *slog.Logger) (cloud.Provider, error) { return p, nil },
	}
}

// inMemory returns a Provider whose processes are goroutines of the test, which serve the program.
func inMemory(t *testing.T, program Program) *Provider {
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	p := newProvider("test", Fleet{Name: "prod"}, log, func(context.Context) (*process, error) {
		return startInMemory(program, log), nil
	})
	t.Cleanup(func() { _ = p.Close() })
	return p
}

func startInMemory(program Program, log *slog.Logger) *process {
	ours, theirs := net.Pipe()
	p := &process{
		kill: sync.OnceFunc(func() { _ = theirs.Close() }), ended: make(chan struct{}),
		exit: errors.New("muster-test has ended"),
	}
	go func() {
		serveConn(program, theirs, log)
		close(p.ended)
	}()
	p.connect("test", ours)
	return p
}

// TestEveryProvider: what all providers promise holds through a process, too.
func TestEveryProvider(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kind := rent.Kind{Type: "r5n.large", Market: rent.Spot}
		back := &cloudtest.Provider{Prices: map[rent.Kind]float64{kind: 0.149}}
		defer back.Close()
		p, again := inMemory(t, programOf(back)), inMemory(t, programOf(back))
		cloudtest.Contract(t, kind, p, again)
		if n := back.Duplicates(); n > 0 {
			t.Errorf("%d duplicates", n)
		}
		_, _ = p.Close(), again.Close()
	})
}

// A scriptedProvider answers as its functions do.
type scriptedProvider struct {
	cloud.Provider
	list   func(context.Context) ([]rent.Instance, error)
	launch func(context.Context, rent.Slot, cloud.Spec) (rent.Instance, error)
}

func (s scriptedProvider) List(ctx context.Context) ([]rent.Instance, error) { return s.list(ctx) }

func (s scriptedProvider) Launch(ctx context.Context, slot rent.Slot,
	spec cloud.Spec) (rent.Instance,
	error) {
	return s.launch(ctx, slot, spec)
}

func (s scriptedProvider) Check(context.Context) []cloud.Fault {
	return []cloud.Fault{{What: "rights", Why: "none"}, {What: "subnets", Why: "\xff"}}
}

// TestValues: every value of a slot, a specification, an instance and a fault arrives.
func TestValues(t *testing.T) {
	want := rent.Instance{
		ID: "i-1", Zone: "a", Age: 3 * time.Minute, By: "us", Drained: true, Template: "7",
		Price: 0.25, Slot: rent.Slot{
			Kind: rent.Kind{Type: "r5n.large", Market: rent.Spot}, Ordinal: 3, Generation: 4,
		},
	}
	spec := cloud.Spec{Zones: []string{"b", "a"}, By: "us", Version: 1 << 60}
	var list []rent.Instance
	for state := range rent.Gone + 1 {
		want.State = state
		list = append(list, want)
	}
	p := inMemory(t, programOf(scriptedProvider{
		list: func(context.Context) ([]rent.Instance, error) { return list, nil },
		launch: func(_ context.Context, slot rent.Slot, got cloud.Spec) (rent.Instance, error) {
			if slot != want.Slot || !reflect.DeepEqual(got, spec) {
				t.Errorf("launch is asked for %+v, %+v", slot, got)
			}
			return want, nil
		},
	}))
	if got, err := p.Launch(t.Context(), want.Slot, spec); err != nil || got != want {
		t.Errorf("launched %+v, %v", got, err)
	}
	if got, err := p.List(t.Context()); err != nil || !reflect.DeepEqual(got, list) {
		t.Errorf("listed %+v, %v", got, err)
	}
	faults := []cloud.Fault{{What: "rights", Why: "none"}, {What: "subnets", Why: "?"}}
	if got := p.Check(t.Context()); !reflect.DeepEqual(got, faults) {
		t.Errorf("faults %+v", got)
	}
	list[0].State = rent.Gone + 1 // of a later version
	if got, err := p.List(t.Context()); err == nil {
		t.Errorf("a state that nobody knows: listed %+v, want an error", got)
	}
}

// TestFleetArrives: a program is told of the fleet, and its refusal is every call's error.
func TestFleetArrives(t *testing.T) {
	want := Fleet{
		Name: "prod", Types: []profiles.InstanceType{"a", "b"}, Settings: []byte(`{"x": 1}`),
		StateDir: "/s", Prices: map[profiles.InstanceType]float64{"a": 0.5},
	}
	program := Program{Name: "test",
		Open: func(_ context.Context, got Fleet, _ *slog.Logger) (cloud.Provider, error) {
			if !reflect.DeepEqual(got, want) {
				t.Errorf("the fleet is %+v", got)
			}
			return nil, fmt.Errorf("no such region: %w", cloud.ErrDenied)
		},
		Policy: func(_ context.Context, got Fleet, account, role string) (string, error) {
			return fmt.Sprint(reflect.DeepEqual(got, want), " ", account, " ", role), nil
		},
	}
	p := inMemory(t, program)
	p.fleet = want
	if text, err := p.Policy(t.Context(), "123", "w"); err != nil || text != "true 123 w" {
		t.Errorf("the policy, which needs no Open: %q, %v", text, err)
	}
	_, err := p.List(t.Context())
	if !errors.Is(err, cloud.ErrDenied) || err.Error() != "muster-test: no such region: refused" {
		t.Errorf("got %v", err)
	}
	first := p.running
	faults := p.Check(t.Context())
	if p.running != first {
		t.Error("a process that refuses a fleet is replaced")
	}
	if len(faults) != 1 || !strings.Contains(faults[0].String(), "no such region") {
		t.Errorf("faults %v", faults)
	}
	program.Policy = nil
	if _, err := inMemory(t, program).Policy(t.Context(), "", ""); err == nil ||
		err.Error() != "provider test has no policies" {
		t.Errorf("got %v", err)
	}
}

// TestErrorsSurvive: errors have the kind and the text that they had in the process.
func TestErrorsSurvive(t *testing.T) {
	short := &cloud.ErrShort{
		Kind:  rent.Kind{Type: "r5n.large", Market: rent.Spot},
		Zones: []string{"a", "b"}, Why: "InsufficientInstanceCapacity",
	}
	all := []error{cloud.ErrQuota, cloud.ErrDenied, cloud.ErrThrottled, cloud.ErrSpent,
		context.DeadlineExceeded, context.Canceled}
	for _, err := range append([]error{short, errors.New("the answer is lost")}, all...) {
		wrapped := fmt.Errorf("ec2:CreateFleet: %w: so \u00e4 quota", err)
		p := inMemory(t, programOf(scriptedProvider{
			list: func(context.Context) ([]rent.Instance, error) { return nil, wrapped },
		}))
		_, got := p.List(t.Context())
		if got == nil || got.Error() != wrapped.Error() {
			t.Errorf("got %v, want %v", got, wrapped)
		}
		for _, kind := range all {
			if errors.Is(got, kind) != (kind == err) {
				t.Errorf("%v: is %v: %v", err, kind, errors.Is(got, kind))
			}
		}
		found, ok := errors.AsType[*cloud.ErrShort](got)
		if ok != (err == short) || ok && !reflect.DeepEqual(found, short) {
			t.Errorf("%v: as short %+v", err, found)
		}
	}
	p := inMemory(t, programOf(scriptedProvider{list: func(context.Context) ([]rent.Instance,
		error) {
		return nil, fmt.Errorf("\xff: %w", cloud.ErrQuota)
	}}))
	if _, err := p.List(t.Context()); !errors.Is(err, cloud.ErrQuota) {
		t.Errorf("a text that is none: %v", err)
	}
}

// TestDeadlines: a provider that runs out of time says so itself; one that says nothing is ended,
// and the next call has another.
func TestDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := make(chan struct{})
		var list atomic.Value // of what the process does now
		p := inMemory(t, programOf(scriptedProvider{
			list: func(ctx context.Context) ([]rent.Instance, error) {
				return nil, list.Load().(func(context.Context) error)(ctx)
			},
		}))
		list.Store(func(ctx context.Context) error {
			<-ctx.Done()
			return fmt.Errorf("ec2:DescribeInstances: not answered: %w", ctx.Err())
		})
		call := func() error {
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			_, err := p.List(ctx)
			return err
		}
		err := call()
		if want := "ec2:DescribeInstances: not answered: context deadline exceeded"; err == nil ||
			err.Error() != want || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want %s", err, want)
		}
		first := p.running
		list.Store(func(context.Context) error {
			<-hang
			return nil
		})
		err = call()
		if want := "muster-test does not answer: context deadline exceeded"; err == nil ||
			err.Error() != want || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want %s", err, want)
		}
		select {
		case <-first.ended:
		default:
			t.Error("a process that hangs goes on")
		}
		list.Store(func(context.Context) error { return nil })
		if err := call(); err != nil || p.running == first {
			t.Errorf("the next call: %v", err)
		}
		close(hang)

		ctx, cancel := context.WithCancel(t.Context())
		list.Store(func(ctx context.Context) error {
			cancel()
			<-ctx.Done()
			return ctx.Err()
		})
		second := p.running
		if _, err := p.List(ctx); !errors.Is(err, context.Canceled) || p.running != second {
			t.Errorf("a caller that does not wait: %v", err)
		}
		_ = p.Close()
		if err := call(); err == nil || !strings.Contains(err.Error(), "closed") {
			t.Errorf("after Close: %v", err)
		}
	})
}

// TestPauses: a process that ends before it has answered is started again after ever longer pauses;
// one that has answered at once.
func TestPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		var starts []time.Duration
		good := false
		log := slog.New(slog.DiscardHandler)
		program := programOf(scriptedProvider{
			list: func(context.Context) ([]rent.Instance, error) { return nil, nil },
		})
		p := newProvider("test", Fleet{}, log, func(context.Context) (*process, error) {
			starts = append(starts, time.Since(began))
			if !good {
				return nil, errors.New("muster-test has ended: exit status 3")
			}
			return startInMemory(program, log), nil
		})
		for time.Since(began) < 4*time.Minute {
			if _, err := p.List(t.Context()); err == nil ||
				!strings.Contains(err.Error(), "exit status 3") {
				t.Fatalf("got %v", err)
			}
			time.Sleep(100 * time.Millisecond)
		}
		var want []time.Duration
		for _, s := range []float64{0, 1, 3, 7, 15, 31, 63, 123, 183} {
			want = append(want, time.Duration(s*float64(time.Second)))
		}
		if !reflect.DeepEqual(starts, want) {
			t.Errorf("started after %v, want %v", starts, want)
		}
		good = true
		time.Sleep(time.Minute)
		for range 3 {
			if _, err := p.List(t.Context()); err != nil {
				t.Errorf("a process that answers: %v", err)
			}
			p.running.kill()
			<-p.running.ended
		}
		_ = p.Close()
	})
}
