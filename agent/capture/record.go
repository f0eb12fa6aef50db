package capture

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"math"
	"slices"

	"github.com/muster-serve/muster/api/querytrace"
	"github.com/muster-serve/muster/api/tensor"
)

// clientColumn stands for the client's name among the columns of a rule, as in models.
const clientColumn = "client"

// toRecord returns what is kept of q, by its rule. It shares the memory of columns that stay as they
// are, and changes none.
func (q *Query) toRecord(key []byte) querytrace.TracedQuery {
	t := querytrace.TracedQuery{
		// since 1970, so that the records of several agents have one clock
		At: max(0, q.Arrival.Sub(epoch)), Model: q.Request.Model, Rows: 1,
		Deadline: max(0, q.Deadline), Latency: max(0, q.Latency),
		Client: q.Client, Version: q.Version, Outcome: q.Outcome, Agent: q.Agent, Cause: q.Cause,
		Arm: q.Arm,
	}
	if q.Rule.Roles != nil {
		size := q.Rule.Roles.Measure(q.Request.Inputs)
		t.Rows = min(max(1, size.Rows), querytrace.MaxRows)
		t.Users, t.Values = min(size.Users, t.Rows), min(size.Values, math.MaxInt32)
	}
	if slices.Contains(q.Rule.GetLeaveOut(), clientColumn) {
		t.Client = ""
	} else if t.Client != "" && slices.Contains(q.Rule.GetHash(), clientColumn) {
		t.Client = hashText(key, clientColumn, []byte(t.Client))
	}
	t.Inputs = q.Rule.columns(key, q.Request.Inputs)
	t.Outputs = q.Rule.columns(key, q.Outputs)
	return t
}

// columns are the tensors that the rule keeps; nil if it keeps none.
func (r *Rule) columns(key []byte, tensors []tensor.Tensor) (kept []tensor.Tensor) {
	for _, t := range tensors {
		switch {
		case slices.Contains(r.GetLeaveOut(), t.Name):
			continue
		case slices.Contains(r.GetHash(), t.Name):
			t.Data = r.hashColumn(key, &t)
		}
		kept = append(kept, t)
	}
	return kept
}

// hashColumn returns the elements of a tensor of strings or whole numbers as hashes: strings as 16
// digits, numbers as numbers from 0 on of the same width, below the bound of ids if there is one.
// Elements that are equal stay equal.
func (r *Rule) hashColumn(key []byte, t *tensor.Tensor) []byte {
	if t.DataType == tensor.Bytes {
		var hashed []byte
		for rest := t.Data; len(rest) >= 4; {
			end := min(4+int(binary.LittleEndian.Uint32(rest)), len(rest))
			digits := hashText(key, t.Name, rest[4:end])
			hashed = binary.LittleEndian.AppendUint32(hashed, uint32(len(digits)))
			hashed, rest = append(hashed, digits...), rest[end:]
		}
		return hashed
	}
	size := t.DataType.Size()
	bounds := r.IDBounds[t.Name]
	hashed := make([]byte, 0, len(t.Data))
	for i := 0; (i+1)*size <= len(t.Data); i++ {
		h := hash(key, t.Name, t.Data[i*size:(i+1)*size])
		h &= 1<<(8*size-1) - 1 // so that signed numbers are not below 0
		if len(bounds) > 0 {
			if bound := bounds[min(placeOf(t, i), len(bounds)-1)]; bound > 0 {
				h %= uint64(bound)
			}
		}
		hashed = append(hashed, binary.LittleEndian.AppendUint64(nil, h)[:size]...)
	}
	return hashed
}

// placeOf is the index in the second dimension of element i of t, by which bounds of ids are.
func placeOf(t *tensor.Tensor, i int) int {
	if len(t.Shape) < 2 || t.Shape[1] < 1 {
		return 0
	}
	inner := 1
	for _, d := range t.Shape[2:] {
		inner *= max(1, int(d))
	}
	return i / inner % int(t.Shape[1])
}

// hash is the first 64 bits of an HMAC of a value of a column.
func hash(key []byte, column string, value []byte) uint64 {
	return binary.LittleEndian.Uint64(digest(key, column, value))
}

func hashText(key []byte, column string, value []byte) string {
	return hex.EncodeToString(digest(key, column, value)[:8])
}

func digest(key []byte, column string, value []byte) []byte {
	h := hmac.New(sha256.New, key)
	h.Write(binary.LittleEndian.AppendUint32(nil, uint32(len(column))))
	h.Write([]byte(column))
	h.Write(value)
	return h.Sum(nil)
}
