package cache

import (
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"path/filepath"
	"testing"

	"aead.dev/minisign"
	"github.com/stretchr/testify/require"

	"sonicmoe/internal/disktest"
	"sonicmoe/internal/store"
)

// bundleOf returns a bundle with the given files.
func bundleOf(t testing.TB, files ...storedFile) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := newBundleWriter(&b)
	require.NoError(t, err)
	for _, f := range files {
		require.NoError(t, w.file(f.name, f.data))
	}
	require.NoError(t, w.close())
	return b.Bytes()
}

// seedBundles returns small bundles with a module and a choice.
func seedBundles(t testing.TB) [][]byte {
	t.Helper()
	key := store.NewKey([]byte("k"))
	entry, err := encodeEntry(key, store.Entry{Label: "l", PTX: []byte("ptx"), Images: []store.Image{{Producer: "p 1", Code: []byte("code"), Log: "log"}}})
	require.NoError(t, err)
	choice, err := encodeChoice("c", []byte("v"))
	require.NoError(t, err)
	m, c := storedFile{name: fileName(store.KindModule, key), data: entry}, storedFile{name: fileName(store.KindChoice, choiceKey("c")), data: choice}
	if m.name > c.name {
		m, c = c, m
	}
	return [][]byte{bundleOf(t), bundleOf(t, m), bundleOf(t, c), bundleOf(t, m, c)}
}

// repair corrects the checksums of a bundle's headers and the sum in its last member, so that
// altered bytes pass these checks and reach the others.
func repair(data []byte) []byte {
	data = bytes.Clone(data)
	last := -1
	for at := 0; at+tarBlock <= len(data); at += tarBlock {
		h := data[at : at+tarBlock]
		if string(h[257:262]) != "ustar" {
			continue
		}
		sum := 0
		copy(h[148:156], "        ")
		for _, c := range h {
			sum += int(c)
		}
		copy(h[148:156], fmt.Sprintf("%06o\x00 ", sum))
		last = at
	}
	if last < 0 || len(data) < last+2*tarBlock {
		return data
	}
	var files int
	if _, err := fmt.Sscanf(string(data[last+tarBlock:last+2*tarBlock]), "%d files\n", &files); err == nil {
		b := newBundleReader(bytes.NewReader(data[:last]))
		if _, err := b.bytes(int64(last), "all"); err == nil {
			copy(data[last+tarBlock:], lastLines(files, b.sum))
		}
	}
	return data
}

// FuzzBundle alters bundles. An accepted bundle must equal, byte for byte, what Export would
// write. A cache layer that reads it in place must hold the same files as an import of it. A
// refused bundle must store nothing. No file may appear outside the cache.
func FuzzBundle(f *testing.F) {
	for _, b := range seedBundles(f) {
		f.Add(b, false)
		f.Add(b, true)
		f.Add(b[:len(b)/2], false)
	}
	dir := filepath.Join(string(filepath.Separator), "home", "cache")
	f.Fuzz(func(t *testing.T, data []byte, repaired bool) {
		if repaired {
			data = repair(data)
		}
		var files []storedFile
		digest, err := walkBundle(context.Background(), bytes.NewReader(data), func(s storedFile) error {
			files = append(files, s)
			return nil
		})
		fsys := disktest.NewMemory()
		c := modules{open(Options{Dir: dir}, fsys)}
		r, importErr := c.Import(context.Background(), bytes.NewReader(data))
		if (err == nil) != (importErr == nil) || err == nil && r.SHA256 != hex.EncodeToString(digest[:]) {
			t.Fatalf("checked: %v, imported: %v", err, importErr)
		}
		stored, listErr := c.List(context.Background())
		require.NoError(t, listErr)
		if home, _ := fsys.ReadDir(filepath.Dir(dir)); len(home) != 1 {
			t.Fatalf("stored outside the cache: %v", home)
		}
		x := &bundleIndex{where: map[string]extent{}}
		indexErr := x.index(bytes.NewReader(data))
		if err != nil {
			require.Empty(t, stored, "stored of a bundle that is refused: %v", err)
			return
		}
		require.NoError(t, indexErr)
		require.Len(t, x.order, len(files))
		require.Len(t, stored, len(files))
		for i, s := range files {
			e := x.where[x.order[i]]
			require.Equal(t, s.data, data[e.offset:e.offset+e.size])
		}
		if !bytes.Equal(data, bundleOf(t, files...)) {
			t.Fatalf("accepted %d bytes that Export would not write", len(data))
		}
	})
}

// FuzzSignature alters signatures. An accepted text must have the signed parts of the original:
// everything except the first line, which minisign does not sign.
func FuzzSignature(f *testing.F) {
	key, bundle := testKey(1), bundleOf(f)
	good := signed(key, bundle, stampAndName(1, "b.tar"))
	f.Add(good)
	f.Add(signed(testKey(2), bundle, stampAndName(1, "b.tar")))
	f.Add(signed(key, []byte("other"), stampAndName(1, "b.tar")))
	by := &signer{key: publicOf(key)}
	parts := func(t testing.TB, text []byte) (g minisign.Signature) {
		require.NoError(t, g.UnmarshalText(text))
		return g
	}
	want := parts(f, good)
	f.Fuzz(func(t *testing.T, text []byte) {
		r := minisign.NewReader(bytes.NewReader(bundle))
		_, err := io.Copy(io.Discard, r)
		require.NoError(t, err)
		g := &signature{by: by, text: text, file: "b.tar"}
		if g.verify(r) == nil && (!parts(t, text).Equal(want) || g.time.Unix() != 1) {
			t.Fatalf("accepted: %q", text)
		}
	})
}
