// Package rungtest has helpers for the tests of examples/ladder.
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

// Output runs a program on the emulated device and returns what it printed.
func Output(t *testing.T, run func(ctx context.Context, args []string, stdout, stderr io.Writer) error) string {
	t.Helper()
	var out, warnings strings.Builder
	require.NoError(t, run(t.Context(), []string{"-device", "emulated"}, &out, &warnings))
	require.Empty(t, warnings.String())
	return out.String()
}

// Assembles checks that NVIDIA's assembler, if it is installed, accepts a kernel without an
// error, a warning or a spilled register.
func Assembles(t *testing.T, k interface{ Build() (*ptx.Module, error) }) {
	t.Helper()
	m, err := k.Build()
	require.NoError(t, err)
	ModuleAssembles(t, m)
}

// ModuleAssembles is like [Assembles] for a kernel that is already built.
func ModuleAssembles(t *testing.T, m *ptx.Module) {
	t.Helper()
	outside.Ptxas(t)
	_, report, err := ptxas.Assemble(context.Background(), m.Print().PTX)
	require.NoError(t, err)
	require.Empty(t, ptxas.Complaint(report), report)
}
