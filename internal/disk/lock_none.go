//go:build !(darwin || dragonfly || freebsd || linux || netbsd || openbsd || windows)

package disk

import (
	"errors"
	"os"
)

// tryLock always fails, because this system has no file locks.
func tryLock(*os.File) (busy bool, err error) { return false, errors.ErrUnsupported }
