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

// EnvDir is the environment variable that places the cache: a directory, a
// list of directories (the first is written, the others only read), or Off.
// An empty first element of a list stands for DefaultDir.
const EnvDir = "SONICMOE_CACHE"

// Off in place of a directory turns the cache off.
const Off = "off"

const (
	// DefaultMaxBytes is the size bound where Options has none: 1 GiB,
	// thousands of modules.
	defaultMaxBytes = 1 << 30
	// DefaultLockWait is how long Lock waits where Options does not say.
	defaultLockWait = 20 * time.Second
)

// Options places and bounds a cache. The zero value is the user's own cache.
type Options struct {
	// Dir is the directory that is read first and written. If it is empty
	// EnvDir decides, and without that it is "sonicmoe" in the user's cache
	// directory (os.UserCacheDir). Off turns the cache off.
	Dir string
	// Layers are more directories or bundles (see Export), looked up in order
	// after Dir and never written: what an image or an administrator provides. A
	// module without machine code for this device does not hide one of a later
	// layer; see GetChoiceFor for choices.
	Layers []string
	// ReadOnly forbids writing to Dir too: no entry, no touch, no set-aside.
	// Dir may be a bundle then.
	ReadOnly bool
	// MaxBytes bounds the files in Dir, in bytes; 0 means DefaultMaxBytes,
	// less than 0 no bound. The least recently used go first.
	MaxBytes int64
	// LockWait is how long Lock waits; 0 means DefaultLockWait.
	LockWait time.Duration
	// Logger hears, as warnings, of a directory that can't be used or written
	// (once a cache) and of damaged files (once a process and file). Nil means
	// silence.
	Logger *slog.Logger
}

// Cache stores modules and choices on disk. It is safe for concurrent use, and
// several of them, in several processes, may share a directory. It holds no
// open files and needs no closing.
type Cache struct {
	fs       disk.FS
	top      *layer   // the one that is written; nil if none is
	layers   []*layer // in the order of looking up, top included
	maxBytes int64
	lockWait time.Duration
	log      *slog.Logger
	counters counters

	// What the log hears once a cache.
	warnOnce, lockOnce sync.Once

	errMu sync.Mutex
	err   error

	merging [16]sync.Mutex // by key: read, merge, write of one process
	usage   usage
}

// Open makes a cache. It can't fail: with a directory that can't be used the
// cache misses, stores nothing, warns once and says why in Err.
func Open(o Options) *Cache { return open(o, disk.OS) }

// open is Open on a file system.
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
	for i, dir := range dirs {
		writable := i == 0 && !o.ReadOnly && err == nil
		l, err := openLayer(fsys, dir, writable)
		if err != nil {
			c.trouble("cache directory can't be used", err)
			continue
		}
		c.layers = append(c.layers, l)
		if writable {
			c.top = l
		}
	}
	return c
}

// DefaultDir is the directory of a cache that neither Options nor EnvDir places.
func DefaultDir() (string, error) {
	base, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("%w; set %s to a directory or to %q", err, EnvDir, Off)
	}
	return filepath.Join(base, "sonicmoe"), nil
}

// directories lists where to look, in order. With an error the place to write
// is missing and the rest is only to be read.
func directories(o Options) ([]string, error) {
	if o.Dir == Off {
		return nil, nil
	}
	if o.Dir != "" {
		return append([]string{o.Dir}, o.Layers...), nil
	}
	env := os.Getenv(EnvDir)
	if env == Off {
		return nil, nil
	}
	list := append(filepath.SplitList(env), "")
	first, rest := list[0], list[1:]
	rest = slices.DeleteFunc(rest, func(dir string) bool { return dir == "" })
	rest = append(rest, o.Layers...)
	if first == "" {
		dir, err := DefaultDir()
		if err != nil {
			return rest, err
		}
		first = dir
	}
	return append([]string{first}, rest...), nil
}

// Dir is the directory that is written, "" if none is.
func (c *Cache) Dir() string {
	if c.top == nil {
		return ""
	}
	return filepath.Dir(c.top.dir)
}

// Err says why a directory could not be opened or the latest failed write
// failed; nil means that there was no trouble. A program that goes on without
// its cache has no need to ask; one whose purpose is to fill it has.
func (c *Cache) Err() error {
	c.errMu.Lock()
	defer c.errMu.Unlock()
	return c.err
}

// trouble keeps an error for Err and warns of the first one.
func (c *Cache) trouble(text string, err error) {
	c.errMu.Lock()
	c.err = fmt.Errorf("cache: %s: %w", text, err)
	c.errMu.Unlock()
	c.sayOnce(&c.warnOnce, "cache: "+text+"; going on without, which costs only speed", err)
}

// sayOnce warns of an error, of its sort once.
func (c *Cache) sayOnce(once *sync.Once, text string, err error) {
	once.Do(func() { c.log.Warn(text, "error", err) })
}

// said holds the paths of damaged files that a log has heard of.
var said sync.Map

// reportDamage sets a damaged file aside and says so once.
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

// lookup finds a file in the first layer that has a sound one whose content is
// enough, or in the first that has a sound one at all.
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

// sound is enough for a caller whom any content serves.
func sound[T any](T) bool { return true }

// isDamage tells a bad file from one that is absent or can't be read now.
func isDamage(err error) bool { return errors.Is(err, errDamaged) || errors.Is(err, errVersion) }

// put stores an encoded file in the top layer.
func (c *Cache) put(name string, data []byte, err error) store.Outcome {
	if err == nil && c.maxBytes > 0 && int64(len(data)) > c.maxBytes {
		err = fmt.Errorf("%s: %d bytes, the whole cache may have %d", name, len(data), c.maxBytes)
	}
	if err == nil {
		err = c.top.store(name, data)
	}
	if disk.IsFull(err) && c.makeRoom(name, int64(len(data))) {
		c.sayOnce(&c.warnOnce, "cache: the disk is full; the least recently used files make room", err)
		err = c.top.store(name, data)
	}
	if err != nil {
		// Where a file in use can't be replaced, another may have been faster.
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

// writeOutcome says why nothing can be stored, or Stored if it can.
func (c *Cache) writeOutcome() store.Outcome {
	switch {
	case len(c.layers) == 0:
		return store.Disabled
	case c.top == nil:
		return store.ReadOnly
	}
	return store.Stored
}

// remove deletes a file of the top layer.
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
