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
	// TempSuffix is the end of the names of files that are being written: NAME.DIGITS.tmp
	// becomes NAME.
	TempSuffix = ".tmp"
	// TempAge is the age from which such a file has no writer any more.
	TempAge = time.Hour
)

// Pending is a file that is written next to its final place, which it takes by Commit. A
// reader of the path sees either the whole new file or the old one, also after a power cut.
type Pending struct {
	fs   FS
	file File // nil after Commit and Discard
	path string
	mode fs.FileMode
}

// ErrOccupied means that the file in the new file's place is not a regular file.
var ErrOccupied = errors.New("not a regular file, which a new one may replace")

// Begin starts to write a file with the given mode. It removes leftovers of dead writers of
// the same file. A device, a pipe or a directory at the path, also through a link, is an
// ErrOccupied: a caller that writes to /dev/stdout or /dev/null does not want a file in its
// place, which root could otherwise create.
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

// Commit gives the file its name. After Commit has returned nil, the file survives a power
// cut. After an error the caller must call Discard.
func (p *Pending) Commit() error {
	if err := p.rename(); err != nil {
		return err
	}
	return p.fs.SyncDir(filepath.Dir(p.path))
}

// rename does the work of Commit. It leaves open which file the name shows after a power
// cut.
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
	_ = p.file.Close() // the file is not needed, and Commit may have closed it
	err := p.fs.Remove(p.file.Name())
	p.file = nil
	return err
}

// Replace lets write fill a file next to path and then moves it there. A power cut may undo
// this: see WriteFile. After an error nothing has changed.
func Replace(fsys FS, path string, mode fs.FileMode, write func(io.Writer) error) error {
	p, err := begin(fsys, path, mode)
	if err != nil {
		return err
	}
	return p.finish(write, p.rename)
}

// WriteFile is Replace, except that after it has returned nil the file survives a power
// cut.
func WriteFile(fsys FS, path string, mode fs.FileMode, write func(io.Writer) error) error {
	p, err := Begin(fsys, path, mode)
	if err != nil {
		return err
	}
	return p.finish(write, p.Commit)
}

// finish writes and commits the file, or removes it.
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

// createTemp creates a file next to path.
func createTemp(fsys FS, path string) (File, error) {
	for try := 0; ; try++ {
		f, err := fsys.Create(path + "." + strconv.FormatUint(uint64(rand.Uint32()), 10) + TempSuffix)
		if !errors.Is(err, fs.ErrExist) || try == 100 {
			return f, err
		}
	}
}

// IsTemp reports whether a name is the name of a file that is being written, and returns
// the final name.
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

// sweepTemps removes old temporary files of path.
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

// syncFile flushes f to the disk if its file system can.
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
