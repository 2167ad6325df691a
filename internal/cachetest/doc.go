// Package cachetest runs a test under conditions that need a process of their own: as a user
// without root's rights, on a small disk, or on a disk that becomes read-only.
//
// A test first calls one of the package's functions. In the original process, this function
// runs the same test again in a child process and returns false. If the child fails or skips,
// the original test does too. In the child the function returns true:
//
//	func TestNoPermission(t *testing.T) {
//		if !cachetest.AsUser(t) {
//			return
//		}
//		...
//	}
package cachetest
