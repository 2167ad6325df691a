package disk

import (
	"io"
	"io/fs"
	"os"
	"time"
)

// FS is a file system. Errors are *fs.PathError or *os.LinkError, as in package os.
type FS interface {
	MkdirAll(dir string, mode fs.FileMode) error
	// Open opens a file for reading. It never waits, whatever kind of file the path names.
	// If links is false, a symbolic link is an error.
	Open(path string, links bool) (File, error)
	// Create creates a file for writing, with mode 0600. It must not exist yet.
	Create(path string) (File, error)
	// OpenLock opens a file for locking, and creates it with mode 0600 if it does not
	// exist. It never waits, and a symbolic link is an error.
	OpenLock(path string) (File, error)
	Rename(from, to string) error
	// Remove removes a file; RemoveAll also removes a directory with its content.
	Remove(path string) error
	RemoveAll(path string) error
	// Stat describes the file at a path. If links is false and the file is a symbolic link, it
	// describes the link.
	Stat(path string, links bool) (fs.FileInfo, error)
	SameFile(a, b fs.FileInfo) bool
	ReadDir(dir string) ([]fs.DirEntry, error)
	// SetTime sets the time of a file's last change.
	SetTime(path string, t time.Time) error
	// SyncDir makes sure that the names in a directory survive a power cut.
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
	// Sync makes sure that the content survives a power cut.
	Sync() error
	// TryLock tries to lock the file without waiting. Closing the file unlocks it. If another
	// holder has the lock, busy is true. An error means that the file system has no locks.
	TryLock() (busy bool, err error)
}

// OS is the operating system's file system.
var OS FS = osFS{}

type osFS struct{}

// osFile adds the lock to *os.File.
type osFile struct{ *os.File }

func (f osFile) TryLock() (busy bool, err error) { return tryLock(f.File) }

// opened converts the result of a function of package os to a File.
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
