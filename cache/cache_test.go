package cache

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/internal/disk"
	"sonicmoe/internal/disktest"
	"sonicmoe/internal/store"
)

func TestRoundTrip(t *testing.T) {
	big, bigEntry := testEntry(3, 1<<20)
	cases := map[string]struct {
		key   store.Key
		entry store.Entry
	}{
		"empty":     {store.NewKey(), store.Entry{PTX: []byte{}}},
		"no images": {store.NewKey([]byte("a")), store.Entry{Label: "axpy", PTX: []byte(".version 8.0\n")}},
		"empty code": {store.NewKey([]byte("b")), store.Entry{PTX: []byte{0}, Images: []store.Image{
			{Producer: "", Code: []byte{}, Log: "log\n"}}}},
		"big": {big, bigEntry},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			c, log := testCache(t)
			_, o := c.Get(tc.key)
			assert.Equal(t, store.Miss, o)
			assert.Equal(t, store.Stored, c.Put(tc.key, tc.entry))
			assert.Equal(t, store.Unchanged, c.Put(tc.key, tc.entry))
			got, o := modules{Open(Options{Dir: c.Dir()})}.Get(tc.key)
			assert.Equal(t, store.Hit, o)
			assert.Equal(t, tc.entry, got)
			assert.Equal(t, store.Deleted, c.Delete(tc.key))
			assert.Equal(t, store.Miss, c.Delete(tc.key))
			_, o = c.Get(tc.key)
			assert.Equal(t, store.Miss, o)
			assert.Empty(t, log.warnings())
			assert.NoError(t, c.Err())
		})
	}
}

func TestPutMergesImages(t *testing.T) {
	c, _ := testCache(t)
	key := store.NewKey([]byte("ptx"))
	with := func(label, ptx string, producers ...string) store.Entry {
		e := store.Entry{Label: label, PTX: []byte(ptx)}
		for _, p := range producers {
			e.Images = append(e.Images, store.Image{Producer: p, Code: []byte("code of " + p)})
		}
		return e
	}
	steps := []struct {
		name    string
		put     store.Entry
		outcome store.Outcome
		want    store.Entry
	}{
		{"first", with("up", "ptx", "ptxas 13"), store.Stored, with("up", "ptx", "ptxas 13")},
		{"another producer comes first", with("", "ptx", "driver 12"), store.Stored, with("up", "ptx", "driver 12", "ptxas 13")},
		{"what is there", with("", "ptx", "ptxas 13"), store.Unchanged, with("up", "ptx", "driver 12", "ptxas 13")},
		{"no images", with("", "ptx"), store.Unchanged, with("up", "ptx", "driver 12", "ptxas 13")},
		{"the same producer twice", with("", "ptx", "driver 13", "driver 13"), store.Stored, with("up", "ptx", "driver 13", "driver 12", "ptxas 13")},
		{"other PTX drops its images", with("up", "ptx2", "driver 13"), store.Stored, with("up", "ptx2", "driver 13")},
		{"at most eight", with("up", "ptx2", "1", "2", "3", "4", "5", "6", "7", "8", "9"), store.Stored,
			with("up", "ptx2", "1", "2", "3", "4", "5", "6", "7", "8")},
	}
	for _, s := range steps {
		assert.Equal(t, s.outcome, c.Put(key, s.put), s.name)
		got, o := c.Get(key)
		assert.Equal(t, store.Hit, o, s.name)
		assert.Equal(t, s.want, got, s.name)
	}
	replaced := with("up", "ptx2", "1")
	replaced.Images[0].Code = []byte("better")
	require.Equal(t, store.Stored, c.Put(key, replaced))
	got, _ := c.Get(key)
	im, ok := got.Image("1")
	assert.True(t, ok)
	assert.Equal(t, "better", string(im.Code))
}

func TestChoices(t *testing.T) {
	c, _ := testCache(t)
	_, o := c.GetChoice("bucket 16")
	assert.Equal(t, store.Miss, o)
	assert.Equal(t, store.Stored, c.PutChoice("bucket 16", []byte("a")))
	assert.Equal(t, store.Unchanged, c.PutChoice("bucket 16", []byte("a")))
	assert.Equal(t, store.Stored, c.PutChoice("bucket 16", []byte("b")))
	assert.Equal(t, store.Stored, c.PutChoice("bucket 32", nil))
	value, o := c.GetChoice("bucket 16")
	assert.Equal(t, store.Hit, o)
	assert.Equal(t, "b", string(value))
	value, o = c.GetChoice("bucket 32")
	assert.Equal(t, store.Hit, o)
	assert.Empty(t, value)
	assert.Equal(t, store.Deleted, c.DeleteChoice("bucket 16"))
	_, o = c.GetChoice("bucket 16")
	assert.Equal(t, store.Miss, o)
	assert.Equal(t, Stats{Hits: 2, Misses: 2, Stored: 3, Unchanged: 1}, func() Stats {
		s := c.Stats()
		s.BytesRead, s.BytesWritten = 0, 0
		return s
	}())
}

func TestNewKey(t *testing.T) {
	// This text fixes the hash function. With another one, no existing file would be found.
	assert.Equal(t, "0edde5db0442cd1c9961385258d8c2e921587385ea4fa0d7d6f7c9fbd05b142c",
		store.NewKey([]byte("ptx"), []byte("sm_90a")).String())
	b := func(s string) []byte { return []byte(s) }
	keys := map[store.Key]string{}
	for name, k := range map[string]store.Key{
		"none": store.NewKey(), "empty": store.NewKey(nil), "two empty": store.NewKey(nil, nil),
		"ab": store.NewKey(b("ab")), "a b": store.NewKey(b("a"), b("b")), "a b empty": store.NewKey(b("a"), b("b"), nil), "b a": store.NewKey(b("b"), b("a")),
		"choice": choiceKey("ab"),
	} {
		assert.NotContains(t, keys, k, name)
		keys[k] = name
		back, err := store.ParseKey(k.String())
		require.NoError(t, err)
		assert.Equal(t, k, back)
	}
	good := store.NewKey().String()
	for _, text := range []string{"", good[1:], good + "0", strings.ToUpper(good), "g" + good[1:], "../" + good[3:]} {
		_, err := store.ParseKey(text)
		assert.Error(t, err, text)
	}
}

func TestUnusableDirectory(t *testing.T) {
	dir := t.TempDir()
	blocked := filepath.Join(dir, "file")
	writeFile(t, blocked, nil)
	key, e := testEntry(1, 100)
	for name, path := range map[string]string{"a file in its place": blocked, "below a file": filepath.Join(blocked, "x")} {
		t.Run(name, func(t *testing.T) {
			c, log := testCache(t, func(o *Options) { o.Dir = path })
			for range 3 {
				_, o := c.Get(key)
				assert.Equal(t, store.Disabled, o)
				assert.Equal(t, store.Disabled, c.Put(key, e))
				assert.Equal(t, store.Disabled, c.PutChoice("a", nil))
				c.Lock(context.Background(), key)()
			}
			assert.Len(t, log.warnings(), 1)
			assert.ErrorIs(t, c.Err(), syscall.ENOTDIR)
			_, err := c.Prune(context.Background(), PruneOptions{})
			assert.ErrorIs(t, err, syscall.ENOTDIR)
		})
	}
}

func TestFullDisk(t *testing.T) {
	files := disktest.Wrap(disk.OS)
	log := &logBook{}
	c := modules{open(Options{Dir: t.TempDir(), Logger: slog.New(log)}, files)}
	key, e := testEntry(1, 100)
	require.Equal(t, store.Stored, c.Put(key, e))
	full := func(op disktest.Op, path string) error {
		if op == disktest.Write {
			return syscall.ENOSPC
		}
		return nil
	}
	files.Before(full)
	other, otherEntry := testEntry(2, 4000)
	for range 3 {
		assert.Equal(t, store.Failed, c.Put(other, otherEntry))
	}
	assert.Len(t, log.warnings(), 1, "one warning a cache")
	assert.ErrorIs(t, c.Err(), syscall.ENOSPC)
	assert.EqualValues(t, 3, c.Stats().Failed)
	_, o := c.Get(key)
	assert.Equal(t, store.Hit, o, "earlier entries stay, since removing all would not make enough room")
	_, o = c.Get(other)
	assert.Equal(t, store.Miss, o)
	assert.Equal(t, 1, filesBelow(t, c.Dir()), "no temporary files left")

	files.Before(nil)
	assert.Equal(t, store.Stored, c.Put(other, otherEntry), "space again")
}

func TestDirectoryVanishes(t *testing.T) {
	c, log := testCache(t)
	key, e := testEntry(1, 100)
	require.NoError(t, os.RemoveAll(c.Dir()))
	_, o := c.Get(key)
	assert.Equal(t, store.Miss, o)
	assert.Equal(t, store.Stored, c.Put(key, e))
	_, o = c.Get(key)
	assert.Equal(t, store.Hit, o)
	assert.Empty(t, log.warnings())
}

func TestConcurrentUse(t *testing.T) {
	c, log := testCache(t, func(o *Options) { o.MaxBytes = 40 << 10 })
	var wg sync.WaitGroup
	for g := range uint64(8) {
		wg.Go(func() {
			for i := range uint64(20) {
				key, e := testEntry((i+g)%7*10, 8<<10)
				if o := c.Put(key, e); o != store.Stored && o != store.Unchanged {
					t.Errorf("put: %s", o)
				}
				if got, o := c.Get(key); o == store.Hit && !got.Covers(e) || o != store.Hit && o != store.Miss {
					t.Errorf("get: %s", o)
				}
				if i%5 == 0 {
					if _, err := c.List(context.Background()); err != nil {
						t.Error(err)
					}
					if _, err := c.Prune(context.Background(), PruneOptions{MaxBytes: 20 << 10}); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	wg.Wait()
	assert.Empty(t, log.warnings())
	assert.Zero(t, c.Stats().Damaged)
}

func TestConcurrentPutsMergeAllImages(t *testing.T) {
	c, _ := testCache(t)
	key := store.NewKey([]byte("ptx"))
	var wg sync.WaitGroup
	for i := range store.MaxImages {
		wg.Go(func() {
			c.Put(key, store.Entry{PTX: []byte("ptx"), Images: []store.Image{{Producer: fmt.Sprint(i), Code: []byte{byte(i)}}}})
		})
	}
	wg.Wait()
	e, o := c.Get(key)
	assert.Equal(t, store.Hit, o)
	assert.Len(t, e.Images, store.MaxImages)
}

// BenchmarkGet reads a warm entry of 300 kB.
func BenchmarkGet(b *testing.B) {
	c, _ := testCache(b)
	key, e := testEntry(1, 300<<10)
	require.Equal(b, store.Stored, c.Put(key, e))
	b.SetBytes(300 << 10)
	for b.Loop() {
		if _, o := c.Get(key); o != store.Hit {
			b.Fatal(o)
		}
	}
}

// BenchmarkPut stores a new entry of 300 kB, which includes syncing the file.
func BenchmarkPut(b *testing.B) {
	c, _ := testCache(b)
	_, e := testEntry(1, 300<<10)
	n := 0
	for b.Loop() {
		n++
		if o := c.Put(store.NewKey(fmt.Append(nil, n)), e); o != store.Stored {
			b.Fatal(o)
		}
	}
}
