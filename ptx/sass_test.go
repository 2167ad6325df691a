package ptx_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/internal/outside"
	"sonicmoe/ptx/ptxas"
)

// TestMachineCode disassembles the machine code of a kernel with NVIDIA's disassembler. The output
// must contain the kernel's name and one instruction for its multiply-add.
func TestMachineCode(t *testing.T) {
	outside.Ptxas(t)
	disassemble := outside.Nvdisasm(t)
	m, err := axpy().Build()
	require.NoError(t, err)
	code, _, err := ptxas.Assemble(t.Context(), m.Print().PTX)
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "axpy.cubin")
	require.NoError(t, os.WriteFile(file, code, 0o600))
	text, err := exec.CommandContext(t.Context(), disassemble, file).CombinedOutput()
	require.NoError(t, err, "%s", text)
	require.Contains(t, string(text), ".text.axpy")
	require.Contains(t, string(text), "FFMA")
	require.NotContains(t, string(text), "FMUL")
}
