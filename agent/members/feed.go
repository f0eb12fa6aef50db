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
	// watchInterval is the least time between two messages of a Watch: changes in between
	// go together.
	watchInterval = 20 * time.Millisecond
	// watchBeat is how often loads go to those who watch, and something at least, for else nobody
	// could tell that this agent lives.
	watchBeat = time.Second
	// mostSteps is how many changes a watcher may lag behind; one that lags more
	// gets the whole view.
	mostSteps = 16
)

// A feed has what is sent to those who watch the fleet. Each change is encoded once, and so is the
// whole view between two changes: all watchers are sent the same bytes. Its methods may be called
// concurrently.
type feed struct {
	members *Members
	news    Broadcast // there is a step more

	mu       sync.Mutex
	watchers int // without any nothing is encoded
	changes  control.Changes
	// the last ones, at most mostSteps; the last one leads to changes' revision
	steps []oip.Encoded
	whole oip.Encoded // of that revision; without a message: nobody has needed it
}

// run keeps the feed as the members' view is, until ctx ends, and has the view have what this agent
// learns.
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

// update makes a step of what has changed in the view, and with loads one of those, be
// there any or none.
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
		f.add(f.changes.Heard(f.members.heardLoads(), time.Now()))
	}
}

// add adds a step. f.mu is held.
func (f *feed) add(change *control.View) {
	if len(f.steps) == mostSteps {
		f.steps = slices.Delete(f.steps, 0, 1)
	}
	step, err := oip.Encode(change)
	f.steps, f.whole = append(f.steps, step), oip.Encoded{}
	if err != nil { // the whole view says why
		f.steps = nil
	}
	f.news.Tell()
}

// join tells that somebody watches, until leave.
func (f *feed) join() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.watchers++; f.watchers == 1 {
		// What was told to others before nobody has.
		f.changes, f.steps, f.whole = control.Changes{}, nil, oip.Encoded{}
		f.changes.Next(f.members.View())
		f.changes.Heard(f.members.heardLoads(), time.Now())
	}
}

func (f *feed) leave() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.watchers--; f.watchers == 0 {
		f.changes, f.steps, f.whole = control.Changes{}, nil, oip.Encoded{}
	}
}

// after returns what a watcher gets that has the view of a revision, 0 for none, and the revision
// that it has then; the same one if there is nothing for it.
func (f *feed) after(revision uint64) (oip.Encoded, uint64, error) {
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

// Watch streams the fleet as this agent sees it to one who may know of the models that sees says,
// until the stream ends.
func (ms *Members) Watch(req *control.WatchRequest, stream control.Control_WatchServer,
	sees func(model string) bool) error {
	if !req.GetChanges() {
		return ms.watchWhole(stream, sees)
	}
	ms.feed.join()
	defer ms.feed.leave()
	for revision := uint64(0); ; {
		news := ms.feed.news.Next()
		message, now, err := ms.feed.after(revision)
		switch {
		case err != nil:
			return err
		case now != revision:
			if !sees("") { // not every model: what all are sent is not for this caller
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

// watchWhole is Watch with whole views, for those who do not ask for changes (older SDKs, and tools
// for people) and those who may not see all models.
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
			if err := stream.Send(Visible(ms.LoadedView(), sees)); err != nil {
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
