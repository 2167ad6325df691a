package disk

import (
	"errors"
	"os"
	"syscall"
	"unsafe"
)

var lockFileEx = syscall.NewLazyDLL("kernel32.dll").NewProc("LockFileEx")

// These are flags of LockFileEx, and the error code that it returns if another holder has the
// lock.
const (
	lockFailImmediately = 1
	lockExclusive       = 2
	errorLockViolation  = syscall.Errno(33)
)

// tryLock tries to lock f without waiting. busy means that another holder has the lock. An
// error means that this file system has no locks.
func tryLock(f *os.File) (busy bool, err error) {
	var overlapped syscall.Overlapped
	ok, _, err := lockFileEx.Call(f.Fd(), lockFailImmediately|lockExclusive, 0, 1, 0, uintptr(unsafe.Pointer(&overlapped)))
	if ok != 0 {
		return false, nil
	}
	if errors.Is(err, errorLockViolation) || errors.Is(err, syscall.ERROR_IO_PENDING) {
		return true, nil
	}
	return false, err
}
