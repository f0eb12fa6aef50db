package agent

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/runtime/gpu"
)

// A cardWatch looks at the card that this agent's models run on, and tells the log, the metrics and
// the fleet how it is. A nil one is that of an agent without a card.
type cardWatch struct {
	card    *gpu.Card
	log     *slog.Logger
	changed func() // is called when describe returns something else

	mu     sync.Mutex
	last   gpu.Status           // zero before the first look
	slowed map[string]time.Time // by what, and when it was seen last
	told   *control.GPU
}

// openCard returns the watch of the executor's card. For an emulated executor, which has none, it
// returns the watch of the card that the settings name, if they name one.
func (a *Agent) openCard() (*cardWatch, error) {
	var card *gpu.Card
	if a.executor.Info().Executor == "emulated" && a.config.GPU != "" {
		var err error
		if card, err = gpu.Open(a.config.GPU, 0); err != nil {
			return nil, fmt.Errorf("gpu: %w", err)
		}
	} else if on, ok := a.executor.(interface{ GPU() *gpu.Card }); ok {
		card = on.GPU()
	}
	if card == nil {
		return nil, nil
	}
	w := &cardWatch{
		card: card, log: a.log, changed: a.members.SelfChanged,
		slowed: map[string]time.Time{},
	}
	w.told = w.describeCard()
	if emulated, ok := a.executor.(interface{ SlowBy(func() float64) }); ok {
		emulated.SlowBy(w.emulatedSlowdown)
	}
	a.metrics.watchGPU(card, w.lastStatus)
	return w, nil
}

// hotSlowdown is how many times as long emulated runs take while their card is slowed. Chosen: a hot
// card drops to about a third of its clock.
const hotSlowdown = 3

// emulatedSlowdown is by how much runs of an emulated executor are slowed now.
func (w *cardWatch) emulatedSlowdown() float64 {
	if len(w.toMessage().GetSlowed()) > 0 {
		return hotSlowdown
	}
	return 1
}

// run watches the card until ctx ends. It returns why the card has failed, if it has.
func (w *cardWatch) run(ctx context.Context) (failed error) {
	if w == nil {
		return nil
	}
	w.card.Watch(ctx, func(s gpu.Status) {
		w.noteStatus(s, time.Now())
		failed = s.Failed
	})
	return failed
}

// calmAfter is how long a card must not be slowed for a reason until the fleet and the log are told
// that it is no more: a card at its limit is slowed again and again.
const calmAfter = time.Minute

// noteStatus notes what was seen of the card, and tells what is new.
func (w *cardWatch) noteStatus(s gpu.Status, now time.Time) {
	w.mu.Lock()
	before := w.last
	w.last = s
	var began, ended []string
	for _, reason := range s.Slowed {
		if _, known := w.slowed[reason]; !known {
			began = append(began, reason)
		}
		w.slowed[reason] = now
	}
	for reason, at := range w.slowed {
		if now.Sub(at) >= calmAfter {
			delete(w.slowed, reason)
			ended = append(ended, reason)
		}
	}
	told := w.describeCard()
	news := !proto.Equal(told, w.told)
	w.told = told
	w.mu.Unlock()

	trouble := func(why []string) bool {
		return slices.ContainsFunc(why, func(r string) bool { return r != gpu.PowerCap })
	}
	if trouble(began) {
		w.log.Warn("the GPU is slowed", "gpu", w.card, "reasons", began, "celsius", s.Temperature,
			eventKey, "gpu")
	}
	if trouble(ended) {
		slices.Sort(ended)
		w.log.Info("the GPU is slowed no more", "gpu", w.card, "reasons", ended, eventKey, "gpu")
	}
	if s.Xids > before.Xids && s.Failed == nil {
		w.log.Warn("the driver tells of a fault of the GPU, which goes on", "gpu", w.card, "xid",
			s.Xid,
			eventKey, "gpu")
	}
	if before.Memory > 0 && s.Uncorrected > before.Uncorrected {
		w.log.Warn("the GPU's memory has errors that were not corrected", "gpu", w.card, "new",
			s.Uncorrected-before.Uncorrected, "all", s.Uncorrected, eventKey, "gpu")
	}
	if s.Failed != nil {
		w.log.Error("this agent leaves: its GPU has failed", "error", s.Failed, eventKey, "gpu")
	}
	if news {
		w.changed()
	}
}

// describeCard returns what the fleet is told of the card: nothing that changes each second, since
// each change is a new description of the agent. w.mu is held, or nobody else has w.
func (w *cardWatch) describeCard() *control.GPU {
	const little = 256 << 20 // of memory
	m := &control.GPU{
		Index: uint32(w.card.Index), Name: w.card.Name, Uuid: w.card.UUID,
		MemoryBytes: w.card.Memory, UsedBytes: w.told.GetUsedBytes(),
		Uncorrected: w.last.Uncorrected, Xid: w.last.Xid,
	}
	apart := max(m.UsedBytes, w.last.Used) - min(m.UsedBytes, w.last.Used)
	if apart > max(little, m.UsedBytes/8) {
		m.UsedBytes = w.last.Used
	}
	for _, reason := range gpu.SlowedBy() {
		if _, is := w.slowed[reason]; is && reason != gpu.PowerCap {
			m.Slowed = append(m.Slowed, reason)
		}
	}
	return m
}

// toMessage returns what the fleet is told of the card; nil without one. The caller must not change
// it.
func (w *cardWatch) toMessage() *control.GPU {
	if w == nil {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.told
}

// lastStatus returns what was seen of the card last.
func (w *cardWatch) lastStatus() gpu.Status {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.last
}
