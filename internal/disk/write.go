package disk

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	// TempSuffix ends the names of files that are being written: NAME.DIGITS.tmp becomes NAME.
	TempSuffix = ".tmp"
	// TempAge is the age at which a temporary file counts as left by a writer that has ended.
	TempAge = time.Hour
)

// Pending is a file that is being written. It lies next to its final path, and [Pending.Commit]
// moves it there. A reader of the path sees either the whole new file or the old one, also
// after a power cut.
type Pending struct {
	fs   FS
	file File // nil after Commit and Discard
	path string
	mode fs.FileMode
}

// ErrOccupied means that the file at the path of a new file is not a regular file.
var ErrOccupied = errors.New("not a regular file, which a new one may replace")

// Begin starts to write a file with the given mode. It removes leftovers of writers of the same
// file that have ended. A device, a pipe or a directory at the path, also through a link, is an
// ErrOccupied. A caller that writes to /dev/stdout or /dev/null does not want to replace the
// device by a file, which root's rights would allow.
func Begin(fsys FS, path string, mode fs.FileMode) (*Pending, error) {
	if fi, err := fsys.Stat(path, true); err == nil && !fi.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: %w: %v", path, ErrOccupied, fi.Mode())
	}
	sweepTemps(fsys, path)
	return begin(fsys, path, mode)
}

func begin(fsys FS, path string, mode fs.FileMode) (*Pending, error) {
	f, err := createTemp(fsys, path)
	if err != nil {
		return nil, err
	}
	return &Pending{fsys, f, path, mode}, nil
}

// Write appends to the file.
func (p *Pending) Write(b []byte) (int, error) { return p.file.Write(b) }

// Commit moves the file to its path. If Commit returns nil, the file survives a power cut. If
// it returns an error, the caller must call Discard.
func (p *Pending) Commit() error {
	if err := p.rename(); err != nil {
		return err
	}
	return p.fs.SyncDir(filepath.Dir(p.path))
}

// rename does the work of Commit except for the sync of the directory. After a power cut the
// path may therefore name the new or the old file.
func (p *Pending) rename() error {
	var err error
	if p.mode != 0o600 {
		err = p.file.Chmod(p.mode)
	}
	if err == nil {
		err = syncFile(p.file)
	}
	if closeErr := p.file.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = p.fs.Rename(p.file.Name(), p.path)
	}
	if err == nil {
		p.file = nil
	}
	return err
}

// Discard removes a file that was not committed. After Commit it does nothing.
func (p *Pending) Discard() error {
	if p.file == nil {
		return nil
	}
	_ = p.file.Close() // the file is not needed, and Commit may already have closed it
	err := p.fs.Remove(p.file.Name())
	p.file = nil
	return err
}

// Replace creates a file next to path, calls write to fill it, and then moves it to path. A
// power cut may undo the move; [WriteFile] prevents this. After an error nothing has changed.
func Replace(fsys FS, path string, mode fs.FileMode, write func(io.Writer) error) error {
	p, err := begin(fsys, path, mode)
	if err != nil {
		return err
	}
	return p.finish(write, p.rename)
}

// WriteFile is like [Replace], but once it has returned nil, the file survives a power cut.
func WriteFile(fsys FS, path string, mode fs.FileMode, write func(io.Writer) error) error {
	p, err := Begin(fsys, path, mode)
	if err != nil {
		return err
	}
	return p.finish(write, p.Commit)
}

// finish writes and commits the file. If this fails, it removes the file.
func (p *Pending) finish(write func(io.Writer) error, commit func() error) error {
	err := write(p)
	if err == nil {
		err = commit()
	}
	if err != nil {
		_ = p.Discard() // the first error is reported
	}
	return err
}

// createTemp creates a temporary file next to path.
func createTemp(fsys FS, path string) (File, error) {
	for try := 0; ; try++ {
		f, err := fsys.Create(path + "." + strconv.FormatUint(uint64(rand.Uint32()), 10) + TempSuffix)
		if !errors.Is(err, fs.ErrExist) || try == 100 {
			return f, err
		}
	}
}

// IsTemp reports whether name is the name of a file that is being written. If so, it also
// returns the file's final name.
func IsTemp(name string) (of string, ok bool) {
	stem, ok := strings.CutSuffix(name, TempSuffix)
	if !ok {
		return "", false
	}
	at := strings.LastIndexByte(stem, '.')
	if at <= 0 {
		return "", false
	}
	if _, err := strconv.ParseUint(stem[at+1:], 10, 64); err != nil {
		return "", false
	}
	return stem[:at], true
}

// sweepTemps removes temporary files of path that are older than TempAge.
func sweepTemps(fsys FS, path string) {
	entries, err := fsys.ReadDir(filepath.Dir(path))
	if err != nil {
		return
	}
	for _, e := range entries {
		if of, ok := IsTemp(e.Name()); !ok || of != filepath.Base(path) {
			continue
		}
		name := filepath.Join(filepath.Dir(path), e.Name())
		if fi, err := fsys.Stat(name, false); err == nil && fi.Mode().IsRegular() && time.Since(fi.ModTime()) > TempAge {
			_ = fsys.Remove(name) // the next writer tries again
		}
	}
}

// syncFile flushes f to the disk, unless its file system cannot do so.
func syncFile(f File) error {
	err := f.Sync()
	if errors.Is(err, errors.ErrUnsupported) || errors.Is(err, syscall.EINVAL) {
		return nil
	}
	return err
}

// IsFull reports whether a write failed because the disk is full.
func IsFull(err error) bool {
	for _, full := range fullErrors {
		if errors.Is(err, full) {
			return true
		}
	}
	return false
}
