package release_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"aead.dev/minisign"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/muster-serve/muster/agent"
	"github.com/muster-serve/muster/agent/agenttest"
	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/inference"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/models/store"
	"github.com/muster-serve/muster/models/store/releases"
)

// A readOnlyBucket is a bucket that cannot be written while fails is set.
type readOnlyBucket struct {
	store.Bucket
	fails *atomic.Bool
}

func (b readOnlyBucket) Create(ctx context.Context, key string, size int64, r io.Reader) error {
	if b.fails.Load() {
		return fmt.Errorf("%w: %s", store.ErrDenied, key)
	}
	return b.Bucket.Create(ctx, key, size, r)
}

// A publisher is a store that agents follow, with versions of ncf.
type publisher struct {
	*store.Store
	f      *agenttest.Fleet
	folder string
	sealed atomic.Bool // it cannot be written
}

func newPublisher(f *agenttest.Fleet, versions ...int64) *publisher {
	f.Helper()
	p := &publisher{f: f, folder: filepath.Join(f.TempDir(), "ncf")}
	p.Store = store.New(readOnlyBucket{store.Directory(f.TempDir()), &p.sealed}, "store")
	if err := os.CopyFS(p.folder, os.DirFS(filepath.Join(f.Dir, "ncf"))); err != nil {
		f.Fatal(err)
	}
	for _, version := range versions {
		if version != 1 {
			f.Publish(filepath.Dir(p.folder), version)
		}
		if _, err := p.Push(f.Context(), p.folder, version, store.PushOptions{}); err != nil {
			f.Fatal(err)
		}
	}
	return p
}

// start starts an agent that follows the store, with nothing on its disk.
func (p *publisher) start(changes ...func(agent.Inside)) *agenttest.Member {
	return p.f.Start(append([]func(agent.Inside){func(a agent.Inside) {
		a.Config().ModelDir, a.Config().ModelStore = p.f.TempDir(), "file:///models"
		a.Config().StorePoll = 15 * time.Second
		a.OpenStore(func(context.Context, string) (*store.Store, error) { return p.Store, nil })
	}}, changes...)...)
}

// newSigner makes a pair of keys. It writes the public one to the file keys, in the place of those that
// the file had.
func newSigner(f *agenttest.Fleet, keys string) *store.Signer {
	f.Helper()
	public, private, err := minisign.GenerateKey(nil)
	if err != nil {
		f.Fatal(err)
	}
	text, err := public.MarshalText()
	if err == nil {
		err = os.WriteFile(keys, append(text, '\n'), 0o600)
	}
	if err != nil {
		f.Fatal(err)
	}
	return &store.Signer{Key: store.Keys{public}, Sign: func(d []byte) ([]byte, error) {
		return minisign.Sign(private, d), nil
	}}
}

// elsewhere makes a release as another fleet does.
func (p *publisher) elsewhere(r *control.Release) {
	p.f.Helper()
	r.Model = "ncf"
	if err := releases.Create(p.f.Context(), p.Store, r); err != nil {
		p.f.Fatal(err)
	}
}

// newest is the newest release in the store.
func (p *publisher) newest() *control.Release {
	p.f.Helper()
	r, _, err := releases.Newest(p.f.Context(), p.Store, "ncf")
	if err != nil {
		p.f.Fatal(err)
	}
	return r
}

// serve waits until the agents serve a version.
func (p *publisher) serve(version int64, agents ...*agenttest.Member) {
	p.f.Helper()
	p.f.Eventually(time.Minute, func() string {
		for _, a := range agents {
			if states(a)[version] != models.Ready {
				return fmt.Sprintf("%s does not serve version %d", a.Host, version)
			}
		}
		return ""
	})
}

// states are those of the versions of ncf, once all that is to happen now has happened: an agent that
// has just been started sets its worker on a goroutine of its own.
func states(a *agenttest.Member) map[int64]models.VersionState {
	synctest.Wait()
	all := map[int64]models.VersionState{}
	if a.Worker() != nil {
		for _, s := range a.Worker().Repository().Index() {
			all[s.Version] = s.State
		}
	}
	return all
}

// TestStoreReleases: what a fleet releases is in its store; what others release there the fleet
// follows within a poll, and at once when told; and agents that begin with nothing serve what is
// released, not the newest.
func TestStoreReleases(t *testing.T) {
	agenttest.InFleet(t, func(f *agenttest.Fleet) {
		p := newPublisher(f, 1, 2, 3)
		agents := []*agenttest.Member{p.start(), p.start(), p.start(agenttest.NeverLeads)}
		p.serve(3, agents...)
		f.Settled(agents...)
		f.Led(agents...)
		answers(f, "nothing released", map[string]float64{"3": 1}, agents...)

		f.Release(agents[2], &control.SetReleaseRequest{Version: 2}) // which no agent has
		f.Released(2, 0, 0, agents...)
		p.serve(2, agents...)
		answers(f, "2 is released", map[string]float64{"2": 1}, agents...)
		if r := p.newest(); r.GetNumber() != 1 || r.GetCurrent() != 2 || r.GetWhy() != "promoted" {
			f.Errorf("the store has %v", r)
		}
		_, err := agents[0].Control.SetRelease(f.Context(),
			&control.SetReleaseRequest{Model: "ncf", Version: 4})
		if status.Code(err) != codes.NotFound || !strings.Contains(err.Error(), "[1 2 3]") {
			f.Errorf("a version that nobody has: got %v", err)
		}

		p.elsewhere(&control.Release{Number: 2, Current: 1, Previous: 2})
		time.Sleep(16 * time.Second) // a poll
		f.Released(1, 0, 0, agents...)
		p.elsewhere(&control.Release{Number: 3, Current: 1, Canary: 3, Share: .25})
		if _, err := agents[2].OIP.RepositoryModelLoad(f.Context(),
			&inference.RepositoryModelLoadRequest{ModelName: "ncf"}); err != nil {
			f.Fatal(err)
		}
		f.Released(1, 3, .25, agents...)
		p.serve(1, agents...)
		f.Settled(agents...)
		answers(f, "released elsewhere", map[string]float64{"1": .75, "3": .25}, agents...)
		f.Eventually(time.Second, func() string {
			for _, a := range agents {
				if strings.Contains(a.Log.String(), "as the model store says") {
					return ""
				}
			}
			return "no event says what was released elsewhere"
		})

		// The fleet does not know that number 4 is taken.
		p.elsewhere(&control.Release{Number: 4, Current: 2, Previous: 1})
		_, err = agents[1].Control.SetRelease(f.Context(),
			&control.SetReleaseRequest{Model: "ncf", Version: 3})
		if status.Code(err) != codes.Aborted ||
			!strings.Contains(err.Error(), "release 4, of version 2") {
			f.Errorf("two at once: got %v", err)
		}
		f.Released(2, 0, 0, agents...)

		for _, a := range agents {
			if err := a.Stop(); err != nil {
				f.Error(err)
			}
		}
		again := p.start()
		f.Eventually(time.Minute, func() string {
			states := states(again)
			if states[3] == models.Ready && states[2] != models.Ready {
				f.Error("the newest version serves before the released one")
			}
			if states[2] != models.Ready || states[3] != models.Ready {
				return fmt.Sprintf("the new agent has %v", states)
			}
			return ""
		})
		answers(f, "after all were gone", map[string]float64{"2": 1}, again)
	})
}

// TestStoreReleasesDenied: while the store cannot be written nothing is promoted, but a version is
// taken back at once, which is said, and is in the store when that can be written again. If another
// fleet has released meanwhile, that holds.
func TestStoreReleasesDenied(t *testing.T) {
	for _, other := range []bool{false, true} {
		t.Run(fmt.Sprintf("other=%v", other), func(t *testing.T) {
			agenttest.InFleet(t, func(f *agenttest.Fleet) {
				p := newPublisher(f, 1, 2)
				agents := []*agenttest.Member{p.start(), p.start()}
				p.serve(2, agents...)
				f.Settled(agents...)
				leader := f.Led(agents...)
				f.Release(agents[0], &control.SetReleaseRequest{Version: 1})
				f.Release(agents[1], &control.SetReleaseRequest{Version: 2, Share: .25})
				f.Released(1, 2, .25, agents...)
				p.sealed.Store(true)
				_, err := agents[0].Control.SetRelease(f.Context(),
					&control.SetReleaseRequest{Model: "ncf", Version: 2})
				if status.Code(err) != codes.Aborted ||
					!strings.Contains(err.Error(), "no rights") {
					f.Errorf("promoted: got %v", err)
				}
				state := f.Release(agents[1], &control.SetReleaseRequest{})
				if !strings.Contains(state.GetVerdict(), "in this fleet only") {
					f.Errorf("taken back: got %v", state)
				}
				f.Released(1, 2, 0, agents...)
				if !strings.Contains(leader.Log.String(), "holds in this fleet only") {
					f.Error("no event says that the store cannot be written")
				}
				if r := p.newest(); r.GetNumber() != 2 {
					f.Fatalf("the store has %v", r)
				}
				time.Sleep(time.Minute) // the store, which says less, is read again
				f.Released(1, 2, 0, agents...)
				p.sealed.Store(false)
				if other {
					p.elsewhere(&control.Release{Number: 3, Current: 2, Previous: 1})
					time.Sleep(time.Minute)
					f.Released(2, 0, 0, agents...)
					if r := p.newest(); r.GetNumber() != 3 {
						f.Errorf("the store has %v", r)
					}
					return
				}
				f.Eventually(time.Minute, func() string {
					if r := p.newest(); r.GetNumber() != 3 || r.GetShare() != 0 ||
						r.GetCanary() != 2 {
						return fmt.Sprintf("the store has %v", r)
					}
					return ""
				})
				f.Eventually(time.Second, func() string {
					resp, err := agents[0].Control.Release(f.Context(), &control.ReleaseRequest{})
					if err != nil || resp.GetReleases()[0].GetVerdict() != "rolled back" {
						return fmt.Sprintf("got %v, %v", resp, err)
					}
					return ""
				})
			})
		})
	}
}

// TestStoreReleaseDamaged: agents that begin with nothing serve no version of a model whose release
// cannot be read, for it might be one that was taken back; the next release is read again.
func TestStoreReleaseDamaged(t *testing.T) {
	agenttest.InFleet(t, func(f *agenttest.Fleet) {
		p := newPublisher(f, 1, 2)
		if err := p.CreateRelease(f.Context(), "ncf", 1, []byte("{}")); err != nil {
			f.Fatal(err)
		}
		a := p.start()
		f.Eventually(time.Minute, func() string {
			if !strings.Contains(a.Log.String(),
				"release 1 of ncf in store: store: not a valid document: format is 0") {
				return "nothing says what is wrong"
			}
			return ""
		})
		time.Sleep(time.Minute)
		if states := states(a); len(states) > 0 {
			f.Errorf("there is %v", states)
		}
		if _, _, err := releases.Newest(f.Context(), p.Store, "ncf"); err == nil ||
			errors.Is(err, store.ErrNotFound) {
			f.Errorf("got %v", err)
		}
		p.elsewhere(&control.Release{Number: 2, Current: 1})
		p.serve(1, a)
	})
}

// TestStoreReleaseHuge: whatever somebody writes into the store as a release, the agents that follow
// the store stay one fleet, say what is wrong, and follow the next release.
func TestStoreReleaseHuge(t *testing.T) {
	agenttest.InFleet(t, func(f *agenttest.Fleet) {
		p := newPublisher(f, 1, 2)
		agents := []*agenttest.Member{p.start(), p.start()}
		p.serve(2, agents...)
		f.Settled(agents...)
		leader := f.Led(agents...)
		f.Release(agents[0], &control.SetReleaseRequest{Version: 2})
		text := `{"format": 1, "release": {"model": "ncf", "number": %d, "current": 1, "why": "%s"}}`
		for number, why := range map[uint64]int{2: 2 << 20, 1<<63 - 1: 2 << 20, 1<<63 - 2: 1} {
			if err := p.CreateRelease(f.Context(), "ncf", number,
				fmt.Appendf(nil, text, number, strings.Repeat("w", why))); err != nil {
				f.Fatal(err)
			}
		}
		time.Sleep(time.Minute) // some polls
		if again := f.Led(agents...); again != leader {
			f.Errorf("%s leads, and not %s any more", again.Host, leader.Host)
		}
		for _, want := range []string{"more than 65536 bytes", "release 9223372036854775806 of ncf"} {
			if !strings.Contains(leader.Log.String(), want) {
				f.Errorf("the log does not say %q", want)
			}
		}
		f.Released(2, 0, 0, agents...)
		f.Release(agents[0], &control.SetReleaseRequest{Version: 1})
		f.Released(1, 0, 0, agents...)
		if r := p.newest(); r.GetNumber() != 3 || r.GetCurrent() != 1 {
			f.Errorf("the store has %v, want number 3 of version 1", r)
		}
	})
}

// TestStoreReleaseLater: a release that needs a later version of Muster changes nothing for agents
// that do not know it. They say so, and make no release after it, which others would follow; one that
// begins with nothing serves nothing.
func TestStoreReleaseLater(t *testing.T) {
	agenttest.InFleet(t, func(f *agenttest.Fleet) {
		p := newPublisher(f, 1, 2)
		agents := []*agenttest.Member{p.start(), p.start()}
		p.serve(2, agents...)
		f.Settled(agents...)
		leader := f.Led(agents...)
		f.Release(agents[0], &control.SetReleaseRequest{Version: 1})
		later := `{"format": 1, "requires": 99, "release": {"of": "another form"}}`
		if err := p.CreateRelease(f.Context(), "ncf", 2, []byte(later)); err != nil {
			f.Fatal(err)
		}
		fresh := p.start()
		time.Sleep(time.Minute) // some polls
		for _, a := range append(agents, fresh) {
			if want := "requires format 99, but this version of Muster knows formats up to "; !strings.
				Contains(a.Log.String(), want) {
				f.Errorf("the log of %s does not say %q", a.Host, want)
			}
		}
		f.Released(1, 0, 0, agents...)
		if states := states(fresh); len(states) > 0 {
			f.Errorf("an agent without the release before has %v", states)
		}
		_, err := leader.Control.SetRelease(f.Context(), &control.SetReleaseRequest{Model: "ncf", Version: 2})
		if err == nil || !strings.Contains(err.Error(), "requires format 99") {
			f.Errorf("a release after it: got %v, want an error that says why not", err)
		}
		index, err := p.Index(f.Context())
		if err != nil || index["ncf"].Release != 2 {
			f.Errorf("the store has %+v, %v, want 2 as its newest release", index["ncf"], err)
		}
	})
}

// TestStoreReleasesSigned: agents that require signatures follow signed releases alone, say with which
// command one is signed, and write none that is not: a version is still taken back, by hand or by the
// rule, and whoever signed a canary's release has signed its terms.
func TestStoreReleasesSigned(t *testing.T) {
	agenttest.InFleet(t, func(f *agenttest.Fleet) {
		p := newPublisher(f, 1, 2)
		keys := filepath.Join(f.TempDir(), "keys")
		signer := newSigner(f, keys)
		for _, version := range []int64{1, 2} {
			if _, err := p.Push(f.Context(), p.folder, version,
				store.PushOptions{Sign: signer.Sign}); err != nil {
				f.Fatal(err)
			}
		}
		write := func(r *control.Release, fleet string) {
			f.Helper()
			r.Model = "ncf"
			if err := releases.CreateSigned(f.Context(), p.Store, r, signer, fleet); err != nil {
				f.Fatal(err)
			}
		}
		const fleet = "file:///models" // the store's URL
		write(&control.Release{Number: 1, Current: 1}, fleet)
		requires := func(a agent.Inside) { a.Config().RequireSignature = keys }
		agents := []*agenttest.Member{p.start(requires), p.start(requires)}
		p.serve(1, agents...)
		f.Settled(agents...)
		leader := f.Led(agents...)
		f.Released(1, 0, 0, agents...)

		p.elsewhere(&control.Release{Number: 2, Current: 2}) // which nobody has signed
		time.Sleep(time.Minute)
		f.Released(1, 0, 0, agents...)
		if want := "muster models release ncf --store file:///models --fleet-name file:///models " +
			"--sign KEY"; !strings.Contains(leader.Log.String(), want) {
			f.Errorf("the log does not say %q", want)
		}
		write(&control.Release{Number: 3, Current: 2}, "another fleet")
		time.Sleep(time.Minute)
		f.Released(1, 0, 0, agents...)

		_, err := agents[0].Control.SetRelease(f.Context(),
			&control.SetReleaseRequest{Model: "ncf", Version: 2})
		if status.Code(err) != codes.Aborted || !strings.Contains(err.Error(),
			"muster models promote ncf 2 --store file:///models") {
			f.Errorf("promoted by an agent: got %v", err)
		}
		write(&control.Release{
			Number: 4, Current: 1, Canary: 2, Share: .25, Tolerance: .05, Why: "on trial",
		}, fleet)
		time.Sleep(20 * time.Second)
		f.Released(1, 2, .25, agents...)
		f.Release(agents[1], &control.SetReleaseRequest{})
		f.Released(1, 2, 0, agents...)
		if !strings.Contains(leader.Log.String(), "muster models rollback ncf --store") {
			f.Error("the log does not say how the store gets to know")
		}
		if r := p.newest(); r.GetNumber() != 4 {
			f.Errorf("the store has %v, want number 4 as the newest", r)
		}
		write(&control.Release{Number: 5, Current: 2, Previous: 1}, fleet)
		time.Sleep(20 * time.Second)
		f.Released(2, 0, 0, agents...)
	})
}

// TestStoreUnsignedOnDisk: an agent that serves a version that nobody has signed, and is started again
// to require signatures, does not serve it from its disk, until the store has a signature.
func TestStoreUnsignedOnDisk(t *testing.T) {
	agenttest.InFleet(t, func(f *agenttest.Fleet) {
		p := newPublisher(f, 1)
		keys := filepath.Join(f.TempDir(), "keys")
		signer := newSigner(f, keys)
		dir := f.TempDir()
		first := p.start(func(a agent.Inside) { a.Config().ModelDir = dir })
		p.serve(1, first)
		if err := first.Stop(); err != nil {
			f.Fatal(err)
		}
		again := p.start(func(a agent.Inside) { a.Config().ModelDir, a.Config().RequireSignature = dir, keys })
		time.Sleep(time.Minute)
		if state := states(again)[1]; state == models.Ready {
			f.Errorf("a version that nobody has signed is %s", state)
		}
		if !strings.Contains(again.Log.String(), "muster models push --sign KEY") {
			f.Error("the log does not say how to sign it")
		}
		if _, err := p.Push(f.Context(), p.folder, 1,
			store.PushOptions{Sign: signer.Sign}); err != nil {
			f.Fatal(err)
		}
		p.serve(1, again)
		if err := os.Remove(keys); err != nil { // what it said stays in force
			f.Fatal(err)
		}
		newSigner(f, keys)
		time.Sleep(time.Minute)
		if state := states(again)[1]; state != models.Ready {
			f.Errorf("after its key was taken out, the version is %s", state)
		}
		index, err := again.OIP.RepositoryIndex(f.Context(), &inference.RepositoryIndexRequest{})
		if err != nil || !strings.Contains(index.GetModels()[0].GetReason(), "not signed by a key") {
			f.Errorf("the index is %v, %v", index, err)
		}
	})
}
