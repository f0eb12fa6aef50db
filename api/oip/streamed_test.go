package oip

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/inference"
	"github.com/muster-serve/muster/api/tensor"
)

// randomQuery is a query with some inputs, of which each has up to 4 KB.
func randomQuery(r *rand.Rand) *Request {
	q := &Request{Model: "m", Version: "3", Timeout: time.Second}
	for i := range 1 + r.IntN(3) {
		data := make([]byte, 4*r.IntN(1000))
		for j := range data {
			data[j] = byte(r.Uint32())
		}
		q.Inputs = append(q.Inputs, tensor.Tensor{
			Name: fmt.Sprint("in", i), DataType: tensor.FP32, Shape: []int64{int64(len(data) / 4)},
			Data: data,
		})
	}
	return q
}

// TestStreamedQuery checks that the generated code reads what the codec writes, that the codec reads
// it wherever the buffers are cut, and that the outbox counts a message until the connection is
// done with it.
func TestStreamedQuery(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var box Outbox
	for range 200 {
		q := &StreamedQuery{
			ID: r.Uint64(), Timeout: time.Duration(r.Int64N(3)),
			Metadata: []string{"muster-attempt", "1/2/3", "x", strings.Repeat("y", r.IntN(3000))},
			Outbox:   &box,
		}
		if q.Cancel = r.IntN(4) == 0; !q.Cancel {
			q.Query = randomQuery(r)
		}
		if !box.Take(q.Size(), math.MaxInt64) {
			t.Fatal("no room in an outbox without bound")
		}
		data, err := Codec{}.Marshal(q)
		if err != nil {
			t.Fatal(err)
		}
		wire := data.Materialize()
		if box.Held() != q.Size() {
			t.Fatalf("the outbox counts %d bytes while it is held, want %d", box.Held(), q.Size())
		}
		data.Free()
		if box.Held() != 0 {
			t.Fatalf("the outbox counts %d bytes of a message that was sent", box.Held())
		}
		var got StreamedQuery
		if err := (Codec{}).Unmarshal(split(wire, 1+r.IntN(len(wire))), &got); err != nil {
			t.Fatal(err)
		}
		sameQuery(t, wire, &got)
		if got.Query != nil && !slices.EqualFunc(got.Query.Inputs, q.Query.Inputs,
			func(a, b tensor.Tensor) bool { return a.Name == b.Name && bytes.Equal(a.Data, b.Data) }) {
			t.Error("the inputs are others")
		}
	}
}

// sameQuery compares a message with what the generated code reads.
func sameQuery(t *testing.T, wire []byte, got *StreamedQuery) {
	t.Helper()
	var want control.StreamedQuery
	if err := proto.Unmarshal(wire, &want); err != nil {
		if got.Query == nil || got.Query.Fault() == nil { // a malformed query has a fault
			t.Errorf("accepted %x, which is malformed: %v", wire, err)
		}
		return
	}
	metadata := make([]string, len(want.Metadata))
	for i, b := range want.Metadata {
		metadata[i] = string(b)
	}
	if got.ID != want.Id || got.Cancel != want.Cancel || !slices.Equal(got.Metadata, metadata) ||
		want.TimeoutNs >= 0 && int64(got.Timeout) != want.TimeoutNs || got.Timeout < 0 {
		t.Errorf("got %+v, want %v", got, &want)
	}
	if (got.Query == nil) != (want.Query == nil) {
		t.Errorf("a query: %t, want %t", got.Query != nil, want.Query != nil)
	}
}

// TestStreamedAnswer is TestStreamedQuery for answers and errors.
func TestStreamedAnswer(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 200 {
		a := &StreamedAnswer{
			ID: r.Uint64(), HasRemaining: r.IntN(2) == 0, Remaining: time.Duration(r.Int64N(2)),
			Spent: make([]byte, r.IntN(3)), Lanes: make([]byte, r.IntN(3)),
		}
		released := 0
		var want *Response
		if r.IntN(3) == 0 {
			a.Error = &spb.Status{Code: 14, Message: "gone"}
		} else {
			a.Answer = randomResponse(r)
			copied := *a.Answer
			want = &copied
			a.Answer.OnRelease(func() { released++ })
		}
		data, err := Codec{}.Marshal(a)
		if err != nil {
			t.Fatal(err)
		}
		wire := data.Materialize()
		data.Free()
		if want != nil && released != 1 {
			t.Fatalf("the answer was released %d times, want once", released)
		}
		if err := proto.Unmarshal(wire, new(control.StreamedAnswer)); err != nil {
			t.Fatalf("generated code: %v", err)
		}
		var got StreamedAnswer
		if err := (Codec{}).Unmarshal(split(wire, 1+r.IntN(len(wire))), &got); err != nil {
			t.Fatal(err)
		}
		if got.ID != a.ID || got.HasRemaining != a.HasRemaining ||
			a.HasRemaining && got.Remaining != a.Remaining || !proto.Equal(got.Error, a.Error) ||
			!slices.Equal(got.Spent, a.Spent) || !slices.Equal(got.Lanes, a.Lanes) {
			t.Errorf("got %+v, want %+v", got, a)
		}
		if (got.Answer == nil) != (want == nil) || want != nil &&
			!slices.EqualFunc(got.Answer.Outputs, want.Outputs, func(a, b tensor.Tensor) bool {
				return a.Name == b.Name && bytes.Equal(a.Data, b.Data)
			}) {
			t.Error("the outputs are others")
		}
	}
}

func FuzzStreamed(f *testing.F) {
	query, _ := proto.Marshal(&control.StreamedQuery{
		Id: 7, TimeoutNs: 5, Metadata: [][]byte{[]byte("a"), []byte("b")},
		Query: &inference.ModelInferRequest{ModelName: "m"},
	})
	cancel, _ := proto.Marshal(&control.StreamedQuery{Id: 7, Cancel: true})
	f.Add(query, uint8(3))
	f.Add(cancel, uint8(0))
	f.Add(append(query, query...), uint8(9)) // two queries
	f.Add([]byte{0x22, 0x01, 'a'}, uint8(1)) // a name without its value
	f.Fuzz(func(t *testing.T, wire []byte, piece uint8) {
		var q StreamedQuery
		if err := (Codec{}).Unmarshal(split(wire, 1+int(piece)), &q); err == nil {
			sameQuery(t, wire, &q)
			if q.Query != nil {
				q.Query.Release()
			}
		} else if q.Query != nil {
			t.Error("an error, and a query that nobody releases")
		}
		var a StreamedAnswer
		err := Codec{}.Unmarshal(mem.BufferSlice(split(wire, 1+int(piece))), &a)
		if err != nil && a.Answer != nil {
			t.Error("an error, and an answer that nobody releases")
		}
		if a.Answer != nil {
			a.Answer.Release()
		}
	})
}
