//go:build !windows

package autotune

import (
	"errors"
	"os"
	"os/exec"
	"strconv"
	"syscall"
)

// inherit hands files to a process that is about to be started, and says by
// which names it finds them.
func inherit(c *exec.Cmd, files ...*os.File) (names []string, err error) {
	for i := range files {
		names = append(names, strconv.Itoa(3+len(c.ExtraFiles)+i))
	}
	c.ExtraFiles = append(c.ExtraFiles, files...)
	return names, nil
}

// inherited is a file of that name. Processes that this one starts do not get
// it.
func inherited(name string) (*os.File, error) {
	fd, err := strconv.Atoi(name)
	if err != nil || fd < 3 {
		return nil, errors.New("no such file: " + name)
	}
	syscall.CloseOnExec(fd)
	return os.NewFile(uintptr(fd), "pipe "+name), nil
}
