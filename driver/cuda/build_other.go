//go:build !linux

package cuda

// buildOf knows no builds here.
func buildOf(uintptr) string { return "" }
