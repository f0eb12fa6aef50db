package oip

import (
	"encoding/binary"
	"fmt"
	"math"
	"strconv"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/muster-serve/muster/api/inference"
	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/api/triton"
)

// appendJSONTensor appends the elements of t as one flat array.
func appendJSONTensor(b []byte, t *tensor.Tensor) ([]byte, error) {
	le := binary.LittleEndian
	size := t.DataType.Size()
	b = append(b, '[')
	n := 0
	for rest := t.Data; len(rest) > 0; n++ {
		if n > 0 {
			b = append(b, ',')
		}
		if t.DataType == tensor.Bytes {
			if len(rest) < 4 || uint64(len(rest)-4) < uint64(le.Uint32(rest)) {
				return b, fmt.Errorf("BYTES element %d is cut short", n)
			}
			size = 4 + int(le.Uint32(rest))
		}
		if len(rest) < size {
			return b, fmt.Errorf("%s element %d is cut short", t.DataType, n)
		}
		switch t.DataType {
		case tensor.Bool:
			b = strconv.AppendBool(b, rest[0] != 0)
		case tensor.Int8:
			b = strconv.AppendInt(b, int64(int8(rest[0])), 10)
		case tensor.Int16:
			b = strconv.AppendInt(b, int64(int16(le.Uint16(rest))), 10)
		case tensor.Int32:
			b = strconv.AppendInt(b, int64(int32(le.Uint32(rest))), 10)
		case tensor.Int64:
			b = strconv.AppendInt(b, int64(le.Uint64(rest)), 10)
		case tensor.Uint8:
			b = strconv.AppendUint(b, uint64(rest[0]), 10)
		case tensor.Uint16:
			b = strconv.AppendUint(b, uint64(le.Uint16(rest)), 10)
		case tensor.Uint32:
			b = strconv.AppendUint(b, uint64(le.Uint32(rest)), 10)
		case tensor.Uint64:
			b = strconv.AppendUint(b, le.Uint64(rest), 10)
		case tensor.FP16, tensor.BF16, tensor.FP32, tensor.FP64:
			var v float64
			switch size {
			case 2:
				v = tensor.OfHalf(t.DataType, le.Uint16(rest))
			case 4:
				v = float64(math.Float32frombits(le.Uint32(rest)))
			case 8:
				v = math.Float64frombits(le.Uint64(rest))
			}
			// The value of a 16-bit float is one of FP32 too.
			bits := max(8*size, 32)
			b = appendJSONFloat(b, v, bits)
		case tensor.Bytes:
			s := rest[4:size]
			if !utf8.Valid(s) {
				return b, notUTF8(n)
			}
			b = appendJSONString(b, s)
		default:
			return b, unknownType(t.DataType)
		}
		rest = rest[size:]
	}
	return append(b, ']'), nil
}

// The words for floating-point values that JSON's numbers do not have. As strings they are JSON;
// protobuf's JSON has the same strings, and Python's float reads them.
const nan, infinity, negativeInfinity = "NaN", "Infinity", "-Infinity"

// notUTF8 returns the error for an element of BYTES that is no text.
func notUTF8(element int) error {
	return fmt.Errorf("element %d is not valid UTF-8, which JSON cannot hold; ask for it as binary "+
		"data (\"binary_data\": true), or by gRPC", element)
}

// appendJSONFloat appends a number of the given bits, or the string that stands for NaN or infinity.
func appendJSONFloat(b []byte, v float64, bits int) []byte {
	switch {
	case math.IsNaN(v):
		return append(b, `"`+nan+`"`...)
	case math.IsInf(v, 1):
		return append(b, `"`+infinity+`"`...)
	case math.IsInf(v, -1):
		return append(b, `"`+negativeInfinity+`"`...)
	}
	return strconv.AppendFloat(b, v, 'g', -1, bits)
}

// appendJSONString appends s in quotes. It replaces bytes that are not valid UTF-8.
func appendJSONString[S string | []byte](b []byte, s S) []byte {
	const hex = "0123456789abcdef"
	b = append(b, '"')
	for _, c := range string(s) {
		switch {
		case c == '"' || c == '\\':
			b = append(b, '\\', byte(c))
		case c < ' ':
			b = append(b, `\u00`...)
			b = append(b, hex[c>>4], hex[c&15])
		default:
			b = utf8.AppendRune(b, c)
		}
	}
	return append(b, '"')
}

// appendJSONScalar appends the value of a parameter.
func appendJSONScalar(b []byte, v any) ([]byte, error) {
	switch v := v.(type) {
	case bool:
		return strconv.AppendBool(b, v), nil
	case int64:
		return strconv.AppendInt(b, v, 10), nil
	case uint64:
		return strconv.AppendUint(b, v, 10), nil
	case float64:
		return appendJSONFloat(b, v, 64), nil
	case string:
		return appendJSONString(b, v), nil
	}
	return b, fmt.Errorf("it is a %T, expected bool, int64, uint64, float64 or string", v)
}

// JSON returns the REST form of a message of the protocol that is neither a query nor an answer.
// All fields are present, under their names in the .proto file, and 64-bit integers are JSON
// numbers (protobuf's own JSON has strings). A RepositoryIndexResponse is the list alone, a
// ModelConfigResponse the config alone, in which a message is left out if it is not set: to clients
// its presence means that the model has the feature.
func JSON(m proto.Message) []byte {
	r := m.ProtoReflect()
	switch m := m.(type) {
	case *inference.RepositoryIndexResponse:
		f := r.Descriptor().Fields().ByName("models")
		return appendJSONField(nil, f, r.Get(f))
	case *inference.ModelConfigResponse:
		return appendJSONMessage(nil, m.GetConfig().ProtoReflect())
	}
	return appendJSONMessage(nil, r)
}

// leftOut reports whether a field of m is left out: see [JSON].
func leftOut(m protoreflect.Message, f protoreflect.FieldDescriptor) bool {
	return f.HasPresence() && !m.Has(f) &&
		f.ParentFile() == triton.File_triton_model_config_proto
}

// ErrorJSON returns the REST form of an error, with message cut as by [ErrorText].
func ErrorJSON(message string) []byte {
	return append(appendJSONString([]byte(`{"error":`), ErrorText(message)), '}')
}

func appendJSONMessage(b []byte, m protoreflect.Message) []byte {
	b = append(b, '{')
	fields := m.Descriptor().Fields()
	first := true
	for i := range fields.Len() {
		f := fields.Get(i)
		if leftOut(m, f) {
			continue
		}
		if !first {
			b = append(b, ',')
		}
		first = false
		b = appendJSONString(b, string(f.Name()))
		b = append(b, ':')
		b = appendJSONField(b, f, m.Get(f))
	}
	return append(b, '}')
}

func appendJSONField(b []byte, f protoreflect.FieldDescriptor, v protoreflect.Value) []byte {
	switch {
	case f.IsMap():
		b = append(b, '{')
		first := true
		v.Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
			if !first {
				b = append(b, ',')
			}
			first = false
			b = appendJSONString(b, k.String())
			b = append(b, ':')
			b = appendJSONValue(b, f.MapValue(), v)
			return true
		})
		return append(b, '}')
	case f.IsList():
		b = append(b, '[')
		for i := range v.List().Len() {
			if i > 0 {
				b = append(b, ',')
			}
			b = appendJSONValue(b, f, v.List().Get(i))
		}
		return append(b, ']')
	}
	return appendJSONValue(b, f, v)
}

// appendJSONValue appends a single value of a kind that these messages have.
func appendJSONValue(b []byte, f protoreflect.FieldDescriptor, v protoreflect.Value) []byte {
	switch f.Kind() {
	case protoreflect.MessageKind:
		return appendJSONMessage(b, v.Message())
	case protoreflect.StringKind:
		return appendJSONString(b, v.String())
	case protoreflect.EnumKind:
		if name := f.Enum().Values().ByNumber(v.Enum()); name != nil {
			return appendJSONString(b, string(name.Name()))
		}
	case protoreflect.FloatKind, protoreflect.DoubleKind:
		if x := v.Float(); math.IsNaN(x) || math.IsInf(x, 0) {
			return append(b, "null"...)
		}
	}
	return append(b, v.String()...) // bool, integers, floats
}
