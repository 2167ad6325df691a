package disktest

import (
	"io/fs"
	"sync"
	"time"

	"sonicmoe/internal/disk"
)

// Op is an operation of a file system or of one of its files.
type Op string

// These are the operations.
const (
	MkdirAll  Op = "mkdir"
	Open      Op = "open"
	Create    Op = "create"
	OpenLock  Op = "open lock"
	Rename    Op = "rename"
	Remove    Op = "remove"
	RemoveAll Op = "remove all"
	Stat      Op = "stat"
	ReadDir   Op = "read dir"
	SetTime   Op = "set time"
	SyncDir   Op = "sync dir"
	Read      Op = "read"
	Write     Op = "write"
	FileStat  Op = "stat of a file"
	Chmod     Op = "chmod"
	Sync      Op = "sync"
	TryLock   Op = "lock"
	Close     Op = "close"
)

// Faulty is a wrapper of another file system that can make operations fail. It is safe for
// concurrent use.
type Faulty struct {
	disk.FS

	mu     sync.Mutex
	n      int // number of operations since Arm
	first  int // number of the first operation that fails, or 0 for none
	last   int
	err    error
	before func(op Op, path string) error
}

// Wrap returns a Faulty in which nothing fails yet.
func Wrap(inner disk.FS) *Faulty { return &Faulty{FS: inner} }

// Before sets a hook that is called before each operation. If the hook returns an error, so
// does the operation. A Write that fails has still written half of its bytes, and a Close that
// fails has still closed the file.
func (f *Faulty) Before(hook func(op Op, path string) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.before = hook
}

// Arm makes count operations fail with err, starting with the n-th from now, counted from 1. A
// count of 0 means all operations from the n-th on.
func (f *Faulty) Arm(n, count int, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.n, f.first, f.last, f.err = 0, n, n+count-1, err
	if count == 0 {
		f.last = int(^uint(0) >> 1)
	}
}

// Disarm ends the failures and returns the number of operations since Arm.
func (f *Faulty) Disarm() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.first = 0
	return f.n
}

// check counts an operation and returns the error that it must fail with, or nil.
func (f *Faulty) check(op Op, path string) error {
	f.mu.Lock()
	f.n++
	hook, fails := f.before, f.first > 0 && f.n >= f.first && f.n <= f.last
	f.mu.Unlock()
	if fails {
		return &fs.PathError{Op: string(op), Path: path, Err: f.err}
	}
	if hook != nil {
		return hook(op, path)
	}
	return nil
}

// try performs an operation unless check makes it fail.
func (f *Faulty) try(op Op, path string, do func() error) error {
	if err := f.check(op, path); err != nil {
		return err
	}
	return do()
}

func try[T any](f *Faulty, op Op, path string, do func() (T, error)) (result T, err error) {
	if err := f.check(op, path); err != nil {
		return result, err
	}
	return do()
}

func (f *Faulty) MkdirAll(dir string, mode fs.FileMode) error {
	return f.try(MkdirAll, dir, func() error { return f.FS.MkdirAll(dir, mode) })
}

func (f *Faulty) Open(path string, links bool) (disk.File, error) {
	return f.file(Open, path, func() (disk.File, error) { return f.FS.Open(path, links) })
}

func (f *Faulty) Create(path string) (disk.File, error) {
	return f.file(Create, path, func() (disk.File, error) { return f.FS.Create(path) })
}

func (f *Faulty) OpenLock(path string) (disk.File, error) {
	return f.file(OpenLock, path, func() (disk.File, error) { return f.FS.OpenLock(path) })
}

// file opens a file whose operations can fail, too.
func (f *Faulty) file(op Op, path string, open func() (disk.File, error)) (disk.File, error) {
	inner, err := try(f, op, path, open)
	if err != nil {
		return nil, err
	}
	return &faultyFile{inner, f}, nil
}

func (f *Faulty) Rename(from, to string) error {
	return f.try(Rename, from, func() error { return f.FS.Rename(from, to) })
}

func (f *Faulty) Remove(path string) error {
	return f.try(Remove, path, func() error { return f.FS.Remove(path) })
}

func (f *Faulty) RemoveAll(path string) error {
	return f.try(RemoveAll, path, func() error { return f.FS.RemoveAll(path) })
}

func (f *Faulty) Stat(path string, links bool) (fs.FileInfo, error) {
	return try(f, Stat, path, func() (fs.FileInfo, error) { return f.FS.Stat(path, links) })
}

func (f *Faulty) ReadDir(dir string) ([]fs.DirEntry, error) {
	return try(f, ReadDir, dir, func() ([]fs.DirEntry, error) { return f.FS.ReadDir(dir) })
}

func (f *Faulty) SetTime(path string, t time.Time) error {
	return f.try(SetTime, path, func() error { return f.FS.SetTime(path, t) })
}

func (f *Faulty) SyncDir(dir string) error {
	return f.try(SyncDir, dir, func() error { return f.FS.SyncDir(dir) })
}

// faultyFile is an open file of a Faulty.
type faultyFile struct {
	disk.File
	of *Faulty
}

func (f *faultyFile) Read(b []byte) (int, error) {
	return try(f.of, Read, f.Name(), func() (int, error) { return f.File.Read(b) })
}

func (f *faultyFile) ReadAt(b []byte, at int64) (int, error) {
	return try(f.of, Read, f.Name(), func() (int, error) { return f.File.ReadAt(b, at) })
}

func (f *faultyFile) Write(b []byte) (int, error) {
	if err := f.of.check(Write, f.Name()); err != nil {
		n, _ := f.File.Write(b[:len(b)/2])
		return n, err
	}
	return f.File.Write(b)
}

func (f *faultyFile) Stat() (fs.FileInfo, error) {
	return try(f.of, FileStat, f.Name(), f.File.Stat)
}

func (f *faultyFile) Chmod(mode fs.FileMode) error {
	return f.of.try(Chmod, f.Name(), func() error { return f.File.Chmod(mode) })
}

func (f *faultyFile) Sync() error {
	return f.of.try(Sync, f.Name(), f.File.Sync)
}

func (f *faultyFile) TryLock() (bool, error) {
	return try(f.of, TryLock, f.Name(), f.File.TryLock)
}

func (f *faultyFile) Close() error {
	err := f.of.check(Close, f.Name())
	if closeErr := f.File.Close(); err == nil {
		err = closeErr
	}
	return err
}
