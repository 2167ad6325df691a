package jit_test

import (
	"context"
	"encoding/binary"
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/driver/faulty"
	"sonicmoe/jit"
	"sonicmoe/ptx"
)

// mixed has a parameter of each kind, a tensor map between them, and stores
// word n and float f at out.
func mixed(t testing.TB) jit.Source {
	k := ptx.NewKernel("mixed")
	k.SetLaunchBounds(32, 1)
	n, out := k.ParamU32("n"), k.ParamPtr("out")
	k.ParamTensorMap("map")
	f := k.ParamF32("f")
	ptx.StGlobal(out, n)
	ptx.StGlobal(out.At(4), f)
	m, err := k.Build()
	require.NoError(t, err)
	return jit.Source{Module: m, Name: "mixed"}
}

// bindMixed is a mixed kernel on a device, and room for what it stores.
func bindMixed(t testing.TB) (dev *faulty.Device, s driver.Stream, b *jit.Binding, out driver.DevicePtr) {
	dev = newDevice(t)
	f, err := load(context.Background(), dev, mixed(t))
	require.NoError(t, err)
	s, err = dev.NewStream()
	require.NoError(t, err)
	out, err = dev.Alloc(256)
	require.NoError(t, err)
	return dev, s, f.Bind(dev, driver.Launch{Block: driver.Dim3{X: 1}}), out
}

func mapOf(p driver.DevicePtr) driver.TensorMap {
	return driver.TensorMap{Elem: driver.BF16, Rank: 1, Address: p, Dims: [5]uint64{64}, Box: [5]uint32{64}}
}

func stored(t testing.TB, s driver.Stream, out driver.DevicePtr) (n uint32, f float32) {
	var got [8]byte
	require.NoError(t, s.CopyToHost(got[:], out))
	return binary.LittleEndian.Uint32(got[:]), math.Float32frombits(binary.LittleEndian.Uint32(got[4:]))
}

func TestBinding(t *testing.T) {
	dev, s, b, out := bindMixed(t)
	b.Ptr("out", out)
	b.U32("n", 1<<31+5)
	b.F32("f", -1.5)
	require.NoError(t, b.TensorMap("map", mapOf(out)))
	require.NoError(t, b.Launch(s))
	n, f := stored(t, s, out)
	assert.Equal(t, uint32(1<<31+5), n)
	assert.Equal(t, float32(-1.5), f)

	// What is not set again stays, by whichever way it was set.
	require.NoError(t, b.Set("n", 7))
	require.NoError(t, b.Launch(s))
	n, f = stored(t, s, out)
	assert.Equal(t, uint32(7), n)
	assert.Equal(t, float32(-1.5), f)
	for name, v := range map[string]any{"n": uint32(8), "f": float32(2), "out": out + 128, "map": mapOf(out + 16)} {
		require.NoError(t, b.Set(name, v))
	}
	require.NoError(t, b.Launch(s))
	n, f = stored(t, s, out+128)
	assert.Equal(t, uint32(8), n)
	assert.Equal(t, float32(2), f)

	assert.EqualValues(t, 2, dev.Count(faulty.EncodeTensorMap))
	require.NoError(t, b.TensorMap("map", mapOf(out+16)))
	assert.EqualValues(t, 2, dev.Count(faulty.EncodeTensorMap), "the same map is not encoded again")
}

// A tensor map that the device refuses is its error, and no mistake that stays.
func TestBindingOfWrongMap(t *testing.T) {
	_, s, b, out := bindMixed(t)
	b.Ptr("out", out)
	for _, m := range []driver.TensorMap{{}, mapOf(out + 3)} {
		err := b.TensorMap("map", m)
		require.ErrorIs(t, err, driver.ErrInvalid)
		assert.ErrorContains(t, err, "tensor map map of kernel mixed")
		require.ErrorIs(t, b.Set("map", m), driver.ErrInvalid)
	}
	require.NoError(t, b.TensorMap("map", mapOf(out)))
	require.NoError(t, b.Launch(s))
}

// A parameter set wrongly shows at the launch, which queues nothing, and
// spoils none beside it.
func TestBindingMistakes(t *testing.T) {
	for _, c := range []struct {
		set  func(b *jit.Binding)
		want string
	}{
		{func(b *jit.Binding) { b.U32("m", 1) }, "there is no parameter m, only n, out, map, f"},
		{func(b *jit.Binding) { b.U32("out", 1) }, "parameter out has 8 bytes, a uint32 has not"},
		{func(b *jit.Binding) { b.Ptr("n", 1) }, "parameter n has 4 bytes, a driver.DevicePtr has not"},
		{func(b *jit.Binding) { b.F32("map", 1) }, "parameter map has 128 bytes, a float32 has not"},
		{func(b *jit.Binding) { _ = b.TensorMap("f", mapOf(256)) }, "parameter f has 4 bytes, a driver.TensorMap has not"},
		{func(b *jit.Binding) { _ = b.Set("n", "text") }, "parameter n is a string, must be a driver.DevicePtr"},
		{func(b *jit.Binding) { _ = b.Set("n", -1) }, "parameter n is -1, must be from 0 to 2^32-1"},
		{func(b *jit.Binding) { b.U32("m", 1); b.U32("out", 1) }, "no parameter m"},
	} {
		dev, s, b, out := bindMixed(t)
		b.Ptr("out", out)
		c.set(b)
		err := b.Launch(s)
		require.ErrorIs(t, err, driver.ErrInvalid)
		assert.ErrorContains(t, err, "launching kernel mixed: ")
		assert.ErrorContains(t, err, c.want)
		require.ErrorIs(t, b.Set("n", 1), driver.ErrInvalid, "the first mistake stays")
		assert.Zero(t, dev.Count(faulty.Launch))
	}
}

func TestBindingAllocatesNothing(t *testing.T) {
	dev, s, b, out := bindMixed(t)
	dev.Discard(true)
	require.NoError(t, b.TensorMap("map", mapOf(out)))
	i := 0
	assert.Zero(t, testing.AllocsPerRun(100, func() {
		i++
		b.Ptr("out", out+driver.DevicePtr(i))
		b.U32("n", uint32(1000*i))
		b.F32("f", float32(i))
		_ = b.TensorMap("map", mapOf(out))
		if err := b.Launch(s); err != nil {
			panic(err)
		}
	}))
}

// The shape may change from launch to launch, and a fault names the Go line.
func TestBindingShapeAndFault(t *testing.T) {
	_, s, b, out := bindMixed(t)
	b.Ptr("out", out)
	b.Shape.Block.X = 64
	require.ErrorIs(t, b.Launch(s), driver.ErrInvalid, "more threads than the kernel takes")
	b.Shape.Block.X = 32
	require.NoError(t, b.Launch(s))
	b.Ptr("out", 0x10)
	err := b.Launch(s)
	require.ErrorIs(t, err, driver.ErrBroken)
	assert.ErrorContains(t, err, "jit/binding_test.go:")
}
