// Package modelstore keeps an agent's model directory as a model store says.
//
// A [Follower] asks the store every Config.Poll which versions there are, and at once when Refresh
// is called. Of each model it fetches the newest, and those that the fleet has released, by package
// store, from the fleet's other agents first. It changes the model directory, whose changes the
// model repository then follows. Whatever fails is an event and tried again; what was there serves
// on, also what the store has no longer.
//
// Run has a goroutine of its own, and starts one for each model whose versions it fetches, and for
// each look at the store. So what hangs keeps nothing else waiting. A [Server] answers other
// agents, concurrently.
package modelstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/muster-serve/muster/api/secure"
	"github.com/muster-serve/muster/api/wakeup"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/models/store"
)

// A Config says which store a Follower follows, and how. Fields without a default must be set.
type Config struct {
	// Open opens the store; it is called until it succeeds.
	Open func(context.Context) (*store.Store, error)
	// Dir is the model directory. CacheBytes is the most bytes that files of the store may take in
	// it; 0 is 80 % of the file system.
	Dir        string
	CacheBytes int64
	// Models are the names of the models to fetch; none: all of the store.
	Models []string
	// Keys are the keys of which one must have signed each version and revocation; nil: nothing
	// must be signed.
	Keys *secure.File[store.Keys]
	// Fleet is the name of the fleets that signed revocations must be for.
	Fleet string
	// Rekeyed is called when the keys have changed, and Readmit when versions that Admit has
	// refused are to be tried again. They must not block; nil: not.
	Rekeyed, Readmit func()
	// BytesPerSecond bounds the bytes received from the store, and the bytes sent to other agents;
	// 0 is no bound.
	BytesPerSecond int64
	// Poll is the time between two looks at the store.
	Poll time.Duration
	// Peers are asked before the store; nil: there are none.
	Peers *Peers
	// Pause blocks for d, or until ctx ends, while there are queries; without, it returns at once.
	// nil: there are never any.
	Pause func(ctx context.Context, d time.Duration) error
	// Statuses returns the states of the versions in the model directory.
	Statuses func() []models.Status
	Metrics  *Metrics
	Log      *slog.Logger
}

// Releases are what the fleet has released. The methods are called concurrently.
type Releases interface {
	// Released returns the versions of a model that the fleet has released, the current one first,
	// in a slice that the caller may change. They are held beside the newest.
	Released(model string) []int64
	// Follow reads the newest release that the store has of a model, and makes the fleet follow it
	// unless that knows a newer one. If it fails, the model's versions here stay as they are.
	Follow(ctx context.Context, s *store.Store, model string, number uint64) error
}

// Metrics count what Followers do.
type Metrics struct {
	received *prometheus.CounterVec
	failures *prometheus.CounterVec
	fetched  prometheus.Counter
	sent     prometheus.Counter
	faults   prometheus.Gauge
	// untrusted is set where signatures are required.
	untrusted prometheus.Gauge
}

// NewMetrics registers the metrics.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	m := &Metrics{
		received: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "muster_store_received_bytes_total",
			Help: "Bytes of models' files received, by source: the store or a peer.",
		}, []string{"source"}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "muster_store_failures_total",
			Help: "Reads of models' files that failed and were tried again, by source.",
		}, []string{"source"}),
		fetched: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "muster_store_changes_total",
			Help: "Times that a model's versions in the model directory were changed.",
		}),
		sent: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "muster_store_sent_bytes_total",
			Help: "Bytes of models' files sent to other agents.",
		}),
		faults: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "muster_store_faults",
			Help: "What does not succeed now: the store, or models of it.",
		}),
		untrusted: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "muster_store_untrusted_versions",
			Help: "Versions of the store that serve although no key of --require-signature has " +
				"signed them.",
		}),
	}
	for _, source := range []string{"store", "peer"} {
		m.received.WithLabelValues(source)
		m.failures.WithLabelValues(source)
	}
	registry.MustRegister(m.received, m.failures, m.fetched, m.sent, m.faults, m.untrusted)
	return m
}

const (
	// pending is the time between two looks at what is released and which versions serve, on which
	// depends which older ones are to stay.
	pending = time.Second
	// long is how long a model that is being fetched keeps others waiting. So agents fetch the same
	// model at the same time, and ask each other little. Chosen: most models come in less, and one
	// that does not must not delay the small ones behind it.
	long = 10 * time.Second
	// listTime is for a look at the store.
	listTime = time.Minute
	// readers is how many releases are read at a time, and releaseTime bounds the time for all of
	// them. Chosen: at a tenth of a second each, a thousand releases are read in 7 s, and a store
	// that hangs delays a poll by no more than half a minute.
	readers     = 16
	releaseTime = 20 * time.Second
	// overdue is the age from which a poll of the store counts as hanging. Chosen: the steps of a
	// poll, listTime and releaseTime, have shorter bounds together.
	overdue = 2 * time.Minute
	// stalled is how long a fetch may receive and write nothing before that is a fault. Chosen: all
	// calls of a store end within a minute, and each wait for other agents in 20 s.
	stalled = 5 * time.Minute
	// endTime is how long FollowStore waits at its end for what it has begun. Chosen: cancelled calls end
	// at once, but for those of a file system that hangs, and the agent's end must not wait for
	// that.
	endTime = 5 * time.Second
	// whole is the fault of the store itself, beside those of models.
	whole = ""
)

// A Follower keeps a model directory as a store says. Its methods may be called concurrently. A nil
// Follower is that of an agent without a store: it admits all, has nothing to note or to refresh.
type Follower struct {
	config   Config
	releases Releases // set by FollowReleases; nil: there are none
	cache    *store.Cache
	fetcher  *store.Fetcher
	refresh  chan *ask
	listed   chan storeListing
	brought  chan fetchAttempt
	look     wakeup.Signal // somebody wants a look at the store
	opened   atomic.Pointer[store.Store]
	moved    atomic.Int64 // when bytes of any model last came or were read, in ms of Unix time

	// The fields below belong to FollowStore.
	index  map[string]*store.Entry   // as the store said last
	unread map[string]error          // what it did not say
	last   map[string]error          // what does not succeed
	models map[string]*followedModel // the versions that this agent holds or wants
	lists  int                       // how many looks have begun
	looked time.Time                 // when the last one has
	// overdue is whether it has not ended in time.
	overdue bool
	taken   int // the number of the last look that has ended
	asks    []*ask
	// revoked are the versions that are, by model.
	revoked map[string]map[int64]bool
	odd     map[string]error // revocations that do not count
	rekeyed int              // how often the keys have changed
	// revokedBy is how often they had changed when revoked was read.
	revokedBy int

	mu sync.Mutex
	// untrusted are the versions that serve without a signature of a trusted key, and why.
	untrusted map[versionOf]error
}

// A followedModel is what is known of one model. While a goroutine fetches the model, the value
// belongs to it.
type followedModel struct {
	name string
	held []*store.Manifest // what the directory holds
	// manifests are those of the wanted versions: read from the store, or held here if it has them
	// no longer.
	manifests map[int64]*store.Manifest
	keyed     int          // how often the keys had changed when the manifests were read
	changed   bool         // the last attempt has changed the directory
	err       error        // the last attempt's; nil: it succeeded
	again     time.Time    // when it is tried again after an error
	moved     atomic.Int64 // when it last got further, in ms of Unix time
	begun     time.Time    // when the fetch began; zero: none is under way
	// judged says of the versions judgedOf, by the keys judgedAs, why they are not trusted.
	judged   map[int64]error
	judgedAs int
	judgedOf []*store.Manifest
}

// A storeListing is what a look at the store found.
type storeListing struct {
	number int
	store  *store.Store
	index  map[string]*store.Entry
	err    error
	// unread are the models whose releases could not be read.
	unread map[string]error
	// revoked are the versions that are, by model, and odd the errors of revocations that do not
	// count.
	revoked map[string]map[int64]bool
	odd     map[string]error
	rekeyed int // how often the keys had changed
}

// A fetchAttempt is the end of an attempt.
type fetchAttempt struct {
	model *followedModel
	err   error
}

// An ask waits for a look at the store that begins after it, and then for a model.
type ask struct {
	model  string
	list   int  // the number of the look
	tried  bool // an attempt at the model has begun since, or there is nothing to do
	answer chan error
}

// New returns a Follower. It opens the cache in the model directory, which must exist. FollowStore
// closes it when it ends.
func New(config Config) (*Follower, error) {
	cache, err := store.OpenCache(config.Dir, config.CacheBytes)
	if err != nil {
		return nil, err
	}
	f := &Follower{
		config: config, cache: cache, refresh: make(chan *ask), listed: make(chan storeListing),
		brought: make(chan fetchAttempt), models: map[string]*followedModel{}, look: wakeup.New(),
	}
	for name, held := range cache.Held() {
		f.modelOf(name).held = held
	}
	switch over, bound, err := cache.Over(); {
	case err != nil:
		return nil, errors.Join(err, cache.Close())
	case over > 0:
		config.Log.Warn("the files of the model store exceed their limit; the versions that are "+
			"here keep serving, and the agent fetches no other", "dir", config.Dir, "bound_bytes",
			bound, "over_bytes", over, "setting", "model-cache-size")
	}
	pacer := newTransferPacer(&config)
	f.fetcher = &store.Fetcher{
		Cache: cache,
		Pace: func(ctx context.Context, n int, took time.Duration) error {
			f.moved.Store(time.Now().UnixMilli())
			return pacer.wait(ctx, n, took)
		},
		Received: func(source string, n int) {
			config.Metrics.received.WithLabelValues(source).Add(float64(n))
		},
		Failed: func(source string, err error) {
			config.Metrics.failures.WithLabelValues(source).Inc()
			config.Log.Debug("a read of a model's file failed", "source", source, "error", err)
		},
	}
	if config.Peers != nil {
		f.fetcher.Peers = config.Peers
	}
	return f, nil
}

// FollowReleases makes the Follower hold the versions that the fleet has released, and the fleet
// follow the releases in the store. It must be called before Run; without it neither is so.
func (f *Follower) FollowReleases(r Releases) { f.releases = r }

// Look looks at the store soon. It does not block.
func (f *Follower) Look() {
	if f != nil {
		f.look.Send()
	}
}

// releasedVersions are the versions of a model that the fleet has released.
func (f *Follower) releasedVersions(model string) []int64 {
	if f.releases == nil {
		return nil
	}
	return f.releases.Released(model)
}

// Holds reports whether a model's folder is from the store.
func (f *Follower) Holds(model string) bool { return f.cache.Holds(model) }

// Store returns the store, nil until it has been opened. FollowStore closes it when it ends.
func (f *Follower) Store() *store.Store { return f.opened.Load() }

func (f *Follower) modelOf(name string) *followedModel {
	if f.models[name] == nil {
		f.models[name] = &followedModel{name: name, manifests: map[int64]*store.Manifest{}}
	}
	return f.models[name]
}

// FollowStore follows the store until ctx ends.
func (f *Follower) FollowStore(ctx context.Context) {
	var running sync.WaitGroup
	defer func() {
		if !waitFor(&running, endTime) {
			f.config.Log.Error("what reads the model store does not end when told to: does a file system "+
				"not answer? It is left behind", "event", "slow")
			return
		}
		if s := f.opened.Load(); s != nil { // perhaps by a look that ended after ctx
			_ = s.Close() // nothing was written
		}
		_ = f.cache.Close() // what counts was synced
	}()
	timer := time.NewTimer(0)
	defer timer.Stop()
	var due time.Time // of the next look
	looking := false
	for {
		f.overdue = looking && time.Since(f.looked) > overdue
		if f.followKeys() {
			due = time.Time{}
		}
		late := slices.ContainsFunc(f.asks, func(a *ask) bool { return a.list > f.lists })
		if !looking && (late || !time.Now().Before(due)) {
			looking, f.looked, due = true, time.Now(), time.Now().Add(f.config.Poll)
			f.lists++
			number, opened, revoked, rekeyed := f.lists, f.fetcher.Store, f.revoked, f.rekeyed
			again := f.revokedBy != rekeyed // by other keys than the present ones
			running.Go(func() {
				l := f.list(ctx, opened, revoked, again)
				l.number, l.rekeyed = number, rekeyed
				select {
				case f.listed <- l:
				case <-ctx.Done():
				}
			})
		}
		f.startVersions(ctx, &running)
		f.answerWaiting()
		timer.Reset(pending)
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-f.look:
			due = time.Time{}
			select { // a poll that is requested meanwhile is this one
			case <-timer.C:
			case <-ctx.Done():
				return
			}
		case l := <-f.listed:
			looking = false
			f.applyListing(l)
		case b := <-f.brought:
			f.endAttempt(b)
		case a := <-f.refresh:
			a.list = f.lists + 1
			f.asks = append(f.asks, a)
		}
	}
}

// waitFor waits until all has ended, for at most the given time, and reports whether it has.
func waitFor(all *sync.WaitGroup, most time.Duration) bool {
	ended := make(chan struct{})
	go func() {
		all.Wait()
		close(ended)
	}()
	select {
	case <-ended:
		return true
	case <-time.After(most):
		return false
	}
}

// Refresh looks at the store at once, and blocks until what it says of a model is in the model
// directory. The error is that of the model, or of the store. For a model whose folder is not from
// the store there is nothing to do.
func (f *Follower) Refresh(ctx context.Context, model string) error {
	if f == nil {
		return nil
	}
	if err := store.CheckName(model); err != nil {
		return err
	}
	_, err := os.Stat(filepath.Join(f.config.Dir, model))
	if err == nil && !f.cache.Holds(model) {
		return nil
	}
	a := &ask{model: model, answer: make(chan error, 1)}
	select {
	case f.refresh <- a:
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case err := <-a.answer:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// answerWaiting answers those whose model has been looked after. The others wait.
func (f *Follower) answerWaiting() {
	f.asks = slices.DeleteFunc(f.asks, func(a *ask) bool {
		m := f.models[a.model]
		done := a.tried && (m == nil || m.begun.IsZero())
		if done {
			a.answer <- errors.Join(f.last[whole], f.last[a.model])
		}
		return done
	})
}

// list opens the store if it is nil, and returns which versions it has. known are the revocations
// that were read before; again says whether to read them again.
func (f *Follower) list(ctx context.Context, s *store.Store, known map[string]map[int64]bool,
	again bool) storeListing {
	ctx, cancel := context.WithTimeout(ctx, listTime)
	defer cancel()
	var err error
	if s == nil {
		if s, err = f.config.Open(ctx); err != nil {
			return storeListing{err: err}
		}
		f.opened.Store(s)
	}
	l := storeListing{store: s, odd: map[string]error{}}
	if l.index, l.err = s.Index(ctx); l.err == nil {
		l.unread = f.readReleases(ctx, s, l.index)
		f.readRevocations(ctx, s, &l, known, again)
	}
	return l
}

// readReleases makes the fleet follow the releases in the store, also those of models that this
// agent does not hold: it may lead those that do. It returns the errors.
func (f *Follower) readReleases(ctx context.Context, s *store.Store,
	index map[string]*store.Entry) map[string]error {
	unread := map[string]error{}
	if f.releases == nil {
		return unread
	}
	ctx, cancel := context.WithTimeout(ctx, releaseTime)
	defer cancel()
	var mu sync.Mutex
	var group errgroup.Group
	group.SetLimit(readers)
	for name, entry := range index {
		if entry.Release == 0 {
			continue
		}
		group.Go(func() error {
			if err := f.releases.Follow(ctx, s, name, entry.Release); err != nil {
				mu.Lock()
				defer mu.Unlock()
				unread[name] = err
			}
			return nil
		})
	}
	_ = group.Wait() // no function returns an error
	return unread
}

// applyListing takes what a look at the store found. If it failed, what was found before holds.
func (f *Follower) applyListing(l storeListing) {
	f.unread, f.taken = map[string]error{}, l.number
	if f.fetcher.Store == nil {
		f.fetcher.Store = l.store
	}
	if l.err != nil {
		f.unread[whole] = l.err
	} else {
		f.index, f.unread, f.odd = l.index, l.unread, l.odd
		f.revoked, f.revokedBy = l.revoked, l.rekeyed
		for name, m := range f.models {
			entry := f.index[name]
			if entry == nil {
				m.err = nil // what is here of it serves on
				continue
			}
			if m.begun.IsZero() { // signatures that were added are to be here, too
				maps.DeleteFunc(m.manifests, func(number int64, known *store.Manifest) bool {
					return !known.Signed() && slices.Contains(entry.Signed, number)
				})
			}
		}
		for _, name := range f.config.Models {
			if f.index[name] == nil {
				f.unread[name] = fmt.Errorf("%w: model %q in %s", store.ErrNotFound, name,
					f.fetcher.Store)
			}
		}
	}
	for _, a := range f.asks {
		if a.list > l.number {
			continue
		}
		// What is asked for is tried in the next bringAll, if the store has it.
		a.tried = l.err != nil || f.index[a.model] == nil || f.unread[a.model] != nil ||
			!f.followsModel(a.model)
	}
}

func (f *Follower) followsModel(name string) bool {
	return len(f.config.Models) == 0 || slices.Contains(f.config.Models, name)
}

// wantedVersions returns the versions of a model that this agent is to have: the released ones, of
// which the first has the settings that hold, and the newest. A released version that is here
// stays, by its manifest here, when the store has it no longer. wantedVersions also returns the
// versions here that serve until the wanted ones do.
func (f *Follower) wantedVersions(m *followedModel, entry *store.Entry,
	statuses []models.Status) (wanted, beside []int64) {
	revoked := f.revoked[m.name]
	available := slices.DeleteFunc(slices.Clone(entry.Versions), func(number int64) bool {
		return revoked[number]
	})
	newest := int64(0)
	if n := len(available); n > 0 {
		newest = available[n-1]
	}
	for _, held := range m.held {
		if !slices.Contains(entry.Versions, held.Version) {
			m.manifests[held.Version] = held
			available = append(available, held.Version)
		}
	}
	for _, number := range append(f.releasedVersions(m.name), newest) {
		if slices.Contains(available, number) && !slices.Contains(wanted, number) {
			wanted = append(wanted, number)
		}
	}
	states := map[int64]models.VersionState{}
	for _, s := range statuses {
		if s.Model == m.name {
			states[s.Version] = s.State
		}
	}
	fresh := slices.ContainsFunc(wanted, func(number int64) bool {
		return states[number] != models.Ready
	})
	for _, held := range m.held {
		if fresh && states[held.Version] == models.Ready &&
			!slices.Contains(wanted, held.Version) {
			beside = append(beside, held.Version)
		}
	}
	return wanted, beside
}

// startVersions begins to bring the models to what the store said when it was last asked, and to
// what is released.
func (f *Follower) startVersions(ctx context.Context, running *sync.WaitGroup) {
	now, statuses := time.Now(), f.config.Statuses()
	f.cutAll(ctx, running)
	busy := false
	for _, m := range f.models {
		busy = busy || !m.begun.IsZero() && now.Sub(m.begun) < long
	}
	for _, name := range slices.Sorted(maps.Keys(f.index)) {
		m := f.modelOf(name)
		// its release is not known: the newest may not be what is to serve
		if f.unread[name] != nil {
			continue
		}
		if !f.followsModel(name) || !m.begun.IsZero() || now.Before(m.again) && !f.isAwaited(name) {
			continue
		}
		if len(f.index[name].Versions) == 0 { // only revocations: what is here serves on
			f.noteAttempt(name)
			continue
		}
		if m.keyed != f.rekeyed { // their statements must be signed by the present keys
			clear(m.manifests)
			m.keyed = f.rekeyed
		}
		wanted, beside := f.wantedVersions(m, f.index[name], statuses)
		if m.holdsOnly(wanted, beside) {
			f.noteAttempt(name)
			m.err = nil
			continue
		}
		if busy && !f.isAwaited(name) {
			continue
		}
		serves := map[int64]bool{}
		for _, s := range statuses {
			if s.Model == name && s.State == models.Ready {
				serves[s.Version] = true
			}
		}
		busy, m.begun = true, now
		m.moved.Store(now.UnixMilli())
		f.noteAttempt(name)
		running.Go(func() {
			err := f.fetchVersions(ctx, m, wanted, beside, serves)
			select {
			case f.brought <- fetchAttempt{m, err}:
			case <-ctx.Done():
			}
		})
	}
	for name, m := range f.models {
		if f.followsModel(name) || len(m.held) == 0 {
			continue
		}
		if m.err = f.cache.Remove(name); m.err == nil {
			delete(f.models, name)
			f.config.Log.Info("a model of the store is no longer wanted here", "model", name,
				"event", "store")
		}
	}
	f.reportFaults(statuses)
}

// isAwaited reports whether somebody waits for an attempt at a model.
func (f *Follower) isAwaited(name string) bool {
	return slices.ContainsFunc(f.asks, func(a *ask) bool {
		return a.model == name && !a.tried && a.list <= f.taken
	})
}

// noteAttempt notes that an attempt at a model has begun, or that there is nothing to do. Those who
// asked after the last look had begun wait on.
func (f *Follower) noteAttempt(name string) {
	for _, a := range f.asks {
		if a.model == name && a.list <= f.taken {
			a.tried = true
		}
	}
}

// endAttempt takes note of the end of an attempt.
func (f *Follower) endAttempt(b fetchAttempt) {
	m := b.model
	m.begun, m.err = time.Time{}, b.err
	if b.err != nil {
		m.again = time.Now().Add(f.config.Poll)
	}
	if m.changed { // a signature that was missing may have come
		m.changed = false
		f.retryRefused()
	}
}

// reportFaults reports the faults that are new and those that are over.
func (f *Follower) reportFaults(statuses []models.Status) {
	faults := maps.Clone(f.unread)
	if faults == nil {
		faults = map[string]error{}
	}
	if f.overdue {
		faults[whole] = fmt.Errorf("a poll of the store has not ended in %v: a file system may not "+
			"answer", overdue)
	}
	for name, m := range f.models {
		if moved := max(m.moved.Load(), f.moved.Load()); !m.begun.IsZero() &&
			time.Since(time.UnixMilli(moved)) > stalled {
			faults[name] = fmt.Errorf("no byte of it was received or written in %v: the file system "+
				"of %s may not answer", stalled, f.config.Dir)
			continue
		}
		if m.err != nil {
			faults[name] = m.err
		}
	}
	also := func(name string, err error) {
		if err != nil {
			faults[name] = errors.Join(faults[name], err)
		}
	}
	for name, entry := range f.index {
		also(name, entry.StrangeRelease(name))
		also(name, f.odd[name])
	}
	for name, err := range f.findUntrusted(statuses) {
		also(name, err)
	}
	f.config.Metrics.faults.Set(float64(len(faults)))
	for _, model := range slices.Sorted(maps.Keys(faults)) {
		before := f.last[model]
		if before == nil || before.Error() != faults[model].Error() {
			f.config.Log.Error("the model store is not followed; what is here serves on", "model",
				model, "error", faults[model], "event", "broken")
		}
	}
	for model := range f.last {
		if faults[model] == nil {
			f.config.Log.Info("the model store is followed again", "model", model, "event",
				"returned")
		}
	}
	f.last = faults
}

// holdsOnly reports whether the directory has these versions, and no others, of which those that
// are wanted were read from the store.
func (m *followedModel) holdsOnly(wanted, beside []int64) bool {
	var held []int64
	for _, h := range m.held {
		held = append(held, h.Version)
	}
	return slices.Equal(slices.Concat(wanted, beside), held) &&
		!slices.ContainsFunc(wanted, func(number int64) bool { return m.manifests[number] == nil })
}

// fetchVersions makes a model's folder hold versions; those that are not wanted are there already.
// serves are the versions that serve. If a wanted version lacks a signature that it must have, the
// others are fetched all the same, unless it is the first one, which is to answer, and does not
// serve.
func (f *Follower) fetchVersions(ctx context.Context, m *followedModel, wanted, beside []int64,
	serves map[int64]bool) error {
	maps.DeleteFunc(m.manifests, func(number int64, _ *store.Manifest) bool {
		return !slices.Contains(wanted, number)
	})
	keys := f.trustedKeys()
	var versions []*store.Manifest
	var faults []error
	for place, number := range wanted {
		if m.manifests[number] == nil {
			read, err := f.fetcher.Store.Trusted(ctx, m.name, number, keys)
			i := slices.IndexFunc(m.held,
				func(h *store.Manifest) bool { return h.Version == number })
			switch {
			case err == nil:
				m.manifests[number] = read
			case !errors.Is(err, store.ErrSignature):
				return err
			case place == 0 && (i < 0 || !serves[number]):
				return err
			default:
				faults = append(faults, err)
				if i >= 0 {
					versions = append(versions, m.held[i])
				}
				continue
			}
		}
		versions = append(versions, m.manifests[number])
	}
	for _, held := range m.held {
		if slices.Contains(beside, held.Version) {
			versions = append(versions, held)
		}
	}
	begin := time.Now()
	changed, err := f.fetcher.Ensure(ctx, m.name, versions, func(int64, int64) {
		m.moved.Store(time.Now().UnixMilli())
	})
	if err != nil {
		return err
	}
	m.held = versions
	if changed {
		m.changed = true
		f.config.Metrics.fetched.Inc()
		f.config.Log.Info("a model is as the store has it", "model", m.name, "versions",
			fmt.Sprint(wanted), "took_ms", time.Since(begin).Milliseconds(), "event", "store")
	}
	return errors.Join(faults...)
}
