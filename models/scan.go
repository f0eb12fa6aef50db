package models

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// A fingerprint changes when files do: it covers their names, sizes,
// modification times and inodes. Its zero value stands for no files.
type fingerprint [sha256.Size]byte

// A folder is what a scan found of a model.
type folder struct {
	config fingerprint // of model.yaml
	// versions covers model.yaml too: when that changes, so does each version.
	versions map[int64]fingerprint
	// problem says why there is no version.
	problem string
	// unreadable is set where nothing but the problem is known.
	unreadable bool
}

// scan looks at all models of a repository.
func scan(dir string) (map[string]folder, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	found := map[string]folder{}
	for _, e := range entries {
		if checkName(e.Name()) != nil {
			continue
		}
		f, err := scanModel(dir, e.Name())
		switch {
		case err == nil:
			found[e.Name()] = f
		case !errors.Is(err, ErrNotFound):
			found[e.Name()] = folder{problem: err.Error(), unreadable: true}
		}
	}
	return found, nil
}

// scanModel looks at one model. The error wraps ErrNotFound if there is no such folder; any other
// says that nobody knows.
func scanModel(dir, model string) (folder, error) {
	path := filepath.Join(dir, model)
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		if _, away := os.Stat(dir); away != nil {
			return folder{}, fmt.Errorf("read the model directory: %w", away)
		}
	}
	if errors.Is(err, fs.ErrNotExist) || err == nil && !info.IsDir() {
		return folder{}, fmt.Errorf("%w: %s is no folder", ErrNotFound, path)
	}
	if err != nil {
		return folder{}, err
	}
	f := folder{versions: map[int64]fingerprint{}}
	entries, err := os.ReadDir(path)
	if err != nil {
		return folder{}, err
	}
	f.config = fingerprintOf(filepath.Join(path, ConfigFile), fingerprint{})
	var others []string
	for _, e := range entries {
		name := e.Name()
		number, err := strconv.ParseInt(name, 10, 64)
		if err != nil || number < 1 || strconv.FormatInt(number, 10) != name {
			if name != ConfigFile && !strings.HasPrefix(name, ".") {
				others = append(others, name)
			}
			continue
		}
		version := filepath.Join(path, name)
		info, err := os.Stat(version)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return folder{}, err
		}
		if err != nil || !info.IsDir() {
			others = append(others, name)
			continue
		}
		f.versions[number] = fingerprintOf(version, f.config)
	}
	if len(f.versions) == 0 {
		f.problem = fmt.Sprintf(
			"%s holds no version, expected a folder with the version's number as its name, such "+
				"as %s",
			path, filepath.Join(path, "1", ModelFile))
		if len(others) > 0 {
			f.problem += "; found " + strings.Join(others[:min(len(others), 5)], ", ")
		}
	}
	return f, nil
}

// fingerprintOf covers a file, or a folder and all below, and the fingerprint base. Hidden files do
// not count. Links are followed, but for those to folders within it. What cannot be read counts as
// something that is there, so that loading it tells why.
func fingerprintOf(path string, base fingerprint) fingerprint {
	h := sha256.New()
	h.Write(base[:])
	any := false
	_ = filepath.WalkDir(path, func(file string, e fs.DirEntry, err error) error {
		if file != path && strings.HasPrefix(filepath.Base(file), ".") {
			if e != nil && e.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		var info fs.FileInfo
		if err == nil {
			info, err = os.Stat(file)
		}
		switch {
		case errors.Is(err, fs.ErrNotExist): // gone since it was listed, or a link to nowhere
			return nil
		case err != nil:
			fmt.Fprintf(h, "%v\n", err)
		case info.IsDir(): // what is in it counts
			fmt.Fprintf(h, "%q\n", file)
		default:
			inode := uint64(0)
			if s, ok := info.Sys().(*syscall.Stat_t); ok {
				inode = s.Ino
			}
			fmt.Fprintf(h, "%q %d %d %d\n", file, inode, info.Size(), info.ModTime().UnixNano())
		}
		any = true
		return nil
	})
	if !any {
		return fingerprint{}
	}
	return fingerprint(h.Sum(nil))
}
