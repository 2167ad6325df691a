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
)

const (
	// folder is where the files lie below a cache directory.
	folder = "entries"
	// touchEvery is how stale a file's time of use may be. Times are set by
	// hand because most systems do not keep access times (relatime, noatime).
	touchEvery = time.Hour
	// maxBad is how many damaged files are kept for inspection.
	maxBad = 4

	badSuffix  = ".bad"
	tempSuffix = ".tmp"
	lockSuffix = ".lock"
)

// layer is one directory of files, or a bundle of them.
type layer struct {
	dir      string
	bundle   *bundleIndex // nil for a directory
	writable bool
	owner    int // user id of the directory, -1 where there is none

	// write puts data into a temporary file, lock asks for a lock file as
	// tryLock does; tests make them fail.
	write func(f *os.File, data []byte) (int, error)
	lock  func(f *os.File) (busy bool, err error)
}

// openLayer checks a cache directory and, if it is to be written, creates it. A
// layer that is only read may be a bundle.
func openLayer(dir string, writable bool) (*layer, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	l := &layer{dir: filepath.Join(abs, folder), writable: writable, write: (*os.File).Write, lock: tryLock}
	if fi, err := os.Stat(abs); err == nil && fi.Mode().IsRegular() {
		if writable {
			return nil, fmt.Errorf("%w; if it is a bundle, name it after a directory to write, as in %s=%s%s",
				&fs.PathError{Op: "open", Path: abs, Err: syscall.ENOTDIR}, EnvDir, string(filepath.ListSeparator), abs)
		}
		l.bundle, err = openBundle(abs)
		return l, err
	}
	if writable {
		if err := os.MkdirAll(l.dir, 0o700); err != nil {
			return nil, err
		}
	}
	fi, err := os.Stat(l.dir)
	if err != nil {
		return nil, err
	}
	if !fi.IsDir() {
		return nil, &fs.PathError{Op: "open", Path: l.dir, Err: syscall.ENOTDIR}
	}
	l.owner = ownerOf(fi)
	// Machine code is trusted as far as those who can write it. A directory
	// that is only read was named by the user on purpose.
	if writable && !mayWriteIn(os.Geteuid(), l.owner) {
		return nil, fmt.Errorf("%s belongs to user %d; use a directory of your own, or this one as a read-only layer", l.dir, l.owner)
	}
	return l, nil
}

// mayWriteIn reports whether user me should keep files in a directory of owner:
// one's own or root's. Root itself may be in a container, with a directory of a
// user outside. Unknown users (-1) are let pass.
func mayWriteIn(me, owner int) bool { return me <= 0 || owner <= 0 || owner == me }

// mayRead reports whether user me may trust a file of owner in a directory of
// dirOwner.
func mayRead(me, owner, dirOwner int) bool {
	return owner <= 0 || owner == me || owner == dirOwner
}

// fileName is the name of the file of a key.
func fileName(kind Kind, key Key) string { return key.String() + "." + kind.String() }

// parseFileName undoes fileName; anything else is not ours.
func parseFileName(name string) (Kind, Key, bool) {
	stem, ending, _ := strings.Cut(name, ".")
	key, err := ParseKey(stem)
	if err != nil {
		return 0, Key{}, false
	}
	for _, kind := range []Kind{KindModule, KindChoice} {
		if ending == kind.String() {
			return kind, key, true
		}
	}
	return 0, Key{}, false
}

func (l *layer) path(name string) string { return filepath.Join(l.dir, name) }

// read returns a file's bytes. The file info comes with an ErrDamaged too.
func (l *layer) read(name string) ([]byte, fs.FileInfo, error) {
	if l.bundle != nil {
		return l.bundle.read(name)
	}
	// Stat first: opening a pipe would block.
	fi, err := os.Stat(l.path(name))
	if err != nil {
		return nil, nil, err
	}
	if !fi.Mode().IsRegular() {
		return nil, fi, fmt.Errorf("%w: not a regular file (%s)", ErrDamaged, fi.Mode().Type())
	}
	f, err := os.Open(l.path(name))
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	// And again: between the two another process may have renamed a file of
	// another size into place.
	if fi, err = f.Stat(); err != nil {
		return nil, nil, err
	}
	if fi.Size() > maxFileBytes {
		return nil, fi, fmt.Errorf("%w: %d bytes, the largest file has %d", ErrDamaged, fi.Size(), maxFileBytes)
	}
	if owner := ownerOf(fi); !mayRead(os.Geteuid(), owner, l.owner) {
		return nil, fi, fmt.Errorf("%w: belongs to user %d, who is neither you nor the directory's owner", ErrDamaged, owner)
	}
	data := make([]byte, fi.Size())
	if _, err := io.ReadFull(f, data); err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return nil, fi, fmt.Errorf("%w: became shorter while it was read", ErrDamaged)
		}
		return nil, nil, err
	}
	return data, fi, nil
}

// store writes a file so that its name always shows a whole one: a temporary
// file in the same folder, synced, then renamed. The folder is not synced:
// an entry that a power cut takes back is a miss.
func (l *layer) store(name string, data []byte) (err error) {
	f, err := os.CreateTemp(l.dir, name+".*"+tempSuffix)
	if errors.Is(err, fs.ErrNotExist) { // somebody cleared the cache while we ran
		if err = os.MkdirAll(l.dir, 0o700); err == nil {
			f, err = os.CreateTemp(l.dir, name+".*"+tempSuffix)
		}
	}
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			os.Remove(f.Name())
		}
	}()
	_, err = l.write(f, data)
	if err == nil {
		err = syncFile(f)
	}
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return err
	}
	return os.Rename(f.Name(), l.path(name))
}

// syncFile flushes f to the disk where its file system can.
func syncFile(f *os.File) error {
	err := f.Sync()
	if errors.Is(err, errors.ErrUnsupported) || errors.Is(err, syscall.EINVAL) {
		return nil
	}
	return err
}

// touch notes that a file was used. Times ahead of the clock, from a machine
// whose clock is wrong, are set right: they would be kept for ever.
func (l *layer) touch(name string, fi fs.FileInfo) {
	now := time.Now()
	if age := now.Sub(fi.ModTime()); l.writable && (age > touchEvery || age < -touchEvery) {
		// It may be a read-only mount or gone; then its age is a bit wrong.
		_ = os.Chtimes(l.path(name), now, now)
	}
}

// unchanged reports whether the file is still the one that fi describes.
func (l *layer) unchanged(name string, fi fs.FileInfo) bool {
	now, err := os.Stat(l.path(name))
	return err == nil && os.SameFile(now, fi) && now.Size() == fi.Size() && now.ModTime().Equal(fi.ModTime())
}

// setAside renames a damaged file so that it is not met again but can be
// looked at, and reports whether it did. A file that another process replaced
// in the meantime stays.
func (l *layer) setAside(name string, fi fs.FileInfo) bool {
	if !l.writable || !l.unchanged(name, fi) {
		return false
	}
	bad := l.path(name + badSuffix)
	_ = os.RemoveAll(bad)
	if os.Rename(l.path(name), bad) != nil {
		return false
	}
	now := time.Now()
	_ = os.Chtimes(bad, now, now)
	l.dropBad()
	return true
}

// dropBad removes all but the newest few damaged files.
func (l *layer) dropBad() {
	files, err := l.scan()
	if err != nil {
		return
	}
	bad := slices.DeleteFunc(files, func(f file) bool { return f.class != classBad })
	slices.SortFunc(bad, func(a, b file) int { return b.used.Compare(a.used) })
	for _, f := range bad[min(maxBad, len(bad)):] {
		_ = os.RemoveAll(l.path(f.name))
	}
}
