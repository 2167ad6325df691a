//go:build unix

package disk

import (
	"os"
	"syscall"
)

// noWait keeps open from waiting for the other end of a pipe.
const noWait = syscall.O_NONBLOCK

// noFollow is the flag that makes a symbolic link an error.
func noFollow(links bool) int {
	if links {
		return 0
	}
	return syscall.O_NOFOLLOW
}

// syncDir syncs a directory where its file system can.
func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return syncFile(osFile{f})
}

// fullErrors are those of a disk, or of a user's share of it, that is full.
var fullErrors = []error{syscall.ENOSPC, syscall.EDQUOT}
