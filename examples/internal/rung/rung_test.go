package rung

import (
	"errors"
	"flag"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/driver/cuda"
	"sonicmoe/examples/internal/command"
	"sonicmoe/jit"
	"sonicmoe/ptx"
)

var x = command.Program{Name: "x", Purpose: "tests."}

func TestFlags(t *testing.T) {
	_, err := New(t.Context(), x, []string{"-h"}, io.Discard, io.Discard)
	require.ErrorIs(t, err, flag.ErrHelp)
	_, err = New(t.Context(), x, []string{"emulated"}, io.Discard, io.Discard)
	require.ErrorContains(t, err, `"emulated" is no flag`)
	_, err = New(t.Context(), x, []string{"-device", "abacus"}, io.Discard, io.Discard)
	require.ErrorIs(t, err, driver.ErrInvalid)
}

// TestNoGPU checks that the emulated device replaces a missing GPU only with a message, and
// never a GPU that -device names.
func TestNoGPU(t *testing.T) {
	t.Setenv(cuda.EnvLibrary, "/no/such/libcuda.so")
	var warnings strings.Builder
	b, err := New(t.Context(), x, nil, io.Discard, &warnings)
	require.NoError(t, err)
	require.False(t, b.GPU)
	require.NoError(t, b.Close())
	require.Contains(t, warnings.String(), "no GPU: this is the emulated device")
	_, err = New(t.Context(), x, []string{"-device", "cuda"}, io.Discard, io.Discard)
	require.ErrorIs(t, err, driver.ErrNoDevice)
}

func TestRefuseGPU(t *testing.T) {
	require.NoError(t, RefuseGPU(x, nil, io.Discard, "why"))
	require.NoError(t, RefuseGPU(x, []string{"-device", "emulated"}, io.Discard, "why"))
	require.EqualError(t, RefuseGPU(x, []string{"-device", "cuda:1"}, io.Discard, "why"), "-device is cuda:1, must be emulated: why")
}

type counterArgs struct {
	Out driver.DevicePtr
	N   int
}

func counter() *jit.Builder[counterArgs] {
	k := jit.NewBuilder[counterArgs]("count", 32, 1)
	out, n := k.Ptr(&k.Args.Out), k.U32(&k.Args.N)
	tid := k.TidX()
	k.If(tid.Lt(n), func() { ptx.StGlobal(out.Index(tid, 4), tid) })
	return k
}

func emulatedBench(t *testing.T) *Bench {
	b, err := New(t.Context(), x, []string{"-device", "emulated"}, io.Discard, io.Discard)
	require.NoError(t, err)
	t.Cleanup(func() { b.Close() })
	return b
}

func TestBench(t *testing.T) {
	b := emulatedBench(t)
	out := Upload(b, []uint32{9, 9, 9, 9})
	p := Load(b, counter())
	p.Run(counterArgs{out, 3})
	require.Equal(t, []uint32{0, 1, 2, 9}, Download[uint32](b, out, 4))
	require.Contains(t, p.Listing(), "st.global.u32")
	require.Positive(t, p.Time(2, counterArgs{out, 3}))
	require.NoError(t, b.Err())
}

// TestFirstErrorStays checks that Err returns the first error even after later ones.
func TestFirstErrorStays(t *testing.T) {
	b := emulatedBench(t)
	p := Load(b, counter())
	p.Run(counterArgs{N: -1})
	require.ErrorContains(t, b.Err(), "argument n is -1")
	first := b.Err()
	p.Run(counterArgs{Buffer[uint32](b, 4), 3})
	require.Equal(t, first, b.Err())
	require.Zero(t, p.Time(1, counterArgs{}))
}

func TestBuildError(t *testing.T) {
	b := emulatedBench(t)
	k := counter()
	k.Errorf("out of order")
	p := Load(b, k)
	p.Run(counterArgs{Buffer[uint32](b, 4), 3})
	require.ErrorContains(t, b.Err(), "out of order")
	require.Empty(t, p.Listing())
	require.False(t, errors.Is(b.Err(), driver.ErrBroken))
}
