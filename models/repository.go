package models

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

var (
	// ErrNotFound is wrapped when there is no such model or version.
	ErrNotFound = errors.New("models: not found")
	// ErrName is wrapped when a name cannot be that of a model.
	ErrName = errors.New("models: invalid name")
	// ErrNotReady is wrapped when the model or version exists and does not serve.
	ErrNotReady = errors.New("models: not ready")
	// ErrClosed is returned when the repository's Run has ended.
	ErrClosed = errors.New("models: repository is closed")
	// ErrSlow is wrapped when a load took longer than Options.LoadTimeout.
	ErrSlow = errors.New("models: load takes too long")

	// errUnwanted ends a load whose version was unloaded, replaced or removed.
	errUnwanted = errors.New("models: load is no longer wanted")
)

// A State is where a version is in its life, by the names of Triton's repository
// index.
type State string

// The states.
const (
	Unavailable State = "UNAVAILABLE"
	Loading     State = "LOADING"
	Ready       State = "READY"
	Unloading   State = "UNLOADING"
)

// A Status is one line of the repository's index.
type Status struct {
	Model string
	// Version is the version's number; 0 for a model without any version.
	Version int64
	State   State
	// Reason says why a version is not ready, or what is wrong although it is;
	// empty if all is well.
	Reason string
}

// An Event tells that a version's state or its reason changed.
type Event struct {
	Status
	// LoadTime is how long loading and warming took, on the event that ends a
	// load with success.
	LoadTime time.Duration
	// Gone says that the version is neither on disk nor in memory any more: nothing is told of it
	// again, unless it comes back.
	Gone bool
	// Err is why a load failed, on the event that ends it. The state is Ready all the same
	// if an older load of the version goes on serving.
	Err error
}

// DefaultLoadTimeout is Options.LoadTimeout where that is 0: a table of 100 GB is read from a disk
// of 125 MB/s in less.
const DefaultLoadTimeout = 15 * time.Minute

const (
	// patience is how long a load may hold up the loads of other models, and Settled.
	patience = 30 * time.Second
	// abandonAfter is how long a loader may take to return once its context has ended; then it
	// is left behind.
	abandonAfter = 2 * time.Second
)

// A Loader makes a version ready to run: it loads and warms it, and returns
// when the version may serve. It should return soon after ctx ends; one that does not is left
// behind, and what it still returns is closed. Calls for different models may overlap.
type Loader[M io.Closer] func(ctx context.Context, v *Version) (M, error)

// Options of a repository. The zero value of a field means its default.
type Options struct {
	// PollInterval is how often the directory is looked at; default 1 s. A change is
	// acted upon when two looks in a row have seen the same, so that what is
	// being copied is not loaded by halves.
	PollInterval time.Duration
	// LoadTimeout bounds loading and warming of a version; one that takes longer has failed.
	// Default DefaultLoadTimeout.
	LoadTimeout time.Duration
	// Logger takes a line for each change; default none.
	Logger *slog.Logger
	// OnEvent is called for each change of a version's state, one call at a
	// time; it must not call back into the repository. Default none.
	OnEvent func(Event)
}

// A Repository serves the models of a directory: of each model the versions that its
// version policy chooses, the newest by default. Where a chosen version fails
// to load, the next older one takes its place, and where one that changed
// fails to load, what was loaded before goes on serving.
//
// Its methods may be called concurrently. While Run runs, it owns one goroutine
// for each version that waits for its last queries.
type Repository[M io.Closer] struct {
	dir     string
	load    Loader[M]
	options Options

	// serving is what Acquire sees, by model; it is replaced as a whole.
	serving  atomic.Pointer[map[string]*served[M]]
	requests chan *request
	settled  chan struct{}
	stopped  chan struct{} // closed when Run no longer takes requests
	loads    sync.WaitGroup
	retiring sync.WaitGroup
	// progress wakes Run: a load has ended or has become slow.
	progress chan struct{}

	mu     sync.Mutex
	closed bool
	models map[string]*model[M]
	// loading holds up other loads; nil if there is none, or none but slow ones.
	loading *load[M]
	// retired no longer serve, and are let go by update.
	retired []func()
}

// served are the versions of a model that serve.
type served[M io.Closer] struct {
	newest   *Loaded[M]
	versions map[int64]*Loaded[M]
}

// A model is what is known of a folder of the repository.
type model[M io.Closer] struct {
	name     string
	config   fingerprint
	policy   VersionPolicy
	problem  string
	versions map[int64]*version[M]
	// unloaded is set by Unload, with what the files were then.
	unloaded   bool
	unloadedAs map[int64]fingerprint
	// loading is the load in progress, nil if there is none.
	loading *load[M]
	// waiting are the calls of Load that wait until there is nothing more to load.
	waiting []*request
}

// A load is in progress.
type load[M io.Closer] struct {
	*version[M]
	model  *model[M]
	files  fingerprint // that it loads
	cancel context.CancelCauseFunc
}

// A version is on disk, loaded, or both.
type version[M io.Closer] struct {
	number int64
	found  fingerprint // its files at the last look; zero if they are gone
	stable bool        // they were the same at the look before

	loading  bool
	loaded   *Loaded[M] // serves; may be nil
	loadedAs fingerprint
	failure  error // of the last load, of the files failedAs
	failedAs fingerprint
	retiring int // how many former loads wait for their queries

	told Status
}

// broken reports whether v's present files failed to load.
func (v *version[M]) broken() bool { return v.failure != nil && v.failedAs == v.found }

// current reports whether v's present files are loaded.
func (v *version[M]) current() bool { return v.loaded != nil && v.loadedAs == v.found }

// request asks Run to load a model now.
type request struct {
	model string
	errs  []error    // of the loads since
	done  chan error // takes one
}

// Open reads what the directory holds; nothing is loaded before Run. A directory that
// does not exist is an error; one without models is not.
func Open[M io.Closer](dir string, load Loader[M], options Options) (*Repository[M], error) {
	if options.PollInterval == 0 {
		options.PollInterval = time.Second
	}
	if options.LoadTimeout == 0 {
		options.LoadTimeout = DefaultLoadTimeout
	}
	if options.Logger == nil {
		options.Logger = slog.New(slog.DiscardHandler)
	}
	if options.OnEvent == nil {
		options.OnEvent = func(Event) {}
	}
	info, err := os.Stat(dir)
	if err != nil {
		return nil, fmt.Errorf("open model directory: %w", err)
	}
	if !info.IsDir() {
		return nil, fmt.Errorf("open model directory: %s is not a directory", dir)
	}
	r := &Repository[M]{
		dir:      dir,
		load:     load,
		options:  options,
		requests: make(chan *request),
		progress: make(chan struct{}, 1),
		settled:  make(chan struct{}),
		stopped:  make(chan struct{}),
		models:   map[string]*model[M]{},
	}
	r.serving.Store(&map[string]*served[M]{})
	found, err := scan(dir)
	if err != nil {
		return nil, fmt.Errorf("open model directory: %w", err)
	}
	// Waiting for a second look would delay every start; should something be
	// half copied just now, it is loaded again when it is complete.
	r.note(found, true)
	return r, nil
}

// Run loads what the directory holds, one version at a time except for slow ones, and follows its
// changes until ctx ends. Then it stops serving, waits for holders to release
// what they hold, closes every version, and returns nil. It may be called once.
func (r *Repository[M]) Run(ctx context.Context) error {
	defer r.close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ticker := time.NewTicker(r.options.PollInterval)
	defer ticker.Stop()
	settled := false
	unreadable := ""
	for ctx.Err() == nil {
		if idle := r.startNext(ctx); idle && !settled {
			settled = true
			close(r.settled)
		}
		select {
		case <-ctx.Done():
		case req := <-r.requests:
			r.take(req)
		case <-r.progress:
		case <-ticker.C:
			found, err := scan(r.dir)
			if err == nil {
				if unreadable != "" {
					r.options.Logger.Info("the model directory can be read again", "event",
						"returned")
				}
				unreadable = ""
				r.note(found, false)
			} else if err.Error() != unreadable {
				unreadable = err.Error()
				r.options.Logger.Error(
					"cannot read the model directory; what is loaded goes on serving", "error", err,
					"event", "broken")
			}
		}
	}
	return nil
}

// Settled is closed when every version found at the start is loaded, has failed, or has been
// loading for half a minute.
func (r *Repository[M]) Settled() <-chan struct{} { return r.settled }

// close retires everything and waits until it is closed. Loads have been cancelled.
func (r *Repository[M]) close() {
	close(r.stopped)
	r.loads.Wait()
	r.mu.Lock()
	r.closed = true
	for _, m := range r.models {
		for _, req := range m.waiting {
			req.done <- ErrClosed
		}
		m.waiting = nil
		for _, v := range m.versions {
			r.retire(m, v, "")
		}
	}
	r.update()
	r.mu.Unlock()
	r.retiring.Wait()
}

// Acquire takes a version for one query; version 0 is the newest that is ready.
// The caller calls Release when the query is done. The error wraps ErrNotFound or
// ErrNotReady.
func (r *Repository[M]) Acquire(model string, version int64) (*Loaded[M], error) {
	for {
		s, ok := (*r.serving.Load())[model]
		if !ok {
			return nil, r.unavailable(model, version)
		}
		l := s.newest
		if version != 0 {
			if l, ok = s.versions[version]; !ok {
				return nil, r.unavailable(model, version)
			}
		}
		if l.acquire() {
			return l, nil
		}
		// It was retired just now, and serving is without it.
	}
}

// unavailable says why Acquire finds nothing.
func (r *Repository[M]) unavailable(model string, version int64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.whyUnavailable(model, version)
}

func (r *Repository[M]) whyUnavailable(model string, version int64) error {
	m, ok := r.models[model]
	if !ok {
		there := slices.Sorted(maps.Keys(r.models))
		if len(there) == 0 {
			return fmt.Errorf("%w: model %.255q; there are none", ErrNotFound, model)
		}
		more := ""
		if len(there) > 10 {
			there, more = there[:10], ", ..."
		}
		return fmt.Errorf("%w: model %.255q; there are %s%s", ErrNotFound, model,
			strings.Join(there, ", "), more)
	}
	if version == 0 {
		reasons := make([]string, 0, len(m.versions))
		for _, s := range r.statuses(m) {
			if s.Version != 0 {
				reasons = append(reasons,
					fmt.Sprintf("version %d is %s: %s", s.Version, s.State, s.Reason))
			} else {
				reasons = append(reasons, s.Reason)
			}
		}
		return fmt.Errorf("%w: model %q: %s", ErrNotReady, model, strings.Join(reasons, "; "))
	}
	v, ok := m.versions[version]
	if !ok {
		return fmt.Errorf("%w: version %d of model %q; there are %v", ErrNotFound, version, model,
			slices.Sorted(maps.Keys(m.versions)))
	}
	s := r.status(m, v)
	return fmt.Errorf("%w: version %d of model %q is %s: %s", ErrNotReady, version, model, s.State,
		s.Reason)
}

// Index lists every version known, by model and version.
func (r *Repository[M]) Index() []Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []Status
	for _, name := range slices.Sorted(maps.Keys(r.models)) {
		all = append(all, r.statuses(r.models[name])...)
	}
	return all
}

// statuses lists a model's versions, or why it has none.
func (r *Repository[M]) statuses(m *model[M]) []Status {
	if len(m.versions) == 0 {
		return []Status{{Model: m.name, State: Unavailable, Reason: m.problem}}
	}
	var all []Status
	for _, number := range slices.Sorted(maps.Keys(m.versions)) {
		all = append(all, r.status(m, m.versions[number]))
	}
	return all
}

func (r *Repository[M]) status(m *model[M], v *version[M]) Status {
	s := Status{Model: m.name, Version: v.number, State: Unavailable}
	switch {
	case v.loaded != nil:
		s.State = Ready
		if v.loading {
			s.Reason = "its files changed and are being loaded"
		} else if v.broken() {
			s.Reason = fmt.Sprintf(
				"its files changed and cannot be loaded, what was loaded before serves: %v",
				v.failure)
		}
	case v.loading:
		s.State = Loading
		s.Reason = "being loaded"
	case v.retiring > 0:
		s.State = Unloading
		s.Reason = "waits for its queries"
	case r.closed:
		s.Reason = "shut down"
	case v.found == (fingerprint{}):
		s.Reason = "removed"
	case m.unloaded:
		s.Reason = "unloaded by call"
	case v.broken():
		s.Reason = v.failure.Error()
	case !m.wants(v):
		s.Reason = "not chosen by the version policy"
	case !v.stable:
		s.Reason = "its files are changing"
	default:
		s.Reason = "not loaded yet"
	}
	return s
}

// Load loads the model's versions by its policy, again those whose files changed
// or that failed, and waits until they serve. A model unloaded by call is
// served again. The error wraps ErrName or ErrNotFound, or says why a version
// cannot be loaded. When ctx ends, the load goes on without the caller.
func (r *Repository[M]) Load(ctx context.Context, model string) error {
	if err := checkName(model); err != nil {
		return err
	}
	req := &request{model: model, done: make(chan error, 1)}
	select {
	case r.requests <- req:
	case <-r.stopped:
		return ErrClosed
	case <-ctx.Done():
		return fmt.Errorf("load model %q: %w", model, ctx.Err())
	}
	select {
	case err := <-req.done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("load model %q: %w", model, ctx.Err())
	}
}

// Unload stops serving the model, gives up loading it, and waits until its
// queries are done. It stays unloaded until Load is called or its files
// change. The error wraps ErrName or ErrNotFound. When ctx ends, the model is
// unloaded without the caller waiting.
func (r *Repository[M]) Unload(ctx context.Context, model string) error {
	if err := checkName(model); err != nil {
		return err
	}
	closed, err := r.unload(model)
	if err != nil {
		return err
	}
	for _, c := range closed {
		select {
		case <-c:
		case <-ctx.Done():
			return fmt.Errorf("unload model %q: %w", model, ctx.Err())
		}
	}
	return nil
}

// unload returns what is closed when the model's versions are.
func (r *Repository[M]) unload(model string) (closed []<-chan struct{}, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, ErrClosed
	}
	m, ok := r.models[model]
	if !ok {
		return nil, fmt.Errorf("%w: model %q", ErrNotFound, model)
	}
	m.unloaded = true
	m.unloadedAs = m.files()
	if m.loading != nil {
		m.loading.cancel(errUnwanted)
	}
	for _, req := range m.waiting {
		req.done <- fmt.Errorf("%w: model %q was unloaded", ErrNotReady, model)
	}
	m.waiting = nil
	for _, v := range m.versions {
		if v.loaded != nil {
			closed = append(closed, v.loaded.closed)
		}
		r.retire(m, v, "unloaded by call")
	}
	r.update()
	return closed, nil
}

// files are the fingerprints of a model's versions.
func (m *model[M]) files() map[int64]fingerprint {
	files := map[int64]fingerprint{}
	for _, v := range m.versions {
		if v.found != (fingerprint{}) {
			files[v.number] = v.found
		}
	}
	return files
}

// note takes in what a scan found of all models.
func (r *Repository[M]) note(found map[string]folder, trust bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for name := range r.models {
		if _, ok := found[name]; !ok {
			r.noteModel(name, folder{}, trust)
		}
	}
	for name, f := range found {
		r.noteModel(name, f, trust)
	}
	r.update()
}

// noteModel takes in what a scan found of one model, nothing if it is gone. trust
// says that the files need not be seen twice.
func (r *Repository[M]) noteModel(name string, f folder, trust bool) {
	m, ok := r.models[name]
	if !ok {
		m = &model[M]{name: name, versions: map[int64]*version[M]{}}
		r.models[name] = m
	}
	if f.problem != "" && f.problem != m.problem {
		r.options.Logger.Warn("model cannot be served", "model", name, "reason", f.problem, "event",
			"broken")
	}
	if f.problem == "" && m.problem != "" && len(f.versions) > 0 {
		r.options.Logger.Info("model can be served again", "model", name, "event", "returned")
	}
	m.problem = f.problem
	if f.unreadable {
		return
	}
	if f.config != m.config || !ok {
		m.config = f.config
		// A faulty configuration is reported when a version is loaded; until it
		// is repaired the policy stays.
		if c, err := r.config(name); err == nil {
			m.policy = c.Versions
		}
	}
	for number := range f.versions {
		if m.versions[number] == nil {
			m.versions[number] = &version[M]{number: number}
		}
	}
	for _, v := range m.versions {
		now := f.versions[v.number]
		v.stable = v.found == now || trust && now != fingerprint{}
		v.found = now
	}
	if m.unloaded && !maps.Equal(m.unloadedAs, m.files()) {
		m.unloaded = false
	}
	if l := m.loading; l != nil && (l.stable && l.found != l.files ||
		!m.wants(l.version) && m.next() != nil) {
		l.cancel(errUnwanted)
	}
}

func (r *Repository[M]) config(model string) (Config, error) {
	path, err := within(r.dir, model, ConfigFile)
	if err != nil {
		return Config{}, err
	}
	return ReadConfig(path)
}

// wants reports whether the version policy chooses v. Those whose files cannot
// be loaded do not count as the newest.
func (m *model[M]) wants(v *version[M]) bool {
	switch p := m.policy; {
	case v.found == (fingerprint{}):
		return false
	case p.All:
		return true
	case p.Specific != nil:
		return slices.Contains(p.Specific, v.number)
	default:
		newer := 0
		for _, other := range m.versions {
			usable := other.found != (fingerprint{}) && (other.loaded != nil || !other.broken())
			if other.number > v.number && usable {
				newer++
			}
		}
		return newer < max(1, p.Latest)
	}
}

// next is the version to load first; nil if there is none.
func (m *model[M]) next() *version[M] {
	if m.unloaded {
		return nil
	}
	for _, number := range slices.Backward(slices.Sorted(maps.Keys(m.versions))) {
		v := m.versions[number]
		if v.stable && !v.current() && !v.broken() && m.wants(v) {
			return v
		}
	}
	return nil
}

// startNext answers the calls of Load that have nothing more to wait for, and starts the next
// load, unless one is in progress that is not slow yet. It reports whether there is neither.
func (r *Repository[M]) startNext(ctx context.Context) (idle bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := slices.SortedFunc(maps.Values(r.models), func(a, b *model[M]) int {
		// What a caller waits for comes first.
		return cmp.Or(cmp.Compare(min(1, len(b.waiting)), min(1, len(a.waiting))),
			cmp.Compare(a.name, b.name))
	})
	for _, m := range all {
		if m.loading != nil {
			continue
		}
		v := m.next()
		if v == nil {
			for _, req := range m.waiting {
				req.done <- r.outcome(req)
			}
			m.waiting = nil
		} else if r.loading == nil {
			r.start(ctx, m, v)
		}
	}
	return r.loading == nil
}

// outcome is the answer to a call of Load.
func (r *Repository[M]) outcome(req *request) error {
	if err := errors.Join(req.errs...); err != nil {
		return err
	}
	if (*r.serving.Load())[req.model] == nil {
		return r.whyUnavailable(req.model, 0)
	}
	return nil
}

// take begins what a call of Load asks for. Whatever it finds, it takes nothing out of service:
// what is gone just now may be away for a moment.
func (r *Repository[M]) take(req *request) {
	f, err := scanModel(r.dir, req.model)
	if err != nil {
		req.done <- err
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.noteModel(req.model, f, true)
	m := r.models[req.model]
	m.unloaded = false
	for _, v := range m.versions {
		v.failure = nil
	}
	m.waiting = append(m.waiting, req)
	r.update()
}

// start begins to load a version.
func (r *Repository[M]) start(ctx context.Context, m *model[M], v *version[M]) {
	ctx, cancel := context.WithCancelCause(ctx)
	l := &load[M]{version: v, model: m, files: v.found, cancel: cancel}
	v.loading, m.loading, r.loading = true, l, l
	r.update()
	r.loads.Go(func() {
		defer cancel(nil)
		start := time.Now()
		slow := time.AfterFunc(patience, func() {
			r.options.Logger.Warn("model is still being loaded; others no longer wait for it",
				"model", m.name, "version", v.number, "after", patience, "load_timeout",
				r.options.LoadTimeout, "event", "slow")
			r.mu.Lock()
			defer r.mu.Unlock()
			r.pass(l)
		})
		defer slow.Stop()
		loaded, err := r.run(ctx, m.name, v.number)
		r.loaded(ctx, l, loaded, err, time.Since(start))
	})
}

// pass has other loads no longer wait for l.
func (r *Repository[M]) pass(l *load[M]) {
	if r.loading == l {
		r.loading = nil
	}
	select {
	case r.progress <- struct{}{}:
	default:
	}
}

// run loads a version, for as long as ctx and the timeout allow, whatever the loader does.
func (r *Repository[M]) run(ctx context.Context, name string, number int64) (*Loaded[M], error) {
	ctx, cancel := context.WithTimeoutCause(ctx, r.options.LoadTimeout, ErrSlow)
	defer cancel()
	type result struct {
		loaded *Loaded[M]
		err    error
	}
	ended := make(chan result, 1)
	go func() {
		described, err := ReadVersion(r.dir, name, number)
		if err != nil {
			ended <- result{nil, err}
			return
		}
		m, err := r.load(ctx, described)
		if err != nil {
			ended <- result{nil, fmt.Errorf("load %s: %w", described.Path, err)}
			return
		}
		ended <- result{newLoaded(described, m), nil}
	}()
	var res result
	select {
	case res = <-ended:
	case <-ctx.Done():
		timer := time.NewTimer(abandonAfter)
		defer timer.Stop()
		select {
		case res = <-ended:
		case <-timer.C:
			r.options.Logger.Error(
				"load does not end; it is left behind and keeps a thread and its memory until it "+
					"does",
				"model", name, "version", number, "reason", context.Cause(ctx), "event", "slow")
			go func() {
				if res := <-ended; res.err == nil {
					_ = res.loaded.Model.Close() // nobody was told of it
				}
			}()
			res.err = context.Cause(ctx)
		}
	}
	if res.err != nil && context.Cause(ctx) == ErrSlow {
		return nil, fmt.Errorf("load version %d of model %q: %w: more than %v", number, name,
			ErrSlow, r.options.LoadTimeout)
	}
	return res.loaded, res.err
}

// loaded has a version serve, or notes why it does not.
func (r *Repository[M]) loaded(ctx context.Context, l *load[M], loaded *Loaded[M], err error,
	took time.Duration) {
	m, v := l.model, l.version
	r.mu.Lock()
	defer r.mu.Unlock()
	v.loading, m.loading = false, nil
	switch {
	case ctx.Err() != nil: // nobody wants it any more
		if err == nil {
			serves := v.loaded
			v.loaded = loaded
			r.retire(m, v, "")
			v.loaded = serves
		}
	case err != nil:
		v.failure = err
		v.failedAs = l.files
		for _, req := range m.waiting {
			req.errs = append(req.errs, err)
		}
		r.options.Logger.Error("model not loaded", "model", m.name, "version", v.number, "error",
			err, "older_load_serves", v.loaded != nil, "event", "broken")
		r.tell(m, v, Event{Err: err})
	default:
		r.retire(m, v, "") // what was loaded before; its new load serves
		v.loaded, v.loadedAs, v.failure = loaded, l.files, nil
		r.publish()
		r.options.Logger.Info("model ready", "model", m.name, "version", v.number, "took_ms",
			took.Milliseconds(), "event", "loaded")
		r.tell(m, v, Event{LoadTime: max(took, 1)})
	}
	r.update()
	r.pass(l)
}

// replace retires the versions that are gone or that the policy no longer
// chooses, once those that it chooses instead are loaded or have failed.
func (r *Repository[M]) replace(m *model[M]) {
	ready := false
	for _, v := range m.versions {
		if m.wants(v) {
			if !m.unloaded && !v.current() && !v.broken() {
				return
			}
			ready = ready || v.loaded != nil
		}
	}
	for _, v := range m.versions {
		gone := v.found == (fingerprint{})
		switch {
		case m.wants(v):
		case gone && v.stable:
			r.retire(m, v, "its files are gone")
		case !gone && ready:
			r.retire(m, v, "not chosen by the version policy")
		}
	}
}

// retire stops serving v, if it is loaded, and closes it when its queries are
// done. why is logged, unless it is "": the same version serves again at once, or the repository
// closes. An update must follow.
func (r *Repository[M]) retire(m *model[M], v *version[M], why string) {
	l := v.loaded
	if l == nil {
		return
	}
	if why != "" {
		r.options.Logger.Info("model serves no more", "model", m.name, "version", v.number, "why",
			why, "event", "unloaded")
	}
	v.loaded = nil
	v.retiring++
	r.retired = append(r.retired, func() {
		l.Release() // the repository's own use
		<-l.unused
		err := l.Model.Close()
		close(l.closed)
		if err != nil {
			r.options.Logger.Error("close model", "model", m.name, "version", v.number, "error",
				err)
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		v.retiring--
		r.update()
	})
}

// update draws the conclusions from whatever changed: it retires what has been
// replaced, shows Acquire what serves, reports what is different, and forgets what is
// neither on disk nor in memory.
func (r *Repository[M]) update() {
	for _, m := range r.models {
		r.replace(m)
	}
	r.publish()
	for _, name := range slices.Sorted(maps.Keys(r.models)) {
		m := r.models[name]
		for _, number := range slices.Sorted(maps.Keys(m.versions)) {
			v := m.versions[number]
			gone := v.found == (fingerprint{}) && v.loaded == nil && !v.loading && v.retiring == 0
			if gone || r.status(m, v) != v.told {
				r.tell(m, v, Event{Gone: gone})
			}
			if gone {
				delete(m.versions, number)
			}
		}
		if len(m.versions) == 0 && m.problem == "" && len(m.waiting) == 0 {
			delete(r.models, name)
		}
	}
	for _, letGo := range r.retired {
		r.retiring.Go(letGo)
	}
	r.retired = nil
}

// publish shows Acquire what serves.
func (r *Repository[M]) publish() {
	serving := make(map[string]*served[M], len(r.models))
	for name, m := range r.models {
		s := &served[M]{versions: map[int64]*Loaded[M]{}}
		for number, v := range m.versions {
			if v.loaded == nil {
				continue
			}
			s.versions[number] = v.loaded
			if s.newest == nil || number > s.newest.Version.Number {
				s.newest = v.loaded
			}
		}
		if s.newest != nil {
			serving[name] = s
		}
	}
	r.serving.Store(&serving)
}

// tell reports v's status.
func (r *Repository[M]) tell(m *model[M], v *version[M], e Event) {
	e.Status = r.status(m, v)
	v.told = e.Status
	r.options.Logger.Debug("model state", "model", m.name, "version", v.number, "state",
		string(e.State), "reason", e.Reason)
	r.options.OnEvent(e)
}
