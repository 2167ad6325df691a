package disk

import (
	"io"
	"io/fs"
	"os"
	"time"
)

// FS is a file system. Errors are *fs.PathError or *os.LinkError, as package
// os has them.
type FS interface {
	MkdirAll(dir string, mode fs.FileMode) error
	// Open opens a file to be read. It never waits, whatever lies there, and
	// where links is false a symbolic link is an error.
	Open(path string, links bool) (File, error)
	// Create makes a file that must not be there yet, to be written, mode 0600.
	Create(path string) (File, error)
	// OpenLock opens a file to be locked, and makes it, mode 0600, where none
	// is. It never waits, and a symbolic link is an error.
	OpenLock(path string) (File, error)
	Rename(from, to string) error
	// Remove removes a file, RemoveAll a directory too.
	Remove(path string) error
	RemoveAll(path string) error
	// Stat describes what a path names, where links is false the link itself.
	Stat(path string, links bool) (fs.FileInfo, error)
	SameFile(a, b fs.FileInfo) bool
	ReadDir(dir string) ([]fs.DirEntry, error)
	// SetTime sets the time of last change.
	SetTime(path string, t time.Time) error
	// SyncDir makes the names in a directory outlive a power cut.
	SyncDir(dir string) error
}

// File is an open file.
type File interface {
	io.Reader
	io.ReaderAt
	io.Seeker
	io.Writer
	io.Closer
	Name() string
	Stat() (fs.FileInfo, error)
	Chmod(mode fs.FileMode) error
	// Sync makes the content outlive a power cut.
	Sync() error
	// TryLock asks for the file's lock without waiting; closing gives it back.
	// busy means that somebody else has it, an error that there are no locks.
	TryLock() (busy bool, err error)
}

// OS is the operating system's file system.
var OS FS = osFS{}

type osFS struct{}

// osFile gives *os.File its lock.
type osFile struct{ *os.File }

func (f osFile) TryLock() (busy bool, err error) { return tryLock(f.File) }

// opened makes a File of what package os answered.
func opened(f *os.File, err error) (File, error) {
	if err != nil {
		return nil, err
	}
	return osFile{f}, nil
}

func (osFS) MkdirAll(dir string, mode fs.FileMode) error { return os.MkdirAll(dir, mode) }

func (osFS) Open(path string, links bool) (File, error) {
	return opened(os.OpenFile(path, os.O_RDONLY|noWait|noFollow(links), 0))
}

func (osFS) Create(path string) (File, error) {
	return opened(os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600))
}

func (osFS) OpenLock(path string) (File, error) {
	return opened(os.OpenFile(path, os.O_RDWR|os.O_CREATE|noWait|noFollow(false), 0o600))
}

func (osFS) Rename(from, to string) error { return os.Rename(from, to) }
func (osFS) Remove(path string) error     { return os.Remove(path) }
func (osFS) RemoveAll(path string) error  { return os.RemoveAll(path) }

func (osFS) Stat(path string, links bool) (fs.FileInfo, error) {
	if links {
		return os.Stat(path)
	}
	return os.Lstat(path)
}

func (osFS) SameFile(a, b fs.FileInfo) bool { return os.SameFile(a, b) }

func (osFS) ReadDir(dir string) ([]fs.DirEntry, error) { return os.ReadDir(dir) }
func (osFS) SetTime(path string, t time.Time) error    { return os.Chtimes(path, t, t) }
func (osFS) SyncDir(dir string) error                  { return syncDir(dir) }
