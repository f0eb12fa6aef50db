package store

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"hash/fnv"
	"io"
	"io/fs"
	"math/bits"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/muster-serve/muster/api/files"
)

// ErrCorrupt means that all sources sent bytes that a manifest does not have. Errors wrap it.
var ErrCorrupt = errors.New("store: wrong bytes")

// ErrBusy means that a peer has a part and sends it to others now. Errors wrap it.
var ErrBusy = errors.New("store: the peer is busy")

const (
	// atOnce is how many parts of a version are fetched at a time.
	atOnce = 4
	// piece is how many bytes are read, summed and written at a time.
	piece = 64 << 10
	// patience is how long an agent waits while nobody gets further with a file, before it takes a
	// part that another is to take from the store, and for a source that does not send a piece.
	patience = 20 * time.Second
	// askEvery is the time between two questions to the peers.
	askEvery = time.Second
	// maxFailures is how many times in a row a part may fail without a step, of which it takes 128
	// (64 KiB of 8 MiB): a source may send a byte each time. The pauses between them double up to
	// slowest, so that it takes about a minute.
	maxFailures = 10
	steps       = 128
	slowest     = 10 * time.Second
	// maxWrong is how many times the store may send wrong bytes for a part, and how many times in
	// a row a peer may fail.
	maxWrong = 3
)

// Peers are the others of a fleet, as seen by one of them. Methods may be called concurrently.
type Peers interface {
	// Self is the name of the agent that asks.
	Self() string
	// Ask asks other agents what they have of a file, and tells them that this agent fetches it. It
	// takes seconds at most. It reports false if agents have not answered that may do so soon.
	Ask(ctx context.Context, f File) (all bool)
	// Known returns what the others that have or fetch a file have of it, by name, as far as is
	// known at this moment. The caller may change the map.
	Known(f File) map[string]Has
	// Open reads a range of a file that a peer has. The error, of Open or of the reader, wraps
	// ErrBusy if the peer is to be asked again.
	Open(ctx context.Context, peer string, f File, offset, length int64) (io.ReadCloser, error)
}

// Has is what an agent has of a file.
type Has struct {
	// All says that the agent has the whole file. If not, it fetches the file; Parts has a bit for
	// each part that it has, and Taking one for each that it takes from the store now.
	All           bool
	Parts, Taking []byte
}

func (h Has) hasPart(i int) bool { return h.All || hasBit(h.Parts, i) }

func (h Has) countParts() (n int) {
	for _, b := range h.Parts {
		n += bits.OnesCount8(b)
	}
	return n
}

func hasBit(set []byte, i int) bool { return i/8 < len(set) && set[i/8]&(1<<(i%8)) != 0 }

// A Fetcher fetches the files of versions into a cache.
type Fetcher struct {
	Cache *Cache
	Store *Store
	// Keys are the keys of which one must have signed each version; nil: nothing must be signed.
	Keys Keys
	// Peers are asked before the store; nil: there are none.
	Peers Peers
	// Pace is called after each piece of at most 64 KiB, with how many bytes of it were received
	// and how long it took to sum and write it. It blocks as long as the next piece is to wait.
	// nil: nothing waits. Calls are concurrent.
	Pace func(ctx context.Context, n int, took time.Duration) error
	// Received is called with bytes as they come from a source, "store" or "peer"; nil: not. Calls
	// are concurrent.
	Received func(source string, n int)
	// Failed is called for each attempt at a part that failed, likewise.
	Failed func(source string, err error)
}

func (f *Fetcher) paceReads(ctx context.Context, n int, took time.Duration) error {
	if f.Pace == nil {
		return ctx.Err()
	}
	return f.Pace(ctx, n, took)
}

// fetchVersion brings all files of a version into the cache. The caller pins the files.
func (f *Fetcher) fetchVersion(ctx context.Context, m *Manifest,
	progress func(done, total int64)) error {
	var mu sync.Mutex
	done, total := int64(0), m.Bytes()
	more := func(n int64) {
		mu.Lock()
		defer mu.Unlock()
		done += n
		if progress != nil {
			progress(done, total)
		}
	}
	slots := make(chan struct{}, atOnce)
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(atOnce)
	for i, file := range m.Files {
		twice := slices.ContainsFunc(m.Files[:i], func(o File) bool {
			return o.SHA256 == file.SHA256
		})
		if twice || f.Cache.hasFile(file) {
			more(file.Size)
			continue
		}
		group.Go(func() error {
			if err := f.fetchFile(ctx, file, slots, more); err != nil {
				return fmt.Errorf("fetch %s of %s: %w", file.Path, m, err)
			}
			return nil
		})
	}
	return group.Wait()
}

// Ensure brings all files of the versions into the cache, if its bound allows, and makes the
// model's folder hold them (see Cache.Install). After an error the folder is as it was, and what
// was fetched stays for the next call, also for that of another process. progress is called with
// how many of a version's bytes are there, by one goroutine at a time; it may be nil. Ensure must
// not be called concurrently.
func (f *Fetcher) Ensure(ctx context.Context, model string, versions []*Manifest,
	progress func(done, total int64)) (changed bool, err error) {
	var files []File
	for _, m := range versions {
		files = append(files, m.Files...)
	}
	defer f.Cache.pinFiles(files)()
	if err := f.Cache.Room(files); err != nil {
		return false, fmt.Errorf("%s: %w", model, err)
	}
	for _, m := range versions {
		if err := f.fetchVersion(ctx, m, progress); err != nil {
			return false, err
		}
	}
	return f.Cache.Install(model, versions)
}

// parts are the parts of a file that is being fetched.
type parts struct {
	file File
	data *os.File // of the file's whole size
	have *os.File // a byte for each part; 1: it is there, and was right
	// kept is whether an earlier attempt left some. The disk may have lost what it wrote of them.
	kept bool

	mu      sync.Mutex
	there   []bool
	taken   []bool // one goroutine fetches it
	store   []bool // from the store
	missing int
}

// open opens what is there of a file. It takes no room on the disk before bytes come: a manifest
// may claim more than there is.
func (c *Cache) open(f File) (*parts, error) {
	p := &parts{
		file: f, there: make([]bool, f.countParts()), taken: make([]bool, f.countParts()),
		store: make([]bool, f.countParts()), missing: f.countParts(),
	}
	path := c.pathOf(partsFolder, f.SHA256)
	var err error
	if p.data, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644); err != nil {
		return nil, err
	}
	if p.have, err = os.OpenFile(path+".have", os.O_RDWR|os.O_CREATE, 0o644); err != nil {
		return nil, errors.Join(err, p.data.Close())
	}
	info, err := p.data.Stat()
	have, readErr := io.ReadAll(p.have)
	err = errors.Join(err, readErr)
	if err == nil && (info.Size() > f.Size || len(have) != f.countParts()) {
		have = nil
		err = errors.Join(p.have.Truncate(0), p.data.Truncate(0),
			p.have.Truncate(int64(f.countParts())))
	}
	if err == nil {
		err = p.data.Truncate(f.Size)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open a file of %d bytes in %s: %w", f.Size, c.dir, err),
			p.close(), os.Remove(path), os.Remove(path+".have"))
	}
	for i, b := range have {
		if b == 1 {
			p.kept, p.there[i] = true, true
			p.missing--
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.parts[f.SHA256] = p
	return p, nil
}

func (p *parts) close() error { return errors.Join(p.data.Close(), p.have.Close()) }

// put notes that a part is in the file, and is right. The kernel begins to write it to the disk, so
// that little is left to write when the file is complete.
func (p *parts) put(i int) error {
	offset, length, _ := p.file.partRange(i)
	beginWriting(p.data, offset, length)
	if _, err := p.have.WriteAt([]byte{1}, int64(i)); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.there[i] = true
	p.missing--
	return nil
}

// heldParts returns the parts that are here, and those that are being taken from the store.
func (p *parts) heldParts() Has {
	p.mu.Lock()
	defer p.mu.Unlock()
	return Has{Parts: packBits(p.there), Taking: packBits(p.store)}
}

// packBits returns a bit for each element.
func packBits(set []bool) []byte {
	packed := make([]byte, (len(set)+7)/8)
	for i, in := range set {
		if in {
			packed[i/8] |= 1 << (i % 8)
		}
	}
	return packed
}

// Has returns what the cache has of a file, for a peer; false if it neither has nor fetches it.
func (c *Cache) Has(sum string) (Has, bool) {
	c.mu.Lock()
	p := c.parts[sum]
	c.mu.Unlock()
	if p != nil {
		return p.heldParts(), true
	}
	if checkSum(sum) != nil {
		return Has{}, false
	}
	_, err := os.Stat(c.pathOf(filesFolder, sum))
	return Has{All: true}, err == nil
}

// ReadAt reads from a file for a peer: parts that the cache has. The error wraps ErrNotFound if it
// lacks some of the range.
func (c *Cache) ReadAt(sum string, data []byte, offset int64) error {
	if err := checkSum(sum); err != nil {
		return err
	}
	if offset < 0 {
		return fmt.Errorf("offset %d, expected 0 or more", offset)
	}
	whole, _, err := files.Open(c.pathOf(filesFolder, sum))
	if err == nil {
		_, err = whole.ReadAt(data, offset)
		return errors.Join(err, whole.Close())
	}
	c.mu.Lock()
	p := c.parts[sum]
	c.mu.Unlock()
	if p == nil {
		return fmt.Errorf("%w: file %s", ErrNotFound, sum)
	}
	for i := offset / partBytes; i*partBytes < offset+int64(len(data)); i++ {
		p.mu.Lock()
		there := i < int64(len(p.there)) && p.there[i]
		p.mu.Unlock()
		if !there {
			return fmt.Errorf("%w: part %d of file %s", ErrNotFound, i, sum)
		}
	}
	_, err = p.data.ReadAt(data, offset)
	return err
}

// fetchFile fetches one file, unless another call fetches it, for which it waits. slots bounds the
// parts that are fetched at a time.
func (f *Fetcher) fetchFile(ctx context.Context, file File, slots chan struct{},
	more func(int64)) error {
	done, err := f.Cache.claimFile(ctx, file)
	if err != nil {
		return err
	}
	defer done()
	if f.Cache.hasFile(file) {
		more(file.Size)
		return nil
	}
	p, err := f.Cache.open(file)
	if err != nil {
		return err
	}
	defer func() {
		f.Cache.mu.Lock()
		delete(f.Cache.parts, file.SHA256)
		f.Cache.mu.Unlock()
		_ = p.close() // what counts was synced
		if !f.Cache.hasFile(file) {
			_ = f.Cache.freeMissing(file.SHA256) // OpenCache does it if this has failed
		}
	}()
	for i, there := range p.there {
		if _, length, _ := file.partRange(i); there {
			more(length)
		}
	}
	s := &swarm{fetcher: f, parts: p, grown: time.Now(), failed: map[string]int{},
		later: map[string]time.Time{}}
	group, workCtx := errgroup.WithContext(ctx)
	for range min(atOnce, file.countParts()) {
		group.Go(func() error { return s.fetchParts(workCtx, slots, more) })
	}
	if err := group.Wait(); err != nil {
		return err
	}
	return f.completeFile(ctx, p)
}

// claimFile waits until nobody else fetches a file, and keeps others from it until done is called.
func (c *Cache) claimFile(ctx context.Context, f File) (done func(), err error) {
	for {
		c.mu.Lock()
		other := c.claimed[f.SHA256]
		if other == nil {
			ended := make(chan struct{})
			c.claimed[f.SHA256] = ended
			c.mu.Unlock()
			return func() {
				c.mu.Lock()
				defer c.mu.Unlock()
				delete(c.claimed, f.SHA256)
				close(ended)
			}, nil
		}
		c.mu.Unlock()
		select {
		case <-other:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// completeFile checks a file whole and moves it to where the cache has its files.
func (f *Fetcher) completeFile(ctx context.Context, p *parts) error {
	c := f.Cache
	path := c.pathOf(partsFolder, p.file.SHA256)
	if p.kept || len(p.file.Parts) > 0 { // else its one part had the sum of the file as it came
		hash := sha256.New()
		buffer := make([]byte, piece)
		for at := int64(0); at < p.file.Size; {
			begin := time.Now()
			n, err := p.data.ReadAt(buffer[:min(piece, p.file.Size-at)], at)
			if n == 0 {
				return err
			}
			hash.Write(buffer[:n])
			at += int64(n)
			if err := f.paceReads(ctx, 0, time.Since(begin)); err != nil {
				return err
			}
		}
		if got := sumOf(hash); got != p.file.SHA256 {
			// The parts were right when they came: the manifest is wrong, or the disk.
			return errors.Join(fmt.Errorf("%w: the SHA-256 of the whole file is %s, the manifest "+
				"says %s", ErrCorrupt, got, p.file.SHA256), os.Remove(path),
				os.Remove(path+".have"))
		}
	}
	if err := errors.Join(p.data.Chmod(0o444), p.data.Sync()); err != nil {
		return err
	}
	if err := os.Rename(path, c.pathOf(filesFolder, p.file.SHA256)); err != nil {
		return err
	}
	return os.Remove(path + ".have")
}

// A swarm fetches one file from the store and from peers that fetch it too. For each part, one of
// these agents takes it from the store, and the others wait until that one has it. So all together
// take about one copy from the store.
type swarm struct {
	fetcher *Fetcher
	parts   *parts

	mu    sync.Mutex
	asked time.Time // when peers were last asked
	known int       // how many parts peers are known to have, in all, and how many peers there are
	grown time.Time // when that last grew
	// failed is how many times in a row a peer has failed; maxWrong or more: it is not asked
	// again. later is when one that was busy or failed may be asked.
	failed map[string]int
	later  map[string]time.Time
}

// fetchParts fetches parts until none is missing.
func (s *swarm) fetchParts(ctx context.Context, slots chan struct{}, more func(int64)) error {
	wait := 100 * time.Millisecond
	for {
		s.askPeers(ctx)
		part, peer, left := s.next()
		if left == 0 {
			return nil
		}
		if part < 0 { // others fetch what is missing, or will
			if err := sleep(ctx, wait); err != nil {
				return err
			}
			wait = min(2*wait, time.Second)
			continue
		}
		wait = 100 * time.Millisecond
		err := s.fetchPart(ctx, part, peer, slots)
		s.release(part)
		if err != nil {
			return err
		}
		if _, length, _ := s.parts.file.partRange(part); s.hasPart(part) {
			more(length)
		}
	}
}

func (s *swarm) hasPart(part int) bool {
	s.parts.mu.Lock()
	defer s.parts.mu.Unlock()
	return s.parts.there[part]
}

func (s *swarm) release(part int) {
	s.parts.mu.Lock()
	defer s.parts.mu.Unlock()
	s.parts.taken[part], s.parts.store[part] = false, false
}

// askPeers asks the peers what they have, unless it did so a short time ago. The first call blocks
// all others: no part is taken before the agents that want the file know of each other.
func (s *swarm) askPeers(ctx context.Context) {
	peers := s.fetcher.Peers
	if peers == nil {
		return
	}
	s.mu.Lock()
	if s.asked.IsZero() {
		defer s.mu.Unlock()
		for !peers.Ask(ctx, s.parts.file) && sleep(ctx, askEvery) == nil {
		}
		s.asked = time.Now()
		return
	}
	due := time.Since(s.asked) > askEvery
	if due {
		s.asked = time.Now()
	}
	s.mu.Unlock()
	if due {
		peers.Ask(ctx, s.parts.file)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.asked = time.Now() // on a busy machine it takes long
	}
}

// next takes a part that is missing, and says from which peer it is to come: "" for the store. It
// returns -1 if peers are to fetch all that is missing, and how many parts are.
func (s *swarm) next() (part int, peer string, left int) {
	var known map[string]Has
	if s.fetcher.Peers != nil {
		known = s.fetcher.Peers.Known(s.parts.file)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.parts
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	all := 0
	for name, has := range known {
		all += 1 + has.countParts()
		if has.All {
			all += len(p.there)
		}
		if s.failed[name] >= maxWrong {
			delete(known, name)
		}
	}
	if all > s.known {
		s.grown = now
	}
	s.known = all
	// Each time that patience is at an end, one more may take a part from the store.
	late := int(now.Sub(s.grown) / patience)
	own := -1
	for _, i := range rand.Perm(len(p.there)) {
		if p.there[i] || p.taken[i] {
			continue
		}
		var from []string
		for name, has := range known {
			if has.hasPart(i) && now.After(s.later[name]) {
				from = append(from, name)
			}
		}
		if len(from) > 0 {
			p.taken[i] = true
			return i, from[rand.IntN(len(from))], p.missing
		}
		if own < 0 && s.countAhead(i, known) <= late {
			own = i
		}
	}
	if own >= 0 {
		p.taken[own], p.store[own] = true, true
	}
	return own, "", p.missing
}

// countAhead is how many peers have a part, take it from the store, or are to take it before this
// agent.
func (s *swarm) countAhead(part int, known map[string]Has) (n int) {
	if len(known) == 0 {
		return 0
	}
	_, _, sum := s.parts.file.partRange(part)
	self := rankAgent(sum, s.fetcher.Peers.Self())
	for name, has := range known {
		if has.hasPart(part) || hasBit(has.Taking, part) || rankAgent(sum, name) > self {
			n++
		}
	}
	return n
}

// rankAgent orders agents for a part, in another order for each part.
func rankAgent(sum, name string) uint64 {
	h := fnv.New64a()
	fmt.Fprintf(h, "%s %s", name, sum)
	return h.Sum64()
}

// fetchPart fetches one part, from a peer or, if peer is "", from the store. A peer that fails is
// not an error: another source is asked later. What the store sent before it was cut off is kept.
// slots is used while something is read, not between two attempts.
func (s *swarm) fetchPart(ctx context.Context, part int, peer string, slots chan struct{}) error {
	offset, length, sum := s.parts.file.partRange(part)
	source := "store"
	if peer != "" {
		source = "peer"
	}
	at, hash := int64(0), sha256.New() // of what is there
	failures, wrong := 0, 0
	pause := 200 * time.Millisecond
	for {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		n, err := s.read(ctx, source, peer, offset+at, length-at, hash)
		<-slots
		at += n
		if err == nil {
			got := sumOf(hash)
			if got == sum {
				s.mu.Lock()
				delete(s.failed, peer)
				s.mu.Unlock()
				return s.parts.put(part)
			}
			err = fmt.Errorf("%w: the SHA-256 of bytes %d to %d is %s, the manifest says %s",
				ErrCorrupt, offset, offset+length, got, sum)
			at, n = 0, 0
			hash.Reset()
		}
		if errors.Is(err, ErrCorrupt) || errors.Is(err, errSize) {
			wrong++
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if errors.Is(err, errDisk) {
			return err
		}
		if s.fetcher.Failed != nil && !errors.Is(err, ErrBusy) {
			s.fetcher.Failed(source, err)
		}
		if peer != "" {
			s.refusePeer(peer, err)
			return nil
		}
		if n > length/steps {
			failures, pause = 0, 200*time.Millisecond
		} else {
			failures++
		}
		if s.isElsewhere(part) {
			return nil
		}
		final := errors.Is(err, ErrNotFound) || errors.Is(err, ErrDenied)
		if final || wrong >= maxWrong || failures >= maxFailures {
			return err
		}
		if err := sleep(ctx, pause/2+rand.N(pause)); err != nil {
			return err
		}
		pause = min(2*pause, slowest)
	}
}

// isElsewhere reports whether a peer has a part by now.
func (s *swarm) isElsewhere(part int) bool {
	if s.fetcher.Peers == nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, has := range s.fetcher.Peers.Known(s.parts.file) {
		if has.hasPart(part) && s.failed[name] < maxWrong {
			return true
		}
	}
	return false
}

// refusePeer asks a peer that has failed later, or not again.
func (s *swarm) refusePeer(peer string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.later[peer] = time.Now().Add(askEvery/2 + rand.N(askEvery))
	switch {
	case errors.Is(err, ErrCorrupt):
		s.failed[peer] = maxWrong
	case !errors.Is(err, ErrBusy):
		s.failed[peer]++
	}
}

var (
	// errSize means that the store has another size than the manifest.
	errSize = errors.New("store: wrong size")
	// errDisk means that a piece could not be written.
	errDisk = errors.New("write to the cache of models")
)

// read reads length bytes at offset from the source, writes them to the file, and adds them to
// hash. It returns how many it has read.
func (s *swarm) read(ctx context.Context, source, peer string, offset, length int64,
	hash hash.Hash) (done int64, err error) {
	if length == 0 {
		return 0, nil
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silent := time.AfterFunc(patience, func() {
		cancel(fmt.Errorf("the %s has not sent %d bytes in %v", source, piece, patience))
	})
	defer silent.Stop()
	r, err := s.open(ctx, peer, offset, length)
	if err != nil {
		return 0, errors.Join(err, context.Cause(ctx))
	}
	defer r.Close()
	buffer := buffers.Get().(*[piece]byte)
	defer buffers.Put(buffer)
	for done < length {
		// Only a whole piece counts as progress: a source may send a byte now and then for ever.
		n, err := io.ReadFull(r, buffer[:min(piece, length-done)])
		if n > 0 {
			silent.Stop()
			if s.fetcher.Received != nil {
				s.fetcher.Received(source, n)
			}
			begin := time.Now()
			hash.Write(buffer[:n])
			if _, err := s.parts.data.WriteAt(buffer[:n], offset+done); err != nil {
				return done, fmt.Errorf("%w: %w", errDisk, err)
			}
			done += int64(n)
			if err := s.fetcher.paceReads(ctx, n, time.Since(begin)); err != nil {
				return done, err
			}
			silent.Reset(patience)
		}
		if done == length {
			return done, nil
		}
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return done, fmt.Errorf("after %d of %d bytes: %w", done, length,
				errors.Join(err, context.Cause(ctx)))
		}
	}
	return done, nil
}

// buffers are those of read.
var buffers = sync.Pool{New: func() any { return new([piece]byte) }}

func (s *swarm) open(ctx context.Context, peer string, offset, length int64) (io.ReadCloser,
	error) {
	file := s.parts.file
	if peer != "" {
		return s.fetcher.Peers.Open(ctx, peer, file, offset, length)
	}
	if file.Size == 0 {
		return io.NopCloser(bytes.NewReader(nil)), nil
	}
	ctx = context.WithValue(ctx, readsFile{}, true)
	r, size, err := s.fetcher.Store.bucket.Open(ctx, blobKey(file.SHA256), offset, length)
	if err == nil && size != file.Size {
		err = errors.Join(fmt.Errorf("%w: %s has %d bytes, the manifest says %d", errSize,
			blobKey(file.SHA256), size, file.Size), r.Close())
	}
	return r, err
}

// freeMissing frees the room on the disk of the parts of a file that are not there, whose bytes
// were wrong or cut off; without any part it removes the file. Nobody fetches the file meanwhile.
func (c *Cache) freeMissing(sum string) error {
	path := c.pathOf(partsFolder, sum)
	have, err := files.Read(path+".have", maxDocument)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	last := bytes.LastIndexByte(have, 1)
	if last < 0 {
		for _, name := range []string{path, path + ".have"} {
			if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
		return nil
	}
	data, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer data.Close()
	for i, there := range have[:last] {
		if there == 1 {
			continue
		}
		// A file system without holes frees the end alone.
		freeRange(data, int64(i)*partBytes, partBytes)
	}
	info, err := data.Stat()
	if err != nil {
		return err
	}
	return data.Truncate(min(info.Size(), int64(last+1)*partBytes))
}

// sleep blocks for d, or until ctx ends, which is an error.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
