package cache

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/internal/disk"
	"sonicmoe/internal/disktest"
	"sonicmoe/internal/store"
)

// member is a member of a bundle that a test makes by hand.
type member struct {
	header tar.Header
	data   []byte
}

func plain(name string, data []byte) member {
	return member{tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(data)), Format: tar.FormatUSTAR}, data}
}

// forge writes the members between a valid first and a valid last member, so that a bundle can
// be refused only because of the given members.
func forge(t testing.TB, members ...member) []byte {
	t.Helper()
	var b bytes.Buffer
	add := func(m member) {
		size := m.header.Size
		w := tar.NewWriter(&b)
		require.NoError(t, w.WriteHeader(&m.header))
		b.Write(m.data)
		if size == int64(len(m.data)) {
			b.Write(make([]byte, padding(size)))
		}
	}
	add(plain(firstName, []byte(firstLine)))
	for _, m := range members {
		add(m)
	}
	sum := sha256.New()
	sum.Write(b.Bytes())
	add(plain(lastName, lastLines(len(members), sum)))
	b.Write(make([]byte, 2*tarBlock))
	return b.Bytes()
}

func TestHostileBundles(t *testing.T) {
	key, e := testEntry(1, 60)
	data, err := encodeEntry(key, e)
	require.NoError(t, err)
	choice, err := encodeChoice("a", []byte("b"))
	require.NoError(t, err)
	name := memberName(fileName(store.KindModule, key))
	other := store.NewKey([]byte("other"))
	later := memberName(strings.Repeat("f", 64) + ".module")
	special := func(flag byte, name, link string) member {
		return member{tar.Header{Typeflag: flag, Name: name, Linkname: link, Mode: 0o777, Format: tar.FormatUSTAR}, nil}
	}
	wrongSum := bytes.Clone(data)
	wrongSum[len(wrongSum)-1] ^= 1
	old := bytes.Clone(data)
	old[8]++
	old = reseal(old)

	_, err = checkBytes(context.Background(), bytes.NewReader(forge(t, plain(name, data))))
	require.NoError(t, err, "forge writes valid bundles")

	for what, bad := range map[string]struct {
		members []member
		say     string
	}{
		"absolute name":        {[]member{plain("/etc/passwd", data)}, "/etc/passwd"},
		"name above":           {[]member{plain("../evil.module", data)}, "../evil.module"},
		"name above within":    {[]member{plain("entries/../../evil.module", data)}, "member name"},
		"name with the key":    {[]member{plain("entries/../"+fileName(store.KindModule, key), data)}, "member name"},
		"absolute with key":    {[]member{plain("/"+name, data)}, "member name"},
		"windows name":         {[]member{plain(`entries\`+fileName(store.KindModule, key), data)}, "member name"},
		"upper case":           {[]member{plain("entries/"+strings.ToUpper(key.String())+".module", data)}, "member name"},
		"a lock":               {[]member{plain("entries/"+key.String()+".lock", data)}, "member name"},
		"no folder":            {[]member{plain(fileName(store.KindModule, key), data)}, "member name"},
		"symbolic link":        {[]member{special(tar.TypeSymlink, name, "/etc/passwd")}, "no plain file"},
		"hard link":            {[]member{special(tar.TypeLink, name, "/etc/passwd")}, "no plain file"},
		"device":               {[]member{special(tar.TypeChar, name, "")}, "no plain file"},
		"pipe":                 {[]member{special(tar.TypeFifo, name, "")}, "no plain file"},
		"directory":            {[]member{special(tar.TypeDir, "entries/", "")}, "no plain file"},
		"set-uid":              {[]member{{tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o4755, Size: int64(len(data)), Format: tar.FormatUSTAR}, data}}, "not one that Export writes"},
		"an owner":             {[]member{{tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Uid: 5, Size: int64(len(data)), Format: tar.FormatUSTAR}, data}}, "not one that Export writes"},
		"PAX header":           {[]member{{tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, PAXRecords: map[string]string{"SONICMOE.path": "/etc/passwd"}, Size: int64(len(data))}, data}}, "bundle"},
		"GNU long name":        {[]member{{tar.Header{Typeflag: tar.TypeReg, Name: "entries/" + strings.Repeat("a", 300), Size: int64(len(data)), Format: tar.FormatGNU}, data}}, "bundle"},
		"huge length":          {[]member{{tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: 8<<30 - 1, Format: tar.FormatUSTAR}, data}}, "at most"},
		"length past the end":  {[]member{{tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: 200 << 20, Format: tar.FormatUSTAR}, data}}, "ends within"},
		"wrong sum":            {[]member{plain(name, wrongSum)}, "checksum"},
		"another key's":        {[]member{plain(memberName(fileName(store.KindModule, other)), data)}, "holds the key"},
		"another kind":         {[]member{plain(memberName(fileName(store.KindChoice, key)), data)}, "holds a module"},
		"a choice's wrong key": {[]member{plain(memberName(fileName(store.KindChoice, other)), choice)}, "holds the key"},
		"another version":      {[]member{plain(name, old)}, "version"},
		"empty file":           {[]member{plain(name, nil)}, "shorter"},
		"twice":                {[]member{plain(name, data), plain(name, data)}, "repeated"},
		"out of order":         {[]member{plain(later, data), plain(name, data)}, "holds the key"},
		"a second first":       {[]member{plain(firstName, []byte(firstLine))}, "member name"},
		"too early an end":     {[]member{plain(lastName, []byte("1 files\n")), plain(name, data)}, "its end says"},
	} {
		t.Run(what, func(t *testing.T) {
			b := forge(t, bad.members...)
			outside := t.TempDir() // the cache is inside, so that the test notices a file written outside the cache
			for _, seeks := range []bool{true, false} {
				c := modules{Open(Options{Dir: filepath.Join(outside, "a", "b")})}
				var err error
				if seeks {
					_, err = c.Import(context.Background(), bytes.NewReader(b))
				} else {
					_, err = c.Import(context.Background(), stream{bytes.NewReader(b)})
				}
				require.ErrorIs(t, err, ErrBundle)
				assert.ErrorContains(t, err, bad.say)
				want := 0
				if what == "twice" && !seeks {
					want = 1 // an import may store the first file, which is valid
				}
				assert.Equal(t, want, filesBelow(t, outside))
			}
			// Used as a cache layer, the bundle must be refused, or its bad file must never be
			// returned.
			path := filepath.Join(outside, "hostile.tar")
			writeFile(t, path, b)
			c := modules{Open(Options{Dir: path, ReadOnly: true})}
			if got, o := c.Get(key); o == store.Hit {
				assert.Equal(t, e, got)
			}
			for _, k := range []store.Key{other} {
				_, o := c.Get(k)
				assert.NotEqual(t, store.Hit, o)
			}
		})
	}
}

// TestImportOntoAFailingDisk checks that Import stops when a write fails, returns the reason,
// and can be repeated later.
func TestImportOntoAFailingDisk(t *testing.T) {
	_, b := exported(t)
	files := disktest.Wrap(disk.OS)
	c := modules{open(Options{Dir: t.TempDir()}, files)}
	writes := 0
	files.Before(func(op disktest.Op, _ string) error {
		if op == disktest.Write {
			if writes++; writes > 2 {
				return syscall.EIO
			}
		}
		return nil
	})
	report, err := c.Import(context.Background(), bytes.NewReader(b))
	require.ErrorIs(t, err, syscall.EIO)
	assert.Equal(t, 2, report.Stored)
	assert.Equal(t, 2, filesBelow(t, c.Dir()))
	files.Before(nil)
	report, err = c.Import(context.Background(), bytes.NewReader(b))
	require.NoError(t, err)
	assert.Equal(t, 2, report.Unchanged)
	holdsAll(t, c)
}

func TestImportNeedsAPlaceToWrite(t *testing.T) {
	source, b := exported(t)
	for name, o := range map[string]Options{"read-only": {Dir: source.Dir(), ReadOnly: true}, "off": {Dir: off}} {
		_, err := modules{Open(o)}.Import(context.Background(), bytes.NewReader(b))
		assert.ErrorContains(t, err, "off or read-only", name)
	}
	_, err := source.ImportFile(context.Background(), t.TempDir(), BundleOptions{})
	assert.ErrorContains(t, err, "is a directory")
	_, err = source.ImportFile(context.Background(), filepath.Join(t.TempDir(), "none"), BundleOptions{})
	assert.ErrorIs(t, err, os.ErrNotExist)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err = source.Import(ctx, bytes.NewReader(b))
	assert.ErrorIs(t, err, context.Canceled)
	_, err = source.Export(ctx, &bytes.Buffer{})
	assert.ErrorIs(t, err, context.Canceled)
	_, err = Open(Options{Dir: off}).Export(context.Background(), &bytes.Buffer{})
	assert.Error(t, err)
}

// TestImportBeyondTheBound checks that the import of a bundle that is larger than the limit
// removes files, and that the report counts them.
func TestImportBeyondTheBound(t *testing.T) {
	_, b := exported(t)
	c, _ := testCache(t, func(o *Options) { o.MaxBytes = 700 })
	r, err := c.Import(context.Background(), bytes.NewReader(b))
	require.NoError(t, err)
	assert.Positive(t, r.Evicted)
}

// TestFailedExport checks that a failed export keeps the earlier file and leaves no other file.
func TestFailedExport(t *testing.T) {
	c, b := exported(t)
	dir := t.TempDir()
	path := filepath.Join(dir, "warm.tar")
	writeFile(t, path, b)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := c.ExportFile(ctx, path)
	require.ErrorIs(t, err, context.Canceled)
	assert.Equal(t, b, readFile(t, path))
	assert.Equal(t, 1, filesBelow(t, dir))
	_, err = c.ExportFile(context.Background(), filepath.Join(dir, "no", "such.tar"))
	assert.ErrorIs(t, err, os.ErrNotExist)
}

// TestBundleOfAnotherVersion checks that Import and a cache layer refuse a bundle of another
// version and give the version as the reason. The layer must not read the bundle to its end.
func TestBundleOfAnotherVersion(t *testing.T) {
	other := bytes.Clone([]byte(firstLine))
	other[len(other)-2]++
	data := bytes.Replace(bundleOf(t), []byte(firstLine), other, 1)
	_, err := modules{Open(Options{Dir: t.TempDir()})}.Import(context.Background(), bytes.NewReader(data))
	require.ErrorContains(t, err, "its first line is")
	x := &bundleIndex{where: map[string]extent{}}
	require.ErrorContains(t, x.index(bytes.NewReader(data)), "its first line is")
}
