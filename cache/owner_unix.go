//go:build unix

package cache

import (
	"io/fs"
	"syscall"
)

// ownerOf is the user id that a file belongs to, -1 if unknown.
func ownerOf(fi fs.FileInfo) int {
	if st, ok := fi.Sys().(*syscall.Stat_t); ok {
		return int(st.Uid)
	}
	return -1
}
