// Package cachetest puts a test into trouble that only a process of its own
// can be in: as a user without rights, on a small disk, on a disk that becomes
// read-only.
//
// A test calls one of the functions first. In the test binary that was started
// by hand it runs the same test again in a child process, fails or skips with
// it, and returns false; in the child it returns true:
//
//	func TestNoPermission(t *testing.T) {
//		if !cachetest.AsUser(t) {
//			return
//		}
//		...
//	}
package cachetest
