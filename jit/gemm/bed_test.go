package gemm_test

import (
	"context"
	"math"
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/driver/emulated"
	"sonicmoe/driver/gpu"
	"sonicmoe/jit"
	"sonicmoe/ptx/emu"
)

// Poison values of memory that no kernel has written.
const (
	poison32 = 0xffffffff
	poison16 = 0xffff
)

// timing selects when asynchronous work completes.
type timing struct {
	name string
	of   emu.Timing
	seed uint64
}

var timings = []timing{{"early", emu.Early, 0}, {"late", emu.Late, 0}, {"random", emu.Random, 1}}

// bed runs kernels for a test, on an emulated device with two SMs.
type bed struct {
	t   testing.TB
	dev driver.Device
	s   driver.Stream
}

func newBed(t testing.TB, when timing) *bed {
	target := driver.H200()
	target.SMs = 2
	dev, err := emulated.New(emulated.Options{Target: target, Timing: when.of, Seed: when.seed, Races: when.of == emu.Late})
	require.NoError(t, err)
	s, err := dev.NewStream()
	require.NoError(t, err)
	t.Cleanup(func() {
		jit.Forget(dev)
		require.NoError(t, s.Close())
	})
	return &bed{t, dev, s}
}

// room allocates the given number of bytes and fills them with poison.
func (b *bed) room(bytes int) driver.DevicePtr {
	words := max(1, (bytes+3)/4)
	p, err := b.dev.Alloc(int64(4 * words))
	require.NoError(b.t, err)
	require.NoError(b.t, b.s.Fill32(p, poison32, int64(words)))
	return p
}

type number interface{ uint16 | uint32 | float32 }

func bytes[E number](v []E) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(v))), len(v)*int(unsafe.Sizeof(*new(E))))
}

func upload[E number](b *bed, v []E) driver.DevicePtr {
	p := b.room(len(bytes(v)))
	require.NoError(b.t, b.s.CopyToDevice(p, bytes(v)))
	return p
}

func download[E number](b *bed, p driver.DevicePtr, n int) []E {
	v := make([]E, n)
	require.NoError(b.t, b.s.CopyToHost(bytes(v), p))
	return v
}

// launch runs a kernel with the given number of CTAs. If ctas is 0, the kernel's own grid applies.
func launch[A any](b *bed, k *jit.Kernel[A], ctas int, args A) {
	b.t.Helper()
	f, err := jit.Of(b.dev).Load(context.Background(), nil, k.Source(k.Name), gpu.CompileOptions{})
	require.NoError(b.t, err)
	l := k.Launcher(f)
	if ctas == 0 {
		require.NoError(b.t, l.Launch(b.s, args))
	} else {
		require.NoError(b.t, l.LaunchGrid(b.s, args, gpu.Dim3{X: ctas}))
	}
	require.NoError(b.t, b.s.Synchronize(context.Background()))
}

// whole returns n integers from -1 to 1 in bf16. A sum of fewer than 256 products of such integers
// is exact in bf16.
func whole(rng *rand.Rand, n int) []uint16 {
	v := make([]uint16, n)
	for i := range v {
		v[i] = uint16(math.Float32bits(float32(rng.IntN(3)-1)) >> 16)
	}
	return v
}

func float(bf16 uint16) float64 { return float64(math.Float32frombits(uint32(bf16) << 16)) }
