// Package rungtest is what the tests of the ladder share.
package rungtest

import (
	"context"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/internal/outside"
	"sonicmoe/ptx"
	"sonicmoe/ptx/ptxas"
)

// Output runs a program on the emulated device and gives what it printed.
func Output(t *testing.T, run func(ctx context.Context, args []string, stdout, stderr io.Writer) error) string {
	t.Helper()
	var out, warnings strings.Builder
	require.NoError(t, run(t.Context(), []string{"-device", "emulated"}, &out, &warnings))
	require.Empty(t, warnings.String())
	return out.String()
}

// Assembles holds a kernel against NVIDIA's assembler, where it is installed:
// no error, no warning, no spilled register.
func Assembles(t *testing.T, k interface{ Build() (*ptx.Module, error) }) {
	t.Helper()
	m, err := k.Build()
	require.NoError(t, err)
	ModuleAssembles(t, m)
}

// ModuleAssembles is Assembles of a kernel that is built.
func ModuleAssembles(t *testing.T, m *ptx.Module) {
	t.Helper()
	outside.Ptxas(t)
	_, report, err := ptxas.Assemble(context.Background(), m.Print().PTX)
	require.NoError(t, err)
	require.Empty(t, ptxas.Complaint(report), report)
}
