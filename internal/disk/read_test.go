//go:build unix

package disk_test

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/internal/disk"
	"sonicmoe/internal/disktest"
)

// within fails the test if do takes longer than ten seconds, which means that do waits for
// something.
func within(t *testing.T, do func()) {
	t.Helper()
	done := make(chan bool)
	go func() {
		defer close(done)
		do()
	}()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Fatal("something waits")
	}
}

// TestReadFileRefuses checks that endless devices, pipes without a writer, directories,
// sockets and links to them are refused at once, and that files and links to files are
// read.
func TestReadFileRefuses(t *testing.T) {
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	require.NoError(t, syscall.Mkfifo(in("pipe"), 0o600))
	require.NoError(t, os.Mkdir(in("folder"), 0o700))
	socket, err := net.Listen("unix", in("socket"))
	require.NoError(t, err)
	defer socket.Close()
	require.NoError(t, os.WriteFile(in("file"), []byte("text"), 0o600))
	for link, to := range map[string]string{"zero": "/dev/zero", "to a pipe": in("pipe"), "to a folder": in("folder"), "to a file": in("file"), "to nothing": in("none")} {
		require.NoError(t, os.Symlink(to, in(link)))
	}
	for name, want := range map[string]string{
		"zero": "a device", "pipe": "a named pipe", "to a pipe": "a named pipe", "folder": "a directory", "to a folder": "a directory", "socket": "a socket",
	} {
		within(t, func() {
			_, err := disk.ReadFile(t.Context(), disk.OS, in(name), 1<<20)
			assert.EqualError(t, err, in(name)+" is "+want+", must be a regular file")
			assert.ErrorIs(t, err, disk.ErrNotRegular)
		})
	}
	for _, name := range []string{"none", "to nothing"} {
		_, err := disk.ReadFile(t.Context(), disk.OS, in(name), 1<<20)
		assert.ErrorIs(t, err, fs.ErrNotExist, name)
	}
	for _, name := range []string{"file", "to a file"} {
		data, err := disk.ReadFile(t.Context(), disk.OS, in(name), 4)
		require.NoError(t, err)
		assert.Equal(t, "text", string(data))
	}
	_, fi, err := disk.OpenRegular(disk.OS, in("to a file"), false)
	require.ErrorContains(t, err, "to a file is a symbolic link, must be a regular file")
	assert.NotZero(t, fi.Mode()&fs.ModeSymlink)
}

// TestReadFileLimit checks that a file above the limit is not read, and that a file that grows
// is read only up to the limit.
func TestReadFileLimit(t *testing.T) {
	path := filepath.Join(t.TempDir(), "blanks")
	blanks := bytes.Repeat([]byte(" "), 1<<20)
	f, err := os.Create(path)
	require.NoError(t, err)
	for range 300 {
		_, err = f.Write(blanks)
		require.NoError(t, err)
	}
	require.NoError(t, f.Close())
	files := disktest.Wrap(disk.OS)
	files.Before(func(op disktest.Op, _ string) error {
		assert.NotEqual(t, disktest.Read, op)
		return nil
	})
	_, err = disk.ReadFile(t.Context(), files, path, 1<<20)
	require.ErrorIs(t, err, disk.ErrTooLarge)
	require.EqualError(t, err, path+": file is too large: 314572800 bytes, must be at most 1048576")

	for size, ok := range map[int64]bool{99: true, 100: true, 101: false} {
		require.NoError(t, os.Truncate(path, size))
		data, err := disk.ReadFile(t.Context(), disk.OS, path, 100)
		if ok {
			require.NoError(t, err)
			assert.Len(t, data, int(size))
		} else {
			require.ErrorIs(t, err, disk.ErrTooLarge)
		}
	}

	require.NoError(t, os.Truncate(path, 10))
	reads := 0
	files.Before(func(op disktest.Op, _ string) error { // runs after ReadFile has read the file's size
		if op == disktest.Read {
			reads++
			return os.Truncate(path, 1<<20)
		}
		return nil
	})
	_, err = disk.ReadFile(t.Context(), files, path, 100)
	require.EqualError(t, err, path+": file is too large: more than 100 bytes")
	require.LessOrEqual(t, reads, 2, "the rest is not read")
}

// TestReadFileEndsWithItsContext checks that ReadFile returns when its context ends: before
// reading begins, between two reads, and while the file system hangs.
func TestReadFileEndsWithItsContext(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(path, make([]byte, 1<<20), 0o600))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	files := disktest.Wrap(disk.OS)
	files.Before(func(op disktest.Op, _ string) error { return errors.New("touched") })
	_, err := disk.ReadFile(ctx, files, path, 1<<30)
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorContains(t, err, path)

	for _, hang := range []bool{false, true} {
		ctx, cancel = context.WithCancel(t.Context())
		stop := make(chan bool)
		reads := 0
		files.Before(func(op disktest.Op, _ string) error {
			if op != disktest.Read {
				return nil
			}
			cancel()
			if reads++; hang {
				<-stop
			}
			return nil
		})
		within(t, func() {
			_, err = disk.ReadFile(ctx, files, path, 1<<30)
			assert.ErrorIs(t, err, context.Canceled)
		})
		close(stop)
	}
}

// TestReadFileFails checks that ReadFile returns the file system's error if reading fails.
func TestReadFileFails(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(path, make([]byte, 100), 0o600))
	files := disktest.Wrap(disk.OS)
	for _, op := range []disktest.Op{disktest.Open, disktest.FileStat, disktest.Read} {
		files.Before(func(is disktest.Op, _ string) error {
			if is == op {
				return syscall.EIO
			}
			return nil
		})
		_, err := disk.ReadFile(t.Context(), files, path, 100)
		assert.ErrorIs(t, err, syscall.EIO, op)
	}
}
