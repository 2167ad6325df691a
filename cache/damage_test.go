package cache

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/internal/disk"
	"sonicmoe/internal/store"
)

// reseal returns altered bytes of a file with a checksum that fits them.
func reseal(b []byte) []byte {
	sum := sha256.Sum256(b[:len(b)-sealSize])
	return append(b[:len(b)-sealSize:len(b)-sealSize], sum[:]...)
}

// TestDamageIsAMiss damages an entry in many ways. Get must return Damaged each time. The file
// must be set aside and logged once, and the entry can be stored again.
func TestDamageIsAMiss(t *testing.T) {
	key, e := testEntry(1, 400)
	otherKey, other := testEntry(7, 400)
	otherFile, err := encodeEntry(otherKey, other)
	require.NoError(t, err)
	for name, spoil := range map[string]func(b []byte) []byte{
		"empty":              func([]byte) []byte { return nil },
		"half":               func(b []byte) []byte { return b[:len(b)/2] },
		"longer":             func(b []byte) []byte { return append(b, 0) },
		"zeroed tail":        func(b []byte) []byte { clear(b[len(b)/2:]); return b },
		"all zero":           func(b []byte) []byte { clear(b); return b },
		"a bit of the PTX":   func(b []byte) []byte { b[headerSize+60] ^= 4; return b },
		"another key's file": func([]byte) []byte { return otherFile },
		"foreign file": func([]byte) []byte {
			return []byte("#!/bin/sh\necho this file is of another program, and long enough for a header and a checksum\n")
		},
		"a choice": func([]byte) []byte { b, _ := seal(store.KindChoice, key, []byte("a"), []byte("b")); return b },
		"old version": func(b []byte) []byte {
			binary.LittleEndian.PutUint32(b[8:], store.FormatVersion-1)
			return reseal(b)
		},
		"missing fields": func([]byte) []byte { b, _ := seal(store.KindModule, key, []byte("label")); return b },
		"half an image":  func([]byte) []byte { b, _ := seal(store.KindModule, key, nil, nil, []byte("driver 1")); return b },
		"a producer twice": func([]byte) []byte {
			b, _ := seal(store.KindModule, key, nil, nil, nil, nil, nil, nil, nil, nil)
			return b
		},
		"a length beyond the end": func(b []byte) []byte {
			binary.LittleEndian.PutUint32(b[headerSize:], 1<<31)
			return reseal(b)
		},
		"a length that ends too soon": func(b []byte) []byte {
			binary.LittleEndian.PutUint32(b[headerSize:], uint32(len(b)-headerSize-sealSize-4-2))
			return reseal(b)
		},
	} {
		t.Run(name, func(t *testing.T) {
			c, log := testCache(t)
			require.Equal(t, store.Stored, c.Put(key, e))
			path := modulePath(c, key)
			bad := spoil(readFile(t, path))
			writeFile(t, path, bad)
			got, o := c.Get(key)
			assert.Equal(t, store.Damaged, o)
			assert.Equal(t, store.Entry{}, got)
			assert.NoFileExists(t, path)
			assert.Equal(t, string(bad), string(readFile(t, path+badSuffix)))
			_, o = c.Get(key)
			assert.Equal(t, store.Miss, o)
			require.Equal(t, store.Stored, c.Put(key, e))
			got, o = c.Get(key)
			assert.Equal(t, store.Hit, o)
			assert.Equal(t, e, got)
			writeFile(t, path, bad)
			_, o = c.Get(key)
			assert.Equal(t, store.Damaged, o)
			assert.Len(t, log.warnings(), 1, "once a file")
			assert.NoError(t, c.Err())
		})
	}
}

func TestPutOverDamage(t *testing.T) {
	c, log := testCache(t)
	key, e := testEntry(1, 400)
	writeFile(t, modulePath(c, key), []byte("partial"))
	assert.Equal(t, store.Stored, c.Put(key, e))
	got, o := c.Get(key)
	assert.Equal(t, store.Hit, o)
	assert.Equal(t, e, got)
	assert.Len(t, log.warnings(), 1)
}

func TestNotAFile(t *testing.T) {
	c, _ := testCache(t)
	key, e := testEntry(1, 100)
	for range 2 { // the second time, a *.bad folder already exists
		require.NoError(t, os.MkdirAll(filepath.Join(modulePath(c, key), "x"), 0o700))
		_, o := c.Get(key)
		assert.Equal(t, store.Damaged, o)
	}
	assert.Equal(t, store.Stored, c.Put(key, e))
}

func TestDamageInReadOnlyLayer(t *testing.T) {
	shared, _ := testCache(t)
	key, _ := testEntry(1, 100)
	path := modulePath(shared, key)
	writeFile(t, path, []byte("x"))
	c, log := testCache(t, func(o *Options) { o.Layers = []string{shared.Dir()} })
	for range 3 {
		_, o := c.Get(key)
		assert.Equal(t, store.Damaged, o)
	}
	assert.FileExists(t, path, "a read-only file stays")
	assert.Len(t, log.warnings(), 1)
}

func TestForeignOwner(t *testing.T) {
	if os.Geteuid() != 0 || disk.Owner(mustStat(t, ".")) < 0 {
		t.Skip("only root can give files away")
	}
	c, log := testCache(t)
	key, e := testEntry(1, 100)
	require.Equal(t, store.Stored, c.Put(key, e))
	require.NoError(t, os.Chown(modulePath(c, key), 12345, 12345))
	_, o := c.Get(key)
	assert.Equal(t, store.Damaged, o)
	assert.Len(t, log.warnings(), 1)
}

func TestOwners(t *testing.T) {
	const unknown, root, me, another = -1, 0, 1000, 1001
	for _, tc := range []struct {
		me, owner, dirOwner   int
		mayRead, mayWriteInIt bool
	}{
		{me, me, me, true, true},
		{me, root, me, true, true},
		{me, another, me, false, true},
		{me, me, root, true, true},
		{me, another, root, false, true},
		{me, another, another, true, false}, // of a read-only layer, which another user may own
		{root, another, another, true, true},
		{root, another, root, false, true},
		{unknown, unknown, unknown, true, true},
	} {
		assert.Equal(t, tc.mayRead, mayRead(tc.me, tc.owner, tc.dirOwner), "%+v", tc)
		assert.Equal(t, tc.mayWriteInIt, mayWriteIn(tc.me, tc.dirOwner), "%+v", tc)
	}
}

func mustStat(t *testing.T, path string) os.FileInfo {
	t.Helper()
	fi, err := os.Stat(path)
	require.NoError(t, err)
	return fi
}

func TestFewDamagedFilesAreKept(t *testing.T) {
	c, _ := testCache(t)
	for i := range uint64(3 * maxBad) {
		key, _ := testEntry(i, 100)
		writeFile(t, modulePath(c, key), []byte("x"))
		_, o := c.Get(key)
		assert.Equal(t, store.Damaged, o)
	}
	bad, err := filepath.Glob(c.top.path("*" + badSuffix))
	require.NoError(t, err)
	assert.Len(t, bad, maxBad)
}

// TestSetAsideSparesANewerFile checks that a good file is not set aside if another process
// stores it after the damaged file was read.
func TestSetAsideSparesANewerFile(t *testing.T) {
	c, _ := testCache(t)
	key, e := testEntry(1, 100)
	name := fileName(store.KindModule, key)
	writeFile(t, modulePath(c, key), []byte("x"))
	_, fi, err := c.top.read(name)
	require.ErrorIs(t, err, errDamaged)
	data, err := encodeEntry(key, e)
	require.NoError(t, err)
	require.NoError(t, c.top.store(name, data))
	assert.False(t, c.top.setAside(name, fi))
	_, o := c.Get(key)
	assert.Equal(t, store.Hit, o)
}

func TestListAndVerify(t *testing.T) {
	ctx := context.Background()
	c, _ := testCache(t)
	key, e := testEntry(1, 400)
	require.Equal(t, store.Stored, c.Put(key, e))
	require.Equal(t, store.Stored, c.PutChoice("d=64", []byte("x")))
	setAge(t, modulePath(c, key), time.Hour)
	bad, old := store.NewKey([]byte("bad")), store.NewKey([]byte("old"))
	writeFile(t, modulePath(c, bad), []byte("x"))
	oldFile, err := encodeEntry(old, e)
	require.NoError(t, err)
	binary.LittleEndian.PutUint32(oldFile[8:], store.FormatVersion+1)
	writeFile(t, modulePath(c, old), reseal(oldFile))
	writeFile(t, c.top.path("README"), []byte("not ours"))

	infos, err := c.List(ctx)
	require.NoError(t, err)
	byKey := map[string]Info{}
	for _, i := range infos {
		byKey[i.Key] = i
	}
	require.Len(t, byKey, 4)
	assert.Equal(t, key.String(), infos[3].Key, "most recently used first")
	m := byKey[key.String()]
	assert.Equal(t, "module", m.Kind)
	assert.Equal(t, "dW1 128x256", m.Label)
	assert.Equal(t, []string{"driver 13000", "ptxas 13.0.88"}, m.Producers)
	assert.NoError(t, m.Err)
	assert.EqualValues(t, len(readFile(t, m.Path)), m.Bytes)
	assert.Equal(t, "d=64", byKey[choiceKey("d=64").String()].Label)
	assert.ErrorIs(t, byKey[bad.String()].Err, errDamaged)
	assert.ErrorIs(t, byKey[old.String()].Err, errVersion)
	assert.FileExists(t, modulePath(c, bad), "List changes nothing")

	r, err := c.Verify(ctx)
	require.NoError(t, err)
	assert.Equal(t, 2, r.Sound)
	require.Len(t, r.Damaged, 1)
	assert.Equal(t, bad.String(), r.Damaged[0].Key)
	require.Len(t, r.Unreadable, 1)
	assert.NoFileExists(t, modulePath(c, bad))
	assert.FileExists(t, modulePath(c, old))
	assert.FileExists(t, c.top.path("README"))

	ctx, cancel := context.WithCancel(ctx)
	cancel()
	_, err = c.List(ctx)
	assert.ErrorIs(t, err, context.Canceled)
}

// TestWarningSaysWhere checks that the warning about a damaged file names the file, the reason,
// and the file's new place. In a read-only cache layer the file stays in its place.
func TestWarningSaysWhere(t *testing.T) {
	shared, _ := testCache(t)
	for name, readOnly := range map[string]bool{"moved": false, "in a layer": true} {
		t.Run(name, func(t *testing.T) {
			var text bytes.Buffer
			c, _ := testCache(t, func(o *Options) {
				o.Logger = slog.New(slog.NewTextHandler(&text, nil))
				if readOnly {
					o.Layers = []string{shared.Dir()}
				}
			})
			key, _ := testEntry(1, 100)
			path, moved := modulePath(c, key), `""`
			if readOnly {
				path = modulePath(shared, key)
			} else {
				moved = path + badSuffix
			}
			writeFile(t, path, []byte("x"))
			_, o := c.Get(key)
			require.Equal(t, store.Damaged, o)
			require.Regexp(t, `msg="cache: file ignored" path=`+regexp.QuoteMeta(path)+` reason=.* moved_to=`+regexp.QuoteMeta(moved)+"\n$", text.String())
		})
	}
}
