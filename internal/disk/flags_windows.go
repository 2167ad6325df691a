package disk

import "syscall"

// fullErrors lists the errors of a full disk: ERROR_HANDLE_DISK_FULL and ERROR_DISK_FULL.
var fullErrors = []error{syscall.Errno(39), syscall.Errno(112)}
