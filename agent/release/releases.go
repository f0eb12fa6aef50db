package release

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/files"
	"github.com/muster-serve/muster/leader"
	"github.com/muster-serve/muster/leader/canary"
)

// A Config says how an agent keeps releases.
type Config struct {
	// StateDir is the folder of the file that keeps the releases.
	StateDir string
	// Apply makes the agent follow all releases, by model, which it must not change. It is called
	// at first, unless there are none, and after each change, one call at a time, and must not
	// block nor call the Releases.
	Apply func(all []*control.Release)
	// Store keeps the releases of its models; nil: there is none.
	Store Store
	// Trusts reports whether a release that another agent tells may be followed; nil: all may. It
	// must not block.
	Trusts   func(*control.Release) bool
	Registry prometheus.Registerer
	Log      *slog.Logger
}

// A Store keeps releases for all fleets that follow it. Its calls may take as long as their ctx.
type Store interface {
	// Versions returns those that the store has of a model; none if the model is not of the store.
	Versions(ctx context.Context, model string) ([]int64, error)
	// Create writes a release under its number, or the next one that is free if a document that is
	// no release has it, and sets that number. If the store has another release with that number,
	// the error wraps ErrNewer, and newest is the newest release that the store has.
	Create(ctx context.Context, r *control.Release) (newest *control.Release, err error)
}

// ErrNewer means that the store has a newer release than this agent knew.
var ErrNewer = errors.New("another release was made meanwhile: review it and try again")

// ErrUnsigned means that the store takes signed releases only.
var ErrUnsigned = errors.New("releases in the model store must be signed")

// eventKey is the log attribute that makes a line an event, as in package serve.
const eventKey = "event"

// maxReleases bounds the models that an agent keeps releases of. Chosen: releases come from other
// machines, and all are kept in memory.
const maxReleases = 1 << 12

// Releases are those that an agent knows.
type Releases struct {
	config Config
	log    *slog.Logger

	// now is a copy of the releases for readers that must not wait while mu is held.
	now atomic.Pointer[snapshot]

	mu    sync.Mutex
	known map[string]*control.Release // by model; a release is never changed, only replaced
	// trials are those of the canaries in known, as far as this agent has led; by model.
	trials map[string]*trial
	term   *Term // nil while this agent does not lead
	making bool  // a release is being made
	// nonsense is the fault of the last release that was ignored.
	nonsense string
}

// A snapshot is all releases, and the choices of versions that follow from them.
type snapshot struct {
	all      []*control.Release // by model
	choices  map[string]canary.Rollout
	compared map[string]bool // models with a canary on trial whose answers are compared
}

// A trial is what a leader knows of a canary's.
type trial struct {
	of      *control.Release
	age     time.Duration // for which the canary served
	counted canary.Trial
	serves  bool
	verdict string
	// told is the age at which an event has said last that a promotion is due and undecided; 0:
	// none.
	told time.Duration
	// refused is when the release that the rule wants could not be made.
	refused time.Time
}

// goesOn reports whether the trial of one release is that of the next one: it has the same versions
// and compares answers alike, and the canary has the same share, or none now. The trial of one that
// was taken back is over: the canary is not taken back again at once for what it did before.
func goesOn(before, next *control.Release) bool {
	within, compared := before.ComparedWithin()
	nextWithin, nextCompared := next.ComparedWithin()
	return before.GetCanary() == next.GetCanary() && before.GetCurrent() == next.GetCurrent() &&
		(next.GetShare() == 0 || next.GetShare() == before.GetShare() &&
			within == nextWithin && compared == nextCompared)
}

// A Term is what the Releases need of the term that this agent leads. Its functions may be called
// concurrently, and end with the term.
type Term struct {
	Epoch uint64
	// Trials and Serving are those of the leader's state.
	Trials  func() []leader.Trial
	Serving func() map[string][]int64
	// Tell sends all releases to the leader's state and to all members. It must not block.
	Tell func(all []*control.Release)
}

// New returns the Releases that StateDir has. A file that cannot be read is told of and left out.
func New(config Config) *Releases {
	r := &Releases{
		config: config, log: config.Log, known: map[string]*control.Release{},
		trials: map[string]*trial{},
	}
	text, err := os.ReadFile(r.statePath())
	all := &control.View{}
	if err == nil {
		err = protojson.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(text, all)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		r.log.Error(
			"the releases of models cannot be read: the newest versions serve until a leader "+
				"tells of them", "file", r.statePath(), "error", err)
	}
	for _, x := range all.GetReleases() {
		if len(r.known) < maxReleases && r.isAcceptable(x, r.statePath()) {
			r.known[x.GetModel()] = x.Bounded()
		}
	}
	r.publishKnown()
	if all := r.All(); len(all) > 0 {
		config.Apply(all)
	}
	config.Registry.MustRegister(prometheus.CollectorFunc(r.collectMetrics))
	return r
}

func (r *Releases) statePath() string { return filepath.Join(r.config.StateDir, "releases.json") }

// isNewer reports whether a is newer than b, another release of the same model. What the store has
// decides first: a fleet's own releases follow one of the store, or none. The leaders of the two
// sides of a fleet that was cut in two may have the same epoch, so what the releases say decides
// last: without that each side would follow its own for good.
func isNewer(a, b *control.Release) bool {
	return cmp.Or(cmp.Compare(a.GetKept(), b.GetKept()), cmp.Compare(a.GetNumber(), b.GetNumber()),
		cmp.Compare(a.GetEpoch(), b.GetEpoch()), cmp.Compare(b.GetCurrent(), a.GetCurrent()),
		cmp.Compare(b.GetCanary(), a.GetCanary()), cmp.Compare(b.GetShare(), a.GetShare()),
		cmp.Compare(b.GetPrevious(), a.GetPrevious()),
		cmp.Compare(b.GetTolerance(), a.GetTolerance()),
		cmp.Compare(b.GetPromoteAfterNs(), a.GetPromoteAfterNs()),
		cmp.Compare(b.GetPromoteQueries(), a.GetPromoteQueries()),
		// An older agent may have dropped this from what it keeps on its disk.
		cmp.Compare(ofPresent(a.MaxDifference), ofPresent(b.MaxDifference))) > 0
}

// ofPresent stands for the value of the present release; -1 if there is none.
func ofPresent(value *float64) float64 {
	if value == nil {
		return -1
	}
	return *value
}

// Of says which versions of a model answer, the zero Rollout if nothing was released. It does not
// block.
func (r *Releases) Of(model string) canary.Rollout { return r.now.Load().choices[model] }

// Compares reports whether answers of a model's canary are to be compared with those of the current
// version. It does not block.
func (r *Releases) Compares(model string) bool { return r.now.Load().compared[model] }

// Kept is the number of the newest release in the model store that is known of a model; 0: none. It
// does not block.
func (r *Releases) Kept(model string) uint64 {
	for _, x := range r.All() {
		if x.GetModel() == model {
			return x.GetKept()
		}
	}
	return 0
}

// All returns the newest releases known, by model. The caller must not change them. It does not
// block.
func (r *Releases) All() []*control.Release { return r.now.Load().all }

// publishKnown makes Of and All return what is known. r.mu is held, but in New.
func (r *Releases) publishKnown() {
	s := &snapshot{
		choices: make(map[string]canary.Rollout, len(r.known)), compared: map[string]bool{},
	}
	s.all = slices.SortedFunc(maps.Values(r.known),
		func(a, b *control.Release) int { return cmp.Compare(a.Model, b.Model) })
	for model, x := range r.known {
		s.choices[model] = canary.RolloutOf(x)
		if _, compared := x.ComparedWithin(); compared && x.GetShare() > 0 {
			s.compared[model] = true
		}
	}
	r.now.Store(s)
}

// Read takes over a release from the model store, which is signed if it must be. The caller must
// not change it afterwards. If this agent leads, it tells all members. The release replaces what
// other agents have told of the same number, too; if anyway is set, it replaces whatever is known.
func (r *Releases) Read(x *control.Release, anyway bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	known := r.known[x.GetModel()]
	same := known != nil && known.GetKept() == x.GetKept() && known.GetNumber() == x.GetNumber()
	if known != nil && !anyway && !isNewer(x, known) && (!same || isSameRelease(x, known)) ||
		known == nil && len(r.known) >= maxReleases || !r.isAcceptable(x, "the model store") {
		return
	}
	r.known[x.GetModel()] = x.Bounded()
	if r.term != nil {
		r.reportRelease(x.GetWhy()+", as the model store says", x)
	}
	r.applyChange()
}

// isSameRelease reports whether two releases of the same number say the same, whichever leader made
// them.
func isSameRelease(a, b *control.Release) bool {
	a, b = proto.CloneOf(a), proto.CloneOf(b)
	a.Epoch = b.Epoch
	return !isNewer(a, b) && !isNewer(b, a)
}

// Greet adds the releases to a message to a leader.
func (r *Releases) Greet(m *control.WorkerMessage) { m.Releases = r.All() }

// Hear takes what the leader says is released, which waits for no answer.
func (r *Releases) Hear(m *control.LeaderMessage) (answers bool) {
	r.AdoptReleases(m.GetReleases())
	return false
}

// AdoptReleases takes what another agent says is released, and reports whether any of it was news.
// The caller must not change it afterwards. If this agent leads, all members are told.
func (r *Releases) AdoptReleases(all []*control.Release) (news bool) {
	if slices.EqualFunc(all, r.All(), func(a, b *control.Release) bool {
		return a.GetModel() == b.GetModel() && !isNewer(a, b)
	}) {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, x := range all {
		known := r.known[x.GetModel()]
		if known != nil && !isNewer(x, known) || known == nil && len(r.known) >= maxReleases ||
			!r.isAcceptable(x, "another agent") ||
			r.config.Trusts != nil && !r.config.Trusts(x) {
			continue
		}
		news = true
		x = x.Bounded()
		r.known[x.GetModel()] = x
		if r.term != nil && x.GetKept() == x.GetNumber() {
			r.reportRelease(x.GetWhy()+", as the model store says", x)
		}
	}
	if news {
		r.applyChange()
	}
	return news
}

// isAcceptable reports whether a release is valid. One that is not is left out, so that this agent
// does not pass it on; the log says so once. r.mu is held, but in New.
func (r *Releases) isAcceptable(x *control.Release, source string) bool {
	err := x.Validate()
	if err != nil && err.Error() != r.nonsense {
		r.nonsense = err.Error()
		r.log.Warn("a release that is not valid is left out", "from", source, "error", err,
			eventKey,
			"broken")
	}
	return err == nil
}

// applyChange keeps the releases on disk and makes all follow them. r.mu is held.
func (r *Releases) applyChange() {
	r.publishKnown()
	all := r.All()
	if r.term != nil {
		r.term.Tell(all)
	}
	r.config.Apply(all)
	text, err := protojson.MarshalOptions{Multiline: true}.Marshal(&control.View{Releases: all})
	if err == nil {
		if err = os.MkdirAll(r.config.StateDir, 0o755); err == nil {
			err = files.Replace(r.statePath(), text, 0o600)
		}
	}
	if err != nil {
		r.log.Error("cannot write the releases of models to disk", "error", err)
	}
	maps.DeleteFunc(r.trials, func(model string, t *trial) bool {
		before := t.of
		t.of = r.known[model]
		return !goesOn(before, t.of)
	})
}

// errNoLeader is for what only a leader can do.
var errNoLeader = status.Error(codes.Unavailable,
	"the fleet has no leader now, and only a leader makes releases")

// Set makes a release, in by's name, and returns it. Only a leader can.
func (r *Releases) Set(ctx context.Context, req *control.SetReleaseRequest) (
	*control.ReleaseResponse, error) {
	if share := req.GetShare(); !(share >= 0 && share < 1) {
		return nil, status.Errorf(codes.InvalidArgument,
			"share %v, want above 0 and below 1, or none "+
				"to promote the version for all queries", share)
	}
	if t := req.GetTolerance(); t < 0 || math.IsNaN(t) || req.GetPromoteAfterNs() < 0 ||
		req.GetVersion() < 0 {
		return nil, status.Errorf(codes.InvalidArgument,
			"version %d, tolerance %v, promote after %v: "+
				"want nothing below 0", req.GetVersion(), t, time.Duration(req.GetPromoteAfterNs()))
	}
	if err := control.CheckMaxDifference(req.MaxDifference); err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	r.mu.Lock()
	term := r.term
	r.mu.Unlock()
	if term == nil {
		return nil, errNoLeader
	}
	var stored []int64
	if r.config.Store != nil && req.GetVersion() > 0 {
		looks, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		var err error
		if stored, err = r.config.Store.Versions(looks, req.GetModel()); err != nil {
			return nil, status.Errorf(codes.Unavailable,
				"the release is not made: the model store cannot be read: %v", err)
		}
	}
	versions := slices.Concat(term.Serving()[req.GetModel()], stored)
	slices.Sort(versions)
	versions = slices.Compact(versions)
	err := r.makeRelease(ctx, term, req.GetModel(), false, func(next *control.Release) error {
		return Change(next, req, versions)
	})
	if err != nil {
		return nil, err
	}
	return r.State(req.GetModel())
}

// Change makes next the release that req asks for: a promotion, or a roll-back if req names no
// version. versions are the existing versions of the model.
func Change(next *control.Release, req *control.SetReleaseRequest, versions []int64) error {
	next.Model, next.By = req.GetModel(), req.GetBy()
	if req.GetVersion() == 0 {
		return rollBack(next)
	}
	version := req.GetVersion()
	switch known := version == next.Current || version == next.Canary || version == next.Previous; {
	case known || slices.Contains(versions, version):
	case len(versions) == 0:
		return status.Errorf(codes.NotFound, "no agent serves model %.80q", req.GetModel())
	default:
		return status.Errorf(codes.NotFound, "no agent serves version %d of %s, there are %v; "+
			"versions in model.yaml says which an agent loads", version, req.GetModel(),
			versions)
	}
	next.Why = "promoted"
	if req.GetShare() == 0 {
		if version != next.Current {
			next.Previous, next.Current = next.Current, version
		}
		next.Canary, next.Share = 0, 0
		return nil
	}
	if next.Current == 0 { // the first release: the newest of the others is current
		for _, v := range versions {
			if v != version {
				next.Current = max(next.Current, v)
			}
		}
	}
	switch next.Current {
	case 0:
		return status.Errorf(codes.FailedPrecondition,
			"%s has no version beside which %d could be "+
				"tried: release the present one before the new one comes, without a share",
			req.GetModel(), version)
	case version:
		return status.Errorf(codes.FailedPrecondition, "version %d of %s is the current one: it "+
			"answers all queries already", version, req.GetModel())
	}
	next.Canary, next.Share, next.Why = version, req.GetShare(), "on trial"
	next.MaxDifference = req.MaxDifference
	next.Tolerance = cmp.Or(req.GetTolerance(), control.DefaultTolerance)
	if req.MaxDifference != nil {
		next.Tolerance = control.OlderTolerance(req.MaxDifference)
	}
	next.PromoteAfterNs, next.PromoteQueries = req.GetPromoteAfterNs(), req.GetPromoteQueries()
	return nil
}

// rollBack changes a release to the one before.
func rollBack(next *control.Release) error {
	next.Why = "rolled back"
	switch {
	case next.Canary != 0 && next.Share > 0:
		next.Share = 0
	case next.Previous != 0:
		next.Current, next.Canary, next.Share, next.Previous = next.Previous, next.Current, 0, 0
	default:
		return status.Errorf(codes.FailedPrecondition,
			"%s has no canary, and no earlier version to "+
				"return to", cmp.Or(next.Model, "the model"))
	}
	return nil
}

// makeRelease makes the next release of a model, which change makes of the last one. byRule is
// whether the rule wants it, by the terms of the last one.
func (r *Releases) makeRelease(ctx context.Context, term *Term, model string, byRule bool,
	change func(next *control.Release) error) error {
	if model == "" || len(model) > control.MaxNameBytes {
		return status.Errorf(codes.InvalidArgument, "model %.80q, want its name", model)
	}
	r.mu.Lock()
	before := r.known[model]
	next := &control.Release{Model: model}
	if before != nil {
		next = proto.CloneOf(before)
	}
	next.By = ""
	busy := r.making
	r.making = true
	r.mu.Unlock()
	if busy {
		return status.Error(codes.Aborted, "another release is being made: try again")
	}
	defer func() {
		r.mu.Lock()
		r.making = false
		r.mu.Unlock()
	}()
	if err := change(next); err != nil {
		return err
	}
	next.Number, next.Epoch = before.GetNumber()+1, term.Epoch
	next.TimeUnixNs = time.Now().UnixNano()
	if err := next.Validate(); err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	next, err := r.storeRelease(ctx, next.Bounded(), byRule)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.term != term && next.GetKept() < next.GetNumber(): // else the store has it
		return errNoLeader
	case r.known[model] != before && !isNewer(next, r.known[model]):
		return status.Error(codes.Aborted, ErrNewer.Error())
	}
	if r.known[model] = next; before == nil && len(r.known) > maxReleases {
		delete(r.known, model)
		return status.Errorf(codes.ResourceExhausted, "there are releases of %d models already",
			maxReleases)
	}
	r.reportRelease(next.Why, next)
	r.applyChange()
	return nil
}

// reportRelease tells of a release that is made.
func (r *Releases) reportRelease(what string, x *control.Release) {
	r.log.Info("release", "model", x.Model, "what", what, "current", x.Current, "canary", x.Canary,
		"previous", x.Previous, "share", x.Share, "number", x.Number, "by", x.By, eventKey,
		"release")
}

// Compared takes the answers that a gateway has compared since it told of them last.
func (r *Releases) Compared(all []*control.AnswersCompared) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range all {
		x := r.known[c.GetModel()]
		_, compared := x.ComparedWithin() // older agents compare all that are on trial
		if r.term == nil || !compared || x.GetCanary() != c.GetCanary() ||
			x.GetCurrent() != c.GetCurrent() || c.GetWrong() > c.GetCompared() ||
			c.GetCompared() > 1<<20 || !(c.GetSum() >= 0 && c.GetSum() <= math.MaxFloat64) ||
			!(c.GetMost() >= 0 && c.GetMost() <= math.MaxFloat64) {
			continue
		}
		r.trialOf(x).counted.Answers.Add(canary.Answers{
			Compared: c.GetCompared(), Wrong: c.GetWrong(), Sum: c.GetSum(), Most: c.GetMost(),
		})
	}
}

// trialOf is the trial of a release's canary. r.mu is held.
func (r *Releases) trialOf(x *control.Release) *trial {
	t := r.trials[x.GetModel()]
	if t == nil {
		t = &trial{of: x}
		r.trials[x.GetModel()] = t
	}
	return t
}

const (
	// every is how often a leader judges canaries.
	every = time.Second
	// remindAfter is how long a promotion that is due stays undecided between two events that say
	// so. Chosen: once a day reaches whoever reads events, and displaces no others.
	remindAfter = 24 * time.Hour
)

// Run judges the canaries of a term, until ctx ends. Only one Run may run at a time.
func (r *Releases) Run(ctx context.Context, term Term) {
	r.mu.Lock()
	r.term = &term
	clear(r.trials)
	term.Tell(r.All())
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		r.term = nil
		r.mu.Unlock()
	}()
	var keeps sync.WaitGroup
	defer keeps.Wait()
	if r.config.Store != nil {
		keeps.Go(func() { r.keepAll(ctx, &term) })
	}
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			r.judgeTrials(ctx, &term)
		case <-ctx.Done():
			return
		}
	}
}

// judgeTrials looks at what the leader has counted, and does what the rule says.
func (r *Releases) judgeTrials(ctx context.Context, term *Term) {
	if !r.hasTrial() {
		return
	}
	for _, counted := range term.Trials() {
		verdict, x, refused := r.judgeCounts(&counted)
		if verdict.Decision == canary.Wait ||
			verdict.Decision == canary.Promote && time.Since(refused) < again {
			continue
		}
		err := r.makeRelease(ctx, term, counted.Model, true, func(next *control.Release) error {
			if isNewer(next, x) {
				return status.Error(codes.Aborted, ErrNewer.Error())
			}
			next.Why = "promoted by the rule: " + verdict.Why
			if verdict.Decision == canary.Promote {
				next.Previous, next.Current, next.Canary = next.Current, next.Canary, 0
			} else {
				next.Why = "rolled back by the rule: " + verdict.Why
			}
			next.Share = 0
			return nil
		})
		if err != nil && ctx.Err() == nil {
			r.noteRefused(counted.Model)
			r.log.Warn("the leader cannot promote or roll back a canary", "model", counted.Model,
				"verdict",
				verdict.Why, "error", err)
		}
	}
}

// hasTrial reports whether there is a canary on trial.
func (r *Releases) hasTrial() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, x := range r.known {
		if canary.RolloutOf(x).OnTrial() {
			return true
		}
	}
	return false
}

// noteRefused keeps that the release that the rule wants could not be made.
func (r *Releases) noteRefused(model string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if t := r.trials[model]; t != nil {
		t.refused = time.Now()
	}
}

// judgeCounts keeps what was counted and returns the verdict on it, the release that it is on, and
// when what the rule wants was refused last.
func (r *Releases) judgeCounts(counted *leader.Trial) (canary.Verdict, *control.Release,
	time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	x := r.known[counted.Model]
	if !canary.RolloutOf(x).OnTrial() || canary.RolloutOf(x) != counted.ModelRollout.Rollout {
		return canary.Verdict{}, x, time.Time{}
	}
	t := r.trialOf(x)
	t.counted.Current, t.counted.Canary = counted.Current, counted.Canary
	if t.serves = counted.Serves; !t.serves {
		t.verdict = "no agent serves it yet"
		return canary.Verdict{}, x, time.Time{}
	}
	t.age += every
	rule := canary.DefaultRule()
	rule.PromoteAfter = time.Duration(x.GetPromoteAfterNs())
	rule.PromoteQueries, rule.Compared = x.GetPromoteQueries(), x.MaxDifference != nil
	verdict := rule.Judge(&t.counted, t.age)
	t.verdict = verdict.Why
	if verdict.Undecided && (t.told == 0 || t.age >= t.told+remindAfter) {
		t.told = t.age
		r.reportRelease(verdict.Why, x)
	}
	return verdict, x, t.refused
}
