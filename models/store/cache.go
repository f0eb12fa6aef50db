package store

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/muster-serve/muster/api/files"
	"github.com/muster-serve/muster/models/dirlock"
)

// A Cache keeps what was fetched in a hidden folder of a model directory, and links it into models'
// folders there:
//
//	.store/files/HEX        a whole file, named by its SHA-256
//	.store/parts/HEX        a file of which parts are there; HEX.have says which
//	.store/models/ID/       a model's folder, of hard links to files; it never changes
//	.store/lock             which the process that uses the cache has locked
//	NAME                    a symbolic link to .store/models/ID
//
// So the versions of a model, and its settings, change at once, by the renaming of one link; a file
// that several versions have is there once; and a version that stays is the same file in the new
// folder, so that an agent does not load it again. One process at a time may use a cache: another
// would remove folders that this one has not finished, and write to files that this one has
// checked. The methods may be called concurrently, but for Install and Remove of one model.
type Cache struct {
	dir    string // the model directory
	bound  int64  // most bytes of files
	locked *os.File

	mu sync.Mutex
	// parts are, by SHA-256, the parts of the files that are being fetched; claimed is closed when
	// that has ended.
	parts   map[string]*parts
	claimed map[string]chan struct{}
	pinned  map[string]pin
}

// A pin keeps a file that no folder links to yet.
type pin struct {
	users int
	file  File
}

const (
	filesFolder  = "files"
	partsFolder  = "parts"
	modelsFolder = "models"
	// documents is the folder in a model's folder with the manifests of its versions, as
	// PLACE-VERSION.json, and their signatures behind .minisig.
	documents = ".manifests"
)

// OpenCache opens the cache of a model directory, which must exist, and makes it if there is none.
// bound is the most bytes that files may take; 0 is 80 % of the file system. OpenCache removes
// folders that an earlier process had not finished. A cache that is open, also in another process,
// is an error. The caller closes the cache.
func OpenCache(dir string, bound int64) (*Cache, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	c := &Cache{
		dir: dir, bound: bound, parts: map[string]*parts{}, claimed: map[string]chan struct{}{},
		pinned: map[string]pin{},
	}
	for _, name := range []string{filesFolder, partsFolder, modelsFolder} {
		if err := os.MkdirAll(c.pathOf(name), 0o755); err != nil {
			return nil, fmt.Errorf("open the cache of models: %w", err)
		}
	}
	if err := c.lock(); err != nil {
		return nil, fmt.Errorf("open the cache of models: %w", err)
	}
	if err := errors.Join(c.removeUnfinished(), c.freeUnfinished(), c.setBound()); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// setBound sets the bound that is the default: 4 fifths of all bytes of the file system, so that
// the logs and the state of the machine have room whatever a store claims.
func (c *Cache) setBound() error {
	if c.bound > 0 {
		return nil
	}
	disk, err := c.diskUsage()
	c.bound = disk.total / 5 * 4
	return err
}

// diskUsage are the bytes of the file system in all, and those that are free. A file system that
// does not say how large it is has no bound.
func (c *Cache) diskUsage() (bytes struct{ total, free int64 }, err error) {
	bytes.total, bytes.free, err = diskSpace(c.pathOf())
	if err != nil {
		return bytes, &fs.PathError{Op: "statfs", Path: c.pathOf(), Err: err}
	}
	if bytes.total <= 0 {
		bytes.total, bytes.free = math.MaxInt64, math.MaxInt64
	}
	return bytes, nil
}

// Over returns by how many bytes the cache is above its bound, and the bound. What is there stays.
func (c *Cache) Over() (over, bound int64, err error) {
	u, err := c.measureUsage(map[string]bool{})
	return max(u.held-c.bound, 0), c.bound, err
}

// freeUnfinished frees what files take of which an earlier process had begun to fetch parts: also
// one that was killed, or was older and took the room of a whole file before it came.
func (c *Cache) freeUnfinished() error {
	entries, err := os.ReadDir(c.pathOf(partsFolder))
	for _, e := range entries {
		sum := strings.TrimSuffix(e.Name(), ".have")
		if checkSum(sum) == nil {
			err = errors.Join(err, c.freeMissing(sum))
		}
	}
	return err
}

// lock keeps others from the cache, where the file system has locks.
func (c *Cache) lock() (err error) {
	c.locked, err = dirlock.Lock(c.pathOf("lock"))
	if held := new(dirlock.HeldError); errors.As(err, &held) {
		return fmt.Errorf("%s is in use by an agent that follows a model store, or by muster "+
			"models pull; wait until it has ended, or take another model directory: %w", c.dir,
			held)
	}
	return err
}

// Close lets other processes open the cache. This one may still read what is there, and must not
// change it.
func (c *Cache) Close() error { return c.locked.Close() }

// removeUnfinished removes the folders of models to which no link leads.
func (c *Cache) removeUnfinished() error {
	linked := map[string]bool{}
	entries, err := os.ReadDir(c.dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		linked[c.folderOf(e.Name())] = true
	}
	folders, err := os.ReadDir(c.pathOf(modelsFolder))
	if err != nil {
		return err
	}
	for _, e := range folders {
		if path := c.pathOf(modelsFolder, e.Name()); !linked[path] {
			if err := os.RemoveAll(path); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c *Cache) pathOf(elements ...string) string {
	return filepath.Join(append([]string{c.dir, ".store"}, elements...)...)
}

// folderOf returns the folder of a model that is from the store; "" if it is not.
func (c *Cache) folderOf(model string) string {
	to, err := os.Readlink(filepath.Join(c.dir, model))
	if err != nil {
		return ""
	}
	path := filepath.Join(c.dir, to)
	if filepath.Dir(path) != c.pathOf(modelsFolder) {
		return ""
	}
	return path
}

// Holds reports whether a model's folder is from the store.
func (c *Cache) Holds(model string) bool { return c.folderOf(model) != "" }

// hasFile reports whether the cache has the whole file.
func (c *Cache) hasFile(f File) bool {
	info, err := os.Stat(c.pathOf(filesFolder, f.SHA256))
	return err == nil && info.Mode().IsRegular() && info.Size() == f.Size
}

// Held returns the versions in the folder of each model that is from the store. The first one is
// that whose settings hold. What cannot be read is left out.
func (c *Cache) Held() map[string][]*Manifest {
	held := map[string][]*Manifest{}
	entries, _ := os.ReadDir(c.dir) // a directory that cannot be read holds nothing
	for _, e := range entries {
		folder := c.folderOf(e.Name())
		if folder == "" {
			continue
		}
		held[e.Name()] = heldIn(folder, e.Name())
	}
	return held
}

// heldIn returns the versions in a model's folder.
func heldIn(folder, model string) (held []*Manifest) {
	names, _ := os.ReadDir(filepath.Join(folder, documents))
	for _, f := range names { // in order: the first one is 0-VERSION.json
		var place, number int64
		n, _ := fmt.Sscanf(f.Name(), "%d-%d.json", &place, &number)
		if n != 2 || filepath.Ext(f.Name()) != ".json" {
			continue
		}
		path := filepath.Join(folder, documents, f.Name())
		data, err := files.Read(path, maxDocument)
		if err != nil {
			continue
		}
		if m, err := ParseManifest(data, model, number); err == nil {
			m.document = data
			m.signature, _ = files.Read(path+signatureEnd, maxRelease) // nil if it has none
			held = append(held, m)
		}
	}
	return held
}

// Check returns nil if a version of a model may be loaded from the model directory: if the model is
// not from the store, for its folder is then its operator's, or if one of the keys has signed the
// version's manifest, and that of the version whose settings hold, and the files are those that the
// manifests name. It reads all of them, and returns soon after ctx ends. fromStore is whether the
// model is from the store.
func (c *Cache) Check(ctx context.Context, model string, version int64, keys Keys) (fromStore bool,
	err error) {
	folder := c.folderOf(model)
	if folder == "" {
		return false, nil
	}
	held := heldIn(folder, model)
	i := slices.IndexFunc(held, func(m *Manifest) bool { return m.Version == version })
	if i < 0 {
		return true,
			fmt.Errorf("%s version %d: %w: the model is from the store, and this version is not",
				model, version, ErrSignature)
	}
	var all []File
	for _, m := range slices.Compact([]*Manifest{held[0], held[i]}) {
		if err := m.Verify(keys); err != nil {
			return true, err
		}
		for _, f := range m.Files {
			isSettings := slices.Contains(settings, f.Path)
			if isSettings && m == held[0] || !isSettings && m == held[i] {
				all = append(all, f)
			}
		}
	}
	for _, name := range settings {
		_, err := os.Lstat(filepath.Join(folder, name))
		if err == nil && !slices.ContainsFunc(all, func(f File) bool { return f.Path == name }) {
			return true, fmt.Errorf("%s: %w: %s is beside it, and the manifest does not name it",
				held[i],
				ErrSignature, name)
		}
	}
	for _, f := range all {
		found, err := sumFile(ctx, filepath.Join(folder, filepath.FromSlash(f.Path)))
		if err == nil && found.SHA256 != f.SHA256 {
			err = fmt.Errorf("%s: %w: %s has the SHA-256 %s, the manifest says %s; remove the model's "+
				"folder and %s to fetch it again", held[i], ErrSignature, f.Path, found.SHA256,
				f.SHA256, c.pathOf(filesFolder, f.SHA256))
		}
		if err != nil {
			return true, err
		}
	}
	return true, nil
}

// Install makes the folder of a model hold the given versions, whose files the cache must have, and
// no others. The settings are those of the first one. All changes at once, or nothing does. It
// returns false if the folder was like that. A folder that is not from the store stays, which is an
// error.
func (c *Cache) Install(model string, versions []*Manifest) (changed bool, err error) {
	if err := CheckName(model); err != nil {
		return false, err
	}
	hash := sha256.New()
	fmt.Fprintf(hash, "%s\n", model)
	for _, m := range versions {
		hash.Write(write(m))
		if m.signature != nil { // the folder with it is another
			hash.Write(m.documentText())
			hash.Write(m.signature)
		}
	}
	folder := c.pathOf(modelsFolder, hex.EncodeToString(hash.Sum(nil)[:16]))
	link := filepath.Join(c.dir, model)
	before := c.folderOf(model)
	if before == folder {
		if _, err := os.Stat(folder); !errors.Is(err, fs.ErrNotExist) {
			return false, err
		}
		// Somebody has removed the folder.
	}
	if _, err := os.Lstat(link); before == "" && !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("%s is there and not from the store; move it away to serve the "+
			"store's %s: %w", link, model, fs.ErrExist)
	}
	if err := c.buildFolder(folder, versions); err != nil {
		return false, errors.Join(err, os.RemoveAll(folder))
	}
	to, err := filepath.Rel(c.dir, folder)
	if err != nil {
		return false, err
	}
	temporary := folder + ".link"
	if err := os.Remove(temporary); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	if err := os.Symlink(to, temporary); err != nil {
		return false, err
	}
	if err := os.Rename(temporary, link); err != nil {
		return false, err
	}
	if before != "" && before != folder {
		err = os.RemoveAll(before)
	}
	return true, err
}

// buildFolder makes the folder of a model from files of the cache.
func (c *Cache) buildFolder(folder string, versions []*Manifest) error {
	if err := os.RemoveAll(folder); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(folder, documents), 0o755); err != nil {
		return err
	}
	for i, m := range versions {
		if err := m.Validate(); err != nil { // no path may lead out of the folder
			return err
		}
		for _, f := range m.Files {
			if i > 0 && slices.Contains(settings, f.Path) {
				continue
			}
			path := filepath.Join(folder, filepath.FromSlash(f.Path))
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				return err
			}
			if err := os.Link(c.pathOf(filesFolder, f.SHA256), path); err != nil {
				return err
			}
		}
		document := filepath.Join(folder, documents, fmt.Sprintf("%d-%d.json", i, m.Version))
		if err := os.WriteFile(document, m.documentText(), 0o644); err != nil {
			return err
		}
		if m.signature != nil {
			if err := os.WriteFile(document+signatureEnd, m.signature, 0o644); err != nil {
				return err
			}
		}
	}
	return nil
}

// Remove takes a model that is from the store out of the model directory. Its files stay in the
// cache until others need their place.
func (c *Cache) Remove(model string) error {
	folder := c.folderOf(model)
	if folder == "" {
		return nil
	}
	return errors.Join(os.Remove(filepath.Join(c.dir, model)), os.RemoveAll(folder))
}

// pinFiles keeps files from being removed until the returned function is called.
func (c *Cache) pinFiles(files []File) (unpin func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, f := range files {
		c.pinned[f.SHA256] = pin{c.pinned[f.SHA256].users + 1, f}
	}
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, f := range files {
			p := c.pinned[f.SHA256]
			if p.users--; p.users > 0 {
				c.pinned[f.SHA256] = p
			} else {
				delete(c.pinned, f.SHA256)
			}
		}
	}
}

// idle is a file that no folder links to.
type idle struct {
	path  string
	bytes int64
	left  time.Time
}

// A fileStat is what a file system keeps of a file beside its size.
type fileStat struct {
	bytes int64 // that it takes on the disk, without holes
	links uint64
	// changed is when its inode changed, as it does with its links: when a folder let go of it.
	changed time.Time
}

// usage is what the files of a cache take.
type usage struct {
	held   int64 // bytes of whole files, and of parts of others than those that are wanted
	begun  int64 // bytes of the parts of those
	unused []idle
}

// measureUsage looks at the files of the cache. Those in wanted do not count as unused.
func (c *Cache) measureUsage(wanted map[string]bool) (u usage, err error) {
	for _, folder := range []string{filesFolder, partsFolder} {
		entries, err := os.ReadDir(c.pathOf(folder))
		if err != nil {
			return u, err
		}
		for _, e := range entries {
			info, err := e.Info()
			if err != nil {
				continue // it was removed meanwhile
			}
			path, size := c.pathOf(folder, e.Name()), info.Size()
			stat, ok := readFileStat(path, info)
			if !ok {
				continue
			}
			sum := e.Name()[:min(len(e.Name()), 64)]
			if folder == partsFolder {
				size = stat.bytes // what has not come takes nothing
				if wanted[sum] {
					u.begun += size
					continue
				}
			}
			u.held += size
			if stat.links == 1 && !wanted[sum] {
				u.unused = append(u.unused, idle{path, size, stat.changed})
			}
		}
	}
	slices.SortFunc(u.unused, func(a, b idle) int { return a.left.Compare(b.left) })
	return u, nil
}

// Room makes room for the given files, beside those that others have pinned and what the folders of
// models hold: it removes files that no folder links to, those first that were left longest ago.
// What a folder links to, and so all that serves, stays, even where the cache is above its bound.
// The error says by how much there is too little.
func (c *Cache) Room(wanted []File) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	need := int64(0)
	counted := map[string]bool{}
	count := func(f File) {
		if !counted[f.SHA256] && !c.hasFile(f) {
			need += min(f.Size, math.MaxInt64-need)
		}
		counted[f.SHA256] = true
	}
	for _, f := range wanted {
		count(f)
	}
	if need == 0 { // whatever others want
		return nil
	}
	for _, p := range c.pinned {
		count(p.file)
	}
	u, err := c.measureUsage(counted)
	if err != nil {
		return err
	}
	disk, err := c.diskUsage()
	if err != nil {
		return err
	}
	lacks := func() bool { return need > c.bound-u.held || need-u.begun > disk.free }
	for _, f := range u.unused {
		if !lacks() {
			break
		}
		if err := os.Remove(f.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		u.held -= f.bytes
		disk.free += f.bytes
	}
	if need > c.bound-u.held {
		return fmt.Errorf("the cache of models in %s may take %d bytes (model-cache-size); %d are in "+
			"use and %d more are needed", c.dir, c.bound, u.held, need)
	}
	if need-u.begun > disk.free {
		return fmt.Errorf("the disk of %s has %d bytes left, and %d are needed: %w", c.dir,
			disk.free,
			need-u.begun, syscall.ENOSPC)
	}
	return nil
}
