//go:build !windows

package autotune

import (
	"errors"
	"os"
	"os/exec"
	"strconv"
	"syscall"
)

// inherit passes open files to a process that is about to start, and returns the names by which
// that process finds them.
func inherit(c *exec.Cmd, files ...*os.File) (names []string, err error) {
	for i := range files {
		names = append(names, strconv.Itoa(3+len(c.ExtraFiles)+i))
	}
	c.ExtraFiles = append(c.ExtraFiles, files...)
	return names, nil
}

// inherited returns the open file with a name that inherit returned. Processes that this
// process starts do not inherit the file.
func inherited(name string) (*os.File, error) {
	fd, err := strconv.Atoi(name)
	if err != nil || fd < 3 {
		return nil, errors.New("no such file: " + name)
	}
	syscall.CloseOnExec(fd)
	return os.NewFile(uintptr(fd), "pipe "+name), nil
}
