package oip

import (
	"bytes"
	"compress/gzip"
	"compress/zlib"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/muster-serve/muster/api/inference"
)

// A bucket is an intake of so many bytes.
type bucket struct {
	mu          sync.Mutex
	limit, held int64
	most        int64
}

var errBucket = status.Error(codes.ResourceExhausted, "full")

func (b *bucket) Take(_ context.Context, n, _ int64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.held+n > b.limit {
		return errBucket
	}
	b.held += n
	b.most = max(b.most, b.held)
	return nil
}

func (b *bucket) Give(_ context.Context, n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.held -= n
}

// A script is a message as grpc's server would have it arrive; asked is how many bytes have been
// asked for.
type script struct {
	wire        *bytes.Reader
	compression string
	asked       int
}

func (s *script) ReadMessageHeader(header []byte) error {
	_, err := io.ReadFull(s.wire, header)
	return err
}

func (s *script) Read(n int) (mem.BufferSlice, error) {
	s.asked += n
	b := make([]byte, n)
	_, err := io.ReadFull(s.wire, b)
	return mem.BufferSlice{mem.SliceBuffer(b)}, err
}

func (s *script) RecvCompress() string { return s.compression }

func framed(flag byte, message []byte) []byte {
	return append(append([]byte{flag}, binary.BigEndian.AppendUint32(nil, uint32(len(message)))...),
		message...)
}

func zipped(t *testing.T, plain []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write(plain); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestReceive: a message is counted before its bytes are asked for, and while it is inflated.
func TestReceive(t *testing.T) {
	text := []byte(strings.Repeat("muster ", 1000))
	large := make([]byte, 2<<20)
	random := rand.New(rand.NewPCG(1, 1))
	for i := range large {
		large[i] = byte(random.Uint32() % 8)
	}
	for _, tt := range []struct {
		name        string
		wire        []byte
		compression string
		limit       int64
		want        []byte
		code        codes.Code
		asked       int
	}{
		{"plain", framed(0, text), "", 7000, text, codes.OK, 7000},
		{"no room", framed(0, text), "", 6999, nil, codes.ResourceExhausted, 0},
		{"too long", framed(0, make([]byte, 3<<20)), "", 1 << 30, nil, codes.ResourceExhausted, 0},
		{"cut off", framed(0, text)[:100], "", 7000, nil, codes.Internal, 7000},
		{"flag", framed(2, text), "", 7000, nil, codes.Internal, 7000},
		{"unnamed compression", framed(1, text), "", 7000, nil, codes.Internal, 7000},
		{"other compression", framed(1, text), "snappy", 7000, nil, codes.Unimplemented, 7000},
		{"gzip", framed(1, zipped(t, text)), "gzip", 64 << 10, text, codes.OK,
			len(zipped(t, text))},
		{"gzip without room", framed(1, zipped(t, large)), "gzip", 1 << 20, nil,
			codes.ResourceExhausted, len(zipped(t, large))},
		{"gzip with room", framed(1, zipped(t, large)), "gzip", 20 << 20, large, codes.OK,
			len(zipped(t, large))},
		{"gzip of too much", framed(1, zipped(t, append(large, 0))), "gzip", 20 << 20, nil,
			codes.ResourceExhausted, len(zipped(t, append(large, 0)))},
		{"bomb", framed(1, zipped(t, make([]byte, 2<<20))), "gzip", 20 << 20, nil,
			codes.ResourceExhausted, len(zipped(t, make([]byte, 2<<20)))},
		{"no gzip", framed(1, text), "gzip", 64 << 10, nil, codes.Internal, 7000},
		{"gzip cut off", framed(1, zipped(t, text)[:40]), "gzip", 64 << 10, nil, codes.Internal,
			40},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := &bucket{limit: tt.limit}
			charge := NewCharge(t.Context(), b)
			from := &script{wire: bytes.NewReader(tt.wire), compression: tt.compression}
			got, err := (&receiver{from: from, most: 2 << 20, charge: charge}).receiveMessage()
			if status.Code(err) != tt.code || !bytes.Equal(got.Materialize(), tt.want) {
				t.Errorf("got %d bytes, %v, want %d and %v", got.Len(), err, len(tt.want), tt.code)
			}
			if from.asked != tt.asked {
				t.Errorf("%d bytes were asked for, want %d", from.asked, tt.asked)
			}
			if err == nil && b.most < int64(len(tt.want)) {
				t.Errorf("at most %d bytes were counted, want %d", b.most, len(tt.want))
			}
			charge.Only(0)
			if b.held != 0 {
				t.Errorf("%d bytes are held", b.held)
			}
		})
	}
	if _, err := (&receiver{
		from: &script{wire: bytes.NewReader(nil)}, most: 1,
	}).receiveMessage(); err != io.EOF {
		t.Errorf("at the end: got %v, want io.EOF", err)
	}
}

// TestDecodeCharges: a body of unknown length is counted as it comes, and in the end its inputs
// are.
func TestDecodeCharges(t *testing.T) {
	body := `{"inputs":[{"name":"x","datatype":"FP64","shape":[65536],"data":[` +
		strings.Repeat("0,", 65535) + `0]}]}` + strings.Repeat(" ", 1<<20)
	b := &bucket{limit: 64 << 20}
	charge := NewCharge(t.Context(), b)
	if _, err := DecodeRequest(post(body, -1), 1<<24, charge); err != nil {
		t.Fatal(err)
	}
	if b.held != 65536*8 || b.most < int64(len(body)) {
		t.Errorf("%d bytes are held, and %d were, want %d and at least %d", b.held, b.most, 65536*8,
			len(body))
	}
	charge.Only(0)
	b.limit = 1 << 20
	if _, err := DecodeRequest(post(body, -1), 1<<24, charge); !errors.Is(err, errBucket) {
		t.Errorf("got %v, want a refusal", err)
	}
	if charge.Only(0); b.held != 0 {
		t.Errorf("%d bytes are held", b.held)
	}
}

// TestReceiveQueryCharges: bytes of a query on a stream that are not kept are not counted; those
// that are kept are counted until its release.
func TestReceiveQueryCharges(t *testing.T) {
	large := &inference.ModelInferRequest{
		ModelName: "m", Parameters: map[string]*inference.InferParameter{},
	}
	for i := range 20 {
		large.Parameters[strconv.Itoa(i)] = &inference.InferParameter{
			ParameterChoice: &inference.InferParameter_StringParam{
				StringParam: strings.Repeat("x", 60<<10),
			},
		}
	}
	text, err := proto.Marshal(large)
	if err != nil {
		t.Fatal(err)
	}
	junk := []byte(strings.Repeat("muster ", 1000))
	for _, tt := range []struct {
		name        string
		wire        []byte
		compression string
		limit       int64
		fails, kept bool // the stream fails; the query is counted until its release
	}{
		{"text", framed(0, text), "", 20 << 20, false, true},
		{"malformed", framed(0, junk), "", 20 << 20, false, false},
		{"no room", framed(0, junk), "", 100, false, false},
		{"cut off", framed(0, junk)[:100], "", 20 << 20, true, false},
		{"flag", framed(2, junk), "", 20 << 20, true, false},
		{"no gzip", framed(1, junk), "gzip", 20 << 20, false, false},
		{"gzip without room", framed(1, zipped(t, text)), "gzip", 64 << 10, false, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := &bucket{limit: tt.limit}
			from := &script{wire: bytes.NewReader(tt.wire), compression: tt.compression}
			r, q := &receiver{from: from, most: 2 << 20}, new(Request)
			if err := r.receiveQuery(q, NewCharge(t.Context(), b)); (err != nil) != tt.fails {
				t.Errorf("got %v, want an error: %v", err, tt.fails)
			}
			if tt.kept && (q.Fault() != nil || b.held < int64(len(text))*9/10) {
				t.Errorf("%d bytes are held of %d, and the fault is %v", b.held, len(text),
					q.Fault())
			}
			q.Release()
			if b.held != 0 {
				t.Errorf("%d bytes are held after the release", b.held)
			}
		})
	}
}

// A whole is a body that notes when its end has been read.
type whole struct {
	io.Reader
	ended bool
}

func (w *whole) Read(b []byte) (int, error) {
	n, err := w.Reader.Read(b)
	w.ended = w.ended || err == io.EOF
	return n, err
}

// TestInflaterEnd: compressed data are read to the end of the body, after which alone net/http
// notices that a client has gone. More than one such text is an error.
func TestInflaterEnd(t *testing.T) {
	var deflated, gzipped bytes.Buffer
	for _, w := range []io.WriteCloser{zlib.NewWriter(&deflated), gzip.NewWriter(&gzipped)} {
		if _, err := io.WriteString(w, "text"); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
	inflate := func(name string, body io.Reader) (io.Reader, error) {
		if name == "gzip" {
			return NewInflater(body, gzip.NewReader)
		}
		return NewInflater(body, zlib.NewReader)
	}
	for name, data := range map[string][]byte{"gzip": gzipped.Bytes(),
		"deflate": deflated.Bytes()} {
		body := &whole{Reader: bytes.NewReader(data)}
		r, err := inflate(name, body)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(r); err != nil || string(got) != "text" || !body.ended {
			t.Errorf("%s: got %q, %v, read to its end: %v", name, got, err, body.ended)
		}
		r, err = inflate(name, strings.NewReader(string(data)+"x"))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(r); err == nil {
			t.Errorf("%s: got %q without an error for what follows", name, got)
		}
	}
}

// TestBuffers: a buffer has the size that is asked for, also if it was used before, and a foreign
// one is not handed out.
func TestBuffers(t *testing.T) {
	for _, n := range []int{0, 1, 1 << 10, 1<<10 + 1, 64<<10 + 100, 1 << 20} {
		for range 3 {
			b := Buffers.Get(n)
			if len(*b) != n || cap(*b) >= 2*max(n, 1<<10) {
				t.Errorf("%d bytes: got %d of %d", n, len(*b), cap(*b))
			}
			Buffers.Put(b)
		}
		foreign := make([]byte, n+100)
		Buffers.Put(&foreign)
		if b := Buffers.Get(n + 100); len(*b) != n+100 {
			t.Errorf("got %d bytes, want %d", len(*b), n+100)
		}
	}
}
