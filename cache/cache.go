package cache

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"sonicmoe/internal/disk"
	"sonicmoe/internal/store"
)

// envDir is the environment variable that names the cache: a directory, a list of directories,
// or off. The first directory of a list is written, and the others are only read. If the first
// element of a list is empty, it means the user's cache directory.
const envDir = "SONICMOE_CACHE"

// off turns the cache off if it is given instead of a directory.
const off = "off"

const (
	// defaultMaxBytes is the size limit if Options sets none: 1 GiB, room for
	// thousands of modules.
	defaultMaxBytes = 1 << 30
	// defaultLockWait is the waiting time of Lock if Options sets none.
	defaultLockWait = 20 * time.Second
)

// Options says where a cache is and limits it. The zero value is the cache of the present user.
type Options struct {
	// Dir is the directory that is written, and that is read first. If it is empty, the
	// variable SONICMOE_CACHE decides. If that is not set either, Dir is "sonicmoe" in the
	// user's cache directory (os.UserCacheDir). "off" turns the cache off.
	Dir string
	// Layers are further directories or bundles (see Export), for example from a container
	// image or an administrator. They are searched in order after Dir, and are never written.
	// If the module in one cache layer has no machine code for this device, the search
	// continues in the next layer. For choices see GetChoiceFor.
	Layers []string
	// Key is a public key of the program minisign: the key's text, or the path of a file with
	// the key. If Key is empty, the variable SONICMOE_CACHE_KEY decides. A cache with a key
	// uses and imports only signed bundles, and its Layers may not be directories. The
	// signature of the file BUNDLE is the file BUNDLE.minisig. It contains the bundle's name
	// and the time of signing. If Dir has a record of a bundle with the same name that was
	// signed later, the bundle is refused.
	Key string
	// ReadOnly forbids every change in Dir. The cache then stores nothing, updates no time of
	// use, and sets no damaged file aside. Dir may then be a bundle.
	ReadOnly bool
	// MaxBytes is the largest total size of the files in Dir. 0 means 1 GiB, and a negative
	// value means no limit. The least recently used files are removed first.
	MaxBytes int64
	// LockWait is the longest time for which a process waits while another process compiles the
	// same module. 0 means 20 seconds.
	LockWait time.Duration
	// Logger receives warnings about a directory that cannot be used or written (once for each
	// cache) and about damaged files (once for each file and process). Nil disables the
	// warnings.
	Logger *slog.Logger
}

// Cache stores modules and choices on disk. It is safe for concurrent use. Several caches, also
// in several processes, may share a directory. A Cache keeps no file open and need not be
// closed.
type Cache struct {
	fs       disk.FS
	top      *layer   // the directory that is written; nil if there is none
	layers   []*layer // in the order of the search, including top
	signer   *signer  // nil if the cache has no key
	maxBytes int64
	lockWait time.Duration
	log      *slog.Logger
	counters counters

	// warnOnce and lockOnce make sure that a cache logs each of two warnings only once.
	warnOnce, lockOnce sync.Once

	errMu sync.Mutex
	err   error

	merging [16]sync.Mutex // one of them, chosen by the key, is held while an entry is read, merged and written in this process
	usage   usage
}

// Open returns a cache. It cannot fail: if the directory cannot be used, the cache
// finds and stores nothing, logs one warning, and Err returns the reason.
func Open(o Options) *Cache { return open(o, disk.OS) }

// open is [Open] for the file system fsys.
func open(o Options, fsys disk.FS) *Cache {
	c := &Cache{fs: fsys, maxBytes: o.MaxBytes, lockWait: o.LockWait, log: o.Logger}
	if c.maxBytes == 0 {
		c.maxBytes = defaultMaxBytes
	}
	if c.lockWait == 0 {
		c.lockWait = defaultLockWait
	}
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	dirs, err := directories(o)
	if err != nil {
		c.trouble("no cache directory", err)
	}
	if c.signer = newSigner(fsys, o.Key); c.signer != nil && c.signer.err != nil {
		c.trouble("no bundle can be used", c.signer.err)
	}
	for i, dir := range dirs {
		own := i == 0 && err == nil
		writable := own && !o.ReadOnly
		l, err := openLayer(fsys, dir, writable, c.signer)
		if err == nil && !own && l.bundle == nil && c.signer != nil {
			err = fmt.Errorf("%s is a directory, which no signature covers: with a key, use a signed bundle", dir)
		}
		if err != nil {
			c.trouble("cache directory can't be used", err)
			continue
		}
		c.layers = append(c.layers, l)
		if writable {
			c.top = l
			if c.signer != nil {
				c.signer.dir = c.Dir()
			}
		}
	}
	return c
}

// directories returns the directories to search, in order. If err is not nil, no directory can
// be written, but those returned can still be read.
func directories(o Options) ([]string, error) {
	if o.Dir == off {
		return nil, nil
	}
	if o.Dir != "" {
		return append([]string{o.Dir}, o.Layers...), nil
	}
	env := os.Getenv(envDir)
	if env == off {
		return nil, nil
	}
	list := append(filepath.SplitList(env), "")
	first, rest := list[0], list[1:]
	rest = slices.DeleteFunc(rest, func(dir string) bool { return dir == "" })
	rest = append(rest, o.Layers...)
	if first == "" {
		dir, err := store.DefaultDir()
		if err != nil {
			return rest, err
		}
		first = dir
	}
	return append([]string{first}, rest...), nil
}

// Dir returns the directory that is written, or "" if there is none.
func (c *Cache) Dir() string {
	if c.top == nil {
		return ""
	}
	return filepath.Dir(c.top.dir)
}

// Err returns an error if a directory could not be opened, or if the latest write failed. A
// program that only uses a cache need not call Err. A program that fills a cache must.
func (c *Cache) Err() error {
	c.errMu.Lock()
	defer c.errMu.Unlock()
	return c.err
}

// trouble keeps an error for [Cache.Err], and logs the first error.
func (c *Cache) trouble(text string, err error) {
	c.errMu.Lock()
	c.err = fmt.Errorf("cache: %s: %w", text, err)
	c.errMu.Unlock()
	c.sayOnce(&c.warnOnce, "cache: "+text+"; continuing without the cache, which costs only speed", err)
}

// sayOnce logs an error, but only in the first call with the same sync.Once.
func (c *Cache) sayOnce(once *sync.Once, text string, err error) {
	once.Do(func() { c.log.Warn(text, "error", err) })
}

// said holds the paths of damaged files that this process has logged.
var said sync.Map

// reportDamage sets a damaged file aside, and logs it once.
func (c *Cache) reportDamage(l *layer, name string, fi fs.FileInfo, err error) {
	aside := l.setAside(name, fi)
	if !c.log.Enabled(context.Background(), slog.LevelWarn) {
		return
	}
	path := l.path(name)
	if _, again := said.LoadOrStore(path, true); again {
		return
	}
	moved := ""
	if aside {
		moved = path + badSuffix
	}
	c.log.Warn("cache: file ignored", "path", path, "reason", err, "moved_to", moved)
}

// lookup searches the cache layers for the file with a name. It returns the content of the first
// undamaged file for which the function enough returns true. If there is none, it returns the
// content of the first undamaged file.
func lookup[T any](c *Cache, name string, decode func(data []byte) (T, error), enough func(T) bool) (found T, o store.Outcome) {
	if len(c.layers) == 0 {
		return found, store.Disabled
	}
	o = store.Miss
	for _, l := range c.layers {
		data, fi, err := l.read(name)
		var v T
		if err == nil {
			v, err = decode(data)
		}
		switch {
		case err == nil:
			l.touch(name, fi)
			c.counters.bytesRead.Add(int64(len(data)))
			if enough(v) {
				return v, store.Hit
			}
			if o != store.Hit {
				found, o = v, store.Hit
			}
		case isDamage(err):
			c.reportDamage(l, name, fi, err)
			if o != store.Hit {
				o = store.Damaged
			}
		case !errors.Is(err, fs.ErrNotExist):
			c.trouble("file can't be read", err)
		}
	}
	return found, o
}

// sound returns true for every content, as an argument of lookup.
func sound[T any](T) bool { return true }

// isDamage reports whether an error means that the content of a file is wrong. It is false for
// a file that is absent or cannot be read.
func isDamage(err error) bool { return errors.Is(err, errDamaged) || errors.Is(err, errVersion) }

// put stores an encoded file in the directory that is written.
func (c *Cache) put(name string, data []byte, err error) store.Outcome {
	if err == nil && c.maxBytes > 0 && int64(len(data)) > c.maxBytes {
		err = fmt.Errorf("%s: %d bytes exceed the limit of the whole cache, %d", name, len(data), c.maxBytes)
	}
	if err == nil {
		err = c.top.store(name, data)
	}
	if disk.IsFull(err) && c.makeRoom(name, int64(len(data))) {
		c.sayOnce(&c.warnOnce, "cache: the disk is full; removing the least recently used files", err)
		err = c.top.store(name, data)
	}
	if err != nil {
		// A file in use may not be replaceable. It has the right content already if another
		// process stored the same.
		if have, _, readErr := c.top.read(name); readErr == nil && bytes.Equal(have, data) {
			return store.Unchanged
		}
		c.trouble("entry can't be stored", err)
		return store.Failed
	}
	c.counters.bytesWritten.Add(int64(len(data)))
	c.keepBound(name, int64(len(data)))
	return store.Stored
}

// writeOutcome returns Stored if the cache can store files. Otherwise it returns the outcome
// that says why it cannot.
func (c *Cache) writeOutcome() store.Outcome {
	switch {
	case len(c.layers) == 0:
		return store.Disabled
	case c.top == nil:
		return store.ReadOnly
	}
	return store.Stored
}

// remove deletes a file of the directory that is written.
func (c *Cache) remove(name string) store.Outcome {
	if o := c.writeOutcome(); o != store.Stored {
		return o
	}
	switch err := c.fs.Remove(c.top.path(name)); {
	case err == nil:
		return store.Deleted
	case errors.Is(err, fs.ErrNotExist):
		return store.Miss
	default:
		c.trouble("entry can't be deleted", err)
		return store.Failed
	}
}
