package oip

import (
	"math/bits"
	"sync"
	"sync/atomic"
	"unsafe"

	"google.golang.org/grpc/mem"
)

// A hold counts the readers of some memory: the owner of a Request or Response, and each buffer
// that a connection has of it. The last reader to call drop frees the memory. Its methods may be
// called concurrently.
type hold struct {
	readers atomic.Int32
	free    func()
	also    Released // called after free; nil: none
}

func newHold(free func()) *hold {
	h := &hold{free: free}
	h.readers.Store(1)
	return h
}

func (h *hold) add() { h.readers.Add(1) }

func (h *hold) dropReader() {
	if h.readers.Add(-1) == 0 {
		also := h.also
		h.also = nil // before free, after which another query may use h
		h.free()
		if also != nil {
			also.Released()
		}
	}
}

// Get and Put make a hold a mem.BufferPool, through which gRPC frees buffers. gRPC never takes a
// buffer from it.
func (h *hold) Get(length int) *[]byte {
	b := make([]byte, length)
	return &b
}

// Put drops the buffer's reference.
func (h *hold) Put(*[]byte) { h.dropReader() }

// alignment is the alignment of every tensor's data, in bytes: a cache line, and enough for the
// widest vector load.
const alignment = 64

// alignUp rounds n up to a multiple of alignment.
func alignUp(n int) int { return (n + alignment - 1) &^ (alignment - 1) }

// Buffers is a pool of buffers for messages. gRPC's own clears each buffer, and takes 1 MiB for one
// of more than 32 KiB. This one has a size class for each power of two; what it returns has bytes
// of its last use. It may be used concurrently.
var Buffers mem.BufferPool = &buffers{}

// buffers are pools by size class, like blocks.
type buffers [bits.UintSize]sync.Pool

// Get returns a buffer of n bytes.
func (p *buffers) Get(n int) *[]byte {
	class := sizeClassOf(n)
	b, _ := p[class].Get().(*[]byte)
	if b == nil {
		made := make([]byte, 1<<class)
		b = &made
	}
	*b = (*b)[:n]
	return b
}

// Put takes a buffer back. It leaves one that Get has not returned to the garbage collector.
func (p *buffers) Put(b *[]byte) {
	if class := sizeClassOf(cap(*b)); cap(*b) == 1<<class {
		p[class].Put(b)
	}
}

// A block is pooled memory for the tensors of one message.
type block struct {
	hold
	class int
	mem   []byte // starts at a multiple of alignment
	used  int
}

// blocks pools blocks by size class: class c has 2^c bytes. The garbage collector frees a block
// that is never released.
var blocks [bits.UintSize]sync.Pool

// smallestClass is the smallest size class; its 1 KiB holds the inputs of a small query.
const smallestClass = 10

// sizeClassOf returns the size class of n bytes.
func sizeClassOf(n int) int { return max(smallestClass, bits.Len(uint(max(n, 1)-1))) }

// newBlock returns a block of at least n bytes with one reader. It contains bytes of its last use.
func newBlock(n int) *block {
	class := sizeClassOf(n)
	b, _ := blocks[class].Get().(*block)
	if b == nil {
		raw := make([]byte, 1<<class+alignment)
		skip := -uintptr(unsafe.Pointer(&raw[0])) & (alignment - 1)
		b = &block{class: class, mem: raw[skip : skip+1<<class]}
		b.free = func() {
			b.used = 0
			blocks[b.class].Put(b)
		}
	}
	b.readers.Store(1)
	return b
}

// takeBytes returns the next n bytes, aligned. The block must have room for
// align(n).
func (b *block) takeBytes(n int) []byte {
	p := b.mem[b.used : b.used+n : b.used+n]
	b.used += alignUp(n)
	return p
}
