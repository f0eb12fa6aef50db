package store

import (
	"bytes"
	"cmp"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// format is the format of the documents that this program writes and reads.
const format = 1

// What is read of a store is bounded, for it may hold anything.
const (
	maxDocument = 16 << 20 // bytes of a manifest
	// maxRelease bounds the bytes of a release, which are kept in memory, sent to all agents, and a
	// few hundred as Muster writes them; and those of a signature.
	maxRelease = 64 << 10
	maxFiles   = 4096 // of a version
	maxPath    = 1024 // bytes of a file's path
)

// partBytes is the size of the parts of a file that are fetched and checked one by one. The last
// part of a file may have less. It belongs to the format; only tests change it.
var partBytes int64 = 8 << 20

// A Manifest is a version of a model: its files, by name and content.
type Manifest struct {
	Format  int       `json:"format"`
	Model   string    `json:"model"`
	Version int64     `json:"version"`
	Created time.Time `json:"created"`
	// CreatedBy is who pushed the version, as "user@host"; it proves nothing.
	CreatedBy string `json:"created_by"`
	// Files are ordered by Path.
	Files []File `json:"files"`

	// document and signature are the manifest as the store has it, and who has signed it; nil: not
	// known, or nobody.
	document, signature []byte
}

// Signed reports whether the manifest has a signature, which may be anybody's.
func (m *Manifest) Signed() bool { return m.signature != nil }

// Verify returns nil if one of the keys has signed the manifest, else an error that wraps
// ErrSignature. It returns nil if keys is nil.
func (m *Manifest) Verify(keys Keys) error {
	if keys == nil {
		return nil
	}
	err := errNoSignature
	if m.signature != nil {
		err = keys.Verify(m.documentText(), m.signature)
	}
	if err != nil {
		return fmt.Errorf("%s: %w: %w", m, ErrSignature, err)
	}
	return nil
}

// documentText is the document of the manifest.
func (m *Manifest) documentText() []byte {
	if m.document != nil {
		return m.document
	}
	return write(m)
}

// A File is one file of a version.
type File struct {
	// Path is the file's path in the model's folder, with slashes: that of a file in the version's
	// folder, such as "3/model.onnx", or of the settings beside it, "model.yaml" or "config.pbtxt".
	Path string `json:"path"`
	Size int64  `json:"size"`
	// SHA256 is of the file's contents, as 64 hexadecimal digits in lower case.
	SHA256 string `json:"sha256"`
	// Parts are the SHA-256 of each 8 MiB, if the file has more than one. So whoever
	// fetches the file knows which of its sources sent wrong bytes, and fetches no others again.
	Parts []string `json:"parts,omitempty"`
}

// countParts is how many parts the file has, at least one.
func (f *File) countParts() int { return int(max(1, (f.Size-1)/partBytes+1)) }

// partRange returns where a part begins, its length and its SHA-256.
func (f *File) partRange(i int) (offset, length int64, sum string) {
	offset = int64(i) * partBytes
	length = min(partBytes, f.Size-offset)
	if len(f.Parts) == 0 {
		return offset, length, f.SHA256
	}
	return offset, length, f.Parts[i]
}

// String returns the version's name, such as "ncf version 3".
func (m *Manifest) String() string { return fmt.Sprintf("%s version %d", m.Model, m.Version) }

// Bytes is the size of all files.
func (m *Manifest) Bytes() (sum int64) {
	for _, f := range m.Files {
		sum += f.Size
	}
	return sum
}

// settings are the names of the files that a model's folder may hold beside those of its versions.
var settings = []string{"model.yaml", "config.pbtxt"}

// Validate returns all that is wrong with m, or nil. A manifest without a fault names no file
// outside of the model's folder, none twice, and no hidden one.
func (m *Manifest) Validate() error {
	var faults []error
	fault := func(format string, args ...any) {
		faults = append(faults, fmt.Errorf(format, args...))
	}
	if m.Format != format {
		fault("format is %d, this program reads %d", m.Format, format)
	}
	if err := CheckName(m.Model); err != nil {
		fault("%w", err)
	}
	if m.Version < 1 {
		fault("version is %d, expected a number above 0", m.Version)
	}
	if len(m.Files) == 0 || len(m.Files) > maxFiles {
		fault("%d files, expected 1 to %d", len(m.Files), maxFiles)
	}
	// sorted are the paths with 0 in place of the slash, which no path has: so a file that is also
	// a folder comes just before what is in it.
	var sorted []string
	bytes := int64(0)
	for _, f := range m.Files[:min(len(m.Files), maxFiles)] {
		if err := m.checkPath(f.Path); err != nil {
			fault("%w", err)
			continue
		}
		sorted = append(sorted, strings.ReplaceAll(f.Path, "/", "\x00"))
		if f.Size < 0 || f.Size > math.MaxInt64-bytes {
			fault("file %q has %d bytes", f.Path, f.Size)
			continue
		}
		bytes += f.Size
		want := f.countParts()
		if want == 1 {
			want = 0
		}
		if len(f.Parts) != want {
			fault("file %q of %d bytes has the sums of %d parts, expected %d", f.Path, f.Size,
				len(f.Parts), want)
		}
		for _, sum := range append([]string{f.SHA256}, f.Parts...) {
			if err := checkSum(sum); err != nil {
				fault("file %q: %w", f.Path, err)
				break
			}
		}
	}
	slices.Sort(sorted)
	for i := 1; i < len(sorted); i++ {
		before, name := sorted[i-1], strings.ReplaceAll(sorted[i-1], "\x00", "/")
		if sorted[i] == before {
			fault("file %q is listed twice", name)
		} else if strings.HasPrefix(sorted[i], before+"\x00") {
			fault("file %q is also a folder", name)
		}
	}
	return errors.Join(faults...)
}

// checkPath returns an error unless p is a path that a file of m may have.
func (m *Manifest) checkPath(p string) error {
	if slices.Contains(settings, p) {
		return nil
	}
	if len(p) > maxPath {
		return fmt.Errorf("file %.255q... has a path of %d bytes, expected at most %d", p, len(p),
			maxPath)
	}
	first, _, below := strings.Cut(p, "/")
	hidden := slices.ContainsFunc(strings.Split(p, "/"), func(part string) bool {
		return strings.HasPrefix(part, ".")
	})
	if !below || first != strconv.FormatInt(m.Version, 10) || hidden || path.Clean(p) != p ||
		!filepath.IsLocal(filepath.FromSlash(p)) || strings.ContainsAny(p, "\\\x00") {
		return fmt.Errorf("file %.255q, expected %s or a path below %d/, without hidden folders", p,
			strings.Join(settings, ", "), m.Version)
	}
	return nil
}

// checkSum returns an error unless sum is a SHA-256 as manifests have it.
func checkSum(sum string) error {
	if b, err := hex.DecodeString(sum); err != nil || len(b) != 32 || strings.ToLower(sum) != sum {
		return fmt.Errorf("SHA-256 is %.80q, expected 64 hexadecimal digits in lower case", sum)
	}
	return nil
}

// CheckName returns an error if name cannot be that of a model: of a folder that is not hidden.
func CheckName(name string) error {
	if name == "" || len(name) > 255 || !utf8.ValidString(name) || strings.HasPrefix(name, ".") ||
		strings.ContainsAny(name, "/\\\x00") || !filepath.IsLocal(name) {
		return fmt.Errorf("model %.255q, expected the name of a folder, not hidden", name)
	}
	return nil
}

// SameFiles reports whether both versions have the same files.
func (m *Manifest) SameFiles(other *Manifest) bool { return m.differingFile(other) == "" }

// differingFile names a file that the two versions do not have alike; "" if there is none.
func (m *Manifest) differingFile(other *Manifest) string {
	sums := map[string]string{}
	for _, f := range m.Files {
		sums[f.Path] = f.SHA256
	}
	for _, f := range other.Files {
		if sums[f.Path] != f.SHA256 {
			return f.Path
		}
		delete(sums, f.Path)
	}
	for path := range sums {
		return path
	}
	return ""
}

// sortFiles orders the files as manifests have them.
func sortFiles(files []File) {
	slices.SortFunc(files, func(a, b File) int { return cmp.Compare(a.Path, b.Path) })
}

// ParseManifest reads the document of version number of a model. A version of another name or
// number, and all that Validate finds, is an error.
func ParseManifest(data []byte, model string, number int64) (*Manifest, error) {
	m := &Manifest{}
	err := parse(data, m)
	if err == nil {
		err = m.Validate()
	}
	if err == nil && (m.Model != model || m.Version != number) {
		err = fmt.Errorf("it is of %s", m)
	}
	if err != nil {
		return nil, fmt.Errorf("manifest of %s version %d: %w", model, number, err)
	}
	return m, nil
}

// parse reads the one JSON value of data. It ignores fields that it does not know: a later format
// has another number if it matters.
func parse(data []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	if err := d.Decode(v); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("there is more behind the document")
	}
	return nil
}

// write returns the document of v, which has no fault.
func write(v any) []byte {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		panic(err) // no field of a document can fail
	}
	return append(data, '\n')
}
