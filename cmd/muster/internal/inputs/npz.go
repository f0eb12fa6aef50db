package inputs

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/muster-serve/muster/api/tensor"
)

// readNPZ reads the arrays of an npz file of size bytes: a zip file with an npy file for each
// array, named after it. Numbers must be little-endian, arrays in C order.
func readNPZ(r io.ReaderAt, size int64) (arrays []tensor.Tensor, err error) {
	archive, err := zip.NewReader(r, size)
	if err != nil {
		return nil, fmt.Errorf("no npz file: %w", err)
	}
	left := int64(largest)
	for _, f := range archive.File {
		name, ok := strings.CutSuffix(f.Name, ".npy")
		if !ok {
			return nil, fmt.Errorf("it has a file %q, want only arrays (.npy)", f.Name)
		}
		array, n, err := readFile(f, left)
		if err != nil {
			return nil, fmt.Errorf("array %q: %w", name, err)
		}
		left -= n
		array.Name = name
		arrays = append(arrays, array)
	}
	if len(arrays) == 0 {
		return nil, errors.New("no arrays, want one for each input of the model")
	}
	return arrays, nil
}

// readFile reads one array of at most limit bytes, and returns how many it has.
func readFile(f *zip.File, limit int64) (array tensor.Tensor, n int64, err error) {
	r, err := f.Open()
	if err != nil {
		return array, 0, err
	}
	defer r.Close()
	data, err := io.ReadAll(io.LimitReader(r, limit+1)) // grows with what there is
	if err != nil {
		return array, 0, err
	}
	if int64(len(data)) > limit {
		return array, 0, fmt.Errorf("more than %d bytes in all arrays", largest)
	}
	array, err = readNPY(data)
	return array, int64(len(data)), err
}

// The keys of the header of an npy file, a Python dictionary.
var (
	descrKey = regexp.MustCompile(`'descr': *'([^']*)'`)
	orderKey = regexp.MustCompile(`'fortran_order': *(True|False)`)
	shapeKey = regexp.MustCompile(`'shape': *\(([0-9, ]*)\)`)
)

// readNPY reads a file of the format npy, version 1 to 3. The array shares the memory of data. See
// https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html.
func readNPY(data []byte) (array tensor.Tensor, err error) {
	rest, ok := bytes.CutPrefix(data, []byte("\x93NUMPY"))
	if !ok || len(rest) < 6 {
		return array, errors.New("no npy file")
	}
	length := int64(binary.LittleEndian.Uint16(rest[2:]))
	start := int64(4)
	switch rest[0] {
	case 1:
	case 2, 3:
		length, start = int64(binary.LittleEndian.Uint32(rest[2:])), 6
	default:
		return array, fmt.Errorf("version %d of the format npy, want 1 to 3", rest[0])
	}
	if int64(len(rest)) < start+length {
		return array, errors.New("the header is cut short")
	}
	header := rest[start : start+length]
	rest = rest[start+length:]
	descr, order, shape := descrKey.FindSubmatch(header), orderKey.FindSubmatch(header),
		shapeKey.FindSubmatch(header)
	if descr == nil || order == nil || shape == nil {
		return array, fmt.Errorf("header %.100q, want a plain array of numbers or strings", header)
	}
	dims := strings.FieldsFunc(string(shape[1]), func(r rune) bool { return r == ',' || r == ' ' })
	for _, dim := range dims {
		n, err := strconv.ParseInt(dim, 10, 64)
		if err != nil {
			return array, fmt.Errorf("shape (%s): %w", shape[1], err)
		}
		array.Shape = append(array.Shape, n)
	}
	if len(dims) == 0 || array.Shape[0] == 0 {
		return array, fmt.Errorf("shape (%s) has no rows", shape[1])
	}
	if string(order[1]) == "True" && len(dims) > 1 {
		return array, errors.New("the array is in Fortran order; save np.ascontiguousarray of it")
	}
	elements, err := tensor.Elements(array.Shape)
	if err != nil {
		return array, err
	}
	return array, fill(&array, string(descr[1]), elements, rest)
}

// dataTypes are the types of numbers by NumPy's name without the order of bytes. NumPy itself has
// no BF16; Python's ml_dtypes saves them as blocks of two bytes.
var dataTypes = map[string]tensor.DataType{
	"b1": tensor.Bool, "u1": tensor.Uint8, "u2": tensor.Uint16, "u4": tensor.Uint32,
	"u8": tensor.Uint64, "i1": tensor.Int8, "i2": tensor.Int16, "i4": tensor.Int32,
	"i8": tensor.Int64, "f2": tensor.FP16, "f4": tensor.FP32, "f8": tensor.FP64, "V2": tensor.BF16,
}

// fill sets the type and the data of array to elements of the NumPy type descr.
func fill(array *tensor.Tensor, descr string, elements int, data []byte) error {
	if len(descr) < 3 || descr[0] == '>' {
		return fmt.Errorf("elements of type %q, want little-endian numbers or strings", descr)
	}
	size := 0
	text := descr[1] == 'S' || descr[1] == 'U'
	if text {
		n, err := strconv.Atoi(descr[2:])
		if err != nil || n < 1 || n > 1<<20 {
			return fmt.Errorf("strings of type %q, want 1 to %d characters", descr, 1<<20)
		}
		size, array.DataType = n, tensor.Bytes
		if descr[1] == 'U' {
			size = 4 * n
		}
	} else if array.DataType = dataTypes[descr[1:]]; array.DataType == "" {
		return fmt.Errorf("elements of type %q, want numbers, bools, or strings of dtype S or U",
			descr)
	} else {
		size = array.DataType.Size()
	}
	if elements != len(data)/size || len(data)%size != 0 {
		return fmt.Errorf("%d bytes, want %d elements of %d bytes for shape %v", len(data),
			elements,
			size, array.Shape)
	}
	if array.Data = data; !text {
		return nil
	}
	array.Data = make([]byte, 0, len(data)+4*elements)
	for i := range elements {
		s := data[i*size : (i+1)*size]
		if descr[1] == 'U' {
			var err error
			if s, err = fromUCS4(s); err != nil {
				return fmt.Errorf("element %d: %w", i, err)
			}
		}
		s = bytes.TrimRight(s, "\x00") // NumPy pads with them
		array.Data = binary.LittleEndian.AppendUint32(array.Data, uint32(len(s)))
		array.Data = append(array.Data, s...)
	}
	return nil
}

// fromUCS4 returns characters of four bytes each as UTF-8.
func fromUCS4(s []byte) (text []byte, err error) {
	for ; len(s) >= 4; s = s[4:] {
		c := binary.LittleEndian.Uint32(s)
		if c > utf8.MaxRune || !utf8.ValidRune(rune(c)) {
			return nil, fmt.Errorf("%#x is no character", c)
		}
		text = utf8.AppendRune(text, rune(c))
	}
	return text, nil
}
