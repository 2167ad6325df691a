package cache

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"math"
	"sync"

	"aead.dev/minisign"

	"sonicmoe/internal/disk"
)

// bundleFile is a bundle that is used in place, as a read-only layer of a cache. It keeps no
// file open between reads.
type bundleFile struct {
	fs   disk.FS
	path string
	by   *signer // nil if no signature is needed

	mu    sync.Mutex
	index *bundleIndex
}

// bundleIndex holds the positions of the files in a bundle.
type bundleIndex struct {
	info  fs.FileInfo // of the bundle at the time when it was indexed
	order []string
	where map[string]extent
}

type extent struct {
	offset, size int64
	// seal is the checksum that the file had when the bundle's signature was checked.
	seal digest
}

// openBundle reads the headers of a bundle. The files themselves are checked each time they are
// read, as in a directory. If the signer `by` is not nil, openBundle reads the whole bundle and
// checks its signature.
func openBundle(fsys disk.FS, path string, by *signer) (*bundleFile, error) {
	b := &bundleFile{fs: fsys, path: path, by: by}
	f, _, err := b.open()
	if err != nil {
		return nil, err
	}
	return b, f.Close()
}

// open opens the bundle and returns its index. If another file has replaced the bundle, for
// example in a deployment, open indexes the new file.
func (b *bundleFile) open() (disk.File, *bundleIndex, error) {
	f, info, err := disk.OpenRegular(b.fs, b.path, true)
	if err != nil {
		return nil, nil, err
	}
	x, err := b.indexOf(f, info)
	if err != nil {
		f.Close()
		if b.by != nil {
			return nil, nil, fmt.Errorf("%s: %w", b.path, err)
		}
		return nil, nil, fmt.Errorf("%s: neither a cache directory nor a bundle: %w", b.path, err)
	}
	return f, x, nil
}

// indexOf returns the index of the open bundle f.
func (b *bundleFile) indexOf(f disk.File, info fs.FileInfo) (*bundleIndex, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if x := b.index; x != nil && b.fs.SameFile(x.info, info) && x.info.Size() == info.Size() && x.info.ModTime().Equal(info.ModTime()) {
		return x, nil
	}
	x := &bundleIndex{info: info, where: map[string]extent{}}
	var err error
	if b.by == nil {
		err = x.index(f)
	} else {
		err = x.signed(f, b.by, b.path)
	}
	if err != nil {
		return nil, err
	}
	b.index = x
	return x, nil
}

// signed reads the whole bundle, checks its signature, and keeps the checksum of each file.
func (x *bundleIndex) signed(f io.ReaderAt, by *signer, path string) error {
	g, err := by.signature(context.Background(), path)
	if err != nil {
		return err
	}
	r := minisign.NewReader(io.NewSectionReader(f, 0, math.MaxInt64))
	_, err = walkBundle(context.Background(), r, func(s storedFile) error {
		x.order = append(x.order, s.name)
		x.where[s.name] = extent{s.offset, int64(len(s.data)), s.seal()}
		return nil
	})
	if err == nil {
		err = g.verify(r)
	}
	if err == nil {
		err = g.accept(false)
	}
	return err
}

// index reads the headers, from the first to the last member.
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
		x.where[stored] = extent{offset: b.at, size: size}
		at = b.at + size + padding(size)
	}
}

// read returns the bytes of a file in the bundle, and the bundle's file info.
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
	if err == nil && b.by != nil && digest(data[len(data)-sealSize:]) != e.seal {
		err = fmt.Errorf("%w: it was altered after the bundle's signature was checked", errDamaged)
	}
	return data, x.info, err
}

// scan lists the files of the bundle. Their times of use are not known, so each file has the
// bundle's modification time.
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
