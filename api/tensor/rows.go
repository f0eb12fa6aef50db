package tensor

import (
	"encoding/binary"
	"fmt"
	"slices"
)

// Split cuts t into tensors of the given numbers of rows, in the order of its rows, which share its
// memory. A row is what one index of the first dimension selects. The numbers must be above 0 and
// add up to the first dimension, and the data must fit the type and the shape.
func Split(t Tensor, rows []int) ([]Tensor, error) {
	elements, err := Elements(t.Shape)
	if err != nil {
		return nil, fmt.Errorf("tensor %q: %w", t.Name, err)
	}
	sum := int64(0)
	for _, n := range rows {
		if n <= 0 {
			return nil, fmt.Errorf("tensor %q: a part of %d rows, want more than 0", t.Name, n)
		}
		sum += int64(n)
	}
	if len(t.Shape) == 0 || t.Shape[0] != sum || sum == 0 {
		return nil, fmt.Errorf("tensor %q: shape %v, want a first dimension of %d for parts of %v "+
			"rows", t.Name, t.Shape, sum, rows)
	}
	parts, rest := make([]Tensor, len(rows)), t.Data
	perRow := elements / int(sum)
	for i, n := range rows {
		size, err := t.byteSize(rest, n*perRow)
		if err != nil {
			return nil, err
		}
		parts[i] = Tensor{
			Name: t.Name, DataType: t.DataType, Shape: withRows(t.Shape, n),
			Data: rest[:size:size],
		}
		rest = rest[size:]
	}
	if len(rest) > 0 {
		return nil, fmt.Errorf("tensor %q: %d bytes after the last element of shape %v", t.Name,
			len(rest), t.Shape)
	}
	return parts, nil
}

// byteSize returns how many bytes of data its first elements take, which are of t's type.
func (t *Tensor) byteSize(data []byte, elements int) (int, error) {
	if t.DataType != Bytes {
		size := t.DataType.Size()
		if size == 0 {
			return 0, fmt.Errorf("tensor %q: unknown type %q", t.Name, t.DataType)
		}
		if elements > len(data)/size {
			return 0, fmt.Errorf("tensor %q: %d bytes, too few for shape %v of %s", t.Name,
				len(t.Data), t.Shape, t.DataType)
		}
		return elements * size, nil
	}
	end := 0
	for range elements {
		rest := data[end:]
		if len(rest) < 4 || uint64(binary.LittleEndian.Uint32(rest)) > uint64(len(rest)-4) {
			return 0, fmt.Errorf("tensor %q: the elements end beyond its %d bytes", t.Name,
				len(t.Data))
		}
		end += 4 + int(binary.LittleEndian.Uint32(rest))
	}
	return end, nil
}

// withRows returns shape with n as its first dimension.
func withRows(shape []int64, n int) []int64 {
	shape = slices.Clone(shape)
	shape[0] = int64(n)
	return shape
}

// Join puts the rows of tensors one after the other, in memory of its own. The tensors must have
// one type, and shapes that differ in the first dimension only.
func Join(parts []Tensor) (Tensor, error) {
	first, rows, bytes := parts[0], int64(0), 0
	for _, p := range parts {
		if p.DataType != first.DataType || len(p.Shape) == 0 ||
			len(p.Shape) != len(first.Shape) || !slices.Equal(p.Shape[1:], first.Shape[1:]) {
			return Tensor{}, fmt.Errorf("tensor %q is %s %v and %s %v, want parts that differ in "+
				"the first dimension only", first.Name, first.DataType, first.Shape, p.DataType,
				p.Shape)
		}
		rows += p.Shape[0]
		bytes += len(p.Data)
	}
	t := Tensor{
		Name: first.Name, DataType: first.DataType, Shape: withRows(first.Shape, int(rows)),
		Data: make([]byte, 0, bytes),
	}
	for _, p := range parts {
		t.Data = append(t.Data, p.Data...)
	}
	return t, nil
}
