//go:build !linux

package cuda

// buildOf returns "": builds cannot be identified on this system.
func buildOf(uintptr) string { return "" }
