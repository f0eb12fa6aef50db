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

	"github.com/muster-serve/muster/api/wakeup"
)

var (
	// ErrNotFound means that the model or version does not exist. Errors wrap it.
	ErrNotFound = errors.New("models: not found")
	// ErrName means that a name cannot be that of a model. Errors wrap it.
	ErrName = errors.New("models: invalid name")
	// ErrNotReady means that the model or version exists but does not serve. Errors wrap it.
	ErrNotReady = errors.New("models: not ready")
	// ErrClosed is returned after the repository's Run has ended.
	ErrClosed = errors.New("models: repository is closed")
	// ErrRefused means that Options.Admit has refused a version. Errors wrap it.
	ErrRefused = errors.New("models: refused")
	// ErrSlow means that a load took longer than Options.LoadTimeout. Errors wrap it.
	ErrSlow = errors.New("models: load takes too long")

	// errUnwanted is the cause of cancelling a load whose version was unloaded, replaced or
	// removed.
	errUnwanted = errors.New("models: load is no longer wanted")
)

// A VersionState is the state of a version. The values are those of Triton's repository index.
type VersionState string

// The states of a version.
const (
	Unavailable VersionState = "UNAVAILABLE"
	Loading     VersionState = "LOADING"
	Ready       VersionState = "READY"
	Unloading   VersionState = "UNLOADING"
)

// A Status is one line of the repository's index.
type Status struct {
	Model string
	// Version is the version's number; 0 for a model without any version.
	Version int64
	State   VersionState
	// Reason is why the version is not ready, or a problem of a version that is ready; else empty.
	Reason string
	// Failed is whether Reason is why the present files cannot be loaded.
	Failed bool
}

// An VersionEvent is a change of a version's state or reason.
type VersionEvent struct {
	Status
	// LoadTime is how long loading and warming took; above 0 only in the event of a load that
	// succeeded.
	LoadTime time.Duration
	// Gone is whether the version is no longer on disk nor in memory. No event of it follows,
	// unless it appears on disk again.
	Gone bool
	// Err is why a load failed; nil except in the event of a failed load. The state can still be
	// Ready, if an earlier load of the version goes on serving.
	Err error
}

// DefaultLoadTimeout is the default of Options.LoadTimeout. It is enough to read 100 GB from a disk
// of 125 MB/s.
const DefaultLoadTimeout = 15 * time.Minute

const (
	// patience is how long the loads of other models, and Settled, wait for a load.
	patience = 30 * time.Second
	// abandonAfter is how long the repository waits for a loader to return after its context has
	// ended. Then it goes on without it.
	abandonAfter = 2 * time.Second
)

// A Loader loads and warms a version, and returns a model that is ready to serve. It should return
// soon after ctx ends. The repository does not wait for longer than 2 s for that, and closes a
// model that is returned later. Calls for different models may overlap.
type Loader[M io.Closer] func(ctx context.Context, v *Version) (M, error)

// Options are the options of a repository. The zero value of a field means its default.
type Options struct {
	// PollInterval is the time between two scans of the directory; default 1 s. The repository acts
	// on a change only when two scans in a row have seen the same files, so that it does not load
	// files that are still being copied.
	PollInterval time.Duration
	// LoadTimeout is the time after which loading and warming a version has failed. Default
	// DefaultLoadTimeout.
	LoadTimeout time.Duration
	// Logger gets a line for each change; default none.
	Logger *slog.Logger
	// Explicit is whether models are loaded, and loaded anew, by calls of Load alone. A model that
	// such a call has loaded serves until Unload, whatever becomes of its files. Load also loads
	// the models of an ensemble's steps, without waiting for them.
	Explicit bool
	// Placed is Explicit where the calls carry out a placement: the files of a model that is loaded
	// are followed as without Explicit.
	Placed bool
	// Admit returns why a version may not be loaded; nil if it may. It is called before each load,
	// on its goroutine, and should return soon after ctx ends. What it has refused is tried again
	// when its files change, or by Readmit. Default none.
	Admit func(ctx context.Context, v *Version) error
	// OnEvent is called for each change of a version's state, one call at a time, with the
	// repository locked: it must return soon and must not call the repository. Default none.
	OnEvent func(VersionEvent)
}

// A Repository loads the models of a directory, follows changes of the files, and hands the loaded
// versions to queries. Of each model it serves the versions that the version policy chooses, by
// default the newest. If a chosen version cannot be loaded, the next older one serves in its place.
// Choose adds to what the policies choose. If a version has changed and cannot be loaded again, its
// earlier load goes on serving.
//
// The methods may be called concurrently. While Run runs, the repository owns one goroutine for
// each load, and one for each version that is closed after its last query.
type Repository[M io.Closer] struct {
	dir     string
	load    Loader[M]
	options Options
	scanner *scanner

	// serving holds the versions that Acquire can return, by model. The map is never changed, only
	// replaced.
	serving  atomic.Pointer[map[string]*servingVersions[M]]
	requests chan *request
	settled  chan struct{}
	stopped  chan struct{} // closed when Run takes no more requests
	loads    sync.WaitGroup
	retiring sync.WaitGroup
	// progress wakes Run when a load has ended or has become slow.
	progress wakeup.Signal

	mu     sync.Mutex
	closed bool
	models map[string]*modelFolder[M]
	// loading is the load for which others wait; nil if none is in progress, or only slow ones.
	loading *versionLoad[M]
	// retired holds a function for each load that no longer serves. The function closes it after
	// its last query; update starts it.
	retired []func()
	choices map[string]Choice // by model
	// noted are the models whose folders calls of Load have read since the scan in progress has
	// begun, which does not know better.
	noted map[string]bool
	scans uint64 // how many have begun
}

// servingVersions holds the versions of a model that serve.
type servingVersions[M io.Closer] struct {
	newest   *LoadedVersion[M] // or the one that the model's choice prefers
	versions map[int64]*LoadedVersion[M]
}

// A modelFolder is the state of one folder of the repository.
type modelFolder[M io.Closer] struct {
	name     string
	config   fingerprint
	base     fingerprint // see folder
	policy   VersionPolicy
	choice   Choice // nil: the policy alone
	problem  string
	versions map[int64]*version[M]
	order    []*version[M] // the newest first; nil: not known since versions came or went
	passed   int           // how many others are on disk
	// unloaded is whether Unload was called, or with Options.Explicit whether Load was not;
	// unloadedAs has the fingerprints of the files at the time of Unload, which is nil before.
	unloaded   bool
	unloadedAs map[int64]fingerprint
	// loading is the load in progress, nil if there is none.
	loading *versionLoad[M]
	// waiting holds the calls of Load that wait until nothing more is to be loaded.
	waiting []*request
}

// A versionLoad is a load of a version in progress.
type versionLoad[M io.Closer] struct {
	*version[M]
	model  *modelFolder[M]
	files  fingerprint // of the files that it loads
	cancel context.CancelCauseFunc
}

// A version is the state of a version that is on disk, in memory, or both.
type version[M io.Closer] struct {
	number int64
	found  fingerprint // of its files at the last scan; zero if they are gone
	stable bool        // whether the scan before found the same
	wanted bool        // see choose
	tries  bool        // whether it would be wanted, if fewer newer ones were broken

	loading   bool
	loaded    *LoadedVersion[M] // the load that serves; nil if none does
	loadedAs  fingerprint       // of the files of loaded
	failure   error             // of the last load; nil if it succeeded
	failedAs  fingerprint       // of the files of that load
	retiring  int               // how many earlier loads wait for their last queries
	took      time.Duration     // of the last load that succeeded
	described *diskDescription  // nil until OnDisk has read the files

	told Status // the status in the last event
}

// isBroken reports whether the load of v's present files failed.
func (v *version[M]) isBroken() bool { return v.failure != nil && v.failedAs == v.found }

// isCurrent reports whether v's present files are loaded.
func (v *version[M]) isCurrent() bool { return v.loaded != nil && v.loadedAs == v.found }

// A request is a call of Load that Run answers.
type request struct {
	model string
	found folder
	parts map[string]folder // of an ensemble's models, if a call loads them too
	errs  []error           // of the model's loads since the call
	done  chan error        // receives the one answer; buffered
}

// Open scans the directory and returns its repository. It loads nothing; Run does. A directory that
// does not exist is an error; one without models is not.
func Open[M io.Closer](dir string, load Loader[M], options Options) (*Repository[M], error) {
	if options.PollInterval == 0 {
		options.PollInterval = time.Second
	}
	if options.LoadTimeout == 0 {
		options.LoadTimeout = DefaultLoadTimeout
	}
	options.Explicit = options.Explicit || options.Placed
	if options.Logger == nil {
		options.Logger = slog.New(slog.DiscardHandler)
	}
	if options.OnEvent == nil {
		options.OnEvent = func(VersionEvent) {}
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
		progress: wakeup.New(),
		settled:  make(chan struct{}),
		stopped:  make(chan struct{}),
		models:   map[string]*modelFolder[M]{},
		noted:    map[string]bool{},
		scanner:  newScanner(dir),
	}
	r.serving.Store(&map[string]*servingVersions[M]{})
	found, err := r.scanner.scan(nil)
	if err != nil {
		return nil, fmt.Errorf("open model directory: %w", err)
	}
	// To wait for a second scan would delay every start. If a file is being copied just now, the
	// version is loaded again when the copy is complete.
	r.noteScan(found, true)
	return r, nil
}

// Run loads the versions in the directory and follows changes of the files until ctx ends. It loads
// one version at a time, except that others do not wait for one that takes more than half a minute.
// When ctx ends, Run stops serving, blocks until all holders have released their versions, closes
// them, and returns nil. It must be called only once.
func (r *Repository[M]) Run(ctx context.Context) error {
	defer r.close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ticker := time.NewTicker(r.options.PollInterval)
	defer ticker.Stop()
	settled := false
	unreadable := ""
	type scanResult struct {
		found map[string]folder
		err   error
	}
	scans := make(chan scanResult, 1)
	scanning := false
	var begun time.Time
	failed := func(err error) {
		if err.Error() != unreadable {
			unreadable = err.Error()
			r.options.Logger.Error(
				"cannot read the model directory; what is loaded goes on serving", "error", err,
				"event", "broken")
		}
	}
	defer func() {
		if scanning { // most end soon; one whose file system hangs is left behind
			select {
			case <-scans:
			case <-time.After(abandonAfter):
			}
		}
	}()
	for ctx.Err() == nil {
		if idle := r.startNext(ctx); idle && !settled {
			settled = true
			close(r.settled)
		}
		select {
		case <-ctx.Done():
		case req := <-r.requests:
			r.takeRequest(req)
		case <-r.progress:
		case <-ticker.C:
			if !scanning {
				scanning, begun = true, time.Now()
				before := r.knownModels()
				go func() {
					found, err := r.scanner.scan(before)
					scans <- scanResult{found, err}
				}()
			} else if time.Since(begun) > 2*maxHungTime+r.options.PollInterval {
				failed(fmt.Errorf("read %s: its file system does not answer", r.dir))
			}
		case s := <-scans:
			scanning = false
			if s.err != nil {
				failed(s.err)
				break
			}
			if unreadable != "" {
				r.options.Logger.Info("the model directory can be read again", "event", "returned")
			}
			unreadable = ""
			r.noteScan(s.found, false)
		}
	}
	return nil
}

// Settled returns a channel that is closed when every version found by Open is loaded, has failed,
// or has been loading for half a minute.
func (r *Repository[M]) Settled() <-chan struct{} { return r.settled }

// close retires all versions and blocks until they are closed. The caller has cancelled all loads.
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
			r.retireVersion(m, v, "")
		}
	}
	r.update()
	r.mu.Unlock()
	r.retiring.Wait()
}

// Acquire returns a loaded version for one query; version 0 means the newest that is ready, or the
// one that the model's [Choice] prefers. It does not block. The caller calls Release when the query
// is done. The error wraps ErrNotFound or ErrNotReady.
func (r *Repository[M]) Acquire(model string, version int64) (*LoadedVersion[M], error) {
	for {
		s, ok := (*r.serving.Load())[model]
		if !ok {
			return nil, r.unavailableError(model, version)
		}
		l := s.newest
		if version != 0 {
			if l, ok = s.versions[version]; !ok {
				return nil, r.unavailableError(model, version)
			}
		}
		if l.addHolder() {
			return l, nil
		}
		// The version was retired meanwhile; the new map in serving does not hold it.
	}
}

// unavailableError returns the error of an Acquire that finds no version.
func (r *Repository[M]) unavailableError(model string, version int64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.whyUnavailable(model, version)
}

// maxReasons bounds the versions whose reasons an error has: each query gets it.
const maxReasons = 10

// whyUnavailable is unavailable for a caller that holds r.mu.
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
		var reasons []string
		all := r.statusesOf(m)
		if more := len(all) - maxReasons; more > 0 {
			reasons, all = []string{fmt.Sprintf("%d older versions", more)}, all[more:]
		}
		for _, s := range all {
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
	m.chooseVersions()
	s := r.statusOf(m, v)
	return fmt.Errorf("%w: version %d of model %q is %s: %s", ErrNotReady, version, model, s.State,
		s.Reason)
}

// Index returns the status of every version, ordered by model and version.
func (r *Repository[M]) Index() []Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []Status
	for _, name := range slices.Sorted(maps.Keys(r.models)) {
		all = append(all, r.statusesOf(r.models[name])...)
	}
	return all
}

// restScans is how many scans pass between two looks at the files of a version on which nothing
// depends: one that the policy does not choose.
const restScans = 60

// knownModels returns what is known of all models, before a scan.
func (r *Repository[M]) knownModels() map[string]*known {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.noted)
	r.scans++
	all := make(map[string]*known, len(r.models))
	for name, m := range r.models {
		m.chooseVersions()
		k := &known{
			config: m.config, base: m.base, policy: m.policy,
			versions: make(map[int64]seen, len(m.versions)),
		}
		if m.choice != nil {
			k.choice = m.choice.Versions()
		}
		for i, v := range m.order {
			k.versions[v.number] = seen{v.found, v.stable && !v.wanted && !v.loading &&
				v.loaded == nil && !v.isBroken() && (r.scans+uint64(i))%restScans != 0}
		}
		all[name] = k
	}
	return all
}

// statusesOf returns the status of each version of a model, or one that says why it has none.
func (r *Repository[M]) statusesOf(m *modelFolder[M]) []Status {
	if len(m.versions) == 0 {
		return []Status{{
			Model: m.name, State: Unavailable, Reason: m.problem, Failed: m.problem != "",
		}}
	}
	var all []Status
	m.chooseVersions()
	for _, v := range slices.Backward(m.order) {
		all = append(all, r.statusOf(m, v))
	}
	return all
}

// statusOf returns the state of v and its reason, after choose.
func (r *Repository[M]) statusOf(m *modelFolder[M], v *version[M]) Status {
	s := Status{Model: m.name, Version: v.number, State: Unavailable}
	switch {
	case v.loaded != nil:
		s.State = Ready
		if v.loading {
			s.Reason = "its files changed and are being loaded"
		} else if v.isBroken() {
			s.Reason = fmt.Sprintf(
				"its files changed and cannot be loaded, what was loaded before serves: %v",
				v.failure)
			s.Failed = true
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
	case m.unloaded && r.options.Placed:
		s.Reason = "not placed here"
	case m.unloaded && m.unloadedAs == nil:
		s.Reason = "not loaded by a call yet"
	case m.unloaded:
		s.Reason = "unloaded by call"
	case v.isBroken():
		s.Reason, s.Failed = v.failure.Error(), true
	case v.tries:
		s.Reason = fmt.Sprintf("not tried: the %d newer versions cannot be loaded", maxTries)
	case !v.wanted:
		s.Reason = "not chosen by the version policy"
	case !v.stable:
		s.Reason = "its files are changing"
	default:
		s.Reason = "not loaded yet"
	}
	return s
}

// Load loads the versions that the model's policy chooses: those that are not loaded, have failed,
// or whose files have changed. It blocks until they serve. It undoes an Unload. The error wraps
// ErrName or ErrNotFound, or says why a version cannot be loaded. If ctx ends, Load returns, but
// the load goes on.
func (r *Repository[M]) Load(ctx context.Context, model string) error {
	if err := checkName(model); err != nil {
		return err
	}
	req := &request{model: model, done: make(chan error, 1)}
	select {
	case <-r.stopped:
		return ErrClosed
	case <-ctx.Done():
		return fmt.Errorf("load model %q: %w", model, ctx.Err())
	default:
	}
	var err error
	if req.found, err = r.scan(ctx, model); err != nil {
		// What is loaded goes on serving, since the files may be back in a moment.
		return err
	}
	if r.options.Explicit && !r.options.Placed { // a placement names all that is to serve
		req.parts = r.scanParts(ctx, model)
	}
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

// Unload stops serving the model, cancels its loads, and blocks until its queries are done. The
// model stays unloaded until Load is called or its files change. The error wraps ErrName or
// ErrNotFound. If ctx ends, Unload returns, but the model is still unloaded.
func (r *Repository[M]) Unload(ctx context.Context, model string) error {
	if err := checkName(model); err != nil {
		return err
	}
	closed, err := r.beginUnload(model)
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

// beginUnload is Unload without the wait. It returns channels that are closed when the versions
// are.
func (r *Repository[M]) beginUnload(model string) (closed []<-chan struct{}, err error) {
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
	m.unloadedAs = m.filesOnDisk()
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
		why := "unloaded by call"
		if r.options.Placed {
			why = "no longer placed here"
		}
		r.retireVersion(m, v, why)
	}
	r.update()
	return closed, nil
}

// filesOnDisk returns the fingerprints of the versions of m that are on disk.
func (m *modelFolder[M]) filesOnDisk() map[int64]fingerprint {
	files := map[int64]fingerprint{}
	for _, v := range m.versions {
		if v.found != (fingerprint{}) {
			files[v.number] = v.found
		}
	}
	return files
}

// noteScan updates all models to the result of a scan. For trust see noteModel.
func (r *Repository[M]) noteScan(found map[string]folder, trust bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for name := range r.models {
		if _, ok := found[name]; !ok && r.followsChanges(name) && !r.noted[name] {
			r.noteModel(name, folder{policy: &VersionPolicy{}}, trust)
		}
	}
	for name, f := range found {
		if r.followsChanges(name) && !r.noted[name] {
			r.noteModel(name, f, trust)
		}
	}
	r.update()
}

// followsChanges reports whether changes of a model's files matter without a call. r.mu is held.
func (r *Repository[M]) followsChanges(model string) bool {
	m, ok := r.models[model]
	return !r.options.Explicit || r.options.Placed || !ok || m.unloaded
}

// noteModel updates one model to the result of a scan; f is zero if the model is gone. If trust is
// set, files count as stable without a second scan. r.mu is held.
func (r *Repository[M]) noteModel(name string, f folder, trust bool) {
	m, ok := r.models[name]
	if !ok {
		m = &modelFolder[M]{
			name: name, versions: map[int64]*version[M]{}, unloaded: r.options.Explicit,
			choice: r.choices[name],
		}
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
	m.config, m.base = f.config, f.base
	if f.policy != nil {
		m.policy = *f.policy
	}
	if f.passedOver > 0 && m.passed == 0 {
		r.options.Logger.Warn("model has more versions than are followed; the newest are", "model",
			name, "followed", len(f.versions), "passed_over", f.passedOver, "event", "broken")
	}
	m.passed = f.passedOver
	for number := range f.versions {
		if m.versions[number] == nil {
			m.versions[number] = &version[M]{number: number}
			m.order = nil
		}
	}
	for _, v := range m.versions {
		now := f.versions[v.number]
		v.stable = v.found == now || trust && now != fingerprint{}
		v.found = now
	}
	if m.unloaded && !r.options.Explicit && !maps.Equal(m.unloadedAs, m.filesOnDisk()) {
		m.unloaded = false
	}
	if l := m.loading; l != nil {
		next := m.next()
		if l.stable && l.found != l.files || !l.wanted && next != nil {
			l.cancel(errUnwanted)
		}
	}
}

// maxTries is how many versions in a row may fail to load until none serves in place of those that
// the policy chooses. Chosen: who has pushed so many broken ones knows.
const maxTries = 100

// chooseVersions sets wanted for each version: whether the version policy or the model's choice
// chooses it. A version whose files cannot be loaded does not count as one of the newest.
func (m *modelFolder[M]) chooseVersions() {
	if m.order == nil {
		m.order = slices.SortedFunc(maps.Values(m.versions), func(a, b *version[M]) int {
			return cmp.Compare(b.number, a.number)
		})
	}
	var chosen []int64
	if m.choice != nil {
		chosen = m.choice.Versions()
	}
	usable, broken := 0, 0 // of those that are newer
	for _, v := range m.order {
		v.wanted, v.tries = false, false
		if v.found == (fingerprint{}) {
			continue
		}
		switch p := m.policy; {
		case p.All, slices.Contains(chosen, v.number):
			v.wanted = true
		case p.Specific != nil:
			v.wanted = slices.Contains(p.Specific, v.number)
		case usable < max(1, p.Latest):
			v.wanted = broken < maxTries || v.loaded != nil
			v.tries = !v.wanted
		}
		if v.loaded != nil || !v.isBroken() {
			usable++
		} else {
			broken++
		}
	}
}

// next returns the version to load first: the one that the choice prefers, else the newest; nil if
// there is none.
func (m *modelFolder[M]) next() *version[M] {
	m.chooseVersions()
	if m.unloaded {
		return nil
	}
	best := int64(0)
	for _, v := range m.order {
		if v.wanted && v.stable && !v.isCurrent() && !v.isBroken() {
			best = m.preferVersion(best, v.number)
		}
	}
	return m.versions[best]
}

// isChanging reports whether versions that are to be loaded wait until their files stay the same.
func (m *modelFolder[M]) isChanging() bool {
	m.chooseVersions()
	for _, v := range m.order {
		if v.wanted && !m.unloaded && !v.stable && !v.isCurrent() && !v.isBroken() {
			return true
		}
	}
	return false
}

// startNext answers the calls of Load whose versions are all loaded or have failed. Then it starts
// the next load, unless one is in progress that is not slow yet. It returns true if no such load is
// in progress afterwards.
func (r *Repository[M]) startNext(ctx context.Context) (idle bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := slices.SortedFunc(maps.Values(r.models), func(a, b *modelFolder[M]) int {
		// Models for which a call of Load waits come first.
		return cmp.Or(cmp.Compare(min(1, len(b.waiting)), min(1, len(a.waiting))),
			cmp.Compare(a.name, b.name))
	})
	for _, m := range all {
		if m.loading != nil {
			continue
		}
		v := m.next()
		if v == nil {
			if m.isChanging() {
				continue // the next scans tell when they can be loaded
			}
			for _, req := range m.waiting {
				req.done <- r.outcomeOf(req)
			}
			m.waiting = nil
		} else if r.loading == nil {
			r.start(ctx, m, v)
		}
	}
	return r.loading == nil
}

// outcomeOf returns the answer to a call of Load. r.mu is held.
func (r *Repository[M]) outcomeOf(req *request) error {
	if err := errors.Join(req.errs...); err != nil {
		return err
	}
	if (*r.serving.Load())[req.model] == nil {
		return r.whyUnavailable(req.model, 0)
	}
	return nil
}

// scan reads the folder of one model for a call, which ends with ctx, or when the file system does
// not answer.
func (r *Repository[M]) scan(ctx context.Context, model string) (folder, error) {
	ctx, cancel := context.WithTimeout(ctx, maxHungTime)
	defer cancel()
	return r.scanner.readModel(ctx, model, nil)
}

// scanParts is scan for the models of an ensemble's steps. What is wrong with one is told by its
// own state, and by the load of the ensemble.
func (r *Repository[M]) scanParts(ctx context.Context, model string) map[string]folder {
	c, err := configOf(r.dir, model)
	if err != nil {
		return nil
	}
	parts := map[string]folder{}
	for _, step := range c.Ensemble.GetStep() {
		if part := step.GetModelName(); checkName(part) == nil {
			if f, err := r.scan(ctx, part); err == nil {
				parts[part] = f
			}
		}
	}
	return parts
}

// takeRequest notes a call of Load and what it has read, so that startNext loads the missing
// versions.
func (r *Repository[M]) takeRequest(req *request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.requestLoad(req.model, req.found)
	m.waiting = append(m.waiting, req)
	for part, f := range req.parts {
		if r.followsChanges(part) { // no call has loaded it
			r.requestLoad(part, f)
		}
	}
	r.update()
}

// requestLoad makes the versions of a model load that its policy chooses. r.mu is held.
func (r *Repository[M]) requestLoad(name string, f folder) *modelFolder[M] {
	r.noteModel(name, f, true)
	r.noted[name] = true
	m := r.models[name]
	m.unloaded = false
	for _, v := range m.versions {
		v.failure = nil
	}
	return m
}

// Readmit tries versions again that Options.Admit has refused. It does not block.
func (r *Repository[M]) Readmit() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range r.models {
		for _, v := range m.versions {
			if errors.Is(v.failure, ErrRefused) {
				v.failure = nil
			}
		}
	}
	r.update()
	r.letOtherLoadsPass(nil)
}

// start starts the load of a version, on a goroutine of its own. r.mu is held.
func (r *Repository[M]) start(ctx context.Context, m *modelFolder[M], v *version[M]) {
	ctx, cancel := context.WithCancelCause(ctx)
	l := &versionLoad[M]{version: v, model: m, files: v.found, cancel: cancel}
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
			r.letOtherLoadsPass(l)
		})
		defer slow.Stop()
		loaded, err := r.run(ctx, m.name, v.number)
		r.finishLoad(ctx, l, loaded, err, time.Since(start))
	})
}

// letOtherLoadsPass lets other loads go ahead without waiting for l, if that is not nil, and wakes
// Run. r.mu is held.
func (r *Repository[M]) letOtherLoadsPass(l *versionLoad[M]) {
	if l != nil && r.loading == l {
		r.loading = nil
	}
	r.progress.Send()
}

// run loads a version. It returns at the latest 2 s after ctx or the timeout ends, even if the
// loader has not returned.
func (r *Repository[M]) run(ctx context.Context, name string, number int64) (*LoadedVersion[M],
	error) {
	ctx, cancel := context.WithTimeoutCause(ctx, r.options.LoadTimeout, ErrSlow)
	defer cancel()
	type result struct {
		loaded *LoadedVersion[M]
		err    error
	}
	ended := make(chan result, 1)
	go func() {
		described, err := ReadVersion(r.dir, name, number)
		if err != nil {
			ended <- result{nil, err}
			return
		}
		if r.options.Admit != nil {
			if err := r.options.Admit(ctx, described); err != nil {
				ended <- result{nil, fmt.Errorf("%w: %w", ErrRefused, err)}
				return
			}
		}
		if whose := described.DescribeRoles(); whose != "" {
			r.options.Logger.Info(whose, "model", name, "version", number)
		}
		if described.Config.InferredIndependence {
			r.options.Logger.Info("queries are split and merged: the graph proves that rows are "+
				"independent", "model", name, "version", number)
		}
		for _, note := range described.Config.Notes {
			r.options.Logger.Warn(note, "model", name, "version", number)
		}
		m, err := r.load(ctx, described)
		if err != nil {
			ended <- result{nil, fmt.Errorf("load %s: %w", described.Path, err)}
			return
		}
		ended <- result{newLoadedVersion(described, m), nil}
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
				"load does not end when cancelled; it keeps a thread and its memory until it does",
				"model", name, "version", number, "reason", context.Cause(ctx), "event", "slow")
			go func() {
				if res := <-ended; res.err == nil {
					_ = res.loaded.Model.Close() // no other goroutine knows the model
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

// finishLoad notes the result of a load: the version serves from now on, or has failed with err, or
// is closed if ctx has ended.
func (r *Repository[M]) finishLoad(ctx context.Context, l *versionLoad[M], loaded *LoadedVersion[M],
	err error, took time.Duration) {
	m, v := l.model, l.version
	r.mu.Lock()
	defer r.mu.Unlock()
	v.loading, m.loading = false, nil
	switch {
	case ctx.Err() != nil: // the load is no longer wanted
		if err == nil {
			serves := v.loaded
			v.loaded = loaded
			r.retireVersion(m, v, "")
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
		m.chooseVersions()
		r.reportEvent(m, v, VersionEvent{Err: err})
	default:
		r.retireVersion(m, v, "") // the load before, which the new one replaces
		v.loaded, v.loadedAs, v.failure, v.took = loaded, l.files, nil, took
		r.publishServing()
		r.options.Logger.Info("model ready", "model", m.name, "version", v.number, "took_ms",
			took.Milliseconds(), "event", "loaded")
		m.chooseVersions()
		r.reportEvent(m, v, VersionEvent{LoadTime: max(took, 1)})
	}
	r.update()
	r.letOtherLoadsPass(l)
}

// retireReplaced retires the versions whose files are gone or that the policy no longer chooses. It
// first waits until those that the policy chooses are loaded or have failed.
func (r *Repository[M]) retireReplaced(m *modelFolder[M]) {
	m.chooseVersions()
	ready := false
	for _, v := range m.order {
		if v.wanted {
			if !m.unloaded && !v.isCurrent() && !v.isBroken() {
				return
			}
			ready = ready || v.loaded != nil
		}
	}
	for _, v := range m.order {
		gone := v.found == (fingerprint{})
		switch {
		case v.wanted:
		case gone && v.stable:
			r.retireVersion(m, v, "its files are gone")
		case !gone && ready:
			r.retireVersion(m, v, "not chosen by the version policy")
		}
	}
}

// retireVersion takes v's load out of service, if there is one; it is closed after its last query.
// why is logged. It is "" if a new load of v serves at once, or if the repository closes. The
// caller calls update afterwards. r.mu is held.
func (r *Repository[M]) retireVersion(m *modelFolder[M], v *version[M], why string) {
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
			r.options.Logger.Error("cannot close a model", "model", m.name, "version", v.number,
				"error",
				err)
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		v.retiring--
		r.update()
	})
}

// update follows every change of models and versions: it retires loads that have been replaced,
// publishes those that serve, reports changed statuses as events, and deletes versions that are
// neither on disk nor in memory. r.mu is held.
func (r *Repository[M]) update() {
	for _, m := range r.models {
		r.retireReplaced(m)
	}
	r.publishServing()
	for _, name := range slices.Sorted(maps.Keys(r.models)) {
		m := r.models[name]
		m.chooseVersions()
		for _, v := range slices.Backward(m.order) {
			gone := v.found == (fingerprint{}) && v.loaded == nil && !v.loading && v.retiring == 0
			if gone || r.statusOf(m, v) != v.told {
				r.reportEvent(m, v, VersionEvent{Gone: gone})
			}
			if gone {
				delete(m.versions, v.number)
				m.order = nil
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

// publishServing sets r.serving to the versions that serve. r.mu is held.
func (r *Repository[M]) publishServing() {
	serving := make(map[string]*servingVersions[M], len(r.models))
	for name, m := range r.models {
		s := &servingVersions[M]{versions: map[int64]*LoadedVersion[M]{}}
		for number, v := range m.versions {
			if v.loaded == nil {
				continue
			}
			s.versions[number] = v.loaded
			if s.newest == nil || m.preferVersion(number, s.newest.Version.Number) == number {
				s.newest = v.loaded
			}
		}
		if s.newest != nil {
			serving[name] = s
		}
	}
	r.serving.Store(&serving)
}

// reportEvent reports v's status as an event, with the other fields of e. r.mu is held.
func (r *Repository[M]) reportEvent(m *modelFolder[M], v *version[M], e VersionEvent) {
	e.Status = r.statusOf(m, v)
	v.told = e.Status
	r.options.Logger.Debug("model state", "model", m.name, "version", v.number, "state",
		string(e.State), "reason", e.Reason)
	r.options.OnEvent(e)
}
