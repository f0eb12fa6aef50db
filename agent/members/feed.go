package members

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/oip"
)

const (
	// watchInterval is the least time between two messages of a Watch stream: changes within it are
	// sent together. Chosen: a gateway may know so much later what changed, which is little beside
	// an election, and a start of a fleet makes one message of dozens.
	watchInterval = 20 * time.Millisecond
	// watchBeat is how often every Watch stream gets a message with the current loads, even if none
	// has changed. Without it a watcher could not tell whether this agent lives.
	watchBeat = time.Second
	// maxSteps is how many changes a watcher may lag behind; a watcher further behind gets the
	// whole view. Chosen: a watcher that reads lags by one or two, and the feed keeps so many
	// changes in memory.
	maxSteps = 16
)

// A feed holds the messages for the Watch streams. It encodes each change, and the whole view
// between two changes, only once: all watchers get the same bytes. Its methods may be called
// concurrently.
type feed struct {
	members *Members
	news    Broadcast // announces each new step

	mu       sync.Mutex
	watchers int // how many streams watch; with none, nothing is encoded
	changes  control.Changes
	// The last changes, encoded, at most maxSteps, oldest first. The last of them leads to
	// changes.Revision().
	steps []oip.Encoded
	whole oip.Encoded // the view of that revision, encoded when first needed
}

// run adds each change of the members' view to the feed, until ctx ends. Every watchBeat it adds
// what this agent has learned to the view, and the loads to the feed.
func (f *feed) run(ctx context.Context) {
	beat := time.NewTicker(watchBeat)
	defer beat.Stop()
	due := false
	for {
		changed, led := f.members.ViewChanged(), f.members.config.Leading.Changed()
		f.update(due)
		due = false
		select {
		case <-changed:
		case <-led:
		case <-beat.C:
			due = true
			f.members.completeAgain()
		case <-ctx.Done():
			return
		}
		select {
		case <-time.After(watchInterval):
		case <-ctx.Done():
			return
		}
	}
}

// update adds a step with the changes of the view since the last update, if any. If loads is set,
// it also adds a step with the current loads, even if there are none.
func (f *feed) update(loads bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.watchers == 0 {
		return
	}
	if change := f.changes.Next(f.members.View()); change != nil {
		f.add(change)
	}
	if loads {
		f.add(f.changes.NextLoads(f.members.heardLoads(), time.Now()))
	}
}

// add adds a step. f.mu is held.
func (f *feed) add(change *control.View) {
	if len(f.steps) == maxSteps {
		f.steps = slices.Delete(f.steps, 0, 1)
	}
	step, err := oip.Encode(change)
	f.steps, f.whole = append(f.steps, step), oip.Encoded{}
	if err != nil { // encoding the whole view will return the error
		f.steps = nil
	}
	f.news.Tell()
}

// addWatcher registers a watcher; leave must be called when it ends.
func (f *feed) addWatcher() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.watchers++; f.watchers == 1 {
		// No watcher has the former steps.
		f.changes, f.steps, f.whole = control.Changes{}, nil, oip.Encoded{}
		f.changes.Next(f.members.View())
		f.changes.NextLoads(f.members.heardLoads(), time.Now())
	}
}

func (f *feed) removeWatcher() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.watchers--; f.watchers == 0 {
		f.changes, f.steps, f.whole = control.Changes{}, nil, oip.Encoded{}
	}
}

// messageAfter returns the next message for a watcher that has the view of the given revision, 0
// for none, and the revision that the message leads to. If the watcher has the newest revision,
// after returns that revision and no message.
func (f *feed) messageAfter(revision uint64) (oip.Encoded, uint64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	newest := f.changes.Revision()
	switch behind := newest - revision; {
	case behind == 0:
		return oip.Encoded{}, revision, nil
	case revision > 0 && behind <= uint64(len(f.steps)):
		return f.steps[uint64(len(f.steps))-behind], revision + 1, nil
	}
	if f.whole.Message == nil {
		var err error
		if f.whole, err = oip.Encode(f.changes.Whole(time.Now())); err != nil {
			return oip.Encoded{}, revision, err
		}
	}
	return f.whole, newest, nil
}

// Watch sends this agent's view of the fleet on stream, first whole and then its changes, until the
// stream ends. It sends only the models for which sees returns true; sees("") reports whether the
// caller may see every model. Watch blocks until the stream ends.
func (ms *Members) Watch(req *control.WatchRequest, stream control.Control_WatchServer,
	sees func(model string) bool) error {
	if !req.GetChanges() {
		return ms.watchWhole(stream, sees)
	}
	ms.feed.addWatcher()
	defer ms.feed.removeWatcher()
	for revision := uint64(0); ; {
		news := ms.feed.news.Next()
		message, now, err := ms.feed.messageAfter(revision)
		switch {
		case err != nil:
			return err
		case now != revision:
			if !sees("") { // the shared messages hold models that this caller may not see
				return ms.watchWhole(stream, sees)
			}
			if err := stream.SendMsg(message); err != nil {
				return err
			}
			revision = now
			continue
		}
		select {
		case <-news:
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}

// watchWhole is Watch with a whole view in each message: for watchers that do not ask for changes
// (command line tools), and for callers that may not see all models.
func (ms *Members) watchWhole(stream control.Control_WatchServer,
	sees func(model string) bool) error {
	ctx := stream.Context()
	var last *control.View
	beat := time.NewTicker(watchBeat)
	defer beat.Stop()
	for {
		changed, led := ms.ViewChanged(), ms.config.Leading.Changed()
		if v := ms.View(); v != last {
			last = v
			if err := stream.Send(ms.Visible(ms.LoadedView(), sees)); err != nil {
				return err
			}
		}
		select {
		case <-changed:
		case <-led:
		case <-beat.C:
			last = nil
		case <-ctx.Done():
			return ctx.Err()
		}
		select {
		case <-time.After(watchInterval):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
