package cache

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"sonicmoe/internal/disk"
	"sonicmoe/internal/store"
)

const (
	// folder is the subfolder of a cache directory that holds the files.
	folder = "entries"
	// touchEvery is the precision of a file's time of use. The cache records this time itself,
	// because most systems do not record access times (relatime, noatime).
	touchEvery = time.Hour
	// maxBad is the number of damaged files that are kept for inspection.
	maxBad = 4

	badSuffix  = ".bad"
	tempSuffix = disk.TempSuffix
	lockSuffix = ".lock"
)

// layer is one place where a cache searches for files: a directory or a bundle.
type layer struct {
	fs       disk.FS
	dir      string
	bundle   *bundleFile // nil for a directory
	writable bool
	owner    int // user id of the directory's owner, or -1 if unknown
}

// openLayer opens a cache layer and checks its directory. If the layer is writable, openLayer
// creates the directory. A read-only cache layer may be a bundle. The signer `by` then checks the
// bundle's signature.
func openLayer(fsys disk.FS, dir string, writable bool, by *signer) (*layer, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	l := &layer{fs: fsys, dir: filepath.Join(abs, folder), writable: writable}
	if fi, err := fsys.Stat(abs, true); err == nil && fi.Mode().IsRegular() {
		if writable {
			return nil, fmt.Errorf("%w; if it is a bundle, name it after a directory to write, as in %s=%s%s",
				&fs.PathError{Op: "open", Path: abs, Err: syscall.ENOTDIR}, envDir, string(filepath.ListSeparator), abs)
		}
		l.bundle, err = openBundle(fsys, abs, by)
		return l, err
	}
	if writable {
		if err := fsys.MkdirAll(l.dir, 0o700); err != nil {
			return nil, err
		}
	}
	fi, err := fsys.Stat(l.dir, true)
	if err != nil {
		return nil, err
	}
	if !fi.IsDir() {
		return nil, &fs.PathError{Op: "open", Path: l.dir, Err: syscall.ENOTDIR}
	}
	l.owner = disk.Owner(fi)
	if !writable {
		return l, nil // the user listed the directory explicitly
	}
	return l, l.private(fi)
}

// private returns an error if other users may write the directory. Machine code is only as
// trustworthy as everyone who can store it.
func (l *layer) private(fi fs.FileInfo) error {
	if !mayWriteIn(os.Geteuid(), l.owner) {
		return fmt.Errorf("%s belongs to user %d; use a directory of your own, or this one as a read-only layer", l.dir, l.owner)
	}
	const others = 0o022
	if l.owner >= 0 && fi.Mode().Perm()&others != 0 {
		return fmt.Errorf("%s may be written by others than its owner (%v); take that right away (chmod go-w), use a directory of your own, or this one as a read-only layer",
			l.dir, fi.Mode())
	}
	return nil
}

// mayWriteIn reports whether the user with the id me may keep files in a directory that belongs to
// the user with the id owner. The owner must be the same user or root. Root may write anywhere,
// because in a container the directory may belong to a user outside of the container. An unknown
// user (-1) is accepted.
func mayWriteIn(me, owner int) bool { return me <= 0 || owner <= 0 || owner == me }

// mayRead reports whether the user with the id me may trust a file. The ids of the owners of the
// file and of its directory are owner and dirOwner.
func mayRead(me, owner, dirOwner int) bool {
	return owner <= 0 || owner == me || owner == dirOwner
}

// fileName returns the name of the file with a kind and a key.
func fileName(kind store.Kind, key store.Key) string { return key.String() + "." + kind.String() }

// parseFileName returns the kind and the key of a name that fileName returned. Files with other
// names do not belong to the cache.
func parseFileName(name string) (store.Kind, store.Key, bool) {
	stem, ending, _ := strings.Cut(name, ".")
	key, err := store.ParseKey(stem)
	if err != nil {
		return 0, store.Key{}, false
	}
	for _, kind := range []store.Kind{store.KindModule, store.KindChoice} {
		if ending == kind.String() {
			return kind, key, true
		}
	}
	return 0, store.Key{}, false
}

func (l *layer) path(name string) string { return filepath.Join(l.dir, name) }

// read returns the bytes of a file. With an errDamaged it also returns the file info.
func (l *layer) read(name string) ([]byte, fs.FileInfo, error) {
	if l.bundle != nil {
		return l.bundle.read(name)
	}
	// Read-only cache layers may contain symbolic links, because some image builders store
	// files as links.
	f, fi, err := disk.OpenRegular(l.fs, l.path(name), !l.writable)
	if errors.Is(err, disk.ErrNotRegular) {
		err = fmt.Errorf("%w: %w", errDamaged, err)
	}
	if err != nil {
		return nil, fi, err
	}
	defer f.Close()
	if owner := disk.Owner(fi); !mayRead(os.Geteuid(), owner, l.owner) {
		return nil, fi, fmt.Errorf("%w: belongs to user %d, who is neither you nor the directory's owner", errDamaged, owner)
	}
	data, err := readStored(f, fi.Size(), name)
	return data, fi, err
}

// readStored reads a stored file with the given name and size. It reads and checks the header
// first, so that a file of another kind costs no memory.
func readStored(r io.ReaderAt, size int64, name string) ([]byte, error) {
	if size > maxFileBytes {
		return nil, fmt.Errorf("%w: %d bytes, the largest file has %d", errDamaged, size, maxFileBytes)
	}
	header := make([]byte, min(size, headerSize))
	if err := readAt(r, header, 0); err != nil {
		return nil, err
	}
	kind, key, _ := parseFileName(name)
	if err := checkHeader(header, size, kind, key); err != nil {
		return nil, err
	}
	data := make([]byte, size)
	return data, readAt(r, data[copy(data, header):], headerSize)
}

// readAt fills b from position at.
func readAt(r io.ReaderAt, b []byte, at int64) error {
	if n, err := r.ReadAt(b, at); n < len(b) {
		if errors.Is(err, io.EOF) {
			return fmt.Errorf("%w: the file became shorter while being read", errDamaged)
		}
		return err
	}
	return nil
}

// store writes a file. At any time the file's name refers to a whole file or to none. store
// does not sync the folder, because an entry that is lost in a power cut is only a miss.
func (l *layer) store(name string, data []byte) error {
	write := func() error {
		return disk.Replace(l.fs, l.path(name), 0o600, func(w io.Writer) error {
			_, err := w.Write(data)
			return err
		})
	}
	err := write()
	if errors.Is(err, fs.ErrNotExist) { // the cache was cleared while the program ran
		if err = l.fs.MkdirAll(l.dir, 0o700); err == nil {
			err = write()
		}
	}
	return err
}

// touch records that a file was used. It also corrects a time in the future, which a wrong
// clock has caused. With such a time the file would never be removed.
func (l *layer) touch(name string, fi fs.FileInfo) {
	now := time.Now()
	if age := now.Sub(fi.ModTime()); l.writable && (age > touchEvery || age < -touchEvery) {
		// SetTime fails on a read-only mount or for a removed file. The time of use is then
		// slightly wrong.
		_ = l.fs.SetTime(l.path(name), now)
	}
}

// unchanged reports whether the file is still the one that fi describes.
func (l *layer) unchanged(name string, fi fs.FileInfo) bool {
	now, err := l.fs.Stat(l.path(name), !l.writable)
	return err == nil && l.fs.SameFile(now, fi) && now.Size() == fi.Size() && now.ModTime().Equal(fi.ModTime())
}

// setAside renames a damaged file, so that it can be inspected but is not found again. It
// reports whether it renamed the file. A file that another process has replaced in the meantime
// stays.
func (l *layer) setAside(name string, fi fs.FileInfo) bool {
	if !l.writable || !l.unchanged(name, fi) {
		return false
	}
	bad := l.path(name + badSuffix)
	_ = l.fs.RemoveAll(bad)
	if l.fs.Rename(l.path(name), bad) != nil {
		return false
	}
	if fi.Mode()&fs.ModeSymlink == 0 { // the target of a link does not belong to the cache
		_ = l.fs.SetTime(bad, time.Now())
	}
	l.dropBad()
	return true
}

// dropBad removes all damaged files except the newest maxBad.
func (l *layer) dropBad() {
	files, err := l.scan()
	if err != nil {
		return
	}
	bad := slices.DeleteFunc(files, func(f file) bool { return f.class != classBad })
	slices.SortFunc(bad, func(a, b file) int { return b.used.Compare(a.used) })
	for _, f := range bad[min(maxBad, len(bad)):] {
		_ = l.fs.RemoveAll(l.path(f.name))
	}
}
