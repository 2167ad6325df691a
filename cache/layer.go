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
	// folder is where the files lie below a cache directory.
	folder = "entries"
	// touchEvery is how stale a file's time of use may be. Times are set by
	// hand because most systems do not keep access times (relatime, noatime).
	touchEvery = time.Hour
	// maxBad is how many damaged files are kept for inspection.
	maxBad = 4

	badSuffix  = ".bad"
	tempSuffix = disk.TempSuffix
	lockSuffix = ".lock"
)

// layer is one directory of files, or a bundle of them.
type layer struct {
	fs       disk.FS
	dir      string
	bundle   *bundleFile // nil for a directory
	writable bool
	owner    int // user id of the directory, -1 where there is none
}

// openLayer checks a cache directory and, if it is to be written, creates it. A
// layer that is only read may be a bundle.
func openLayer(fsys disk.FS, dir string, writable bool) (*layer, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	l := &layer{fs: fsys, dir: filepath.Join(abs, folder), writable: writable}
	if fi, err := fsys.Stat(abs, true); err == nil && fi.Mode().IsRegular() {
		if writable {
			return nil, fmt.Errorf("%w; if it is a bundle, name it after a directory to write, as in %s=%s%s",
				&fs.PathError{Op: "open", Path: abs, Err: syscall.ENOTDIR}, EnvDir, string(filepath.ListSeparator), abs)
		}
		l.bundle, err = openBundle(fsys, abs)
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
		return l, nil // named by the user on purpose
	}
	return l, l.private(fi)
}

// private refuses a directory that others may write: machine code is trusted
// as far as those who can store it.
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
func fileName(kind store.Kind, key store.Key) string { return key.String() + "." + kind.String() }

// parseFileName undoes fileName; anything else is not ours.
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

// read returns a file's bytes. The file info comes with an errDamaged too.
func (l *layer) read(name string) ([]byte, fs.FileInfo, error) {
	if l.bundle != nil {
		return l.bundle.read(name)
	}
	// Read-only layers may have links: image builders make them of links.
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

// readStored reads the stored file of that name, which has size bytes: its
// header first, so that what is something else costs no memory.
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

// readAt fills b from the given place on.
func readAt(r io.ReaderAt, b []byte, at int64) error {
	if n, err := r.ReadAt(b, at); n < len(b) {
		if errors.Is(err, io.EOF) {
			return fmt.Errorf("%w: became shorter while it was read", errDamaged)
		}
		return err
	}
	return nil
}

// store writes a file so that its name always shows a whole one. The folder is
// not synced: an entry that a power cut takes back is a miss.
func (l *layer) store(name string, data []byte) error {
	write := func() error {
		return disk.Replace(l.fs, l.path(name), 0o600, func(w io.Writer) error {
			_, err := w.Write(data)
			return err
		})
	}
	err := write()
	if errors.Is(err, fs.ErrNotExist) { // somebody cleared the cache while we ran
		if err = l.fs.MkdirAll(l.dir, 0o700); err == nil {
			err = write()
		}
	}
	return err
}

// touch notes that a file was used. Times ahead of the clock, from a machine
// whose clock is wrong, are set right: they would be kept for ever.
func (l *layer) touch(name string, fi fs.FileInfo) {
	now := time.Now()
	if age := now.Sub(fi.ModTime()); l.writable && (age > touchEvery || age < -touchEvery) {
		// It may be a read-only mount or gone; then its age is a bit wrong.
		_ = l.fs.SetTime(l.path(name), now)
	}
}

// unchanged reports whether the file is still the one that fi describes.
func (l *layer) unchanged(name string, fi fs.FileInfo) bool {
	now, err := l.fs.Stat(l.path(name), !l.writable)
	return err == nil && l.fs.SameFile(now, fi) && now.Size() == fi.Size() && now.ModTime().Equal(fi.ModTime())
}

// setAside renames a damaged file so that it is not met again but can be
// looked at, and reports whether it did. A file that another process replaced
// in the meantime stays.
func (l *layer) setAside(name string, fi fs.FileInfo) bool {
	if !l.writable || !l.unchanged(name, fi) {
		return false
	}
	bad := l.path(name + badSuffix)
	_ = l.fs.RemoveAll(bad)
	if l.fs.Rename(l.path(name), bad) != nil {
		return false
	}
	if fi.Mode()&fs.ModeSymlink == 0 { // what a link names is none of ours
		_ = l.fs.SetTime(bad, time.Now())
	}
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
		_ = l.fs.RemoveAll(l.path(f.name))
	}
}
