//go:build !unix && !windows

package disk

// fullErrors is empty, because the errors of a full disk are not known here.
var fullErrors []error
