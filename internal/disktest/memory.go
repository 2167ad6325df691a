package disktest

import (
	"bytes"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"sonicmoe/internal/disk"
)

// Memory is a file system in memory. As on a real disk, the content of a file is safe once the
// file was synced, and a name is safe once its directory was synced. Changes of names may also
// become safe without a sync, in the order in which they were made. Memory is safe for
// concurrent use.
type Memory struct {
	mu    sync.Mutex
	names map[string]*node
	// durable holds the names that survive a power cut. pending holds the later changes of
	// names, in order.
	durable map[string]*node
	pending []change
}

// node is a file or a directory.
type node struct {
	dir     bool
	mode    fs.FileMode
	data    []byte
	synced  []byte
	changed time.Time
	holder  *memoryFile // the open file that holds the lock
}

// change maps names to their new nodes, or to nil if they are removed. A power cut keeps either
// all of a change or none.
type change map[string]*node

// NewMemory returns an empty file system.
func NewMemory() *Memory {
	root := &node{dir: true, mode: 0o777}
	return &Memory{names: map[string]*node{string(filepath.Separator): root}, durable: map[string]*node{string(filepath.Separator): root}}
}

// PowerCut discards everything that was not synced. It keeps a random number of the pending
// changes of names, in order. For a file whose content was not synced, the old content remains,
// or a part of the new content, or zeros.
func (m *Memory) PowerCut(r *rand.Rand) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range m.pending[:r.IntN(len(m.pending)+1)] {
		c.apply(m.durable)
	}
	m.pending, m.names = nil, map[string]*node{}
	seen := map[*node]*node{}
	for _, name := range slices.Sorted(maps.Keys(m.durable)) {
		n := m.durable[name]
		if seen[n] == nil {
			seen[n] = n.afterCut(r)
		}
		m.names[name] = seen[n]
	}
	m.durable = maps.Clone(m.names)
}

// afterCut returns a file with the content that remains after a power cut.
func (n *node) afterCut(r *rand.Rand) *node {
	left := *n
	left.holder, left.data = nil, bytes.Clone(n.data)
	if !n.dir && !bytes.Equal(n.data, n.synced) {
		switch r.IntN(4) {
		case 0:
			left.data = bytes.Clone(n.synced)
		case 1:
			left.data = left.data[:r.IntN(len(left.data)+1)]
		case 2:
			clear(left.data[r.IntN(len(left.data)+1):])
		case 3:
			clear(left.data)
		}
	}
	left.synced = bytes.Clone(left.data)
	return &left
}

func (c change) apply(names map[string]*node) {
	for name, n := range c {
		if n == nil {
			delete(names, name)
		} else {
			names[name] = n
		}
	}
}

// rename applies a change of names, which a power cut may still undo.
func (m *Memory) rename(c change) {
	c.apply(m.names)
	m.pending = append(m.pending, c)
}

func fail(op, path string, err error) error { return &fs.PathError{Op: op, Path: path, Err: err} }

func (m *Memory) MkdirAll(dir string, mode fs.FileMode) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.mkdirAll(dir, mode)
}

func (m *Memory) mkdirAll(dir string, mode fs.FileMode) error {
	if n := m.names[dir]; n != nil {
		if !n.dir {
			return fail("mkdir", dir, syscall.ENOTDIR)
		}
		return nil
	}
	if err := m.mkdirAll(filepath.Dir(dir), mode); err != nil {
		return err
	}
	m.rename(change{dir: {dir: true, mode: mode, changed: time.Now()}})
	return nil
}

func (m *Memory) Open(path string, _ bool) (disk.File, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.names[path]
	if n == nil {
		return nil, fail("open", path, fs.ErrNotExist)
	}
	return &memoryFile{m: m, n: n, name: path}, nil
}

func (m *Memory) Create(path string) (disk.File, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.names[path] != nil {
		return nil, fail("open", path, fs.ErrExist)
	}
	return m.create(path)
}

func (m *Memory) create(path string) (disk.File, error) {
	if parent := m.names[filepath.Dir(path)]; parent == nil || !parent.dir {
		return nil, fail("open", path, fs.ErrNotExist)
	}
	n := &node{mode: 0o600, changed: time.Now()}
	m.rename(change{path: n})
	return &memoryFile{m: m, n: n, name: path}, nil
}

func (m *Memory) OpenLock(path string) (disk.File, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if n := m.names[path]; n != nil {
		return &memoryFile{m: m, n: n, name: path}, nil
	}
	return m.create(path)
}

func (m *Memory) Rename(from, to string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.names[from]
	if n == nil {
		return fail("rename", from, fs.ErrNotExist)
	}
	m.rename(change{from: nil, to: n})
	return nil
}

func (m *Memory) Remove(path string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.names[path] == nil {
		return fail("remove", path, fs.ErrNotExist)
	}
	m.rename(change{path: nil})
	return nil
}

func (m *Memory) RemoveAll(path string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := change{}
	for name := range m.names {
		if name == path || strings.HasPrefix(name, path+string(filepath.Separator)) {
			c[name] = nil
		}
	}
	m.rename(c)
	return nil
}

func (m *Memory) Stat(path string, _ bool) (fs.FileInfo, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.names[path]
	if n == nil {
		return nil, fail("stat", path, fs.ErrNotExist)
	}
	return n.info(path), nil
}

func (m *Memory) SameFile(a, b fs.FileInfo) bool { return a.(info).n == b.(info).n }

func (m *Memory) ReadDir(dir string) ([]fs.DirEntry, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.names[dir] == nil {
		return nil, fail("open", dir, fs.ErrNotExist)
	}
	var list []fs.DirEntry
	for _, name := range slices.Sorted(maps.Keys(m.names)) {
		if filepath.Dir(name) == dir && name != dir {
			list = append(list, fs.FileInfoToDirEntry(m.names[name].info(name)))
		}
	}
	return list, nil
}

func (m *Memory) SetTime(path string, t time.Time) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.names[path]
	if n == nil {
		return fail("chtimes", path, fs.ErrNotExist)
	}
	n.changed = t
	return nil
}

func (m *Memory) SyncDir(dir string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.pending = slices.DeleteFunc(m.pending, func(c change) bool {
		for name := range c {
			if filepath.Dir(name) != dir {
				return false
			}
		}
		c.apply(m.durable)
		return true
	})
	return nil
}

// info describes a node.
type info struct {
	n       *node
	name    string
	size    int64
	mode    fs.FileMode
	changed time.Time
}

func (n *node) info(path string) info {
	mode := n.mode
	if n.dir {
		mode |= fs.ModeDir
	}
	return info{n, filepath.Base(path), int64(len(n.data)), mode, n.changed}
}

func (i info) Name() string       { return i.name }
func (i info) Size() int64        { return i.size }
func (i info) Mode() fs.FileMode  { return i.mode }
func (i info) ModTime() time.Time { return i.changed }
func (i info) IsDir() bool        { return i.mode.IsDir() }
func (i info) Sys() any           { return nil }

// memoryFile is an open file.
type memoryFile struct {
	m    *Memory
	n    *node
	name string
	at   int64
}

func (f *memoryFile) Name() string { return f.name }

func (f *memoryFile) ReadAt(b []byte, at int64) (int, error) {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	return bytes.NewReader(f.n.data).ReadAt(b, at)
}

func (f *memoryFile) Read(b []byte) (int, error) {
	n, err := f.ReadAt(b, f.at)
	f.at += int64(n)
	if n > 0 {
		err = nil
	}
	return n, err
}

func (f *memoryFile) Seek(offset int64, whence int) (int64, error) {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	switch whence {
	case io.SeekCurrent:
		offset += f.at
	case io.SeekEnd:
		offset += int64(len(f.n.data))
	}
	f.at = offset
	return f.at, nil
}

// Write appends to the file. No caller writes anywhere else.
func (f *memoryFile) Write(b []byte) (int, error) {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	f.n.data, f.n.changed = append(f.n.data, b...), time.Now()
	return len(b), nil
}

func (f *memoryFile) Stat() (fs.FileInfo, error) {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	return f.n.info(f.name), nil
}

func (f *memoryFile) Chmod(mode fs.FileMode) error {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	f.n.mode = mode
	return nil
}

func (f *memoryFile) Sync() error {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	f.n.synced = bytes.Clone(f.n.data)
	return nil
}

func (f *memoryFile) TryLock() (busy bool, err error) {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if f.n.holder != nil && f.n.holder != f {
		return true, nil
	}
	f.n.holder = f
	return false, nil
}

func (f *memoryFile) Close() error {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if f.n.holder == f {
		f.n.holder = nil
	}
	return nil
}
