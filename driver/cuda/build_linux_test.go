package cuda

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/internal/outside"
)

// TestBuild checks that Producer includes the build of the opened library, whatever name the
// library was opened by.
func TestBuild(t *testing.T) {
	outside.CC(t)
	place := func(name string, flags ...string) string {
		f := newFake(t, flags...)
		path := filepath.Join(filepath.Dir(f.path), name)
		require.NoError(t, os.Rename(f.path, path))
		link := filepath.Join(t.TempDir(), "libcuda.so.1")
		require.NoError(t, os.Symlink(path, link))
		return link
	}
	for _, c := range []struct{ library, want string }{
		{place("libcuda.so.580.95.05"), "driver 12080 580.95.05"},
		{place("libcuda.so.570.86"), "driver 12080 570.86"},
		{place("libcuda.so.1"), "driver 12080"},
		{place("libcuda.so.1.1"), "driver 12080"},
		{place("libcuda.so.1.1", "-Wl,--build-id=0x0123456789abcdef"), "driver 12080 0123456789abcdef"},
		{place("libcuda.so.580.65.06", "-Wl,--build-id=0x0123456789abcdef"), "driver 12080 580.65.06"},
	} {
		dev, err := Open(t.Context(), 0, Options{Library: c.library})
		require.NoError(t, err)
		assert.Equal(t, c.want, dev.Producer())
		assert.True(t, dev.Accepts(dev.Producer()))
		require.NoError(t, dev.Close())
	}
}

func TestMappedFile(t *testing.T) {
	const maps = `55d0c6a00000-55d0c6a01000 r--p 00000000 08:01 42                         /bin/program
7f0000000000-7f0000001000 rw-p 00000000 00:00 0
7f0000001000-7f0000003000 r-xp 00001000 08:01 43                         /usr/lib/a folder/libcuda.so.580.95.05
7ffc00000000-7ffc00021000 rw-p 00000000 00:00 0                          [stack]
`
	for addr, want := range map[uintptr]string{
		0x55d0c6a00fff: "/bin/program", 0x55d0c6a01000: "", 0x7f0000000000: "", 0x7f0000001000: "/usr/lib/a folder/libcuda.so.580.95.05",
		0x7f0000002fff: "/usr/lib/a folder/libcuda.so.580.95.05", 0x7ffc00000000: "", 0: "",
	} {
		assert.Equal(t, want, mappedFile(maps, addr), "%#x", addr)
	}
	assert.Empty(t, mappedFile("nonsense\n", 1))
	assert.Empty(t, buildID("/no/such/file"))
	assert.Empty(t, buildID(os.DevNull))
}
