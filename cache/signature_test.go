package cache

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"aead.dev/minisign"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/internal/store"
)

// testKey returns a private key that depends only on the seed.
func testKey(seed byte) minisign.PrivateKey {
	_, key, err := minisign.GenerateKey(bytes.NewReader(bytes.Repeat([]byte{seed}, ed25519.SeedSize)))
	if err != nil {
		panic(err)
	}
	return key
}

func publicOf(key minisign.PrivateKey) minisign.PublicKey {
	return key.Public().(minisign.PublicKey)
}

// stampAndName returns the trusted comment that the program minisign writes into a signature.
func stampAndName(seconds int64, name string) string {
	return fmt.Sprintf("timestamp:%d\tfile:%s\thashed", seconds, name)
}

// signed returns a signature of a bundle in the form that minisign writes, with the given
// trusted comment.
func signed(key minisign.PrivateKey, bundle []byte, trusted string) []byte {
	r := minisign.NewReader(bytes.NewReader(bundle))
	_, _ = io.Copy(io.Discard, r) // reading from memory does not fail
	return r.SignWithComments(key, trusted, "signature from minisign secret key")
}

// signedAt writes a bundle and its signature to files.
func signedAt(t testing.TB, path string, bundle []byte, key minisign.PrivateKey, seconds int64) {
	t.Helper()
	writeFile(t, path, bundle)
	writeFile(t, path+signatureSuffix, signed(key, bundle, stampAndName(seconds, filepath.Base(path))))
}

// oneModule returns a bundle with only the module of a seed.
func oneModule(t testing.TB, seed uint64) []byte {
	t.Helper()
	c, _ := testCache(t)
	key, e := testEntry(seed, 60)
	require.Equal(t, store.Stored, c.Put(key, e))
	var b bytes.Buffer
	_, err := c.Export(t.Context(), &b)
	require.NoError(t, err)
	return b.Bytes()
}

// has reports whether a cache has the module that oneModule makes for a seed.
func has(c modules, seed uint64) bool {
	key, _ := testEntry(seed, 60)
	_, o := c.Get(key)
	return o == store.Hit
}

// TestSignature checks that a bundle is accepted only if its signature was made with the key, and
// covers the bundle's bytes and name. It tries an import, and a bundle that is read in place.
func TestSignature(t *testing.T) {
	mine, other, bundle := testKey(1), testKey(2), oneModule(t, 0)
	good := stampAndName(100, "b.tar")
	var noTime minisign.Signature
	require.NoError(t, noTime.UnmarshalText(signed(mine, bundle, good)))
	noTime.TrustedComment = stampAndName(200, "b.tar")
	for name, c := range map[string]struct {
		text []byte
		say  string // part of the error, or "" if the bundle is accepted
	}{
		"good":           {signed(mine, bundle, good), ""},
		"Go's minisign":  {signed(mine, bundle, "timestamp:100\tfilename:b.tar"), ""},
		"no file":        {nil, "the bundle has no signature"},
		"empty":          {[]byte{}, "invalid signature"},
		"another key":    {signed(other, bundle, good), "it was made with the key"},
		"another file":   {signed(mine, bundle[1:], good), "it is for another file"},
		"another name":   {signed(mine, bundle, stampAndName(100, "a.tar")), "a signature holds for one name"},
		"no name":        {signed(mine, bundle, "timestamp:100"), "a signature holds for one name"},
		"no time":        {signed(mine, bundle, "file:b.tar"), "want timestamp:SECONDS"},
		"time 0":         {signed(mine, bundle, stampAndName(0, "b.tar")), "want timestamp:SECONDS"},
		"altered time":   {[]byte(noTime.String()), "was altered"},
		"old format":     {minisign.SignWithComments(mine, bundle, good, ""), "old format"},
		"of 1 MB":        {make([]byte, 1<<20), "file is too large"},
		"something else": {[]byte("sonicmoe bundle signature 1\n"), "invalid signature"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "b.tar")
			writeFile(t, path, bundle)
			if c.text != nil {
				writeFile(t, path+signatureSuffix, c.text)
			}
			withKey := func(o *Options) { o.Key = publicOf(mine).String() }
			inPlace, log := testCache(t, withKey, func(o *Options) { o.Layers = []string{path} })
			into, _ := testCache(t, withKey)
			_, checkErr := into.CheckBundle(t.Context(), path, BundleOptions{})
			r, err := into.ImportFile(t.Context(), path, BundleOptions{})
			assert.Equal(t, c.say == "", has(inPlace, 0))
			assert.Equal(t, c.say == "", has(into, 0))
			if c.say == "" {
				require.NoError(t, err)
				require.NoError(t, checkErr)
				assert.EqualValues(t, 100, r.Signed.Unix())
				assert.NoError(t, inPlace.Err())
				return
			}
			for _, err := range []error{err, checkErr, inPlace.Err()} {
				assert.ErrorContains(t, err, c.say)
			}
			assert.NotEmpty(t, log.warnings())
			unsigned, _ := testCache(t, func(o *Options) { o.Layers = []string{path} })
			assert.True(t, has(unsigned, 0), "without a key")
		})
	}
}

// TestKeys checks the forms in which a key can be given, and that with a malformed key every
// bundle is refused.
func TestKeys(t *testing.T) {
	key, dir := testKey(1), t.TempDir()
	path, file := filepath.Join(dir, "b.tar"), filepath.Join(dir, "minisign.pub")
	signedAt(t, path, oneModule(t, 0), key, 100)
	text, err := publicOf(key).MarshalText()
	require.NoError(t, err)
	writeFile(t, file, append(text, '\n'))
	for given, want := range map[string]bool{
		publicOf(key).String():        true,
		string(text):                  true,
		file:                          true,
		publicOf(testKey(2)).String(): false,
		filepath.Join(dir, "none"):    false,
		path:                          false,
		dir:                           false,
	} {
		for _, byVariable := range []bool{false, true} {
			change := func(o *Options) { o.Layers, o.Key = []string{path}, given }
			if byVariable {
				t.Setenv(envKey, given)
				change = func(o *Options) { o.Layers = []string{path} }
			}
			c, _ := testCache(t, change)
			assert.Equal(t, want, has(c, 0), "%s, by variable: %v", given, byVariable)
			_, err := c.ImportFile(t.Context(), path, BundleOptions{})
			assert.Equal(t, want, err == nil, "%s: %v", given, err)
			t.Setenv(envKey, "")
		}
	}
	unsigned := t.TempDir()
	other := modules{Open(Options{Dir: unsigned})}
	moduleKey, e := testEntry(0, 60)
	require.Equal(t, store.Stored, other.Put(moduleKey, e))
	c, _ := testCache(t, func(o *Options) { o.Layers, o.Key = []string{unsigned}, file })
	assert.False(t, has(c, 0))
	assert.ErrorContains(t, c.Err(), "no signature covers")
	_, err = c.Import(t.Context(), bytes.NewReader(oneModule(t, 0)))
	assert.ErrorContains(t, err, "not for a stream")
	own := modules{Open(Options{Dir: unsigned, Key: file})}
	assert.True(t, has(own, 0), "the user's own directory needs no signature")
}

// TestOlderBundles checks that an older signed bundle cannot replace a newer one of the same
// name: by an import, as a cache layer of a later process, or by overwriting a bundle in use.
func TestOlderBundles(t *testing.T) {
	key, dir, own := testKey(1), t.TempDir(), t.TempDir()
	path := filepath.Join(dir, "b.tar")
	open := func(layers ...string) modules {
		return modules{Open(Options{Dir: own, Layers: layers, Key: publicOf(key).String()})}
	}
	signedAt(t, path, oneModule(t, 10), key, 200)
	_, err := open().ImportFile(t.Context(), path, BundleOptions{})
	require.NoError(t, err)

	signedAt(t, path, oneModule(t, 0), key, 100)
	_, err = open().ImportFile(t.Context(), path, BundleOptions{})
	require.ErrorIs(t, err, ErrBundle)
	require.ErrorContains(t, err, "b.tar was signed at 1970-01-01T00:01:40Z, and a newer one, of 1970-01-01T00:03:20Z")
	later := open(path)
	assert.False(t, has(later, 0))
	assert.ErrorContains(t, later.Err(), "signed"+string(filepath.Separator), "the record to remove")
	_, err = open().CheckBundle(t.Context(), path, BundleOptions{})
	assert.NoError(t, err, "a check does not look at other bundles")

	_, err = open().ImportFile(t.Context(), path, BundleOptions{Older: true})
	require.NoError(t, err)
	inUse := open(path)
	assert.True(t, has(inUse, 0), "the older one was asked for")

	signedAt(t, path, oneModule(t, 20), key, 300)
	assert.True(t, has(inUse, 20))
	signedAt(t, path, oneModule(t, 30), key, 299)
	assert.False(t, has(inUse, 30))
	readOnly := modules{Open(Options{Dir: own, ReadOnly: true, Layers: []string{path}, Key: publicOf(key).String()})}
	assert.True(t, has(readOnly, 30), "a cache without a directory to write has no record")
	signedAt(t, path, oneModule(t, 40), key, 298)
	assert.False(t, has(readOnly, 40))
	assert.True(t, filesBelow(t, filepath.Join(own, signedFolder)) == 1)

	// Bundles with another name or another key have signing times of their own.
	for _, by := range []minisign.PrivateKey{key, testKey(2)} {
		other := filepath.Join(dir, "c.tar")
		signedAt(t, other, oneModule(t, 50), by, 50)
		c := modules{Open(Options{Dir: own, Layers: []string{other}, Key: publicOf(by).String()})}
		assert.True(t, has(c, 50))
		assert.NoError(t, c.Err())
	}
}

// TestBundleAlteredUnderItsSignature checks that machine code is not used if it was written
// into a bundle after the bundle's signature was checked. The altered file has a right
// checksum, and the bundle has the same size and time.
func TestBundleAlteredUnderItsSignature(t *testing.T) {
	key, path := testKey(1), filepath.Join(t.TempDir(), "b.tar")
	bundle := oneModule(t, 0)
	signedAt(t, path, bundle, key, 100)
	c, _ := testCache(t, func(o *Options) { o.Layers, o.Key = []string{path}, publicOf(key).String() })
	require.True(t, has(c, 0))
	evil, _ := testCache(t)
	moduleKey, e := testEntry(0, 60)
	e.Images[0].Code = bytes.Repeat([]byte{'!'}, len(e.Images[0].Code))
	require.Equal(t, store.Stored, evil.Put(moduleKey, e))
	var b bytes.Buffer
	_, err := evil.Export(t.Context(), &b)
	require.NoError(t, err)
	require.Len(t, b.Bytes(), len(bundle))
	fi, err := os.Stat(path)
	require.NoError(t, err)
	writeFile(t, path, b.Bytes())
	require.NoError(t, os.Chtimes(path, fi.ModTime(), fi.ModTime()))
	_, o := c.Get(moduleKey)
	assert.Equal(t, store.Damaged, o)
}

// TestImportOfADigest checks that only the bundle with the given digest is accepted, and that
// nothing of any other bundle is stored.
func TestImportOfADigest(t *testing.T) {
	source, b := exported(t)
	want := sumOf(b)
	path := filepath.Join(t.TempDir(), "warm.tar")
	r, err := source.ExportFile(t.Context(), path)
	require.NoError(t, err)
	assert.Equal(t, want, r.SHA256)

	c, _ := testCache(t)
	r, err = c.ImportFile(t.Context(), path, BundleOptions{SHA256: strings.ToUpper(want)})
	require.NoError(t, err)
	assert.Equal(t, want, r.SHA256)
	assert.Equal(t, 4, r.Stored)
	r, err = c.CheckBundle(t.Context(), path, BundleOptions{SHA256: want})
	require.NoError(t, err)
	assert.Equal(t, want, r.SHA256)

	c, _ = testCache(t)
	other := BundleOptions{SHA256: strings.Repeat("0", 64)}
	_, err = c.CheckBundle(t.Context(), path, other)
	require.ErrorIs(t, err, ErrBundle)
	assert.ErrorContains(t, err, want)
	_, err = c.ImportFile(t.Context(), path, other)
	require.ErrorIs(t, err, ErrBundle)
	for _, bad := range []string{want[1:], want + "00", "g" + want[1:]} {
		_, err := c.ImportFile(t.Context(), path, BundleOptions{SHA256: bad})
		assert.ErrorContains(t, err, "64 hexadecimal digits", bad)
	}
	assert.Zero(t, filesBelow(t, c.Dir()))
}

// changing is a file whose content is different when it is read again.
type changing struct {
	*bytes.Reader
	next []byte
}

func (c *changing) Seek(offset int64, whence int) (int64, error) {
	if whence == io.SeekStart {
		c.Reader = bytes.NewReader(c.next)
	}
	return c.Reader.Seek(offset, whence)
}

// TestBundleThatChangesWhileImported checks that only checked bytes are stored if a bundle is
// replaced after its check and before its files are stored.
func TestBundleThatChangesWhileImported(t *testing.T) {
	_, b := exported(t)
	evil, _ := testCache(t)
	for seed := range uint64(3) {
		key, e := testEntry(10*seed, 60)
		e.Images[0].Code = []byte("EVIL MACHINE CODE")
		require.Equal(t, store.Stored, evil.Put(key, e))
	}
	require.Equal(t, store.Stored, evil.PutChoice("up d=64", []byte("point")))
	var other bytes.Buffer
	_, err := evil.Export(t.Context(), &other)
	require.NoError(t, err)
	for name, next := range map[string][]byte{"another": other.Bytes(), "cut": b[:len(b)/2]} {
		c, _ := testCache(t)
		_, err := c.importChecked(t.Context(), &changing{bytes.NewReader(b), next}, bundleChecks{sha256: sumOf(b)}, false)
		require.ErrorIs(t, err, ErrBundle, name)
		for seed := range uint64(3) {
			key, want := testEntry(10*seed, 60)
			if got, o := c.Get(key); o == store.Hit {
				assert.Equal(t, want, got)
			}
		}
	}
	longer, _ := testCache(t)
	key, e := testEntry(0, 60)
	require.Equal(t, store.Stored, longer.Put(key, e))
	var small bytes.Buffer
	_, err = longer.Export(t.Context(), &small)
	require.NoError(t, err)
	c, _ := testCache(t)
	_, err = c.Import(t.Context(), &changing{bytes.NewReader(small.Bytes()), other.Bytes()})
	require.ErrorIs(t, err, ErrBundle)
	assert.ErrorContains(t, err, "changed while it was imported")
}

// TestVerifyWithAnotherCheck checks that a module for which a check fails is set aside like a
// damaged one. In a read-only cache layer it is only reported. Choices are not checked.
func TestVerifyWithAnotherCheck(t *testing.T) {
	c, b := exported(t)
	wrong, _ := testEntry(10, 60)
	var calls atomic.Int64
	check := func(_ context.Context, key string, ptx []byte, code map[string][]byte) error {
		calls.Add(1)
		if _, want := testEntry(10, 60); bytes.Equal(ptx, want.PTX) != (key == wrong.String()) || len(code) == 0 {
			t.Error("another key's entry")
		}
		if key == wrong.String() {
			return errors.New("machine code differs")
		}
		return nil
	}
	path := filepath.Join(t.TempDir(), "warm.tar")
	writeFile(t, path, b)
	for _, place := range []modules{{Open(Options{Dir: path, ReadOnly: true})}, c} {
		r, err := place.Verify(t.Context(), check)
		require.NoError(t, err)
		assert.Equal(t, 3, r.Sound)
		require.Len(t, r.Damaged, 1)
		assert.Equal(t, wrong.String(), r.Damaged[0].Key)
		assert.ErrorContains(t, r.Damaged[0].Err, "machine code differs")
	}
	assert.EqualValues(t, 6, calls.Load())
	assert.NoFileExists(t, modulePath(c, wrong))
	assert.FileExists(t, modulePath(c, wrong)+badSuffix)

	ctx, cancel := context.WithCancel(t.Context())
	_, err := c.Verify(ctx, func(context.Context, string, []byte, map[string][]byte) error {
		cancel()
		return errors.New("cancelled")
	})
	require.ErrorIs(t, err, context.Canceled)
	r, err := c.Verify(t.Context())
	require.NoError(t, err)
	assert.Equal(t, 3, r.Sound, "a check stopped by its context finds no damage")
}
