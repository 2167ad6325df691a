package cache

import (
	"fmt"
	"io"
	"io/fs"
	"sync"

	"sonicmoe/internal/disk"
)

// bundleFile is a bundle used as a read-only layer without unpacking. It keeps no
// file open.
type bundleFile struct {
	fs   disk.FS
	path string

	mu    sync.Mutex
	index *bundleIndex
}

// bundleIndex lists the positions of the files in a bundle.
type bundleIndex struct {
	info  fs.FileInfo // of the bundle when it was indexed
	order []string
	where map[string]extent
}

type extent struct{ offset, size int64 }

// openBundle reads a bundle's headers. The files themselves are checked when they
// are read, as in a directory.
func openBundle(fsys disk.FS, path string) (*bundleFile, error) {
	b := &bundleFile{fs: fsys, path: path}
	f, _, err := b.open()
	if err != nil {
		return nil, err
	}
	return b, f.Close()
}

// open opens the bundle and returns its index. If another file has replaced the
// bundle, as a deployment does, open indexes the new file.
func (b *bundleFile) open() (disk.File, *bundleIndex, error) {
	f, info, err := disk.OpenRegular(b.fs, b.path, true)
	if err != nil {
		return nil, nil, err
	}
	x, err := b.indexOf(f, info)
	if err != nil {
		f.Close()
		return nil, nil, fmt.Errorf("%s: neither a cache directory nor a bundle: %w", b.path, err)
	}
	return f, x, nil
}

// indexOf returns the index of an open bundle.
func (b *bundleFile) indexOf(f disk.File, info fs.FileInfo) (*bundleIndex, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if x := b.index; x != nil && b.fs.SameFile(x.info, info) && x.info.Size() == info.Size() && x.info.ModTime().Equal(info.ModTime()) {
		return x, nil
	}
	x := &bundleIndex{info: info, where: map[string]extent{}}
	if err := x.index(f); err != nil {
		return nil, err
	}
	b.index = x
	return x, nil
}

// index walks the headers up to the last member.
func (x *bundleIndex) index(f io.ReaderAt) error {
	for at := int64(0); ; {
		b := newBundleReader(io.NewSectionReader(f, at, 2*tarBlock))
		b.at = at
		if at == 0 {
			if err := b.first(); err != nil {
				return err
			}
			at = b.at
			continue
		}
		name, size, err := b.header()
		if err != nil {
			return err
		}
		if name == lastName {
			return nil
		}
		kind, key, ok := parseMemberName(name)
		if !ok {
			return b.refuse("member name %q", name)
		}
		stored := fileName(kind, key)
		if n := len(x.order); n > 0 && stored <= x.order[n-1] {
			return b.refuse("file %s is repeated or out of order", stored)
		}
		x.order = append(x.order, stored)
		x.where[stored] = extent{b.at, size}
		at = b.at + size + padding(size)
	}
}

// read returns a file's bytes, and the bundle's file info.
func (b *bundleFile) read(name string) ([]byte, fs.FileInfo, error) {
	f, x, err := b.open()
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	e, ok := x.where[name]
	if !ok {
		return nil, nil, &fs.PathError{Op: "open", Path: b.path + ":" + memberName(name), Err: fs.ErrNotExist}
	}
	data, err := readStored(io.NewSectionReader(f, e.offset, e.size), e.size, name)
	return data, x.info, err
}

// scan lists the files. Times of use are not known, so each is the time at which
// the bundle was made.
func (b *bundleFile) scan() ([]file, error) {
	f, x, err := b.open()
	if err != nil {
		return nil, err
	}
	defer f.Close()
	files := make([]file, len(x.order))
	for i, name := range x.order {
		class, kind, key := classify(name)
		files[i] = file{name: name, class: class, kind: kind, key: key, size: x.where[name].size, used: x.info.ModTime(), info: x.info}
	}
	return files, nil
}
