package npz

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/muster-serve/muster/api/tensor"
)

// A Reader reads the arrays of a file. It must not be used concurrently.
type Reader struct {
	names       []string
	files       map[string]*zip.File
	limit, left int64 // bytes of the arrays that are read
}

// NewReader returns the Reader of a file of size bytes. It reads arrays of at most limit bytes in
// all, so that a small file cannot fill the memory. r must stay open while the Reader is in use.
func NewReader(r io.ReaderAt, size, limit int64) (*Reader, error) {
	archive, err := zip.NewReader(r, size)
	if err != nil {
		return nil, fmt.Errorf("no npz file: %w", err)
	}
	reader := &Reader{files: map[string]*zip.File{}, limit: limit, left: limit}
	for _, f := range archive.File {
		name, ok := strings.CutSuffix(f.Name, suffix)
		if !ok {
			return nil, fmt.Errorf("it has a file %q, expected only arrays (%s)", f.Name, suffix)
		}
		if reader.files[name] != nil {
			return nil, fmt.Errorf("it has array %q twice", name)
		}
		reader.names, reader.files[name] = append(reader.names, name), f
	}
	return reader, nil
}

// suffix ends the names of an archive's files.
const suffix = ".npy"

// Names returns the names of the arrays, in the order of the file.
func (r *Reader) Names() []string { return slices.Clone(r.names) }

// Read reads the array of that name. Its errors name the array.
func (r *Reader) Read(name string) (tensor.Tensor, error) {
	f := r.files[name]
	if f == nil {
		return tensor.Tensor{}, fmt.Errorf("it has no array %q, only %s", name,
			strings.Join(r.names, ", "))
	}
	array, err := r.read(f)
	if err != nil {
		return tensor.Tensor{}, fmt.Errorf("array %q: %w", name, err)
	}
	array.Name = name
	return array, nil
}

func (r *Reader) read(f *zip.File) (array tensor.Tensor, err error) {
	content, err := f.Open()
	if err != nil {
		return array, err
	}
	defer content.Close()
	h, err := readHeader(content)
	if err != nil {
		return array, err
	}
	if int64(h.elements) > r.left/int64(h.size) {
		return array, fmt.Errorf("more than %d bytes in all arrays", r.limit)
	}
	want := int64(h.elements) * int64(h.size)
	r.left -= want
	// The header may claim any size: the memory grows with the bytes that are there.
	data, err := io.ReadAll(io.LimitReader(content, want+1))
	if err != nil {
		return array, err
	}
	switch {
	case int64(len(data)) < want:
		return array, fmt.Errorf("%d bytes, expected %d elements of %d bytes for shape %v",
			len(data), h.elements, h.size, h.shape)
	case int64(len(data)) > want:
		return array, fmt.Errorf("more bytes than %d elements of %d bytes for shape %v",
			h.elements, h.size, h.shape)
	}
	if h.dataType == tensor.Bytes {
		if data, err = h.readStrings(data); err != nil {
			return array, err
		}
	}
	return tensor.Tensor{DataType: h.dataType, Shape: h.shape, Data: data}, nil
}

const (
	magic = "\x93NUMPY"
	// longestHeader is far above what an array of numbers or strings needs.
	longestHeader = 1 << 16
	// longestString is the most characters of a string, as NumPy pads all to the longest.
	longestString = 1 << 20
)

// The keys of a header, which is a Python dictionary.
var (
	descrKey = regexp.MustCompile(`'descr': *'([^']*)'`)
	orderKey = regexp.MustCompile(`'fortran_order': *(True|False)`)
	shapeKey = regexp.MustCompile(`'shape': *\(([0-9, ]*)\)`)
)

// dataTypes are the types of numbers by NumPy's name without the order of bytes. NumPy itself has
// no BF16; Python's ml_dtypes saves them as blocks of two bytes.
var dataTypes = map[string]tensor.DataType{
	"b1": tensor.Bool, "u1": tensor.Uint8, "u2": tensor.Uint16, "u4": tensor.Uint32,
	"u8": tensor.Uint64, "i1": tensor.Int8, "i2": tensor.Int16, "i4": tensor.Int32,
	"i8": tensor.Int64, "f2": tensor.FP16, "f4": tensor.FP32, "f8": tensor.FP64, "V2": tensor.BF16,
}

// A header says what an array is.
type header struct {
	dataType tensor.DataType
	shape    []int64
	elements int // the product of shape
	size     int // of an element in the file, in bytes
	unicode  bool
}

// readHeader reads the start of a file of the format npy, version 1 to 3. See
// https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html.
func readHeader(r io.Reader) (h header, err error) {
	start := make([]byte, len(magic)+4)
	if _, err := io.ReadFull(r, start); err != nil || string(start[:len(magic)]) != magic {
		return h, fmt.Errorf("no npy file: it begins with %.6q", start)
	}
	version := start[len(magic)]
	length := uint32(binary.LittleEndian.Uint16(start[len(magic)+2:]))
	switch version {
	case 1:
	case 2, 3: // the length has four bytes
		var more [2]byte
		if _, err := io.ReadFull(r, more[:]); err != nil {
			return h, fmt.Errorf("the header is cut short: %w", err)
		}
		length |= uint32(binary.LittleEndian.Uint16(more[:])) << 16
	default:
		return h, fmt.Errorf("version %d of the format npy, expected 1 to 3", version)
	}
	if length > longestHeader {
		return h, fmt.Errorf("the header has %d bytes, expected at most %d", length, longestHeader)
	}
	text := make([]byte, length)
	if _, err := io.ReadFull(r, text); err != nil {
		return h, fmt.Errorf("the header is cut short: %w", err)
	}
	descr, order, shape := descrKey.FindSubmatch(text), orderKey.FindSubmatch(text),
		shapeKey.FindSubmatch(text)
	if descr == nil || order == nil || shape == nil {
		return h, fmt.Errorf("header %.100q, expected a plain array of numbers or strings", text)
	}
	dims := strings.FieldsFunc(string(shape[1]), func(r rune) bool { return r == ',' || r == ' ' })
	for _, dim := range dims {
		n, err := strconv.ParseInt(dim, 10, 64)
		if err != nil {
			return h, fmt.Errorf("shape (%s): %w", shape[1], err)
		}
		h.shape = append(h.shape, n)
	}
	if len(dims) == 0 || h.shape[0] == 0 {
		return h, fmt.Errorf("shape (%s) has no rows", shape[1])
	}
	if string(order[1]) == "True" && len(dims) > 1 {
		return h, errors.New("the array is in Fortran order; save np.ascontiguousarray of it")
	}
	if h.elements, err = tensor.Elements(h.shape); err != nil {
		return h, err
	}
	return h, h.setType(string(descr[1]))
}

// setType sets what follows from the NumPy type descr.
func (h *header) setType(descr string) error {
	if len(descr) < 3 || descr[0] == '>' {
		return fmt.Errorf("elements of type %q, expected little-endian numbers or strings", descr)
	}
	if h.unicode = descr[1] == 'U'; h.unicode || descr[1] == 'S' {
		n, err := strconv.Atoi(descr[2:])
		if err != nil || n < 1 || n > longestString {
			return fmt.Errorf("strings of type %q, expected 1 to %d characters", descr,
				longestString)
		}
		if h.dataType, h.size = tensor.Bytes, n; h.unicode {
			h.size = 4 * n
		}
		return nil
	}
	if h.dataType = dataTypes[descr[1:]]; h.dataType == "" {
		return fmt.Errorf(
			"elements of type %q, expected numbers, bools, or strings of dtype S or U", descr)
	}
	h.size = h.dataType.Size()
	return nil
}

// readStrings returns padded strings as the data of a tensor.
func (h *header) readStrings(data []byte) (words []byte, err error) {
	words = make([]byte, 0, len(data)/h.size*4)
	for i := range h.elements {
		s := data[i*h.size:][:h.size]
		if h.unicode {
			if s, err = fromUCS4(s); err != nil {
				return nil, fmt.Errorf("element %d: %w", i, err)
			}
		}
		s = bytes.TrimRight(s, "\x00") // NumPy pads with them
		words = binary.LittleEndian.AppendUint32(words, uint32(len(s)))
		words = append(words, s...)
	}
	return words, nil
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

// Write writes arrays as a file that is not compressed. Strings must be UTF-8 and become those of
// Python, which NumPy pads to the longest.
func Write(w io.Writer, arrays []tensor.Tensor) error {
	archive := zip.NewWriter(w)
	for _, t := range arrays {
		descr, data, err := encode(t)
		if err != nil {
			return fmt.Errorf("array %q: %w", t.Name, err)
		}
		f, err := archive.CreateHeader(&zip.FileHeader{Name: t.Name + suffix, Method: zip.Store})
		if err != nil {
			return err
		}
		if _, err := f.Write(headerOf(descr, t.Shape)); err != nil {
			return err
		}
		if _, err := f.Write(data); err != nil {
			return err
		}
	}
	return archive.Close()
}

// encode returns NumPy's name for the type of an array, and its elements as NumPy has them.
func encode(t tensor.Tensor) (descr string, data []byte, err error) {
	if t.DataType == tensor.Bytes {
		return encodeStrings(t.Data)
	}
	for name, d := range dataTypes {
		if d == t.DataType && d.Size() == 1 {
			return "|" + name, t.Data, nil // it has no order of bytes
		} else if d == t.DataType {
			return "<" + name, t.Data, nil
		}
	}
	return "", nil, fmt.Errorf("it holds %s, expected numbers, bools or strings", t.DataType)
}

// encodeStrings turns the strings of a tensor into characters of four bytes.
func encodeStrings(words []byte) (descr string, data []byte, err error) {
	var all []string
	longest := 1
	for rest := words; len(rest) > 0; {
		if len(rest) < 4 || uint64(len(rest)-4) < uint64(binary.LittleEndian.Uint32(rest)) {
			return "", nil, errors.New("the last string is cut short")
		}
		n := 4 + binary.LittleEndian.Uint32(rest)
		s := string(rest[4:n])
		if !utf8.ValidString(s) {
			return "", nil, fmt.Errorf("element %d is not UTF-8", len(all))
		}
		longest = max(longest, utf8.RuneCountInString(s))
		all, rest = append(all, s), rest[n:]
	}
	if longest > longestString {
		return "", nil, fmt.Errorf("a string of %d characters, expected at most %d", longest,
			longestString)
	}
	for _, s := range all {
		for _, c := range s {
			data = binary.LittleEndian.AppendUint32(data, uint32(c))
		}
		data = append(data, make([]byte, 4*(longest-utf8.RuneCountInString(s)))...)
	}
	return "<U" + strconv.Itoa(longest), data, nil
}

// headerOf returns what an array's file has before its data, which begins at a multiple of 64 bytes
// as the format asks.
func headerOf(descr string, dimensions []int64) []byte {
	var dims []string
	for _, d := range dimensions {
		dims = append(dims, strconv.FormatInt(d, 10))
	}
	shape := strings.Join(dims, ", ")
	if len(dims) == 1 {
		shape += "," // a tuple in Python
	}
	text := fmt.Sprintf("{'descr': '%s', 'fortran_order': False, 'shape': (%s), }", descr, shape)
	before := len(magic) + 4
	text += strings.Repeat(" ", 63-(before+len(text))%64) + "\n"
	start := binary.LittleEndian.AppendUint16([]byte(magic+"\x01\x00"), uint16(len(text)))
	return append(start, text...)
}
