package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/files"
	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/api/wakeup"
	"github.com/muster-serve/muster/leader/place"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/runtime"
)

const (
	// keepUnplaced is how long a model stays loaded after the description does not list it any
	// more: queries for it may be on their way. Chosen: all gateways have the new description
	// within a second or two, and memory that a change frees comes hardly later.
	keepUnplaced = 5 * time.Second
	// firstOrder is how long an agent that has never held anything waits for a leader's order. Then
	// it loads by itself what its memory takes.
	firstOrder = 5 * time.Second
)

// The states of a LayoutState.
const (
	stateReached  = "reached"
	stateLoading  = "loading"
	stateDraining = "draining"
	stateFailed   = "failed"
)

// layouts bring the agent to the layouts that leaders order, one at a time, and tell the leader how
// far it has come. run has a goroutine of its own; the other methods may be called concurrently and
// do not block, but for state.
type layouts struct {
	worker *Worker
	wake   wakeup.Signal // there is an order, or something to tell
	// ctx is run's, and retiring waits for lanes that were replaced; run owns both.
	ctx      context.Context
	retiring sync.WaitGroup
	// limit returns the memory that this process may use, resident what it uses, both in bytes; 0
	// where that is unknown. Tests replace them.
	limit, resident func() int64

	mu        sync.Mutex
	lanes     *control.LanesOrder  // the last that was taken; nil: none
	mover     names.AgentName      // whose order that was
	moves     bool                 // run has not looked at lanes
	ordered   place.Layout         // that of the lanes, but for those that have been moved since
	order     *control.LayoutOrder // the last that was taken; nil: none
	fresh     bool                 // run has not begun with order
	supersede context.CancelFunc   // ends what run does for the order before; nil: it does nothing
	// announced are, by name, the models that the description lists. Models that are loaded beside
	// them are about to be announced or unloaded.
	announced map[string]bool
	at        string // a state
	why       string // of a failure
	failed    []string
	told      *control.LayoutState // the last that leaders were told
	memory    int64                // the last that room and state have found
}

func newLayouts(w *Worker) *layouts {
	return &layouts{
		worker: w, wake: wakeup.New(), limit: memoryLimit, resident: residentMemory,
		announced: map[string]bool{}, at: stateReached,
	}
}

// isFixed reports whether the agent's settings say what it holds, and a leader only moves lanes.
func (s *layouts) isFixed() bool { return len(s.worker.config.Layout.Partitions) > 0 }

// isAnnounced reports whether others may be told of a model that is loaded.
func (s *layouts) isAnnounced(model string) bool {
	if s.isFixed() {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.announced[model]
}

// takeOrder takes an order of the leader that this agent follows, unless it took a newer one
// before.
func (s *layouts) takeOrder(o *control.LayoutOrder) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if stampOf(o).Compare(stampOf(s.order)) <= 0 {
		return
	}
	s.order, s.fresh = o, true
	if s.supersede != nil {
		s.supersede()
	}
	s.wakeRun()
}

// takeLanesOrder takes an order of the leader that this agent follows to move lanes, unless it took
// a newer one before.
func (s *layouts) takeLanesOrder(leader names.AgentName, o *control.LanesOrder) {
	s.mu.Lock()
	defer s.mu.Unlock()
	// Two leaders of one epoch each count their orders from 1.
	same := leader == s.mover && o.GetEpoch() == s.lanes.GetEpoch()
	if o.GetEpoch() < max(s.lanes.GetEpoch(), s.order.GetEpoch()) ||
		same && o.GetVersion() <= s.lanes.GetVersion() {
		return
	}
	s.lanes, s.mover, s.moves = o, leader, true
	s.wakeRun()
}

func stampOf(o interface {
	GetEpoch() uint64
	GetVersion() uint64
}) place.Stamp {
	return place.Stamp{Epoch: o.GetEpoch(), Version: o.GetVersion()}
}

// wakeRun makes run look for an order, and for what is to be told.
func (s *layouts) wakeRun() {
	s.wake.Send()
}

// next returns the order that run is to follow, and the context in which it does; nil: none is new.
func (s *layouts) next(ctx context.Context) (*control.LayoutOrder, context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.fresh {
		return nil, nil
	}
	s.fresh = false
	ctx, s.supersede = context.WithCancel(ctx)
	return s.order, ctx
}

// run follows the orders that take has taken, the newest only, until ctx ends.
func (s *layouts) run(ctx context.Context) {
	s.ctx = ctx
	defer s.retiring.Wait()
	beginning, stop := context.WithCancel(ctx)
	defer stop()
	s.mu.Lock()
	if s.supersede == nil {
		s.supersede = stop
	}
	if s.fresh {
		stop()
	}
	s.mu.Unlock()
	if !s.isFixed() {
		s.loadInitial(beginning)
	}
	for {
		s.moveLanes(ctx)
		order, current := s.next(ctx)
		if order == nil {
			s.reportState()
			select {
			case <-s.wake:
				continue
			case <-ctx.Done():
				return
			}
		}
		layout, err := place.ParseLayout(order.GetLayout())
		if err != nil { // it is of a later version of Muster
			s.setState(stateFailed, err.Error(), nil)
			continue
		}
		s.worker.config.Log.Info("bringing this agent to a layout", "layout", layout.String(),
			"epoch", order.GetEpoch(), "version", order.GetVersion(), "event", "layout")
		s.followLayout(current, layout, order.GetDrainFirst())
	}
}

// moveLanes carries out the last order to move lanes, if it is new and for the lanes that there
// are.
func (s *layouts) moveLanes(ctx context.Context) {
	s.mu.Lock()
	o := s.lanes
	if !s.moves {
		o = nil
	}
	s.moves = false
	s.mu.Unlock()
	w := s.worker
	from := w.layout.Load()
	if o == nil || from.String() != o.GetFrom() {
		return // the lanes have changed since
	}
	to, err := place.ParseLayout(o.GetTo())
	if err == nil {
		err = checkOnlyLanesDiffer(*from, to)
	}
	var parts []runtime.Part
	if err == nil {
		parts, err = w.makePartitions(to, w.lanes.Parts())
	}
	if err == nil {
		err = w.arrangeLanes(ctx, to, parts)
		w.abandonPartitions(ctx, parts)
	}
	if err != nil {
		if ctx.Err() == nil {
			w.config.Log.Error("the agent cannot move lanes", "to", o.GetTo(), "error", err)
		}
		return
	}
	w.config.Log.Info("lanes have moved", "from", from.String(), "to", to.String(), "epoch",
		o.GetEpoch(), "event", "layout")
	w.config.Fleet.SelfChanged()
	s.retireLanes()
}

// retireLanes ends the lanes that were replaced, when they have ended what they hold. It does not
// block.
func (s *layouts) retireLanes() {
	former := s.worker.lanes.Former()
	if len(former) == 0 {
		return
	}
	s.retiring.Go(func() { s.worker.retirePartitions(s.ctx, former) })
}

// checkOnlyLanesDiffer returns an error unless two layouts differ only in how many lanes each
// partition has.
func checkOnlyLanesDiffer(a, b place.Layout) error {
	lanesOf := func(l place.Layout) (n int) { n, _ = LanesOf(l); return n }
	same := slices.EqualFunc(a.Partitions, b.Partitions, func(p, q place.Partition) bool {
		return slices.Equal(p.Models, q.Models) && p.Cores == q.Cores && p.Ways == q.Ways &&
			q.Lanes > 0
	})
	if !same || lanesOf(a) != lanesOf(b) {
		return fmt.Errorf("layout %s has not the same partitions and number of lanes as %s", b, a)
	}
	return nil
}

// loadInitial loads what the agent held when it ran the last time, or else waits for an order, and
// without one loads what its memory takes. What cannot be loaded is left out.
func (s *layouts) loadInitial(ctx context.Context) {
	var wanted []string
	if text, err := os.ReadFile(s.layoutPath()); err == nil {
		if l, err := place.ParseLayout(strings.TrimSpace(string(text))); err == nil {
			wanted = modelsOf(l)
			if lanes, _ := LanesOf(l); lanes > 0 {
				s.followLayout(ctx, l, false)
				wanted = subtractNames(wanted, s.announcedModels())
			}
		} else {
			s.worker.config.Log.Warn("cannot read the last layout", "file", s.layoutPath(),
				"error",
				err)
		}
	}
	if wanted == nil && len(s.announcedModels()) == 0 {
		if !sleep(ctx, firstOrder) {
			return
		}
		// Agents begin with different models, so that together they hold many.
		self := s.worker.config.Fleet.Own().GetName()
		for _, d := range s.worker.repository.OnDisk() {
			wanted = append(wanted, d.Version.Model)
		}
		slices.SortFunc(wanted, func(a, b string) int {
			return cmp.Compare(rankOf(self, a), rankOf(self, b))
		})
	}
	s.setState(stateLoading, "", nil)
	for _, model := range wanted {
		if ctx.Err() != nil {
			return
		}
		if s.memoryError([]string{model}) == nil && s.worker.repository.Load(ctx, model) == nil {
			s.announceModels(append(s.announcedModels(), model))
		}
	}
	if ctx.Err() == nil {
		s.setState(stateReached, "", nil)
	}
}

func rankOf(agent, model string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(agent + "/" + model))
	return h.Sum64()
}

// followLayout brings the agent to a layout. It returns when the layout is reached or cannot be, or
// when ctx ends because there is a newer order, which goes on from what is loaded by then.
func (s *layouts) followLayout(ctx context.Context, layout place.Layout, drainFirst bool) {
	before, wanted := s.announcedModels(), modelsOf(layout)
	w := s.worker
	s.setState(stateLoading, "", nil)
	if faults := s.missingModels(layout); len(faults) > 0 {
		s.fail(ctx, before, faults)
		return
	}
	missing := subtractNames(wanted, s.loadedModels(models.Ready))
	s.unloadModels(ctx, subtractNames(s.loadedModels(), append(slices.Clone(wanted), before...)))
	if drainFirst || s.memoryError(missing) != nil {
		s.setState(stateDraining, "", nil)
		s.announceModels(intersectNames(before, wanted))
		if !sleep(ctx, keepUnplaced) {
			return
		}
		s.unloadModels(ctx, subtractNames(s.loadedModels(), wanted))
		s.setState(stateLoading, "", nil)
		if err := s.memoryError(missing); err != nil {
			s.fail(ctx, before, map[names.ModelKey]error{"": err})
			return
		}
	}
	faults := map[names.ModelKey]error{}
	parts, err := w.makePartitions(layout, w.lanes.Parts())
	if err != nil {
		s.fail(ctx, before, map[names.ModelKey]error{"": err})
		return
	}
	w.coming.Store(&parts)
	defer w.abandonPartitions(ctx, parts)
	for _, key := range layout.Models() {
		model, _ := key.Split()
		if !slices.Contains(missing, model) {
			continue
		}
		err := w.repository.Load(ctx, model)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			faults[key] = err
		}
	}
	if len(faults) > 0 {
		s.fail(ctx, before, faults)
		return
	}
	if err := w.arrangeLanes(ctx, layout, parts); err != nil {
		s.fail(ctx, before, map[names.ModelKey]error{"": err})
		return
	}
	s.mu.Lock()
	s.ordered = layout
	s.mu.Unlock()
	s.announceModels(wanted)
	if extra := subtractNames(s.loadedModels(), wanted); len(extra) > 0 {
		s.setState(stateDraining, "", nil)
		if !sleep(ctx, keepUnplaced) {
			return
		}
		s.unloadModels(ctx, extra)
	}
	s.retireLanes()
	if ctx.Err() == nil {
		s.save(layout)
		s.setState(stateReached, "", nil)
		s.worker.config.Log.Info("this agent holds its layout", "layout", layout.String(), "event",
			"layout")
	}
}

// fail returns to what the agent held before, and tells which models could not be loaded and why.
func (s *layouts) fail(ctx context.Context, before []string, faults map[names.ModelKey]error) {
	var failed, why []string
	for key, err := range faults {
		if key != "" {
			failed = append(failed, string(key))
		}
		why = append(why, err.Error())
	}
	slices.Sort(failed)
	slices.Sort(why)
	for _, model := range subtractNames(before, s.loadedModels(models.Ready)) {
		if err := s.worker.repository.Load(ctx, model); err != nil {
			why = append(why, fmt.Sprintf("and what was held before: %v", err))
		}
	}
	s.announceModels(intersectNames(before, s.loadedModels()))
	s.unloadModels(ctx, subtractNames(s.loadedModels(), before))
	if ctx.Err() != nil {
		return
	}
	s.worker.config.Log.Error("this agent cannot reach its layout", "why", strings.Join(why, "; "),
		"event", "layout")
	s.setState(stateFailed, strings.Join(why, "; "), failed)
}

// missingModels says, by model, what of the layout this agent cannot hold.
func (s *layouts) missingModels(layout place.Layout) map[names.ModelKey]error {
	faults := map[names.ModelKey]error{}
	config := &s.worker.config
	if _, cores := LanesOf(layout); cores > config.Cores {
		faults[""] = fmt.Errorf("layout %s takes %d cores, and this agent has %d", layout, cores,
			config.Cores)
		return faults
	}
	newest := map[string]int64{}
	for _, d := range s.worker.repository.OnDisk() {
		newest[d.Version.Model] = d.Version.Number
	}
	for _, key := range layout.Models() {
		switch model, version := key.Split(); newest[model] {
		case version:
		case 0:
			faults[key] = fmt.Errorf("%s is not on disk", key)
		default:
			faults[key] = fmt.Errorf("%s is not the newest version, %d is", key, newest[model])
		}
	}
	return faults
}

// memoryError returns why the given models do not fit beside those that are loaded; nil if they do.
func (s *layouts) memoryError(missing []string) error {
	all := s.memoryForModels()
	if all == 0 || len(missing) == 0 {
		return nil
	}
	loaded := s.loadedModels()
	var takes, more int64
	for _, d := range s.worker.repository.OnDisk() {
		switch {
		case slices.Contains(loaded, d.Version.Model):
			takes += d.Bytes
		case slices.Contains(missing, d.Version.Model):
			more += d.Bytes
		}
	}
	if takes+more > all {
		return fmt.Errorf(
			"%s would take %d bytes beside the %d that are loaded; models may take %d",
			strings.Join(missing, ", "), more, takes, all)
	}
	return nil
}

// memoryForModels is how many bytes models may take in all, those that are loaded included;
// 0: unknown. A tenth of the limit is kept free. What the process uses otherwise varies all
// the time; a change of less than a twentieth of the limit does not count, for each change
// makes a leader plan anew.
func (s *layouts) memoryForModels() int64 {
	if m := s.worker.config.ModelMemory; m > 0 {
		return m
	}
	limit, resident := s.limit(), s.resident()
	if limit == 0 {
		return 0
	}
	loaded := s.loadedModels()
	for _, d := range s.worker.repository.OnDisk() {
		if slices.Contains(loaded, d.Version.Model) {
			resident -= d.Bytes
		}
	}
	now := usableMemory(limit, resident)
	s.mu.Lock()
	defer s.mu.Unlock()
	if away := now - s.memory; s.memory == 0 || away > limit/20 || -away > limit/20 {
		s.memory = now
	}
	return s.memory
}

// usableMemory is how many bytes models may take of a limit, less a tenth, where the process uses
// resident already without them; 0 if there is no limit.
func usableMemory(limit, resident int64) int64 {
	if limit <= 0 {
		return 0
	}
	return max(limit-limit/10-max(resident, 0), 1)
}

// loadedModels are the models of which a version is in one of the states, by name; without any
// state, those that are loaded or being loaded.
func (s *layouts) loadedModels(states ...models.VersionState) (all []string) {
	if len(states) == 0 {
		states = []models.VersionState{models.Ready, models.Loading}
	}
	for _, status := range s.worker.repository.Index() {
		if slices.Contains(states, status.State) && !slices.Contains(all, status.Model) {
			all = append(all, status.Model)
		}
	}
	return all
}

// announcedModels are the models that others are told of, by name.
func (s *layouts) announcedModels() (all []string) {
	for _, model := range s.loadedModels(models.Ready) {
		if s.isAnnounced(model) {
			all = append(all, model)
		}
	}
	return all
}

// announceModels tells others that the agent holds the given models, and no others.
func (s *layouts) announceModels(all []string) {
	s.mu.Lock()
	clear(s.announced)
	for _, model := range all {
		s.announced[model] = true
	}
	s.mu.Unlock()
	s.worker.config.Fleet.SelfChanged()
}

func (s *layouts) unloadModels(ctx context.Context, all []string) {
	for _, model := range all {
		if err := s.worker.repository.Unload(ctx, model); err != nil && ctx.Err() == nil &&
			!errors.Is(err, models.ErrNotFound) {
			s.worker.config.Log.Error("the agent cannot unload a model", "model", model, "error",
				err)
		}
	}
}

// setState notes how far the agent has come, and tells the leader.
func (s *layouts) setState(state, why string, failed []string) {
	s.mu.Lock()
	s.at, s.why, s.failed = state, control.Cut(why, control.MaxWhyBytes), failed
	s.mu.Unlock()
	s.reportState()
}

// reportState tells the leader that this agent follows the state, if it is another than the last
// one told.
func (s *layouts) reportState() {
	now := s.stateMessage()
	w := s.worker
	w.mu.Lock()
	defer w.mu.Unlock()
	if proto.Equal(now, s.told) {
		return
	}
	s.told = now
	w.tellLeader(func(m *control.WorkerMessage) { m.Layout = now })
}

// stateMessage returns the message that says how far the agent has come. The caller must not change
// it. It may read what has changed on disk.
func (s *layouts) stateMessage() *control.LayoutState {
	config := &s.worker.config
	m := &control.LayoutState{
		Automatic: !s.isFixed(), MemoryBytes: uint64(s.memoryForModels()),
		OwnLanes: uint32(config.Lanes), OwnCores: uint32(config.Cores),
	}
	lanes := s.worker.layout.Load()
	if n, _ := LanesOf(*lanes); n > 0 {
		m.Lanes = lanes.String()
	}
	if s.isFixed() {
		m.Holds, m.State = config.Layout.String(), stateReached
		return m
	}
	held := s.announcedModels()
	var keys []names.ModelKey
	onDisk := s.worker.repository.OnDisk()
	versions := make([]*models.Version, len(onDisk))
	for i, d := range onDisk {
		versions[i] = d.Version
	}
	_, apart := models.Families(versions)
	for _, d := range onDisk {
		v := d.Version
		family := v.Config.Family
		if apart[v.Model] != "" { // it would not answer for the family that it were loaded for
			family = ""
		}
		m.Available = append(m.Available, &control.Model{
			Name: v.Model, Version: v.Number, Family: family,
			Accuracy:    v.Config.Accuracy,
			QosTargetNs: int64(v.Config.QoSTarget), QosPercentile: v.Config.QoSPercentile / 100,
			LargestBatchSize: uint32(v.Config.LargestBatchSize),
			Merge:            string(v.Config.Merging()),
			Bytes:            uint64(d.Bytes), LoadNs: int64(d.LoadTime),
		})
	}
	for _, model := range held {
		if loaded, err := s.worker.repository.Acquire(model, 0); err == nil {
			keys = append(keys, names.NewModelKey(model, loaded.Version.Number))
			loaded.Release()
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	m.Holds = layoutOfHeld(s.ordered, keys).String()
	m.Epoch, m.Version = s.order.GetEpoch(), s.order.GetVersion()
	m.State, m.Why, m.Failed = s.at, s.why, s.failed
	if s.fresh {
		m.State, m.Why, m.Failed = stateLoading, "", nil
	}
	return m
}

// layoutOfHeld is the layout of the models that are held, on the lanes that were ordered.
func layoutOfHeld(ordered place.Layout, held []names.ModelKey) place.Layout {
	var l place.Layout
	for _, p := range ordered.Partitions {
		var models []names.ModelKey
		for _, key := range held {
			model, _ := key.Split()
			if slices.Contains(namesOf(p.Models), model) {
				models = append(models, key)
			}
		}
		if p.Models = models; len(models) > 0 {
			l.Partitions = append(l.Partitions, p)
		}
	}
	if lanes, _ := LanesOf(l); lanes == 0 {
		return place.NewLayout(held...)
	}
	return l
}

func (s *layouts) layoutPath() string { return filepath.Join(s.worker.config.StateDir, "layout") }

// save keeps the layout for the agent's next start.
func (s *layouts) save(layout place.Layout) {
	err := os.MkdirAll(s.worker.config.StateDir, 0o755)
	if err == nil {
		err = files.Replace(s.layoutPath(), []byte(layout.String()+"\n"), 0o644)
	}
	if err != nil {
		s.worker.config.Log.Warn("cannot store the layout for the next start", "error", err)
	}
}

func modelsOf(l place.Layout) (all []string) {
	for _, key := range l.Models() {
		model, _ := key.Split()
		all = append(all, model)
	}
	return all
}

// subtractNames returns the elements of all that are not in out.
func subtractNames(all, out []string) []string {
	return slices.DeleteFunc(slices.Clone(all), func(x string) bool {
		return slices.Contains(out, x)
	})
}

func intersectNames(a, b []string) []string { return subtractNames(a, subtractNames(a, b)) }

// sleep blocks for d. It reports false, at once, when ctx ends.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
