package cache

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/internal/store"
)

// exported returns a cache with a few small files, and the bundle that Export makes of it.
func exported(t testing.TB) (modules, []byte) {
	t.Helper()
	c, _ := testCache(t)
	for seed := range uint64(3) {
		key, e := testEntry(10*seed, 60)
		require.Equal(t, store.Stored, c.Put(key, e))
	}
	require.Equal(t, store.Stored, c.PutChoice("up d=64", []byte("point")))
	var b bytes.Buffer
	r, err := c.Export(context.Background(), &b)
	require.NoError(t, err)
	assert.Equal(t, BundleReport{Modules: 3, Choices: 1, Bytes: r.Bytes, SHA256: sumOf(b.Bytes())}, r)
	return c, b.Bytes()
}

// sumOf returns the SHA-256 of data in hexadecimal.
func sumOf(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// checkBytes checks a bundle that is not in a file.
func checkBytes(ctx context.Context, r io.Reader) (BundleReport, error) {
	report, _, err := bundleChecks{}.read(ctx, r)
	return report, err
}

// holdsAll fails the test unless c holds everything that the cache of exported holds.
func holdsAll(t testing.TB, c modules) {
	t.Helper()
	for seed := range uint64(3) {
		key, e := testEntry(10*seed, 60)
		got, o := c.Get(key)
		assert.Equal(t, store.Hit, o)
		assert.Equal(t, e, got)
	}
	value, o := c.GetChoice("up d=64")
	assert.Equal(t, store.Hit, o)
	assert.Equal(t, "point", string(value))
}

// stream is a reader without a Seek method.
type stream struct{ io.Reader }

func importBytes(t testing.TB, b []byte, seeks bool) (modules, BundleReport, error) {
	t.Helper()
	c, _ := testCache(t)
	var r io.Reader = bytes.NewReader(b)
	if !seeks {
		r = stream{r}
	}
	report, err := c.Import(context.Background(), r)
	return c, report, err
}

func TestBundleRoundTrip(t *testing.T) {
	ctx := context.Background()
	source, b := exported(t)
	for name, r := range map[string]io.Reader{
		"a file":      bytes.NewReader(b),
		"a stream":    stream{bytes.NewReader(b)},
		"byte a time": iotest.OneByteReader(bytes.NewReader(b)),
	} {
		t.Run(name, func(t *testing.T) {
			c, log := testCache(t)
			report, err := c.Import(ctx, r)
			require.NoError(t, err)
			assert.Equal(t, 4, report.Stored)
			assert.Equal(t, 3, report.Modules)
			holdsAll(t, c)
			assert.Empty(t, log.warnings())

			var again bytes.Buffer
			_, err = c.Export(ctx, &again)
			require.NoError(t, err)
			assert.True(t, bytes.Equal(b, again.Bytes()), "equal content, equal bundle")
			report, err = c.Import(ctx, bytes.NewReader(b))
			require.NoError(t, err)
			assert.Equal(t, 4, report.Unchanged)
		})
	}
	report, err := checkBytes(ctx, bytes.NewReader(b))
	require.NoError(t, err)
	assert.Equal(t, 3, report.Modules)
	infos, err := source.List(ctx)
	require.NoError(t, err)
	var bytes int64
	for _, i := range infos {
		bytes += i.Bytes
	}
	assert.Equal(t, bytes, report.Bytes)
}

// TestBundleIsATarFile checks that a tar program can unpack a bundle, and that the unpacked
// directory works as a read-only cache layer.
func TestBundleIsATarFile(t *testing.T) {
	_, b := exported(t)
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, folder), 0o755))
	for r := tar.NewReader(bytes.NewReader(b)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		data, err := io.ReadAll(r)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, h.Name), data, os.FileMode(h.Mode)))
	}
	holdsAll(t, modules{Open(Options{Dir: dir, ReadOnly: true})})
}

// TestImportMerges checks that an import adds images to a module and replaces a choice.
func TestImportMerges(t *testing.T) {
	_, b := exported(t)
	c, _ := testCache(t)
	key, e := testEntry(0, 60)
	require.Equal(t, store.Stored, c.Put(key, store.Entry{PTX: e.PTX, Images: []store.Image{{Producer: "driver 99", Code: []byte("mine")}}}))
	require.Equal(t, store.Stored, c.PutChoice("up d=64", []byte("old")))
	_, err := c.Import(context.Background(), bytes.NewReader(b))
	require.NoError(t, err)
	got, _ := c.Get(key)
	assert.Len(t, got.Images, 3)
	value, _ := c.GetChoice("up d=64")
	assert.Equal(t, "point", string(value))
}

func TestExportTakesSoundFilesOfAllLayers(t *testing.T) {
	shared, _ := exported(t)
	c, log := testCache(t, func(o *Options) { o.Layers = []string{shared.Dir()} })
	require.Equal(t, store.Stored, c.PutChoice("own", nil))
	key, _ := testEntry(0, 60)
	writeFile(t, modulePath(c, key), []byte("damaged, but whole in the layer"))
	bad := store.NewKey([]byte("bad"))
	writeFile(t, modulePath(c, bad), []byte("damaged"))
	path := filepath.Join(t.TempDir(), "warm.tar")
	r, err := c.ExportFile(context.Background(), path)
	require.NoError(t, err)
	assert.Equal(t, 1, r.Skipped)
	assert.Equal(t, 3, r.Modules)
	assert.Equal(t, 2, r.Choices)
	assert.FileExists(t, modulePath(c, bad), "Export changes nothing")
	assert.Empty(t, log.warnings())

	into, _ := testCache(t)
	_, err = into.ImportFile(context.Background(), path, BundleOptions{})
	require.NoError(t, err)
	holdsAll(t, into)
}

// TestBundleAsLayer checks a bundle that is read in place, as a read-only cache layer.
func TestBundleAsLayer(t *testing.T) {
	ctx := context.Background()
	source, want := exported(t)
	path := filepath.Join(t.TempDir(), "warm.tar")
	_, err := source.ExportFile(ctx, path)
	require.NoError(t, err)
	assert.True(t, bytes.Equal(want, readFile(t, path)))
	before := mustStat(t, path)

	for name, o := range map[string]Options{
		"alone": {Dir: path, ReadOnly: true},
		"layer": {Dir: t.TempDir(), Layers: []string{path}},
	} {
		t.Run(name, func(t *testing.T) {
			c := modules{Open(o)}
			holdsAll(t, c)
			_, outcome := c.Get(store.NewKey([]byte("absent")))
			assert.Equal(t, store.Miss, outcome)
			infos, err := c.List(ctx)
			require.NoError(t, err)
			require.Len(t, infos, 4)
			for _, i := range infos {
				assert.NoError(t, i.Err)
				assert.True(t, i.ReadOnly)
				assert.True(t, strings.HasPrefix(i.Path, path), i.Path)
			}
			r, err := c.Verify(ctx)
			require.NoError(t, err)
			assert.Equal(t, 4, r.Sound)
			assert.NoError(t, c.Err())
		})
	}
	t.Setenv(envDir, path)
	c := modules{Open(Options{})}
	assert.ErrorIs(t, c.Err(), syscall.ENOTDIR, "the first directory is written")
	assert.ErrorContains(t, c.Err(), envDir+"=:")
	assert.Equal(t, before.ModTime(), mustStat(t, path).ModTime())

	t.Run("a file within is damaged", func(t *testing.T) {
		b := bytes.Clone(want)
		b[3*tarBlock+80] ^= 1 // a byte of the first file, which follows two headers and a line
		writeFile(t, path, b)
		c, log := testCache(t, func(o *Options) { o.Layers = []string{path} })
		damaged := 0
		for seed := range uint64(3) {
			key, _ := testEntry(10*seed, 60)
			if _, o := c.Get(key); o == store.Damaged {
				damaged++
			} else {
				assert.Equal(t, store.Hit, o)
			}
		}
		if _, o := c.GetChoice("up d=64"); o == store.Damaged {
			damaged++
		}
		assert.Equal(t, 1, damaged)
		assert.Len(t, log.warnings(), 1)
	})
	for name, b := range map[string][]byte{"cut": want[:len(want)/2], "foreign": []byte(strings.Repeat("no bundle ", 200)), "empty": nil} {
		t.Run(name, func(t *testing.T) {
			writeFile(t, path, b)
			c, log := testCache(t, func(o *Options) { o.Layers = []string{path} })
			key, e := testEntry(0, 60)
			_, o := c.Get(key)
			assert.Equal(t, store.Miss, o)
			assert.Equal(t, store.Stored, c.Put(key, e), "the cache works without the damaged layer")
			assert.ErrorIs(t, c.Err(), ErrBundle)
			assert.Len(t, log.warnings(), 1)
		})
	}
	t.Run("cut while in use", func(t *testing.T) {
		writeFile(t, path, want)
		c, log := testCache(t, func(o *Options) { o.Layers = []string{path} })
		require.NoError(t, os.Truncate(path, 3*tarBlock))
		key, _ := testEntry(0, 60)
		for range 3 {
			_, o := c.Get(key)
			assert.Equal(t, store.Miss, o)
		}
		assert.ErrorIs(t, c.Err(), ErrBundle)
		assert.Len(t, log.warnings(), 1, "for the bundle, not for each file")
		require.NoError(t, os.Remove(path))
		_, o := c.Get(key)
		assert.Equal(t, store.Miss, o)
	})
}

// TestBundleReplaced checks that an open bundle is indexed again after another file has
// replaced it, as in a deployment, or after it was overwritten.
func TestBundleReplaced(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "warm.tar")
	export := func(seed uint64, to string) store.Key {
		c, _ := testCache(t)
		key, e := testEntry(seed, 60)
		require.Equal(t, store.Stored, c.Put(key, e))
		_, err := c.ExportFile(t.Context(), to)
		require.NoError(t, err)
		return key
	}
	old := export(0, path)
	c, log := testCache(t, func(o *Options) { o.Layers = []string{path} })
	_, o := c.Get(old)
	require.Equal(t, store.Hit, o)

	next := export(10, path) // the same size, and replaced by a rename
	_, o = c.Get(next)
	assert.Equal(t, store.Hit, o)
	_, o = c.Get(old)
	assert.Equal(t, store.Miss, o)

	third := export(20, filepath.Join(dir, "other.tar"))
	data := readFile(t, filepath.Join(dir, "other.tar"))
	setAge(t, path, time.Hour) // only the new modification time shows the change
	writeFile(t, path, data)
	_, o = c.Get(third)
	assert.Equal(t, store.Hit, o)
	infos, err := c.List(t.Context())
	require.NoError(t, err)
	require.Len(t, infos, 1)
	assert.Equal(t, third.String(), infos[0].Key)
	assert.Empty(t, log.warnings())
	assert.NoError(t, c.Err())
}

// TestEveryAlterationOfABundleIsRefused cuts a bundle at every length and changes every byte.
// Each result must be refused.
func TestEveryAlterationOfABundleIsRefused(t *testing.T) {
	if testing.Short() {
		t.Skip("too long for -short")
	}
	ctx := context.Background()
	_, b := exported(t)
	for n := range b {
		_, err := checkBytes(ctx, bytes.NewReader(b[:n]))
		require.ErrorIs(t, err, ErrBundle, "%d of %d bytes", n, len(b))
	}
	for at := range b {
		bad := bytes.Clone(b)
		bad[at] ^= 1 << (at % 8)
		_, err := checkBytes(ctx, bytes.NewReader(bad))
		require.ErrorIs(t, err, ErrBundle, "byte %d", at)
	}
	_, err := checkBytes(ctx, bytes.NewReader(append(bytes.Clone(b), 0)))
	require.ErrorIs(t, err, ErrBundle)
}

// TestImportOfDamageStoresNothing checks the import of a damaged bundle. If the reader can
// seek, nothing may be stored. If it cannot, only the whole files before the damage may be
// stored.
func TestImportOfDamageStoresNothing(t *testing.T) {
	ctx := context.Background()
	_, b := exported(t)
	for n := 0; n < len(b); n += 257 {
		for _, seeks := range []bool{true, false} {
			c, report, err := importBytes(t, b[:n], seeks)
			require.ErrorIs(t, err, ErrBundle)
			v, err := c.Verify(ctx)
			require.NoError(t, err)
			assert.Empty(t, v.Damaged)
			assert.Equal(t, report.Stored, v.Sound)
			if seeks {
				assert.Zero(t, v.Sound)
			}
			assert.Equal(t, v.Sound, filesBelow(t, c.Dir()), "no other file is on the disk")
		}
	}
}

func filesBelow(t testing.TB, dir string) (n int) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(dir, func(_ string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			n++
		}
		return err
	}))
	return n
}
