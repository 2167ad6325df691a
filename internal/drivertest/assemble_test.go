package drivertest

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/internal/outside"
)

// TestKernelsAssemble checks that ptxas assembles every kernel for sm_90a without a message,
// and that wrong.ptx fails at the line that testCompile expects.
func TestKernelsAssemble(t *testing.T) {
	ptxas := outside.Ptxas(t)
	files, err := sources.ReadDir("testdata")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		path := filepath.Join(t.TempDir(), file.Name())
		require.NoError(t, os.WriteFile(path, source(t, file.Name()), 0o600))
		out, err := exec.Command(ptxas, "-arch=sm_90a", "-o", path+".cubin", path).CombinedOutput()
		if file.Name() == "wrong.ptx" {
			require.Error(t, err)
			assert.Contains(t, string(out), wrongLine)
			continue
		}
		require.NoError(t, err, "%s: %s", file.Name(), out)
		assert.Empty(t, string(out), file.Name())
	}
}

func TestPack(t *testing.T) {
	got := pack(uint32(1), float32(1), uint32(2), int32(-1))
	assert.Equal(t, []byte{1, 0, 0, 0, 0, 0, 0x80, 0x3f, 2, 0, 0, 0, 0xff, 0xff, 0xff, 0xff}, got)
}

// TestPlace checks that the 128-byte swizzle permutes the 16-byte chunks of 8 rows.
func TestPlace(t *testing.T) {
	for r := range 16 {
		for i := range 128 {
			assert.Equal(t, r*128+(i/16^r%8)*16+i%16, place(r, i, 128, 3))
			assert.Equal(t, r*128+i, place(r, i, 128, 0))
		}
	}
}
