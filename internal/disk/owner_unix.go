//go:build unix

package disk

import (
	"io/fs"
	"syscall"
)

// Owner is the user id that a file belongs to, -1 if unknown.
func Owner(fi fs.FileInfo) int {
	if st, ok := fi.Sys().(*syscall.Stat_t); ok {
		return int(st.Uid)
	}
	return -1
}
