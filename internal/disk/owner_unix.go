//go:build unix

package disk

import (
	"io/fs"
	"syscall"
)

// Owner returns the user id of a file's owner, or -1 if it is unknown.
func Owner(fi fs.FileInfo) int {
	if st, ok := fi.Sys().(*syscall.Stat_t); ok {
		return int(st.Uid)
	}
	return -1
}
