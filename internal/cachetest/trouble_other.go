//go:build !linux

package cachetest

import (
	"os"
	"testing"
)

// AsUser skips the test if file permissions do not apply to the user.
func AsUser(t testing.TB) bool {
	t.Helper()
	if os.Geteuid() <= 0 {
		t.Skip("permissions do not bind this user")
	}
	return true
}

// OnDisk skips the test, because only Linux has disks for tests.
func OnDisk(t testing.TB, bytes int) (dir string, inside bool) {
	t.Helper()
	t.Skip("this system cannot make a disk for the test")
	return "", false
}

// ReadOnly does nothing here, because OnDisk skips.
func ReadOnly(testing.TB, string, bool) {}

// Resize does nothing here, because OnDisk skips.
func Resize(testing.TB, string, int) {}
