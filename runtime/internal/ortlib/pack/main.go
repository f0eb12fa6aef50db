// Pack extracts the ONNX Runtime library from a Python wheel or an npm package and checks it
// against the SHA-256 below. It writes the library twice: unchanged, for tests and
// --onnxruntime-lib, and compressed, for embedding. If the archive holds a licence and third-party
// notices, those committed in the repository must be the same. scripts/fetch-onnxruntime.sh
// downloads the archive and calls this program.
package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/klauspost/compress/zstd"
)

// A source is a kind of archive and the paths of the library and the notices in it.
type source struct {
	name   string
	suffix string
	// member is the library's path in the archive by GOARCH, sum its SHA-256.
	member, sum map[string]string
	// notices are the paths of the licence texts in the archive; npm's package has none.
	notices []string
	open    func(archive, member string) (io.ReadCloser, error)
}

// Version 1.30.0 of PyPI's onnxruntime and npm's onnxruntime-node.
var sources = []source{
	{
		name:   "wheel",
		suffix: ".whl",
		member: map[string]string{
			"amd64": "onnxruntime/capi/libonnxruntime.so.1.30.0",
			"arm64": "onnxruntime/capi/libonnxruntime.so.1.30.0",
		},
		sum: map[string]string{
			"amd64": "c902c70b3003c0e99fada202f37478c515ae9bba7944c2b2abd0017bae0c82ed",
			"arm64": "8a218e1e446880131115c368ec7005969a5022af9a15a26173de648fef0b7789",
		},
		notices: []string{"onnxruntime/LICENSE", "onnxruntime/ThirdPartyNotices.txt"},
		open:    openZip,
	},
	{
		name:   "npm package",
		suffix: ".tgz",
		member: map[string]string{
			"amd64": "package/bin/napi-v6/linux/x64/libonnxruntime.so.1",
			"arm64": "package/bin/napi-v6/linux/arm64/libonnxruntime.so.1",
		},
		sum: map[string]string{
			"amd64": "ffb75a925ba05e47b235bb66e3e3911714a80b328a9c9425539feb204aa32a23",
			"arm64": "1f549d46250b005580b597f4164984aaf75b3bcb9f3aeb07c7f8a8fe60b23c76",
		},
		open: openTgz,
	},
}

func main() {
	archive := flag.String("archive", "", "wheel or npm package to take the library from")
	arch := flag.String("arch", "", "GOARCH of the library")
	library := flag.String("library", "", "where to write the library")
	packed := flag.String("packed", "", "where to write the compressed library")
	flag.Parse()
	if err := pack(*archive, *arch, *library, *packed); err != nil {
		fmt.Fprintln(os.Stderr, "pack:", err)
		os.Exit(1)
	}
}

func pack(archive, arch, library, packed string) error {
	for _, s := range sources {
		if !strings.HasSuffix(archive, s.suffix) {
			continue
		}
		member, ok := s.member[arch]
		if !ok {
			return fmt.Errorf("no library for GOARCH %q in a %s: amd64 and arm64 are known", arch,
				s.name)
		}
		data, err := s.read(archive, member)
		if err != nil {
			return err
		}
		sum := sha256.Sum256(data)
		if got := hex.EncodeToString(sum[:]); got != s.sum[arch] {
			return fmt.Errorf(
				"%s in %s has SHA-256 %s, want %s: not the library this version of Muster was "+
					"made for", member, archive, got, s.sum[arch])
		}
		for _, notice := range s.notices {
			want, err := s.read(archive, notice)
			if err != nil {
				return err
			}
			committed := filepath.Join(filepath.Dir(packed), path.Base(notice))
			if got, err := os.ReadFile(committed); err != nil {
				return err
			} else if !bytes.Equal(got, want) {
				return fmt.Errorf("%s is not %s in %s: commit that of this version", committed,
					notice, archive)
			}
		}
		if err := write(library, data); err != nil {
			return err
		}
		enc, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedBestCompression))
		if err != nil {
			return err
		}
		return write(packed, enc.EncodeAll(data, nil))
	}
	return fmt.Errorf("%s is neither a wheel nor an npm package", archive)
}

// read returns the contents of one member of the archive.
func (s source) read(archive, member string) ([]byte, error) {
	r, err := s.open(archive, member)
	if err != nil {
		return nil, fmt.Errorf("read %s from %s: %w", member, archive, err)
	}
	defer r.Close()
	data, err := io.ReadAll(r)
	if err != nil {
		return nil, fmt.Errorf("read %s from %s: %w", member, archive, err)
	}
	return data, nil
}

// write writes the file atomically: after an error it is as it was before.
func write(name string, data []byte) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	tmp, err := os.CreateTemp(filepath.Dir(name), ".tmp-*")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name())
	_, err = tmp.Write(data)
	if err := errors.Join(err, tmp.Chmod(0o644), tmp.Close()); err != nil {
		return err
	}
	return os.Rename(tmp.Name(), name)
}

// both reads a member of an archive; Close closes the member's reader and then the archive's.
type both struct {
	io.Reader
	closers []io.Closer
}

func (b both) Close() error {
	var err error
	for _, c := range b.closers {
		err = errors.Join(err, c.Close())
	}
	return err
}

func openZip(archive, member string) (io.ReadCloser, error) {
	z, err := zip.OpenReader(archive)
	if err != nil {
		return nil, err
	}
	f, err := z.Open(member)
	if err != nil {
		z.Close()
		return nil, err
	}
	return both{f, []io.Closer{f, z}}, nil
}

func openTgz(archive, member string) (io.ReadCloser, error) {
	f, err := os.Open(archive)
	if err != nil {
		return nil, err
	}
	gz, err := gzip.NewReader(f)
	if err != nil {
		f.Close()
		return nil, err
	}
	for t := tar.NewReader(gz); ; {
		h, err := t.Next()
		if err == io.EOF {
			err = os.ErrNotExist
		}
		if err != nil {
			f.Close()
			return nil, err
		}
		if h.Name == member {
			return both{t, []io.Closer{gz, f}}, nil
		}
	}
}
