//go:build unix

package disk

import (
	"os"
	"syscall"
)

// noWait makes open return at once if the other end of a pipe is not open.
const noWait = syscall.O_NONBLOCK

// noFollow returns the flag that makes a symbolic link an error.
func noFollow(links bool) int {
	if links {
		return 0
	}
	return syscall.O_NOFOLLOW
}

// syncDir syncs a directory, unless its file system cannot do so.
func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return syncFile(osFile{f})
}

// fullErrors lists the errors of a full disk and of an exhausted quota.
var fullErrors = []error{syscall.ENOSPC, syscall.EDQUOT}
