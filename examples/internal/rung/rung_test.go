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
	"sonicmoe/ptx"
)

func TestFlags(t *testing.T) {
	_, err := New("x", []string{"-h"}, io.Discard)
	require.ErrorIs(t, err, flag.ErrHelp)
	_, err = New("x", []string{"emulated"}, io.Discard)
	require.ErrorContains(t, err, `"emulated" is no flag`)
	_, err = New("x", []string{"-device", "abacus"}, io.Discard)
	require.ErrorIs(t, err, driver.ErrInvalid)
}

// The emulated device stands in for a missing GPU, but never in silence and
// never for a GPU that was asked for.
func TestNoGPU(t *testing.T) {
	t.Setenv(cuda.EnvLibrary, "/no/such/libcuda.so")
	var warnings strings.Builder
	b, err := New("x", nil, &warnings)
	require.NoError(t, err)
	require.False(t, b.GPU)
	require.NoError(t, b.Close())
	require.Contains(t, warnings.String(), "no GPU, so the emulated device it is")
	_, err = New("x", []string{"-device", "cuda"}, io.Discard)
	require.ErrorIs(t, err, driver.ErrNoDevice)
}

func TestRefuseGPU(t *testing.T) {
	require.NoError(t, RefuseGPU("x", nil, io.Discard, "why"))
	require.NoError(t, RefuseGPU("x", []string{"-device", "emulated"}, io.Discard, "why"))
	require.EqualError(t, RefuseGPU("x", []string{"-device", "cuda:1"}, io.Discard, "why"), "-device is cuda:1, must be emulated: why")
}

func counter() Kernel {
	k := ptx.NewKernel("count")
	out, n := k.ParamPtr("out"), k.ParamU32("n")
	tid := k.Special("%tid.x")
	k.If(tid.Lt(n), func() { ptx.StGlobal(out.Index(tid, 4), tid) })
	return Kernel{Kernel: k, Name: "count", Grid: [2]int{1}, Threads: 32}
}

func emulatedBench(t *testing.T) *Bench {
	b, err := New("x", []string{"-device", "emulated"}, io.Discard)
	require.NoError(t, err)
	t.Cleanup(func() { b.Close() })
	return b
}

func TestBench(t *testing.T) {
	b := emulatedBench(t)
	out := Upload(b, []uint32{9, 9, 9, 9})
	p := b.Load(counter())
	p.Run(out, 3)
	require.Equal(t, []uint32{0, 1, 2, 9}, Download[uint32](b, out, 4))
	require.Contains(t, p.Listing(), "st.global.u32")
	require.Positive(t, p.Time(2, out, 3))
	require.NoError(t, b.Err())
}

// Wrong arguments are errors that name them; the first error stays.
func TestWrongArguments(t *testing.T) {
	for text, args := range map[string][]any{
		"1 arguments, it takes 2":                               {driver.DevicePtr(0)},
		"parameter out has 8 bytes, a uint32 has not":           {1, 2},
		"parameter n is a string":                               {driver.DevicePtr(0), "3"},
		"parameter out has 8 bytes, a driver.TensorMap has not": {driver.TensorMap{Elem: driver.U16, Rank: 1, Dims: [5]uint64{8}, Box: [5]uint32{8}}, 3},
	} {
		b := emulatedBench(t)
		p := b.Load(counter())
		p.Run(args...)
		require.ErrorContains(t, b.Err(), text)
		first := b.Err()
		p.Run(Buffer[uint32](b, 4), 3)
		require.Equal(t, first, b.Err())
		require.Zero(t, p.Time(1))
	}
}

func TestBuildError(t *testing.T) {
	b := emulatedBench(t)
	k := counter()
	k.Kernel.Errorf("out of order")
	p := b.Load(k)
	p.Run(Buffer[uint32](b, 4), 3)
	require.ErrorContains(t, b.Err(), "out of order")
	require.Empty(t, p.Listing())
	require.False(t, errors.Is(b.Err(), driver.ErrBroken))
}
