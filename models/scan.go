package models

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/muster-serve/muster/api/files"
	"github.com/muster-serve/muster/models/onnx"
)

// A fingerprint is a hash of the names, sizes, modification times and inodes of files; it changes
// when a file changes. The zero value stands for no files.
type fingerprint [sha256.Size]byte

// A folder is the state of a model's folder at one scan.
type folder struct {
	config fingerprint // of model.yaml and config.pbtxt
	// base is what the fingerprints of all versions include: that of model.yaml and config.pbtxt,
	// and of the models of an ensemble. If they change, all versions count as changed.
	base fingerprint
	// policy is what the settings say, if they have changed and can be read; else nil.
	policy *VersionPolicy
	// versions has the fingerprint of each version by its number.
	versions map[int64]fingerprint
	// passedOver is how many other versions are in the folder.
	passedOver int
	// problem is why the folder has no version; "" if it has one.
	problem string
	// unreadable is whether the folder could not be read. The other fields but problem are then
	// unknown.
	unreadable bool
}

// known is what is known of a model's folder before a scan; nil: nothing.
type known struct {
	config, base fingerprint
	policy       VersionPolicy
	choice       []int64
	versions     map[int64]seen
}

// seen is what is known of a version's files before a scan.
type seen struct {
	files fingerprint
	// resting is whether nothing depends on the files now, so that this scan does not look at them
	// unless the settings have changed.
	resting bool
}

const (
	// maxVersions is how many versions of a model are followed: the newest, and those that are
	// loaded or named by model.yaml or a release. Each has a state and some series in the metrics.
	maxVersions = 1000
	// maxHungTime is how long a scan waits for models whose files do not answer, all together, and
	// minHungTime for each of the others, which most disks answer for in less than a ms.
	maxHungTime = 5 * time.Second
	minHungTime = 100 * time.Millisecond
)

// A scanner reads the folders of a repository's models. A model whose file system hangs keeps the
// others waiting once, for maxHungTime. The methods may be called concurrently.
type scanner struct {
	dir string
	// before is called with the path of each call of the file system; nil: not. Tests set it, to
	// count the calls or to make one hang.
	before func(path string)

	mu sync.Mutex
	// running are the scans that have not ended, by model: there is no second one of a model, each
	// of which would keep a thread if the file system hangs.
	running map[string]*scanState
}

// A scanState is a scan of one model.
type scanState struct {
	begun time.Time
	ended chan struct{}
	// late is whether somebody has given up waiting for it: others do not wait either. scanner.mu
	// guards it.
	late bool
}

func newScanner(dir string) *scanner {
	return &scanner{dir: dir, running: map[string]*scanState{}}
}

func (s *scanner) callBefore(path string) {
	if s.before != nil {
		s.before(path)
	}
}

func (s *scanner) statFile(path string) (fs.FileInfo, error) {
	s.callBefore(path)
	return os.Stat(path)
}

// readDir returns what is in a folder, by name. Anything else is an error, also a FIFO.
func (s *scanner) readDir(path string) ([]fs.DirEntry, error) {
	s.callBefore(path)
	dir, err := files.OpenFolder(path)
	if err != nil {
		return nil, err
	}
	entries, err := dir.ReadDir(-1)
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return cmp.Compare(a.Name(), b.Name()) })
	return entries, errors.Join(err, dir.Close())
}

// scan reads the folders of all models, by name. before is what is known of them.
func (s *scanner) scan(before map[string]*known) (map[string]folder, error) {
	entries, err := s.readDir(s.dir)
	if err != nil {
		return nil, err
	}
	begun := time.Now()
	found := map[string]folder{}
	for _, e := range entries {
		if checkName(e.Name()) != nil {
			continue
		}
		ctx, cancel := context.WithTimeout(context.Background(),
			max(maxHungTime-time.Since(begun), minHungTime))
		f, err := s.readModel(ctx, e.Name(), before[e.Name()])
		cancel()
		switch {
		case err == nil:
			found[e.Name()] = f
		case !errors.Is(err, ErrNotFound):
			found[e.Name()] = folder{problem: err.Error(), unreadable: true}
		}
	}
	return found, nil
}

// readModel reads the folder of one model, or returns an error when ctx ends. The error wraps
// ErrNotFound if the folder does not exist. After any other error it is not known whether it
// exists.
func (s *scanner) readModel(ctx context.Context, name string, before *known) (folder, error) {
	var read folder
	var failed error
	s.mu.Lock()
	running, own := s.running[name], false
	if running == nil {
		running, own = &scanState{begun: time.Now(), ended: make(chan struct{})}, true
		s.running[name] = running
		go func() {
			read, failed = s.scanModel(name, before)
			s.mu.Lock()
			delete(s.running, name)
			s.mu.Unlock()
			close(running.ended)
		}()
	}
	late := running.late
	s.mu.Unlock()
	if !late {
		select {
		case <-running.ended:
			if own {
				return read, failed
			}
			// the other one began earlier: files may have changed since
			return s.readModel(ctx, name, before)
		case <-ctx.Done():
		}
	}
	s.mu.Lock()
	running.late = time.Since(running.begun) >= minHungTime
	s.mu.Unlock()
	return folder{}, fmt.Errorf("read %s: its file system does not answer",
		filepath.Join(s.dir, name))
}

// scanModel reads the folder of one model, and blocks as long as the file system does.
func (s *scanner) scanModel(model string, before *known) (folder, error) {
	path := filepath.Join(s.dir, model)
	info, err := s.statFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		if _, away := s.statFile(s.dir); away != nil {
			return folder{}, fmt.Errorf("read the model directory: %w", away)
		}
	}
	if errors.Is(err, fs.ErrNotExist) {
		if to, err := os.Readlink(path); err == nil {
			return folder{problem: fmt.Sprintf("%s is a link to %s, which is not there", path,
				to)}, nil
		}
	}
	if err == nil && !info.IsDir() {
		if problem := loneModel(path); problem != "" {
			return folder{problem: problem}, nil
		}
	}
	if errors.Is(err, fs.ErrNotExist) || err == nil && !info.IsDir() {
		return folder{}, fmt.Errorf("%w: %s is no folder", ErrNotFound, path)
	}
	if err != nil {
		return folder{}, err
	}
	numbers, others, err := s.readNumbers(path)
	if err != nil {
		return folder{}, err
	}
	f := folder{versions: map[int64]fingerprint{}}
	f.config = s.fingerprintOf(filepath.Join(path, ConfigFile), fingerprint{})
	if triton := s.fingerprintOf(filepath.Join(path, TritonFile),
		f.config); triton != (fingerprint{}) {
		f.config = triton
	}
	if f.base = f.config; f.base != (fingerprint{}) {
		f.base = s.withMemberFiles(model, f.base)
	}
	var policy VersionPolicy
	if before == nil || f.config != before.config {
		// The load of a version reports a faulty configuration. Until it is repaired, the policy
		// stays as it was.
		if c, err := configOf(s.dir, model); err == nil {
			f.policy, policy = &c.Versions, c.Versions
		}
	} else {
		policy = before.policy
	}
	for i, number := range numbers {
		was := seen{}
		named := slices.Contains(policy.Specific, number)
		if before != nil {
			was = before.versions[number]
			named = named || slices.Contains(before.choice, number)
		}
		switch {
		case i >= maxVersions && !named && (was.resting || was.files == fingerprint{}):
			f.passedOver++
		case was.resting && f.base == before.base:
			f.versions[number] = was.files
		default:
			f.versions[number] = s.fingerprintOf(filepath.Join(path, strconv.FormatInt(number, 10)),
				f.base)
		}
	}
	if len(f.versions) == 0 {
		f.problem = noVersion(path, others)
	}
	return f, nil
}

// loneModel says what to do with a file at the top of the repository that is a model; "" of
// another.
func loneModel(path string) string {
	name := filepath.Base(path)
	model := strings.TrimSuffix(name, filepath.Ext(name))
	if strings.EqualFold(filepath.Ext(name), ".onnx") && checkName(model) == nil {
		return fmt.Sprintf("%s is a file beside the folders of models: move it to %s", path,
			filepath.Join(filepath.Dir(path), model, "1", ModelFile))
	}
	if cure := onnx.ExportOf(name); cure != "" {
		return fmt.Sprintf("%s is no ONNX model: %s", path, cure)
	}
	return ""
}

func noVersion(path string, others []string) string {
	problem := fmt.Sprintf(
		"%s holds no version, expected a folder with the version's number as its name, such as %s",
		path, filepath.Join(path, "1", ModelFile))
	if len(others) > 0 {
		problem += "; found " + strings.Join(others[:min(len(others), 5)], ", ")
	}
	for _, name := range others {
		if cure := onnx.ExportOf(name); cure != "" {
			return problem + ": only ONNX models are served; " + cure
		}
	}
	return problem
}

// readNumbers returns the numbers of the versions in a model's folder, the newest first, and what
// else is there.
func (s *scanner) readNumbers(path string) (numbers []int64, others []string, err error) {
	entries, err := s.readDir(path)
	if err != nil {
		return nil, nil, err
	}
	for _, e := range entries {
		name := e.Name()
		number, err := strconv.ParseInt(name, 10, 64)
		if err != nil || number < 1 || strconv.FormatInt(number, 10) != name {
			if name != ConfigFile && name != TritonFile && !strings.HasPrefix(name, ".") {
				others = append(others, name)
			}
			continue
		}
		isDir := e.IsDir()
		if e.Type()&fs.ModeSymlink != 0 {
			info, err := s.statFile(filepath.Join(path, name))
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return nil, nil, err
			}
			isDir = err == nil && info.IsDir()
		}
		if !isDir {
			others = append(others, name)
			continue
		}
		numbers = append(numbers, number)
	}
	slices.Sort(numbers)
	slices.Reverse(numbers)
	return numbers, others, nil
}

// followLink returns where a path leads that may be a symbolic link: WalkDir does not look into a
// folder behind one. It returns a path that leads nowhere as it is.
func followLink(path string) string {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		return real
	}
	return path
}

// fingerprintOf returns the fingerprint of a file, or of a folder and all files below it, combined
// with the fingerprint base. It ignores hidden files. It follows symbolic links, except those below
// path that lead to folders. A file that cannot be read counts as present, so that the attempt to
// load it reports why.
func (s *scanner) fingerprintOf(path string, base fingerprint) fingerprint {
	h := sha256.New()
	h.Write(base[:])
	info, err := s.statFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return fingerprint{}
	}
	s.hashFile(h, "", info, err)
	if err == nil && info.IsDir() {
		s.hashFolder(h, path, "")
	}
	return fingerprint(h.Sum(nil))
}

// hashFolder hashes what is below a folder: names, relative to that of fingerprintOf, and states.
func (s *scanner) hashFolder(h hash.Hash, path, name string) {
	entries, err := s.readDir(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.hashFile(h, name, nil, err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") {
			continue
		}
		below := filepath.Join(path, e.Name())
		info, err := s.statFile(below)
		if errors.Is(err, fs.ErrNotExist) { // removed since it was listed, or a broken link
			continue
		}
		s.hashFile(h, name+"/"+e.Name(), info, err)
		if e.IsDir() {
			s.hashFolder(h, below, name+"/"+e.Name())
		}
	}
}

func (s *scanner) hashFile(h hash.Hash, name string, info fs.FileInfo, err error) {
	switch {
	case err != nil:
		fmt.Fprintf(h, "%v\n", err)
	case info.IsDir(): // its modification time does not count; its files do
		fmt.Fprintf(h, "%q\n", name)
	default:
		fmt.Fprintf(h, "%q %d %d %d\n", name, inodeOf(info), info.Size(),
			info.ModTime().UnixNano())
	}
}
