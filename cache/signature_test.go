package cache

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"errors"
	"io"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/internal/store"
)

// testKey returns a key that depends on the seed alone.
func testKey(seed byte) ed25519.PrivateKey {
	return ed25519.NewKeyFromSeed(bytes.Repeat([]byte{seed}, ed25519.SeedSize))
}

func publicOf(key ed25519.PrivateKey) ed25519.PublicKey { return key.Public().(ed25519.PublicKey) }

func TestSignature(t *testing.T) {
	mine, other := testKey(1), testKey(2)
	d := Digest(sha256.Sum256([]byte("bundle")))
	text := Sign(d, mine)
	got, err := CheckSignature(text, publicOf(mine))
	require.NoError(t, err)
	assert.Equal(t, d, got)
	assert.True(t, strings.HasPrefix(string(text), "sonicmoe bundle signature 1\nsha256 "+d.String()+"\ned25519 "))

	again, err := ParseDigest(d.String())
	require.NoError(t, err)
	assert.Equal(t, d, again)
	for _, bad := range []string{"", d.String()[1:], d.String() + "00", "g" + d.String()[1:]} {
		_, err := ParseDigest(bad)
		assert.ErrorContains(t, err, "64 hexadecimal digits", bad)
	}

	for name, bad := range map[string][]byte{
		"nothing":        nil,
		"another format": bytes.Replace(text, []byte("signature 1"), []byte("signature 2"), 1),
		"more after it":  append(bytes.Clone(text), "and more\n"...),
		"no end":         text[:len(text)-1],
		"another digest": Sign(Digest{1}, other),
		"mixed":          append(bytes.Clone(text[:bytes.Index(text, []byte("ed25519"))]), Sign(Digest{1}, mine)[bytes.Index(text, []byte("ed25519")):]...),
		"no base 64":     append(bytes.Clone(text[:len(text)-3]), "!!\n"...),
	} {
		_, err := CheckSignature(bad, publicOf(mine))
		assert.ErrorIs(t, err, ErrSignature, name)
	}
	for at := range text {
		bad := bytes.Clone(text)
		bad[at] ^= 1
		_, err := CheckSignature(bad, publicOf(mine))
		require.ErrorIs(t, err, ErrSignature, "byte %d", at)
	}
	_, err = CheckSignature(text, publicOf(other))
	assert.ErrorIs(t, err, ErrSignature)
	_, err = CheckSignature(text, nil)
	assert.ErrorIs(t, err, ErrSignature)
}

// TestImportOfADigest checks that a digest admits one bundle, and that nothing of
// another is stored.
func TestImportOfADigest(t *testing.T) {
	source, b := exported(t)
	want := Digest(sha256.Sum256(b))
	path := filepath.Join(t.TempDir(), "warm.tar")
	r, err := source.ExportFile(t.Context(), path)
	require.NoError(t, err)
	assert.Equal(t, want, r.Digest)

	c, _ := testCache(t)
	r, err = c.ImportFile(t.Context(), path, WithDigest(want))
	require.NoError(t, err)
	assert.Equal(t, want, r.Digest)
	assert.Equal(t, 4, r.Stored)
	r, err = CheckBundle(t.Context(), bytes.NewReader(b), WithDigest(want))
	require.NoError(t, err)
	assert.Equal(t, want, r.Digest)

	other := WithDigest(Digest{1})
	_, err = CheckBundle(t.Context(), bytes.NewReader(b), other)
	require.ErrorIs(t, err, ErrBundle)
	assert.ErrorContains(t, err, want.String())
	c, _ = testCache(t)
	_, err = c.ImportFile(t.Context(), path, other)
	require.ErrorIs(t, err, ErrBundle)
	_, err = c.Import(t.Context(), stream{bytes.NewReader(b)}, WithDigest(want))
	require.ErrorContains(t, err, "not for a stream")
	assert.Zero(t, filesBelow(t, c.Dir()))
}

// changing is a file whose content differs when it is read again.
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

// TestBundleThatChangesWhileImported checks that only checked bytes are stored if
// a bundle is replaced between checking and storing.
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
		_, err := c.Import(t.Context(), &changing{bytes.NewReader(b), next}, WithDigest(Digest(sha256.Sum256(b))))
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

// TestVerifyWithAnotherCheck checks that a module that fails a check is set aside
// like a damaged one, or only reported in a read-only layer. Choices are not
// checked.
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
