//go:build !unix && !windows

package disk

// fullErrors are those of a full disk.
var fullErrors []error
