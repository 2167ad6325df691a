package jit_test

import (
	"bytes"
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/cache"
	"sonicmoe/driver"
	"sonicmoe/driver/gpu"
	"sonicmoe/internal/faulty"
	"sonicmoe/internal/outside"
	"sonicmoe/internal/store"
	"sonicmoe/jit"
	"sonicmoe/ptx"
)

// offline is an assembler for a machine without a device. Emulated devices can load its machine
// code.
type offline struct {
	gpu.Device
	producer string
	runs     atomic.Int64
	err      error
}

func newOffline(t testing.TB) *offline {
	return &offline{Device: newDevice(t), producer: "ptxas 13.0.88"}
}

func (a *offline) Producer() string { return a.producer }
func (a *offline) Compile(ctx context.Context, text []byte, o gpu.CompileOptions) (gpu.Image, error) {
	a.runs.Add(1)
	if a.err != nil {
		return gpu.Image{}, a.err
	}
	return a.Device.Compile(ctx, text, o)
}

// warmed fills a cache with adder kernels, and counts the origins that Progress reports.
func warmed(t testing.TB, c *cache.Cache, by jit.Compiler, steps ...int) map[jit.Origin]int {
	t.Helper()
	var sources []jit.Source
	for _, step := range steps {
		s, _ := adder(t, step)
		sources = append(sources, s)
	}
	said := map[jit.Origin]int{}
	err := jit.Warm(context.Background(), c, "sm_90a", sources, jit.WarmOptions{
		By: by, Progress: func(w jit.Warmed) { said[w.Origin]++ }})
	require.NoError(t, err)
	return said
}

// TestWarmWithoutADevice checks that a device compiles nothing after Warm has filled its cache on
// another machine. The cache is either the same directory, or a bundle of it, read-only.
func TestWarmWithoutADevice(t *testing.T) {
	by := newOffline(t)
	c := cache.Open(cache.Options{Dir: t.TempDir()})
	assert.Equal(t, map[jit.Origin]int{jit.Compiled: 2, jit.Loaded: 1}, warmed(t, c, by, 1, 2, 1))
	assert.EqualValues(t, 2, by.runs.Load())
	assert.Equal(t, map[jit.Origin]int{jit.Cached: 2}, warmed(t, c, by, 1, 2))
	assert.EqualValues(t, 2, by.runs.Load(), "existing entries are not compiled again")

	bundle := t.TempDir() + "/warm.tar"
	_, err := c.ExportFile(context.Background(), bundle)
	require.NoError(t, err)
	for name, place := range map[string]string{"directory": c.Dir(), "bundle": bundle} {
		t.Run(name, func(t *testing.T) {
			dev := &updated{newDevice(t), "driver 13000", []string{"ptxas 13.0.88"}}
			t.Cleanup(func() { jit.Forget(dev) })
			readOnly := cache.Open(cache.Options{Dir: place, ReadOnly: true})
			for _, step := range []int{1, 2} {
				s, _ := adder(t, step)
				f, err := jit.Of(dev).Load(context.Background(), readOnly, s, gpu.CompileOptions{})
				require.NoError(t, err)
				assert.Equal(t, jit.Cached, f.Origin)
				assert.Equal(t, uint32(7+step), runAdder(t, dev, f, 7))
			}
			assert.Zero(t, dev.Count(faulty.Compile))
			assert.NoError(t, readOnly.Err())

			// Other options give another key, so the kernel is compiled.
			s, _ := adder(t, 1)
			f, err := jit.Of(dev).Load(context.Background(), readOnly, s, gpu.CompileOptions{OptLevel: 1})
			require.NoError(t, err)
			assert.Equal(t, jit.Compiled, f.Origin)
		})
	}
}

// TestWarmByTwoAssemblers checks that an entry keeps the images of two assemblers. A driver that
// accepts neither image must compile the kernel and add its own image.
func TestWarmByTwoAssemblers(t *testing.T) {
	c := cache.Open(cache.Options{Dir: t.TempDir()})
	old, young := newOffline(t), newOffline(t)
	young.producer = "ptxas 14.0.1"
	warmed(t, c, old, 1)
	assert.Equal(t, map[jit.Origin]int{jit.Compiled: 1}, warmed(t, c, young, 1))
	e, _ := store.Of(c).Get(onlyKey(t, c))
	require.Len(t, e.Images, 2)

	dev := &updated{newDevice(t), "driver 12000", nil}
	t.Cleanup(func() { jit.Forget(dev) })
	s, _ := adder(t, 1)
	f, err := jit.Of(dev).Load(context.Background(), c, s, gpu.CompileOptions{})
	require.NoError(t, err)
	assert.Equal(t, jit.Compiled, f.Origin)
	e, _ = store.Of(c).Get(onlyKey(t, c))
	assert.Len(t, e.Images, 3)
}

func TestWarmWithPTXOnly(t *testing.T) {
	c := cache.Open(cache.Options{Dir: t.TempDir()})
	assert.Equal(t, map[jit.Origin]int{jit.Compiled: 1}, warmed(t, c, nil, 1))
	assert.Equal(t, map[jit.Origin]int{jit.Cached: 1}, warmed(t, c, nil, 1))
	e, _ := store.Of(c).Get(onlyKey(t, c))
	s, _ := adder(t, 1)
	assert.Equal(t, string(s.Module.Print().PTX), string(e.PTX))
	assert.Empty(t, e.Images)
	by := newOffline(t)
	warmed(t, c, by, 1)
	assert.Equal(t, map[jit.Origin]int{jit.Cached: 1}, warmed(t, c, nil, 1))
	e, _ = store.Of(c).Get(onlyKey(t, c))
	assert.Len(t, e.Images, 1, "storing PTX alone keeps the machine code")
}

func TestWarmFails(t *testing.T) {
	ctx := context.Background()
	s, storeAt := adder(t, 1)
	line := lineOf(t, s, "st.global")
	by := newOffline(t)
	warm := func(ctx context.Context, c *cache.Cache) error {
		return jit.Warm(ctx, c, "sm_90a", []jit.Source{s}, jit.WarmOptions{By: by})
	}
	assert.ErrorContains(t, warm(ctx, cache.Open(cache.Options{Dir: "off"})), "stores nothing")
	assert.ErrorContains(t, warm(ctx, cache.Open(cache.Options{Dir: "/dev/null/no"})), "not a directory")
	done, cancel := context.WithCancel(ctx)
	cancel()
	c := cache.Open(cache.Options{Dir: t.TempDir()})
	assert.ErrorIs(t, warm(done, c), context.Canceled)
	by.err = errInjected
	assert.ErrorIs(t, warm(ctx, c), errInjected)
	by.err = &driver.Error{Op: "ptxas", Kind: gpu.ErrCompile, Log: fmt.Sprintf("k.ptx, line %d; error : no", line)}
	var compile *jit.CompileError
	require.ErrorAs(t, warm(ctx, c), &compile)
	assert.Contains(t, compile.Log, storeAt)
	list, err := c.List(ctx)
	require.NoError(t, err)
	assert.Empty(t, list)
}

// TestPtxas checks that the output of the real assembler is stored as an sm_90a image under the
// assembler's name.
func TestPtxas(t *testing.T) {
	outside.Ptxas(t)
	by, err := jit.Ptxas(t.Context(), "sm_90a")
	require.NoError(t, err)
	c := cache.Open(cache.Options{Dir: t.TempDir()})
	warmed(t, c, by, 1)
	e, _ := store.Of(c).Get(onlyKey(t, c))
	img, ok := e.Image(by.Producer())
	require.True(t, ok)
	assert.Regexp(t, `^ptxas \d+\.\d+\.\d+$`, img.Producer)
	assert.True(t, bytes.HasPrefix(img.Code, []byte("\x7fELF")))
	assert.Contains(t, img.Log, "registers")

	_, err = by.Compile(t.Context(), []byte(".version 8.0\n.target sm_90a\nnonsense\n"), gpu.CompileOptions{OptLevel: 1, LineInfo: true})
	assert.ErrorIs(t, err, gpu.ErrCompile)
	assert.ErrorContains(t, err, "line 3")
	k := ptx.NewKernel("empty")
	m, err := k.Build()
	require.NoError(t, err)
	img2, err := by.Compile(t.Context(), m.Print().PTX, gpu.CompileOptions{OptLevel: 1, LineInfo: true})
	require.NoError(t, err)
	assert.Contains(t, string(img2.Code), ".debug_line")
	plain, err := by.Compile(t.Context(), m.Print().PTX, gpu.CompileOptions{OptLevel: 1})
	require.NoError(t, err)
	assert.NotContains(t, string(plain.Code), ".debug_line")
	done, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = by.Compile(done, nil, gpu.CompileOptions{})
	assert.ErrorIs(t, err, context.Canceled)
}
