package cache

import (
	"fmt"
	"io"
	"io/fs"
	"os"
)

// bundleIndex is where the files of a bundle lie, so that a bundle serves as a
// read-only layer without being unpacked. It holds no open file.
type bundleIndex struct {
	path  string
	info  fs.FileInfo // of the bundle
	order []string
	where map[string]extent
}

type extent struct{ offset, size int64 }

// openBundle reads a bundle's headers. The files' bytes are checked when they
// are read, as those of a directory are.
func openBundle(path string) (*bundleIndex, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	x := &bundleIndex{path: path, where: map[string]extent{}}
	if x.info, err = f.Stat(); err != nil {
		return nil, err
	}
	if err := x.index(f); err != nil {
		return nil, fmt.Errorf("%s: neither a cache directory nor a bundle: %w", path, err)
	}
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
			return b.refuse("file %s comes twice or out of order", stored)
		}
		x.order = append(x.order, stored)
		x.where[stored] = extent{b.at, size}
		at = b.at + size + padding(size)
	}
}

// read returns a file's bytes, and the bundle's file info.
func (x *bundleIndex) read(name string) ([]byte, fs.FileInfo, error) {
	e, ok := x.where[name]
	if !ok {
		return nil, nil, &fs.PathError{Op: "open", Path: x.path + ":" + memberName(name), Err: fs.ErrNotExist}
	}
	f, err := os.Open(x.path)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	// A size is the header's word: what lies beyond the end is not allocated.
	if e.size > maxFileBytes || e.offset+e.size > x.info.Size() {
		return nil, x.info, fmt.Errorf("%w: %d bytes at %d of a bundle of %d", ErrDamaged, e.size, e.offset, x.info.Size())
	}
	data := make([]byte, e.size)
	if _, err := f.ReadAt(data, e.offset); err != nil {
		return nil, x.info, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return data, x.info, nil
}

// scan lists the files; all were used when the bundle was made, as far as
// anyone knows.
func (x *bundleIndex) scan() []file {
	files := make([]file, len(x.order))
	for i, name := range x.order {
		class, kind, key := classify(name)
		files[i] = file{name: name, class: class, kind: kind, key: key, size: x.where[name].size, used: x.info.ModTime(), info: x.info}
	}
	return files
}
