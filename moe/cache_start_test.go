package moe_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/cache"
	"sonicmoe/internal/faulty"
	"sonicmoe/internal/store"
	"sonicmoe/internal/trial"
	"sonicmoe/jit"
	"sonicmoe/moe"
)

// filled is a cache directory that a first start has filled.
type filled struct {
	dir     string
	kernels int // the number of the layer's kernels
	want    trial.Results
}

func fill(t testing.TB) filled {
	t.Helper()
	dev, dir := newCounted(t), t.TempDir()
	s := start(t, dev, cache.Options{Dir: dir})
	kernels := len(s.layer.Kernels())
	require.Equal(t, kernels, s.compiled)
	require.Empty(t, s.warnings)
	for kernel, origin := range s.layer.LoadedFrom() {
		require.Equal(t, jit.Compiled.String(), origin, kernel)
	}
	return filled{dir, kernels, forwardOn(t, dev, s.layer)}
}

// copyTo returns a copy of the directory that a test may damage.
func (f filled) copyTo(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.CopyFS(dir, os.DirFS(f.dir)))
	require.NoError(t, os.Chmod(dir, 0o700))
	return dir
}

// entry finds a kernel's entry by its label.
func entry(t testing.TB, dir, kernel string) cache.Info {
	t.Helper()
	list, err := cache.Open(cache.Options{Dir: dir}).List(context.Background())
	require.NoError(t, err)
	for _, info := range list {
		if strings.HasPrefix(info.Label, kernel+" ") {
			return info
		}
	}
	require.Fail(t, "no entry of "+kernel)
	return cache.Info{}
}

func keyOf(t testing.TB, dir, kernel string) store.Key {
	t.Helper()
	key, err := store.ParseKey(entry(t, dir, kernel).Key)
	require.NoError(t, err)
	return key
}

func TestSecondStartCompilesNothing(t *testing.T) {
	f := fill(t)
	dev := newCounted(t)
	s := start(t, dev, cache.Options{Dir: f.dir})
	assert.Zero(t, s.compiled)
	assert.EqualValues(t, f.kernels, dev.Count(faulty.Load))
	assert.Empty(t, s.warnings)
	for kernel, origin := range s.layer.LoadedFrom() {
		assert.Equal(t, jit.Cached.String(), origin, kernel)
	}
	assert.Equal(t, f.want, forwardOn(t, dev, s.layer))

	// A second layer of the same process uses neither cache nor device.
	dev.ResetCounts()
	again, err := moe.New(context.Background(), dev, smallConfig, moe.WithoutCache(), moe.WithoutBackward(), moe.WithoutDecode())
	require.NoError(t, err)
	assert.Zero(t, dev.Count(faulty.Any))
	for kernel, origin := range again.LoadedFrom() {
		assert.Equal(t, jit.Loaded.String(), origin, kernel)
	}
	assert.Equal(t, f.want, forwardOn(t, dev, again))
}

// TestDefaultCache checks that SONICMOE_CACHE names the cache of a New without
// options.
func TestDefaultCache(t *testing.T) {
	f := fill(t)
	t.Setenv("SONICMOE_CACHE", f.dir)
	dev, w := newCounted(t), &warnings{}
	assert.Zero(t, startWith(t, dev, w).compiled)
	t.Setenv("SONICMOE_CACHE", "off")
	assert.Equal(t, f.kernels, startWith(t, dev, w).compiled)
	assert.Empty(t, w.said)
}

// TestManyStartsAtOnce checks that layers that start at the same time share the
// work.
func TestManyStartsAtOnce(t *testing.T) {
	f := fill(t)
	dev := newCounted(t)
	errs := make(chan error)
	const starts = 8
	for range starts {
		go func() {
			_, err := moe.New(context.Background(), dev, smallConfig, moe.WithoutCache(), moe.WithoutBackward(), moe.WithoutDecode())
			errs <- err
		}()
	}
	for range starts {
		assert.NoError(t, <-errs)
	}
	assert.EqualValues(t, f.kernels, dev.Count(faulty.Compile))
	assert.EqualValues(t, f.kernels, dev.Count(faulty.Load))
}

// damage is a way to damage the file of an entry.
type damage struct {
	name  string
	spoil func(t testing.TB, path string, whole []byte)
}

func rewrite(f func(whole []byte) []byte) func(testing.TB, string, []byte) {
	return func(t testing.TB, path string, whole []byte) {
		require.NoError(t, os.WriteFile(path, f(whole), 0o600))
	}
}

// fileDamages lists damages of the file of "down". The files of other kernels stay valid.
func fileDamages(size int) []damage {
	all := []damage{
		{"empty", rewrite(func([]byte) []byte { return nil })},
		{"foreign", rewrite(func([]byte) []byte { return []byte("#!/bin/sh\necho this was never an entry\n") })},
		{"zeros", rewrite(func(b []byte) []byte { return make([]byte, len(b)) })},
		{"longer", rewrite(func(b []byte) []byte { return append(bytes.Clone(b), 0) })},
		{"twice", rewrite(func(b []byte) []byte { return append(bytes.Clone(b), b...) })},
		{"of another key", func(t testing.TB, path string, _ []byte) {
			other := entry(t, filepath.Dir(filepath.Dir(path)), "count")
			require.NoError(t, os.Rename(other.Path, path))
		}},
		{"a folder", func(t testing.TB, path string, _ []byte) {
			require.NoError(t, os.Remove(path))
			require.NoError(t, os.Mkdir(path, 0o700))
		}},
	}
	for _, n := range []int{1, 8, 56, 100, size / 2, size - 32, size - 1} {
		all = append(all, damage{fmt.Sprintf("cut to %d", n), rewrite(func(b []byte) []byte { return b[:n] })})
	}
	for i, at := range []int{0, 8, 12, 16, 24, 57, 200, size / 3, size / 2, size - 33, size - 32, size - 1} {
		all = append(all, damage{fmt.Sprintf("bit of byte %d", at), rewrite(func(b []byte) []byte {
			b = bytes.Clone(b)
			b[at] ^= 1 << (i % 8)
			return b
		})})
	}
	return all
}

// TestDamagedFiles checks that a start with a damaged file compiles one kernel and logs one
// warning, and that the next start finds a complete cache.
func TestDamagedFiles(t *testing.T) {
	f := fill(t)
	size := int(entry(t, f.dir, "down").Bytes)
	for _, d := range fileDamages(size) {
		t.Run(d.name, func(t *testing.T) {
			dir, dev := f.copyTo(t), newCounted(t)
			path := entry(t, dir, "down").Path
			whole, err := os.ReadFile(path)
			require.NoError(t, err)
			d.spoil(t, path, whole)

			recompiled := []string{"down"}
			if d.name == "of another key" {
				recompiled = append(recompiled, "count") // the damage moved the file of "count" to the path of "down"
			}
			f.checkRepair(t, dev, dir, recompiled, 1)
		})
	}
}

// checkRepair starts twice. The first start must compile the named kernels and log one warning for
// each damage. The second must compile nothing. The results must be the results of the undamaged
// cache.
func (f filled) checkRepair(t *testing.T, dev *faulty.Device, dir string, recompiled []string, warned int) {
	t.Helper()
	s := start(t, dev, cache.Options{Dir: dir})
	assert.Equal(t, len(recompiled), s.compiled)
	for kernel, origin := range s.layer.LoadedFrom() {
		want := jit.Cached.String()
		for _, r := range recompiled {
			if r == kernel {
				want = jit.Compiled.String()
			}
		}
		assert.Equal(t, want, origin, kernel)
	}
	assert.Len(t, s.warnings, warned)
	assert.Equal(t, f.want, forwardOn(t, dev, s.layer))

	s = start(t, dev, cache.Options{Dir: dir})
	assert.Zero(t, s.compiled)
	assert.Empty(t, s.warnings)
}

// TestRefusedMachineCode checks starts with a valid entry whose machine code is unusable, from a
// broken assembler or written by hand. They compile and warn as with a damaged file.
func TestRefusedMachineCode(t *testing.T) {
	f := fill(t)
	for _, test := range []struct {
		name   string
		spoil  func(e *store.Entry, other store.Entry)
		warned int
	}{
		{"garbage", func(e *store.Entry, _ store.Entry) { e.Images[0].Code = []byte("\x7fELF and nothing more") }, 1},
		{"empty", func(e *store.Entry, _ store.Entry) { e.Images[0].Code = nil }, 1},
		{"cut", func(e *store.Entry, _ store.Entry) { e.Images[0].Code = e.Images[0].Code[:500] }, 1},
		{"of another kernel", func(e *store.Entry, other store.Entry) { e.Images = other.Images }, 1},
		{"of another text", func(e *store.Entry, other store.Entry) { *e = other }, 1},
		{"of another producer", func(e *store.Entry, _ store.Entry) { e.Images[0].Producer = "emulated 0" }, 0},
		{"absent", func(e *store.Entry, _ store.Entry) { e.Images = nil }, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir, dev := f.copyTo(t), newCounted(t)
			c := cache.Open(cache.Options{Dir: dir})
			key := keyOf(t, dir, "down")
			e, outcome := store.Of(c).Get(key)
			require.Equal(t, store.Hit, outcome)
			other, outcome := store.Of(c).Get(keyOf(t, dir, "count"))
			require.Equal(t, store.Hit, outcome)
			test.spoil(&e, other)
			require.Equal(t, store.Deleted, store.Of(c).Delete(key))
			require.Equal(t, store.Stored, store.Of(c).Put(key, e))
			f.checkRepair(t, dev, dir, []string{"down"}, test.warned)
		})
	}
}

// TestUnwritableDirectory checks that without a writable directory every start
// compiles, with one warning.
func TestUnwritableDirectory(t *testing.T) {
	f := fill(t)
	for _, test := range []struct {
		name string
		dir  func(t *testing.T) string
	}{
		{"a file in its place", func(t *testing.T) string {
			path := filepath.Join(t.TempDir(), "file")
			require.NoError(t, os.WriteFile(path, []byte("a file"), 0o600))
			return path
		}},
		{"below a file", func(t *testing.T) string {
			path := filepath.Join(t.TempDir(), "file")
			require.NoError(t, os.WriteFile(path, []byte("a file"), 0o600))
			return filepath.Join(path, "cache")
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			dev := newCounted(t)
			s := start(t, dev, cache.Options{Dir: test.dir(t)})
			assert.Equal(t, f.kernels, s.compiled)
			assert.Len(t, s.warnings, 1)
			assert.Equal(t, f.want, forwardOn(t, dev, s.layer))
		})
	}
}

// TestDirectoryReplacedByFile checks a start whose cache directory has been replaced by a file. It
// compiles all kernels, with one warning.
func TestDirectoryReplacedByFile(t *testing.T) {
	f := fill(t)
	dev, w := newCounted(t), &warnings{}
	dir := f.copyTo(t)
	c := cache.Open(cache.Options{Dir: dir, Logger: newLogger(w)})
	require.NoError(t, os.RemoveAll(dir))
	require.NoError(t, os.WriteFile(dir, nil, 0o600))
	s := startWith(t, dev, w, moe.WithCache(c))
	assert.Equal(t, f.kernels, s.compiled)
	assert.Len(t, s.warnings, 1)
	assert.Equal(t, f.want, forwardOn(t, dev, s.layer))
}

func TestCacheOff(t *testing.T) {
	f := fill(t)
	for name, off := range map[string]moe.Option{"none": moe.WithoutCache(), "off": moe.WithCache(cache.Open(cache.Options{Dir: "off"}))} {
		t.Run(name, func(t *testing.T) {
			dev := newCounted(t)
			s := startWith(t, dev, &warnings{}, off)
			assert.Equal(t, f.kernels, s.compiled)
			assert.Empty(t, s.warnings)
			assert.Equal(t, f.want, forwardOn(t, dev, s.layer))
		})
	}
	_, err := moe.New(t.Context(), testDevice(t), smallConfig, moe.WithCache(nil))
	assert.ErrorContains(t, err, "WithCache is nil")
}
