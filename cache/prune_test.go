package cache

import (
	"context"
	"io/fs"
	"os"
	"sonicmoe/internal/disk"
	"sonicmoe/internal/disktest"
	"sonicmoe/internal/store"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// fill stores n modules of 4 kB, in the order of their last use, and a choice that was unused
// for even longer.
func fill(t *testing.T, c modules, n int) []store.Key {
	t.Helper()
	var keys []store.Key
	require.Equal(t, store.Stored, c.PutChoice("tuned", []byte("point")))
	setAge(t, c.top.path(fileName(store.KindChoice, choiceKey("tuned"))), 1000*time.Hour)
	for i := range n {
		key, e := testEntry(uint64(10*i), 4<<10)
		require.Equal(t, store.Stored, c.Put(key, e))
		setAge(t, modulePath(c, key), time.Duration(100*(n-i))*time.Hour)
		keys = append(keys, key)
	}
	return keys
}

// present returns the indices of the keys whose files are on disk.
func present(c modules, keys []store.Key) (indices []int) {
	for i, key := range keys {
		if _, err := os.Stat(modulePath(c, key)); err == nil {
			indices = append(indices, i)
		}
	}
	return indices
}

func TestLeastRecentlyUsedGoFirst(t *testing.T) {
	c, _ := testCache(t, func(o *Options) { o.MaxBytes = 25 << 10 })
	keys := fill(t, c, 5)
	assert.Equal(t, []int{0, 1, 2, 3, 4}, present(c, keys))
	_, o := c.Get(keys[0]) // now no longer the least recently used
	require.Equal(t, store.Hit, o)
	key, e := testEntry(900, 4<<10)
	require.Equal(t, store.Stored, c.Put(key, e))
	assert.Equal(t, []int{0, 2, 3, 4}, present(c, keys))
	assert.EqualValues(t, 1, c.Stats().Evicted)
	_, o = c.GetChoice("tuned")
	assert.Equal(t, store.Hit, o, "choices go last")
	_, o = c.Get(key)
	assert.Equal(t, store.Hit, o)
}

// TestBoundCountsOthersFiles checks that files stored by other processes count
// towards the limit.
func TestBoundCountsOthersFiles(t *testing.T) {
	c, _ := testCache(t)
	keys := fill(t, c, 5)
	small := modules{Open(Options{Dir: c.Dir(), MaxBytes: 10 << 10})}
	key, e := testEntry(900, 4<<10)
	require.Equal(t, store.Stored, small.Put(key, e))
	assert.Equal(t, []int{4}, present(c, keys))
	_, o := small.Get(key)
	assert.Equal(t, store.Hit, o)
}

func TestLargerThanTheBound(t *testing.T) {
	c, _ := testCache(t, func(o *Options) { o.MaxBytes = 5 << 10 })
	keys := fill(t, c, 1)
	key, e := testEntry(900, 8<<10)
	assert.Equal(t, store.Failed, c.Put(key, e))
	assert.ErrorContains(t, c.Err(), "the limit of the whole cache, 5120")
	assert.Equal(t, []int{0}, present(c, keys), "no other file was removed for it")
}

func TestUnbounded(t *testing.T) {
	c, _ := testCache(t, func(o *Options) { o.MaxBytes = -1 })
	assert.Len(t, present(c, fill(t, c, 5)), 5)
}

func TestPrune(t *testing.T) {
	for name, tc := range map[string]struct {
		options PruneOptions
		left    []int
		choice  store.Outcome
	}{
		"nothing":      {PruneOptions{}, []int{0, 1, 2, 3, 4}, store.Hit},
		"by size":      {PruneOptions{MaxBytes: 10 << 10}, []int{3, 4}, store.Hit},
		"by age":       {PruneOptions{MaxAge: 350 * time.Hour}, []int{2, 3, 4}, store.Miss},
		"size and age": {PruneOptions{MaxBytes: 10 << 10, MaxAge: 150 * time.Hour}, []int{4}, store.Miss},
		"all":          {PruneOptions{MaxBytes: -1}, nil, store.Miss},
	} {
		t.Run(name, func(t *testing.T) {
			c, _ := testCache(t)
			keys := fill(t, c, 5)
			writeFile(t, c.top.path("README"), []byte("not ours"))
			before := c.Stats().BytesWritten
			r, err := c.Prune(context.Background(), tc.options)
			require.NoError(t, err)
			assert.Equal(t, tc.left, present(c, keys))
			_, o := c.GetChoice("tuned")
			assert.Equal(t, tc.choice, o)
			assert.FileExists(t, c.top.path("README"))
			assert.Equal(t, before, r.Freed+r.Left)
			removed := 5 - len(tc.left)
			if tc.choice == store.Miss {
				removed++
			}
			assert.Equal(t, removed, r.Removed)
			assert.EqualValues(t, removed, c.Stats().Evicted)
		})
	}
}

func TestPruneDropsDamagedFilesFirst(t *testing.T) {
	c, _ := testCache(t)
	keys := fill(t, c, 2)
	bad := store.NewKey([]byte("bad"))
	writeFile(t, modulePath(c, bad), make([]byte, 4<<10))
	_, o := c.Get(bad)
	require.Equal(t, store.Damaged, o)
	_, err := c.Prune(context.Background(), PruneOptions{MaxBytes: 10 << 10})
	require.NoError(t, err)
	assert.Equal(t, []int{0, 1}, present(c, keys))
	assert.NoFileExists(t, modulePath(c, bad)+badSuffix)
}

func TestEvictSparesAFileInUse(t *testing.T) {
	c, _ := testCache(t)
	keys := fill(t, c, 2)
	files, err := c.top.scan()
	require.NoError(t, err)
	_, o := c.Get(keys[0]) // used after the scan
	require.Equal(t, store.Hit, o)
	c.top.evict(files, PruneOptions{MaxBytes: -1}, "")
	assert.Equal(t, []int{0}, present(c, keys))
}

func TestTouch(t *testing.T) {
	c, _ := testCache(t)
	key, e := testEntry(1, 100)
	require.Equal(t, store.Stored, c.Put(key, e))
	for name, tc := range map[string]struct {
		age     time.Duration
		touched bool
	}{
		"just used":          {touchEvery / 2, false},
		"long ago":           {3 * touchEvery, true},
		"a clock was wrong":  {-3 * touchEvery, true},
		"a clock runs ahead": {-touchEvery / 2, false},
	} {
		setAge(t, modulePath(c, key), tc.age)
		before := mustStat(t, modulePath(c, key)).ModTime()
		_, o := c.Get(key)
		require.Equal(t, store.Hit, o)
		after := mustStat(t, modulePath(c, key)).ModTime()
		assert.Equal(t, tc.touched, !after.Equal(before), name)
		if tc.touched {
			assert.Less(t, time.Since(after).Abs(), time.Minute, name)
		}
	}
}

func TestPruneDropsOldLocks(t *testing.T) {
	c, _ := testCache(t)
	requireLocks(t, c)
	path := func(text string) string { return c.top.path(store.NewKey([]byte(text)).String() + lockSuffix) }
	held, old, fresh := path("held"), path("old"), path("fresh")
	unlock := c.Lock(context.Background(), store.NewKey([]byte("held")))
	writeFile(t, old, nil) // a killed holder leaves such a file
	writeFile(t, fresh, nil)
	setAge(t, held, 2*lockAge)
	setAge(t, old, 2*lockAge)
	_, err := c.Prune(context.Background(), PruneOptions{})
	require.NoError(t, err)
	assert.FileExists(t, held)
	assert.NoFileExists(t, old)
	assert.FileExists(t, fresh)
	unlock()
	assert.NoFileExists(t, held, "a live holder leaves nothing")
}

// TestPruneOfWhatCannotBeListed checks that Prune returns an error for a directory
// that cannot be listed, and removes nothing after its context has ended.
func TestPruneOfWhatCannotBeListed(t *testing.T) {
	files := disktest.Wrap(disk.OS)
	c := modules{open(Options{Dir: t.TempDir()}, files)}
	fill(t, c, 2)
	files.Before(func(op disktest.Op, path string) error {
		if op == disktest.ReadDir {
			return &fs.PathError{Op: "open", Path: path, Err: syscall.EIO}
		}
		return nil
	})
	_, err := c.Prune(context.Background(), PruneOptions{MaxBytes: -1})
	require.ErrorIs(t, err, syscall.EIO)
	files.Before(nil)
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	_, err = c.Prune(ended, PruneOptions{MaxBytes: -1})
	require.ErrorIs(t, err, context.Canceled)
	report, err := c.Prune(context.Background(), PruneOptions{MaxBytes: -1})
	require.NoError(t, err)
	require.Zero(t, report.Left)
}

// TestMakeRoom checks how much room is made on a full disk: twice the size of the new file or a
// tenth of the cache, whichever is more, rounded up to whole files. The new file itself must
// stay, and the usage must be right afterwards.
func TestMakeRoom(t *testing.T) {
	for _, tc := range []struct {
		name         string
		files, large int64 // sizes in files; large is the size of the new file
		removed      int
	}{
		{"a tenth", 30, 0, 3},
		{"a file", 30, 2, 4},
		{"all but itself", 10, 9, 9},
		{"larger than all", 10, 11, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, _ := testCache(t, func(o *Options) { o.MaxBytes = -1 })
			var keys []store.Key
			for i := range tc.files {
				key, e := testEntry(uint64(10*i), 4<<10)
				require.Equal(t, store.Stored, c.Put(key, e))
				setAge(t, modulePath(c, key), time.Duration(100*(tc.files-i))*time.Hour)
				keys = append(keys, key)
			}
			bytes := func() int64 {
				files, err := c.top.scan()
				require.NoError(t, err)
				return countedBytes(files)
			}
			each := bytes() / tc.files
			c.usage.bytes = 1
			last := fileName(store.KindModule, keys[len(keys)-1])
			assert.Equal(t, tc.removed > 0, c.makeRoom(last, tc.large*each))
			left := present(c, keys)
			assert.Len(t, left, int(tc.files)-tc.removed)
			assert.Equal(t, tc.removed, left[0], "the oldest was removed")
			if tc.removed > 0 {
				assert.Equal(t, bytes(), c.usage.bytes)
			} else {
				assert.EqualValues(t, 1, c.usage.bytes, "the folder was not scanned")
			}
		})
	}
}
