package gossip

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"time"
)

const (
	// LoadInterval is the least time between two loads of an agent in a fleet of up to loadMembers;
	// both are chosen. In a larger fleet it grows with the members, so that the loads that each
	// agent forwards a second stay the same.
	LoadInterval = time.Second
	loadMembers  = 50
)

// loadInterval is the least time between two loads of an agent in a fleet of the given size.
func loadInterval(members int) time.Duration {
	return LoadInterval * time.Duration(max(members, loadMembers)) / loadMembers
}

// A MemberLoad is the newest load that a member has sent: how busy it is.
type MemberLoad struct {
	From string // the member's name
	Seq  uint64 // increases with each load of the member
	Data []byte // must not be modified
	// When the member sent it, by this machine's clock; too late by the time on the wire.
	At time.Time
}

// A frame is a message of this package, which travels inside a message of memberlist:
//
//	kind uint8, member uint64, sequence uvarint, age in ms uint16, data
//
// The age has a fixed place so that it can be set when the frame is sent.
type frame struct {
	kind   frameKind
	member memberID
	seq    uint64
	age    time.Duration // in whole milliseconds, at most maxAge
	data   []byte
}

// frameKind is a frame's first byte. A receiver drops frames of unknown kinds.
type frameKind uint8

const (
	loadFrame    frameKind = 1 // data is the member's load
	leavingFrame frameKind = 2 // the member is about to leave, so it will not have failed
)

// memberID is a hash of a member's name, which is up to sixteen times as long.
type memberID uint64

func idOf(name string) memberID {
	h := fnv.New64a()
	h.Write([]byte(name))
	return memberID(h.Sum64())
}

const maxAge = 65535 * time.Millisecond

func (f frame) encode() []byte {
	b := make([]byte, 0, 1+8+binary.MaxVarintLen64+2+len(f.data))
	b = append(b, byte(f.kind))
	b = binary.BigEndian.AppendUint64(b, uint64(f.member))
	b = binary.AppendUvarint(b, f.seq)
	b = binary.BigEndian.AppendUint16(b, uint16(min(max(f.age, 0), maxAge)/time.Millisecond))
	return append(b, f.data...)
}

var errFrame = errors.New("gossip: malformed frame")

// parseFrame decodes what encode has written. The frame's data is a part of b.
func parseFrame(b []byte) (frame, error) {
	if len(b) < 9 {
		return frame{}, fmt.Errorf("%w: %d bytes, want at least 12", errFrame, len(b))
	}
	f := frame{kind: frameKind(b[0]), member: memberID(binary.BigEndian.Uint64(b[1:]))}
	seq, n := binary.Uvarint(b[9:])
	if n <= 0 {
		return frame{}, fmt.Errorf("%w: sequence number cut off or too large", errFrame)
	}
	f.seq, b = seq, b[9+n:]
	if len(b) < 2 {
		return frame{}, fmt.Errorf("%w: age cut off", errFrame)
	}
	f.age, f.data = time.Duration(binary.BigEndian.Uint16(b))*time.Millisecond, b[2:]
	if len(f.data) > MaxLoad {
		return frame{}, fmt.Errorf("%w: %d bytes of data, want at most %d", errFrame, len(f.data),
			MaxLoad)
	}
	return f, nil
}

// appendFrames appends frames to b, as part of the state that members exchange.
func appendFrames(b []byte, frames []frame) []byte {
	for _, f := range frames {
		encoded := f.encode()
		b = binary.AppendUvarint(b, uint64(len(encoded)))
		b = append(b, encoded...)
	}
	return b
}

// parseFrames decodes what appendFrames has written. With an error, it returns the frames before
// the fault.
func parseFrames(b []byte) (frames []frame, err error) {
	for len(b) > 0 {
		size, n := binary.Uvarint(b)
		if n <= 0 || size > uint64(len(b)-n) {
			return frames, fmt.Errorf("%w: cut off", errFrame)
		}
		f, err := parseFrame(b[n : n+int(size)])
		if err != nil {
			return frames, err
		}
		frames, b = append(frames, f), b[n+int(size):]
	}
	return frames, nil
}

// SetLoad sends this agent's load to the others: at most MaxLoad bytes in the caller's own
// encoding, which it copies. It does not block. Within LoadInterval of the last load it delays the
// new one, and a newer one replaces it. The caller need not repeat a load that has not changed.
func (g *Gossip) SetLoad(data []byte) error {
	if len(data) > MaxLoad {
		return fmt.Errorf("gossip: load has %d bytes, want at most %d", len(data), MaxLoad)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.nextLoad = slices.Clone(data)
	if g.loadTimer == nil && !g.stopped {
		wait := time.Until(g.own.At.Add(loadInterval(len(g.members))))
		if wait <= 0 {
			g.sendLoad()
			return nil
		}
		g.loadTimer = time.AfterFunc(wait, func() {
			g.mu.Lock()
			defer g.mu.Unlock()
			g.loadTimer = nil
			if !g.stopped {
				g.sendLoad()
			}
		})
	}
	return nil
}

// sendLoad queues nextLoad as this agent's load. g.mu is held.
func (g *Gossip) sendLoad() {
	g.own.Seq++
	g.own.Data, g.own.At = g.nextLoad, time.Now()
	g.queue.add(&broadcast{
		frame: frame{
			kind: loadFrame, member: idOf(g.config.Name), seq: g.own.Seq, data: g.own.Data,
		},
		made: g.own.At,
	})
}

// handleFrame handles a frame of another agent, and copies its data. It drops a frame that is not
// new, and forwards a new one if passOn is set.
func (g *Gossip) handleFrame(f frame, passOn bool) {
	now := time.Now()
	g.mu.Lock()
	defer g.mu.Unlock()
	e := g.ids[f.member]
	if e == nil || e.Name == g.config.Name {
		return
	}
	made := now.Add(-f.age)
	switch {
	case f.seq <= e.load.Seq:
		g.stats.loadsKnown.Add(1)
		return
	case f.kind == loadFrame:
		f.data = slices.Clone(f.data)
		e.load = MemberLoad{From: e.Name, Seq: f.seq, Data: f.data, At: made}
		g.stats.loadsNew.Add(1)
		g.enqueueEvent(MemberEvent{Kind: Loaded, Member: e.Member, Load: e.load})
	case f.kind == leavingFrame:
		e.load.Seq, e.leaving = f.seq, true
		f.data = nil
	default:
		return
	}
	if passOn {
		g.queue.add(&broadcast{frame: f, made: made})
	}
}

// Loads returns the newest load of each other member that has sent one, sorted by name.
func (g *Gossip) Loads() []MemberLoad {
	g.mu.Lock()
	defer g.mu.Unlock()
	var loads []MemberLoad
	for _, e := range g.members {
		if !e.load.At.IsZero() {
			loads = append(loads, e.load)
		}
	}
	slices.SortFunc(loads, func(a, b MemberLoad) int { return cmp.Compare(a.From, b.From) })
	return loads
}

// loadFrames returns frames with all known loads, for an agent that joins.
func (g *Gossip) loadFrames() []frame {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	var frames []frame
	add := func(l MemberLoad) {
		if !l.At.IsZero() {
			frames = append(frames, frame{
				kind: loadFrame, member: idOf(l.From), seq: l.Seq, age: now.Sub(l.At), data: l.Data,
			})
		}
	}
	add(g.own)
	for _, e := range g.members {
		if !e.leaving {
			add(e.load)
		}
	}
	return frames
}
