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

// A fingerprint is a hash of the names, sizes, modification times and inodes of files; it changes
// when a file changes. The zero value stands for no files.
type fingerprint [sha256.Size]byte

// A folder is the state of a model's folder at one scan.
type folder struct {
	config fingerprint // of model.yaml and config.pbtxt
	// versions has the fingerprint of each version by its number. It includes that of
	// model.yaml and config.pbtxt, and of the models of an ensemble: if they change, all
	// versions count as changed.
	versions map[int64]fingerprint
	// problem is why the folder has no version; empty if it has one.
	problem string
	// unreadable is whether the folder could not be read. The other fields but problem are then
	// unknown.
	unreadable bool
}

// scan reads the folders of all models in the repository dir, by name.
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

// scanModel reads the folder of one model. The error wraps ErrNotFound if the folder does not
// exist. After any other error it is not known whether it exists.
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
	if triton := fingerprintOf(filepath.Join(path, TritonFile),
		f.config); triton != (fingerprint{}) {
		f.config = triton
	}
	base := f.config
	if base != (fingerprint{}) {
		base = withParts(dir, model, base)
	}
	var others []string
	for _, e := range entries {
		name := e.Name()
		number, err := strconv.ParseInt(name, 10, 64)
		if err != nil || number < 1 || strconv.FormatInt(number, 10) != name {
			if name != ConfigFile && name != TritonFile && !strings.HasPrefix(name, ".") {
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
		f.versions[number] = fingerprintOf(version, base)
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

// followed returns where a path leads that may be a symbolic link: WalkDir does not look into a
// folder behind one. It returns a path that leads nowhere as it is.
func followed(path string) string {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		return real
	}
	return path
}

// fingerprintOf returns the fingerprint of a file, or of a folder and all files below it, combined
// with the fingerprint base. It ignores hidden files. It follows symbolic links, except those below
// path that lead to folders. A file that cannot be read counts as present, so that the attempt to
// load it reports why.
func fingerprintOf(path string, base fingerprint) fingerprint {
	h := sha256.New()
	h.Write(base[:])
	any := false
	path = followed(path)
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
		case errors.Is(err, fs.ErrNotExist): // removed since it was listed, or a broken link
			return nil
		case err != nil:
			fmt.Fprintf(h, "%v\n", err)
		case info.IsDir(): // its modification time does not count; its files do
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
