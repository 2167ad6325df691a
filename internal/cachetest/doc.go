// Package cachetest runs a test under conditions that need a process of its own: as a user
// without rights, on a small disk, or on a disk that becomes read-only.
//
// A test calls one of the functions first. In the original process, the function runs the
// same test again in a child process, fails or skips if the child does, and returns false.
// In the child it returns true:
//
//	func TestNoPermission(t *testing.T) {
//		if !cachetest.AsUser(t) {
//			return
//		}
//		...
//	}
package cachetest
