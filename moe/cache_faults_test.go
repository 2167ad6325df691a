package moe_test

import (
	"context"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/cache"
	"sonicmoe/driver"
	"sonicmoe/internal/attack"
	"sonicmoe/internal/cachetest"
	"sonicmoe/internal/faulty"
	"sonicmoe/jit"
	"sonicmoe/moe"
)

// TestStartWithoutPermission checks that a start succeeds if a permission is missing in a cache's
// directory. It only compiles more, and logs one warning.
func TestStartWithoutPermission(t *testing.T) {
	if !cachetest.AsUser(t) {
		return
	}
	f := fill(t)
	chmod := func(t *testing.T, path string, mode os.FileMode) {
		t.Helper()
		require.NoError(t, os.Chmod(path, mode))
		t.Cleanup(func() { _ = os.Chmod(path, 0o700) })
	}
	for _, test := range []struct {
		name     string
		dir      func(t *testing.T) string
		compiled int
	}{
		{"an empty directory", func(t *testing.T) string {
			dir := t.TempDir()
			chmod(t, dir, 0o500)
			return dir
		}, f.kernels},
		{"an empty folder", func(t *testing.T) string {
			dir := t.TempDir()
			folder := filepath.Join(dir, "entries")
			require.NoError(t, os.Mkdir(folder, 0o700))
			chmod(t, folder, 0o500)
			return dir
		}, f.kernels},
		{"a full folder that can't be searched", func(t *testing.T) string {
			dir := f.copyTo(t)
			chmod(t, filepath.Join(dir, "entries"), 0o000)
			return dir
		}, f.kernels},
		{"one file", func(t *testing.T) string {
			dir := f.copyTo(t)
			chmod(t, entry(t, dir, "down").Path, 0o000)
			return dir
		}, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir, dev := test.dir(t), newCounted(t)
			s := start(t, dev, cache.Options{Dir: dir})
			assert.Equal(t, test.compiled, s.compiled)
			assert.Len(t, s.warnings, 1)
			assert.Equal(t, f.want, forwardOn(t, dev, s.layer))
		})
	}
	t.Run("a full cache needs no writing", func(t *testing.T) {
		dir, dev := f.copyTo(t), newCounted(t)
		chmod(t, filepath.Join(dir, "entries"), 0o500)
		s := start(t, dev, cache.Options{Dir: dir})
		assert.Zero(t, s.compiled)
		assert.Empty(t, s.warnings)
	})
}

// TestStartOnAFullDisk checks that a start on a full disk succeeds with one warning, and that the
// next start on a disk with space has no warning.
func TestStartOnAFullDisk(t *testing.T) {
	disk, inside := cachetest.OnDisk(t, 96<<10)
	if !inside {
		return
	}
	f := fill(t)
	dir := filepath.Join(disk, "cache")
	for range 2 { // the second start finds the entries of the first
		dev := newCounted(t)
		s := start(t, dev, cache.Options{Dir: dir})
		assert.Positive(t, s.compiled)
		require.Len(t, s.warnings, 1)
		assert.Contains(t, s.warnings[0], syscall.ENOSPC.Error())
		assert.Equal(t, f.want, forwardOn(t, dev, s.layer))
	}
	cachetest.Resize(t, disk, 4<<20)
	dev := newCounted(t)
	assert.Empty(t, start(t, dev, cache.Options{Dir: dir}).warnings)
	s := start(t, dev, cache.Options{Dir: dir})
	assert.Zero(t, s.compiled)
	assert.Empty(t, s.warnings)
	assert.Equal(t, f.want, forwardOn(t, dev, s.layer))
}

// TestStartOnAReadOnlyDisk checks that a start uses the entries of a disk that has become
// read-only.
func TestStartOnAReadOnlyDisk(t *testing.T) {
	disk, inside := cachetest.OnDisk(t, 4<<20)
	if !inside {
		return
	}
	f := fill(t)
	dir := filepath.Join(disk, "cache")
	dev := newCounted(t)
	start(t, dev, cache.Options{Dir: dir})
	require.NoError(t, os.Remove(entry(t, dir, "down").Path))
	cachetest.ReadOnly(t, disk, true)
	s := start(t, dev, cache.Options{Dir: dir})
	assert.Equal(t, 1, s.compiled)
	require.Len(t, s.warnings, 1)
	assert.Contains(t, s.warnings[0], syscall.EROFS.Error())
	assert.Equal(t, f.want, forwardOn(t, dev, s.layer))
	assert.Len(t, start(t, dev, cache.Options{Dir: filepath.Join(disk, "none")}).warnings, 1)
	cachetest.ReadOnly(t, disk, false)
	start(t, dev, cache.Options{Dir: dir})
	assert.Zero(t, start(t, dev, cache.Options{Dir: dir}).compiled)
}

// TestBitFlips checks that a start after one flipped bit in an entry compiles one kernel. It flips
// bits in all parts of the file.
func TestBitFlips(t *testing.T) {
	f := fill(t)
	dir := f.copyTo(t)
	path := entry(t, dir, "down").Path
	whole, err := os.ReadFile(path)
	require.NoError(t, err)
	dev := newCounted(t)
	samples := attack.Rounds(24, 300)
	for i := range samples {
		at := i * (len(whole) - 1) / (samples - 1)
		bad := append([]byte{}, whole...)
		bad[at] ^= 1 << (i % 8)
		require.NoError(t, os.WriteFile(path, bad, 0o600))
		s := start(t, dev, cache.Options{Dir: dir})
		require.Equal(t, 1, s.compiled, "byte %d", at)
		require.Equal(t, jit.Compiled.String(), s.layer.LoadedFrom()["down"])
		if i%8 == 0 {
			require.Equal(t, f.want, forwardOn(t, dev, s.layer), "byte %d", at)
		}
		s = start(t, dev, cache.Options{Dir: dir})
		require.Zero(t, s.compiled, "after byte %d", at)
	}
}

// TestStartWithoutDeviceMemory checks that a device without memory for modules gives an error with
// this cause. New does not compile the kernels again, which would not help, and the cache stays
// valid: with memory, the next start compiles nothing.
func TestStartWithoutDeviceMemory(t *testing.T) {
	f := fill(t)
	for name, kind := range map[string]error{"out of memory": driver.ErrOutOfMemory, "broken": driver.ErrBroken} {
		t.Run(name, func(t *testing.T) {
			dev := newCounted(t)
			dev.Before(func(op faulty.Op) error {
				if op == faulty.Load {
					return &driver.Error{Op: "cuModuleLoadDataEx", Kind: kind}
				}
				return nil
			})
			w := &warnings{}
			_, err := moe.New(context.Background(), dev, smallConfig, moe.WithoutBackward(), moe.WithoutDecode(), moe.WithLogger(newLogger(w)),
				moe.WithCache(cache.Open(cache.Options{Dir: f.dir, Logger: newLogger(w)})))
			require.ErrorIs(t, err, kind)
			assert.ErrorContains(t, err, "kernel moe_")
			assert.Zero(t, dev.Count(faulty.Compile))
			assert.Empty(t, w.said)

			dev.Before(nil)
			s := start(t, dev, cache.Options{Dir: f.dir})
			assert.Zero(t, s.compiled)
			assert.Equal(t, f.want, forwardOn(t, dev, s.layer))
		})
	}
}
