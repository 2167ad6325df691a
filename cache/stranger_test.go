//go:build unix

package cache

import (
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/internal/cachetest"
	"sonicmoe/internal/child"
	"sonicmoe/internal/disk"
	"sonicmoe/internal/disktest"
	"sonicmoe/internal/store"
)

// TestDirectoryThatOthersMayWrite checks that a directory that other users may write is refused
// with a reason, because anyone may have stored its machine code. As a read-only cache layer it
// is accepted.
func TestDirectoryThatOthersMayWrite(t *testing.T) {
	source, _ := testCache(t)
	key, e := testEntry(1, 100)
	require.Equal(t, store.Stored, source.Put(key, e))
	for _, mode := range []os.FileMode{0o770, 0o702, 0o777, 0o777 | os.ModeSticky} {
		require.NoError(t, os.Chmod(source.top.dir, mode))
		c, log := testCache(t, func(o *Options) { o.Dir = source.Dir() })
		_, o := c.Get(key)
		assert.Equal(t, store.Disabled, o, "%v", mode)
		assert.Equal(t, store.Disabled, c.Put(key, e))
		assert.ErrorContains(t, c.Err(), "may be written by others")
		assert.ErrorContains(t, c.Err(), "chmod go-w")
		assert.Len(t, log.warnings(), 1)
		_, o = modules{Open(Options{Dir: t.TempDir(), Layers: []string{source.Dir()}})}.Get(key)
		assert.Equal(t, store.Hit, o)
	}
	require.NoError(t, os.Chmod(source.top.dir, 0o755))
	_, o := modules{Open(Options{Dir: source.Dir()})}.Get(key)
	assert.Equal(t, store.Hit, o, "others may read")
}

// TestDirectoryOfAnother checks that Open refuses a directory that belongs to another user.
func TestDirectoryOfAnother(t *testing.T) {
	if os.Geteuid() == 0 && child.Role() == "" { // the child process uses the same directory, and its parent has done this already
		home, err := os.MkdirTemp("", "cache-test-")
		require.NoError(t, err)
		t.Cleanup(func() { os.RemoveAll(home) })
		require.NoError(t, os.Chmod(home, 0o755))
		require.NoError(t, os.Mkdir(filepath.Join(home, folder), 0o755))
		require.NoError(t, os.Chown(filepath.Join(home, folder), 12345, 12345))
		t.Setenv(envDir, home)
	}
	if !cachetest.AsUser(t) {
		return
	}
	if child.Role() == "" {
		t.Skip("only root can give directories away")
	}
	c, log := testCache(t, func(o *Options) { o.Dir = os.Getenv(envDir) })
	assert.Equal(t, store.Disabled, c.PutChoice("a", nil))
	assert.ErrorContains(t, c.Err(), "belongs to user 12345")
	assert.Len(t, log.warnings(), 1)
}

// TestLinksAndPipes puts links and pipes in the place of entries and locks. Targets of links
// must not be opened, created or changed, no call may block, and the entry must then be stored.
func TestLinksAndPipes(t *testing.T) {
	old := time.Date(2001, 1, 1, 0, 0, 0, 0, time.UTC)
	for name, plant := range map[string]func(t *testing.T, path, precious string){
		"a link to a file":  func(t *testing.T, path, precious string) { require.NoError(t, os.Symlink(precious, path)) },
		"a link to nothing": func(t *testing.T, path, precious string) { require.NoError(t, os.Symlink(precious+".not", path)) },
		"a pipe":            func(t *testing.T, path, _ string) { require.NoError(t, syscall.Mkfifo(path, 0o600)) },
		"a directory":       func(t *testing.T, path, _ string) { require.NoError(t, os.MkdirAll(filepath.Join(path, "x"), 0o700)) },
	} {
		t.Run(name, func(t *testing.T) {
			c, log := testCache(t)
			key, e := testEntry(1, 100)
			home := t.TempDir()
			precious := filepath.Join(home, "precious")
			writeFile(t, precious, []byte("precious"))
			require.NoError(t, os.Chtimes(precious, old, old))
			plant(t, modulePath(c, key), precious)
			plant(t, c.top.path(key.String()+lockSuffix), precious)
			done := make(chan bool)
			go func() {
				defer close(done)
				_, o := c.Get(key)
				assert.Equal(t, store.Damaged, o)
				c.Lock(context.Background(), key)()
				assert.Equal(t, store.Stored, c.Put(key, e))
				_, o = c.Get(key)
				assert.Equal(t, store.Hit, o)
			}()
			select {
			case <-done:
			case <-time.After(10 * time.Second):
				t.Fatal("something waits")
			}
			assert.Equal(t, "precious", string(readFile(t, precious)))
			assert.True(t, mustStat(t, precious).ModTime().Equal(old), "its time is unchanged")
			assert.Equal(t, 1, filesBelow(t, home), "no file was created")
			if !strings.HasPrefix(name, "a link") {
				assert.NotEmpty(t, log.warnings())
			}
		})
	}
}

// TestFileBecomesAPipe checks that Get does not block if a file becomes a pipe after it was
// checked and before it is opened.
func TestFileBecomesAPipe(t *testing.T) {
	c, _ := testCache(t)
	key, e := testEntry(1, 100)
	require.Equal(t, store.Stored, c.Put(key, e))
	path := modulePath(c, key)
	data := readFile(t, path)
	stop := make(chan bool)
	var swapper sync.WaitGroup
	defer swapper.Wait()
	defer close(stop)
	swapper.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			other := path + ".x"
			_ = os.Remove(other)
			if i%2 == 0 {
				_ = syscall.Mkfifo(other, 0o600)
			} else {
				_ = os.WriteFile(other, data, 0o600)
			}
			_ = os.Rename(other, path)
		}
	})
	reader := modules{Open(Options{Dir: c.Dir(), ReadOnly: true})}
	for range 3000 {
		done := make(chan store.Outcome, 1)
		go func() {
			_, o := reader.Get(key)
			done <- o
		}()
		select {
		case <-done:
		case <-time.After(10 * time.Second):
			t.Fatal("Get waits for the other end of a pipe")
		}
	}
}

// TestForeignLock checks that a lock file that belongs to another user is logged and costs no
// waiting time.
func TestForeignLock(t *testing.T) {
	c, log := testCache(t, func(o *Options) { o.LockWait = time.Minute })
	key := store.NewKey([]byte("key"))
	path := c.top.path(key.String() + lockSuffix)
	unlock := c.Lock(context.Background(), key)
	assert.Equal(t, os.FileMode(0o600), mustStat(t, path).Mode().Perm())
	unlock()
	if os.Geteuid() != 0 {
		t.Skip("only root can give files away")
	}
	writeFile(t, path, nil)
	require.NoError(t, os.Chown(path, 12345, 12345))
	f, err := disk.OS.OpenLock(path)
	require.NoError(t, err)
	defer f.Close()
	busy, err := f.TryLock()
	require.NoError(t, err)
	require.False(t, busy)
	start := time.Now()
	for range 3 {
		c.Lock(context.Background(), key)()
	}
	assert.Less(t, time.Since(start), 10*time.Second)
	require.Len(t, log.warnings(), 1)
	assert.Contains(t, log.warnings()[0], "a lock can't be had")
}

// TestLockThatIsHeldForLong checks that a lock that is not acquired in time is logged.
func TestLockThatIsHeldForLong(t *testing.T) {
	c, log := testCache(t, func(o *Options) { o.LockWait = 10 * time.Millisecond })
	requireLocks(t, c)
	key := store.NewKey([]byte("key"))
	defer c.Lock(context.Background(), key)()
	c.Lock(context.Background(), key)()
	c.Lock(context.Background(), key)()
	assert.EqualValues(t, 2, c.Stats().LockTimeouts)
	require.Len(t, log.warnings(), 1)
	assert.Contains(t, log.warnings()[0], "hangs")
}

// TestDamageCostsNoMemory checks that a huge file that is not the cache's is not read into
// memory, from a directory or from a bundle.
func TestDamageCostsNoMemory(t *testing.T) {
	c, _ := testCache(t)
	var keys []store.Key
	for seed := range uint64(16) {
		key, _ := testEntry(10*seed, 100)
		f, err := os.Create(modulePath(c, key))
		require.NoError(t, err)
		require.NoError(t, f.Truncate(maxFileBytes))
		require.NoError(t, f.Close())
		keys = append(keys, key)
	}
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for _, key := range keys {
		_, o := c.Get(key)
		assert.Equal(t, store.Damaged, o)
	}
	// A valid header may claim more bytes than any entry has. A member of a bundle may claim
	// any length.
	header := make([]byte, headerSize)
	copy(header, magic)
	binary.LittleEndian.PutUint32(header[8:], store.FormatVersion)
	binary.LittleEndian.PutUint32(header[12:], uint32(store.KindModule))
	binary.LittleEndian.PutUint64(header[16:], maxFileBytes+1)
	copy(header[24:], keys[0][:])
	_, err := readStored(endless{header}, maxFileBytes+1, fileName(store.KindModule, keys[0]))
	require.ErrorIs(t, err, errDamaged)
	runtime.ReadMemStats(&after)
	assert.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(8<<20))
}

// endless is a file that begins with the given bytes and continues with zeros.
type endless struct{ begin []byte }

func (e endless) ReadAt(p []byte, at int64) (int, error) {
	clear(p)
	if at < int64(len(e.begin)) {
		copy(p, e.begin[at:])
	}
	return len(p), nil
}

// TestLeftOversAreSwept checks that files left by writers that have ended are removed when a
// process stores its first file, with and without a size limit. Until then they must count
// towards the limit.
func TestLeftOversAreSwept(t *testing.T) {
	for _, most := range []int64{0, -1} {
		c, _ := testCache(t, func(o *Options) { o.MaxBytes = most })
		leave := func(n int, age time.Duration) {
			for i := range n {
				key, _ := testEntry(uint64(10*i), 100)
				path := c.top.path(fmt.Sprint(key, ".module.", i, tempSuffix))
				writeFile(t, path, make([]byte, 100<<10))
				setAge(t, path, age)
			}
		}
		temps := func() int {
			list, err := filepath.Glob(c.top.path("*" + tempSuffix))
			require.NoError(t, err)
			return len(list)
		}
		leave(20, 3*disk.TempAge)
		require.Equal(t, 20, temps())
		require.Equal(t, store.Stored, c.PutChoice("first", nil))
		assert.Zero(t, temps())
		leave(3, 0) // files that other processes are writing now
		require.Equal(t, store.Stored, modules{Open(Options{Dir: c.Dir(), MaxBytes: most})}.PutChoice("other", nil))
		assert.Equal(t, 3, temps(), "files being written stay")
	}
	c, _ := testCache(t, func(o *Options) { o.MaxBytes = 20 << 10 })
	keys := fill(t, c, 3)
	path := c.top.path(keys[0].String() + ".module.1" + tempSuffix)
	writeFile(t, path, make([]byte, 12<<10))
	next := modules{Open(Options{Dir: c.Dir(), MaxBytes: 20 << 10})}
	key, e := testEntry(900, 4<<10)
	require.Equal(t, store.Stored, next.Put(key, e))
	assert.NotEqual(t, []int{0, 1, 2}, present(c, keys), "files being written count too")
}

// TestWhatWasJustStoredStays checks that a file that was just stored stays on a file server
// whose clock is behind, although the file seems to be the oldest.
func TestWhatWasJustStoredStays(t *testing.T) {
	files := disktest.Wrap(disk.OS)
	c := modules{open(Options{Dir: t.TempDir(), MaxBytes: 10 << 10, Logger: slog.New(&logBook{})}, files)}
	keys := fill(t, c, 2)
	key, e := testEntry(900, 4<<10)
	files.Before(func(op disktest.Op, _ string) error {
		if op == disktest.ReadDir {
			setAge(t, modulePath(c, key), 100000*time.Hour)
		}
		return nil
	})
	require.Equal(t, store.Stored, c.Put(key, e))
	_, o := c.Get(key)
	assert.Equal(t, store.Hit, o)
	assert.Equal(t, []int{1}, present(c, keys))
}

// TestBundleIsNoFile checks that Import and a cache layer refuse a pipe or a device at once.
func TestBundleIsNoFile(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "warm.tar")
	require.NoError(t, syscall.Mkfifo(pipe, 0o600))
	for path, want := range map[string]string{pipe: "a named pipe", "/dev/zero": "a device", t.TempDir(): "a directory"} {
		done := make(chan bool)
		go func() {
			defer close(done)
			c, _ := testCache(t)
			_, err := c.ImportFile(t.Context(), path, BundleOptions{})
			assert.EqualError(t, err, "cache: "+path+" is "+want+", must be a regular file")
			c, log := testCache(t, func(o *Options) { o.Layers = []string{path} })
			assert.Len(t, log.warnings(), 1)
			assert.ErrorContains(t, c.Err(), path)
		}()
		select {
		case <-done:
		case <-time.After(10 * time.Second):
			t.Fatal("something waits")
		}
	}
}
