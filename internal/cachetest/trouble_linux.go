package cachetest

import (
	"os"
	"strconv"
	"syscall"
	"testing"
)

// unprivileged is the user id of the child process, which has no privileges.
const unprivileged = 65534

// AsUser makes sure that file permissions apply to the user who runs the test. If root runs it, AsUser
// repeats the test in a child process with an unprivileged user id. Other users need no child.
func AsUser(t testing.TB) bool {
	t.Helper()
	if inChild(t) {
		for _, err := range []error{syscall.Setgroups(nil), syscall.Setgid(unprivileged), syscall.Setuid(unprivileged)} {
			if err != nil {
				t.Skipf("can't become another user: %v", err)
			}
		}
		return true
	}
	if os.Geteuid() != 0 {
		return true
	}
	again(t, nil)
	return false
}

// OnDisk runs the test again in a child that has a disk of its own with the given size. In the
// child it returns the directory of the disk and true. The disk disappears when the child ends.
func OnDisk(t testing.TB, bytes int) (dir string, inside bool) {
	t.Helper()
	if !inChild(t) {
		attr := &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
		if id := os.Geteuid(); id != 0 { // this user may not mount, except in a user namespace
			attr.Cloneflags |= syscall.CLONE_NEWUSER
			attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: id, Size: 1}}
			attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}
		}
		again(t, attr)
		return "", false
	}
	dir = t.TempDir()
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		t.Skipf("can't make a private mount namespace: %v", err)
	}
	if err := syscall.Mount("sonicmoe-test", dir, "tmpfs", 0, sizeOption(bytes)); err != nil {
		t.Skipf("can't mount a disk: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Errorf("unmounting the disk: %v", err)
		}
	})
	return dir, true
}

// ReadOnly makes the disk of [OnDisk] read-only, or writable again.
func ReadOnly(t testing.TB, dir string, on bool) {
	t.Helper()
	flags := uintptr(syscall.MS_REMOUNT)
	if on {
		flags |= syscall.MS_RDONLY
	}
	if err := syscall.Mount("sonicmoe-test", dir, "tmpfs", flags, ""); err != nil {
		t.Fatalf("remounting the disk: %v", err)
	}
}

// Resize changes the size of the disk of [OnDisk].
func Resize(t testing.TB, dir string, bytes int) {
	t.Helper()
	if err := syscall.Mount("sonicmoe-test", dir, "tmpfs", syscall.MS_REMOUNT, sizeOption(bytes)); err != nil {
		t.Fatalf("resizing the disk: %v", err)
	}
}

func sizeOption(bytes int) string { return "size=" + strconv.Itoa(bytes) }
