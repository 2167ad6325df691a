package autotune

import (
	"errors"
	"os"
	"os/exec"
	"strconv"
	"syscall"
)

// inherit passes open files to a process that is about to start, and returns the names by which
// that process finds them. A name is the file's handle, which is the same number in both
// processes.
func inherit(c *exec.Cmd, files ...*os.File) (names []string, err error) {
	if c.SysProcAttr == nil {
		c.SysProcAttr = &syscall.SysProcAttr{}
	}
	for _, f := range files {
		h := syscall.Handle(f.Fd())
		if err := syscall.SetHandleInformation(h, syscall.HANDLE_FLAG_INHERIT, syscall.HANDLE_FLAG_INHERIT); err != nil {
			return nil, err
		}
		c.SysProcAttr.AdditionalInheritedHandles = append(c.SysProcAttr.AdditionalInheritedHandles, h)
		names = append(names, strconv.FormatUint(uint64(h), 10))
	}
	return names, nil
}

// inherited returns the open file with a name that inherit returned. Processes that this
// process starts do not inherit the file.
func inherited(name string) (*os.File, error) {
	n, err := strconv.ParseUint(name, 10, 64)
	if err != nil || n == 0 {
		return nil, errors.New("no such file: " + name)
	}
	h := syscall.Handle(n)
	if err := syscall.SetHandleInformation(h, syscall.HANDLE_FLAG_INHERIT, 0); err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(h), "pipe "+name), nil
}
