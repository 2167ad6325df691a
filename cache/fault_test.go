package cache

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/internal/cachetest"
	"sonicmoe/internal/disk"
	"sonicmoe/internal/disktest"
	"sonicmoe/internal/store"
)

// TestSmallDisk checks a disk that is smaller than the size limit. The most recently used files
// must stay, and there must be one warning.
func TestSmallDisk(t *testing.T) {
	dir, inside := cachetest.OnDisk(t, 256<<10)
	if !inside {
		return
	}
	c, log := testCache(t, func(o *Options) { o.Dir = dir })
	var keys []store.Key
	for seed := range uint64(20) {
		key, e := testEntry(10*seed, 40<<10)
		require.Equal(t, store.Stored, c.Put(key, e), "entry %d", seed)
		got, o := c.Get(key)
		require.Equal(t, store.Hit, o)
		require.Equal(t, e, got)
		keys = append(keys, key)
		setAge(t, modulePath(c, key), time.Duration(20-seed)*time.Minute)
	}
	left := present(c, keys)
	assert.GreaterOrEqual(t, len(left), 3)
	assert.Equal(t, 19, left[len(left)-1])
	assert.Equal(t, 20-len(left), left[0], "the oldest was removed")
	assert.EqualValues(t, 20-len(left), c.Stats().Evicted)
	assert.Len(t, log.warnings(), 1)
	require.NoError(t, c.Err())
	temps, err := filepath.Glob(c.top.path("*" + tempSuffix))
	require.NoError(t, err)
	assert.Empty(t, temps, "no temporary files are left")

	// A file of another program fills the disk. Storing a file that no longer fits must fail,
	// and no stored entry may be lost.
	ballast := filepath.Join(dir, "ballast")
	f, err := os.Create(ballast)
	require.NoError(t, err)
	for _, err = f.Write(make([]byte, 4096)); err == nil; _, err = f.Write(make([]byte, 4096)) {
	}
	require.ErrorIs(t, err, syscall.ENOSPC)
	require.NoError(t, f.Close())
	key, e := testEntry(5000, 400<<10)
	assert.Equal(t, store.Failed, c.Put(key, e))
	assert.ErrorIs(t, c.Err(), syscall.ENOSPC)
	assert.Equal(t, left, present(c, keys))
	_, err = c.ExportFile(context.Background(), filepath.Join(dir, "warm.tar"))
	assert.ErrorIs(t, err, syscall.ENOSPC)
	assert.NoFileExists(t, filepath.Join(dir, "warm.tar"))

	next, log := testCache(t, func(o *Options) { o.Dir = dir })
	for _, i := range left {
		_, o := next.Get(keys[i])
		assert.Equal(t, store.Hit, o)
	}
	assert.Empty(t, log.warnings(), "the next start is clean")
	cachetest.Resize(t, dir, 2<<20)
	assert.Equal(t, store.Stored, next.Put(key, e))
}

func TestReadOnlyDisk(t *testing.T) {
	dir, inside := cachetest.OnDisk(t, 1<<20)
	if !inside {
		return
	}
	c, log := testCache(t, func(o *Options) { o.Dir = filepath.Join(dir, "cache") })
	key, e := testEntry(1, 1000)
	damaged, other := testEntry(2, 1000)
	require.Equal(t, store.Stored, c.Put(key, e))
	writeFile(t, modulePath(c, damaged), []byte("x"))
	setAge(t, modulePath(c, key), 5*touchEvery)
	cachetest.ReadOnly(t, dir, true)
	defer cachetest.ReadOnly(t, dir, false)

	for range 2 {
		got, o := c.Get(key)
		assert.Equal(t, store.Hit, o)
		assert.Equal(t, e, got)
		_, o = c.Get(damaged)
		assert.Equal(t, store.Damaged, o)
		assert.Equal(t, store.Failed, c.Put(damaged, other))
		assert.Equal(t, store.Failed, c.Delete(key))
		c.Lock(context.Background(), key)()
		_, err := c.Prune(context.Background(), PruneOptions{MaxBytes: -1})
		assert.NoError(t, err)
	}
	assert.ErrorIs(t, c.Err(), syscall.EROFS)
	assert.Len(t, log.warnings(), 2, "the disk once, the damaged file once")

	// A cache that is opened on a disk that is already read-only finds the existing files.
	for name, o := range map[string]Options{"by accident": {Dir: c.Dir()}, "on purpose": {Dir: c.Dir(), ReadOnly: true}, "layer": {Dir: t.TempDir(), Layers: []string{c.Dir()}}} {
		got, outcome := modules{Open(o)}.Get(key)
		assert.Equal(t, store.Hit, outcome, name)
		assert.Equal(t, e, got)
	}
	none, log := testCache(t, func(o *Options) { o.Dir = filepath.Join(dir, "none") })
	_, o := none.Get(key)
	assert.Equal(t, store.Disabled, o)
	assert.Len(t, log.warnings(), 1)
}

// TestNoPermission checks that a user without some access right gets a miss and one warning,
// for each right.
func TestNoPermission(t *testing.T) {
	if !cachetest.AsUser(t) {
		return
	}
	key, e := testEntry(1, 100)
	other, otherEntry := testEntry(2, 100)
	fresh := func(t *testing.T) (modules, *logBook) {
		c, _ := testCache(t)
		require.Equal(t, store.Stored, c.Put(key, e))
		return testCache(t, func(o *Options) { o.Dir = c.Dir() })
	}
	chmod := func(t *testing.T, path string, mode os.FileMode) {
		t.Helper()
		require.NoError(t, os.Chmod(path, mode))
		t.Cleanup(func() { _ = os.Chmod(path, 0o700) })
	}
	t.Run("folder not writable", func(t *testing.T) {
		c, log := fresh(t)
		chmod(t, c.top.dir, 0o500)
		for range 3 {
			assert.Equal(t, store.Failed, c.Put(other, otherEntry))
			_, o := c.Get(key)
			assert.Equal(t, store.Hit, o)
			c.Lock(context.Background(), other)()
		}
		assert.Len(t, log.warnings(), 1)
		assert.ErrorIs(t, c.Err(), os.ErrPermission)
	})
	t.Run("damaged in a folder not writable", func(t *testing.T) {
		c, log := fresh(t)
		writeFile(t, modulePath(c, key), []byte("x"))
		chmod(t, c.top.dir, 0o500)
		for range 3 {
			_, o := c.Get(key)
			assert.Equal(t, store.Damaged, o)
			assert.Equal(t, store.Failed, c.Put(key, e))
		}
		assert.Len(t, log.warnings(), 2, "the file once, the folder once")
	})
	t.Run("folder not searchable", func(t *testing.T) {
		c, log := fresh(t)
		chmod(t, c.top.dir, 0o000)
		for range 3 {
			_, o := c.Get(key)
			assert.Equal(t, store.Miss, o)
			assert.Equal(t, store.Failed, c.Put(key, e))
		}
		_, err := c.List(context.Background())
		assert.ErrorIs(t, err, os.ErrPermission)
		_, err = c.Export(context.Background(), &bytesDiscard{})
		assert.ErrorIs(t, err, os.ErrPermission)
		assert.Len(t, log.warnings(), 1)
	})
	t.Run("file not readable", func(t *testing.T) {
		c, log := fresh(t)
		chmod(t, modulePath(c, key), 0o000)
		_, o := c.Get(key)
		assert.Equal(t, store.Miss, o)
		assert.Equal(t, store.Stored, c.Put(key, e), "the folder is the user's own, so the file is replaced")
		_, o = c.Get(key)
		assert.Equal(t, store.Hit, o)
		assert.Len(t, log.warnings(), 1)
	})
	t.Run("parent not writable", func(t *testing.T) {
		parent := t.TempDir()
		chmod(t, parent, 0o500)
		c, log := testCache(t, func(o *Options) { o.Dir = filepath.Join(parent, "cache") })
		assert.Equal(t, store.Disabled, c.Put(key, e))
		assert.ErrorIs(t, c.Err(), os.ErrPermission)
		assert.Len(t, log.warnings(), 1)
	})
	t.Run("bundle not readable", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "warm.tar")
		writeFile(t, path, nil)
		chmod(t, path, 0o000)
		c, log := testCache(t, func(o *Options) { o.Layers = []string{path} })
		assert.Equal(t, store.Stored, c.Put(key, e))
		assert.ErrorIs(t, c.Err(), os.ErrPermission)
		assert.Len(t, log.warnings(), 1)
	})
}

type bytesDiscard struct{}

func (bytesDiscard) Write(b []byte) (int, error) { return len(b), nil }

// TestFileSystemWithoutLocks checks that all callers succeed without locks. Each then compiles
// by itself.
func TestFileSystemWithoutLocks(t *testing.T) {
	for name, err := range map[string]error{"unsupported": errors.ErrUnsupported, "no locks": syscall.ENOLCK, "stale": errors.New("stale file handle")} {
		t.Run(name, func(t *testing.T) {
			files, log := disktest.Wrap(disk.OS), &logBook{}
			files.Before(func(op disktest.Op, _ string) error {
				if op == disktest.TryLock {
					return err
				}
				return nil
			})
			c := modules{open(Options{Dir: t.TempDir(), Logger: slog.New(log)}, files)}
			key, e := testEntry(1, 1000)
			var wg sync.WaitGroup
			for range 8 {
				wg.Go(func() {
					defer c.Lock(context.Background(), key)()
					if _, o := c.Get(key); o != store.Hit {
						c.Put(key, e)
					}
				})
			}
			wg.Wait()
			got, o := c.Get(key)
			assert.Equal(t, store.Hit, o)
			assert.Equal(t, e, got)
			assert.Zero(t, c.Stats().LockTimeouts)
			assert.Empty(t, log.warnings())
			r, err := c.Verify(context.Background())
			require.NoError(t, err)
			assert.Equal(t, 1, r.Sound)
			assert.Empty(t, r.Damaged)
		})
	}
}

// TestSlowFileSystem checks that no caller waits longer than LockWait for another caller's
// write, and that readers see the old or the new entry.
func TestSlowFileSystem(t *testing.T) {
	files := disktest.Wrap(disk.OS)
	c := modules{open(Options{Dir: t.TempDir(), LockWait: 5 * time.Millisecond}, files)}
	requireLocks(t, c)
	key, e := testEntry(1, 1000)
	begun := make(chan bool)
	files.Before(func(op disktest.Op, _ string) error {
		if op == disktest.Sync {
			close(begun)
			time.Sleep(100 * time.Millisecond)
		}
		return nil
	})
	var wg sync.WaitGroup
	wg.Go(func() {
		defer c.Lock(context.Background(), key)()
		assert.Equal(t, store.Stored, c.Put(key, e))
	})
	<-begun
	impatient := modules{Open(Options{Dir: c.Dir(), LockWait: 5 * time.Millisecond})}
	impatient.Lock(context.Background(), key)()
	assert.EqualValues(t, 1, impatient.Stats().LockTimeouts)
	_, o := impatient.Get(key)
	assert.Equal(t, store.Miss, o, "a half-written file is a miss")
	wg.Wait()
	_, o = impatient.Get(key)
	assert.Equal(t, store.Hit, o)
}

// TestClockSetBack sets the clock back, so that existing files have times in the future. These
// files must be found and must stay if they are used. Otherwise they must be removed before
// files stored later.
func TestClockSetBack(t *testing.T) {
	ctx := context.Background()
	const year = 365 * 24 * time.Hour
	c, _ := testCache(t)
	old := fill(t, c, 4)
	require.Equal(t, store.Deleted, c.DeleteChoice("tuned"))
	for _, key := range old {
		setAge(t, modulePath(c, key), -year)
	}
	_, o := c.Get(old[0])
	require.Equal(t, store.Hit, o)
	assert.Less(t, time.Since(mustStat(t, modulePath(c, old[0])).ModTime()).Abs(), time.Minute)

	files, err := c.top.scan()
	require.NoError(t, err)
	evictionOrder(files)
	assert.Equal(t, old[0], files[len(files)-1].key, "the file used now is the most recently used")

	r, err := c.Prune(ctx, PruneOptions{MaxAge: time.Hour})
	require.NoError(t, err)
	assert.Zero(t, r.Removed, "their age is not known")
	for _, key := range old {
		assert.Less(t, time.Since(mustStat(t, modulePath(c, key)).ModTime()).Abs(), time.Minute, "they age from now on")
	}

	for _, key := range old[1:] {
		setAge(t, modulePath(c, key), -year)
	}
	size := countedBytes(files) / 4
	_, err = c.Prune(ctx, PruneOptions{MaxBytes: size + size/2})
	require.NoError(t, err)
	assert.Equal(t, []int{0}, present(c, old), "files from the future are removed first")
}
