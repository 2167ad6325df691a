//go:build !unix && !windows

package disk

// fullErrors has the errors of a full disk.
var fullErrors []error
