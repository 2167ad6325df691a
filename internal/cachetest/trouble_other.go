//go:build !linux

package cachetest

import (
	"os"
	"testing"
)

// AsUser skips where permissions do not bind the user.
func AsUser(t testing.TB) bool {
	t.Helper()
	if os.Geteuid() <= 0 {
		t.Skip("permissions do not bind this user")
	}
	return true
}

// OnDisk skips: disks for tests are made on Linux only.
func OnDisk(t testing.TB, bytes int) (dir string, inside bool) {
	t.Helper()
	t.Skip("no disks of one's own on this system")
	return "", false
}

// ReadOnly and Resize are for what OnDisk made.
func ReadOnly(testing.TB, string, bool) {}

// Resize is for what OnDisk made.
func Resize(testing.TB, string, int) {}
