package disk

import "syscall"

// fullErrors has the errors of a full disk: ERROR_HANDLE_DISK_FULL, ERROR_DISK_FULL.
var fullErrors = []error{syscall.Errno(39), syscall.Errno(112)}
