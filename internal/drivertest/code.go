package drivertest

import (
	"bytes"
	"context"
	"errors"
	"sync"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/driver/gpu"
)

func testTarget(b *bench) {
	t := b.dev.Target()
	assert.NotEmpty(b, t.Name)
	assert.Equal(b, "sm_90a", t.Arch)
	assert.Positive(b, t.SMs)
	assert.Equal(b, 232448, t.SharedBytesPerCTA)
	assert.GreaterOrEqual(b, t.SharedBytesPerSM, t.SharedBytesPerCTA)
	assert.Equal(b, 65536, t.RegistersPerSM)
	assert.Positive(b, t.L2Bytes)
	assert.Positive(b, t.MemoryBusBits)

	assert.NotEmpty(b, b.dev.Producer())
	assert.True(b, b.dev.Accepts(b.dev.Producer()), "a device must accept its own machine code")
	assert.False(b, b.dev.Accepts(""))
	assert.False(b, b.dev.Accepts("crayon 1"))
	if v := b.dev.MaxPTXVersion(); v != 0 {
		assert.GreaterOrEqual(b, v, 80)
	}
}

// testCompile checks that several modules can be compiled at the same time, with every option,
// and that each compilation gives the same bytes.
func testCompile(b *bench) {
	files := []string{"add.ptx", "shared.ptx", "pdl.ptx", "cluster.ptx", "tma.ptx"}
	images := make([][2]gpu.Image, len(files))
	errs := make([]error, 2*len(files))
	var all sync.WaitGroup
	for i, file := range files {
		text := source(b, file)
		for j := range 2 {
			all.Go(func() { images[i][j], errs[2*i+j] = b.dev.Compile(b.Context(), text, gpu.CompileOptions{}) })
		}
	}
	all.Wait()
	require.NoError(b, errors.Join(errs...))
	for i, file := range files {
		assert.NotEmpty(b, images[i][0].Code, file)
		assert.True(b, bytes.Equal(images[i][0].Code, images[i][1].Code), "%s: two compilations differ", file)
	}
	for _, o := range []gpu.CompileOptions{{LineInfo: true}, {OptLevel: 1}, {OptLevel: 4, LineInfo: true}} {
		image, err := b.dev.Compile(b.Context(), source(b, "add.ptx"), o)
		require.NoError(b, err, "%+v", o)
		m, err := b.dev.Load(image.Code)
		require.NoError(b, err, "%+v", o)
		require.NoError(b, m.Unload())
	}
	ended, cancel := context.WithCancel(b.Context())
	cancel()
	_, err := b.dev.Compile(ended, source(b, "add.ptx"), gpu.CompileOptions{})
	require.ErrorIs(b, err, context.Canceled)
}

// wrongLine is the faulty line of wrong.ptx.
const wrongLine = "line 12"

func testCompileError(b *bench) {
	_, err := b.dev.Compile(b.Context(), source(b, "wrong.ptx"), gpu.CompileOptions{})
	require.ErrorIs(b, err, gpu.ErrCompile)
	var e *driver.Error
	require.ErrorAs(b, err, &e)
	assert.Contains(b, e.Log, wrongLine, "the log must name the line")
	assert.Contains(b, err.Error(), wrongLine, "the message must hold the log")

	for _, text := range []string{"", "\n", "not PTX at all", string(source(b, "add.ptx")[:400])} {
		_, err := b.dev.Compile(b.Context(), []byte(text), gpu.CompileOptions{})
		require.ErrorIs(b, err, gpu.ErrCompile, "%.20q", text)
	}
	_, err = b.dev.Compile(b.Context(), source(b, "add.ptx"), gpu.CompileOptions{OptLevel: 9})
	require.ErrorIs(b, err, driver.ErrInvalid)
}

func testWrongImage(b *bench) {
	image, err := b.dev.Compile(b.Context(), source(b, "add.ptx"), gpu.CompileOptions{})
	require.NoError(b, err)
	for _, test := range []struct {
		name string
		code []byte
	}{
		{"nothing", nil},
		{"text", []byte("garbage")},
		{"zeros", make([]byte, 4096)},
		{"an ELF header alone", []byte("\x7fELF\x02\x01\x01\x33\x07")},
		{"half an image", image.Code[:len(image.Code)/2]},
	} {
		_, err := b.dev.Load(test.code)
		require.ErrorIs(b, err, gpu.ErrWrongImage, test.name)
	}
	m, err := b.dev.Load(image.Code)
	require.NoError(b, err, "a good image must load after wrong ones")
	require.NoError(b, m.Unload())
}

func testMissingFunction(b *bench) {
	m := b.load("add.ptx")
	for _, name := range []string{"scaled_sub", "", "scaled_ad", "scaled_add2"} {
		_, err := m.Function(name)
		require.ErrorIs(b, err, gpu.ErrNotFound, name)
		assert.Contains(b, err.Error(), `"`+name+`"`)
	}
	f, err := m.Function("scaled_add")
	require.NoError(b, err)
	assert.Equal(b, "scaled_add", f.Name())
}

func testAttributes(b *bench) {
	a, err := b.function("shared.ptx", "facts").Attributes()
	require.NoError(b, err)
	assert.Positive(b, a.Registers)
	assert.LessOrEqual(b, a.Registers, 255)
	assert.Zero(b, a.LocalBytes, "nothing spills")
	assert.Equal(b, 1024, a.StaticSharedBytes)
	assert.Equal(b, 128, a.MaxThreadsPerCTA)
	assert.GreaterOrEqual(b, a.PTXVersion, 70)
	assert.Equal(b, 90, a.BinaryVersion)
}
