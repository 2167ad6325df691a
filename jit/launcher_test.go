package jit_test

import (
	"context"
	"encoding/binary"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/driver/gpu"
	"sonicmoe/internal/faulty"
	"sonicmoe/jit"
	"sonicmoe/ptx"
)

// place is a struct of arguments for embedding.
type place struct {
	Out driver.DevicePtr
}

// mixedArgs has an argument of each kind, an argument that the kernel does not read, and an address
// that is used both as a parameter and for a tensor map.
type mixedArgs struct {
	N    int
	Bits uint32
	place
	Unused driver.DevicePtr
	F      float32
}

// mixed returns a kernel whose first thread stores n, bits and f at out. Its grid has CTAs along x.
func mixed() *jit.Builder[mixedArgs] {
	k := jit.NewBuilder[mixedArgs]("mixed", 32, 1)
	k.CTAs(func(a *mixedArgs) int { return max(1, a.N/1000) })
	n, out := k.U32(&k.Args.N), jit.Params(k).Ptr(&k.Args.Out)
	k.Map(&k.Args.Out, func(a *mixedArgs) gpu.TensorMap {
		return gpu.TensorMap{Elem: gpu.BF16, Rank: 1, Address: a.Out, Dims: [5]uint64{64}, Box: [5]uint32{64}}
	})
	f, bits := k.F32(&k.Args.F), k.Word(&k.Args.Bits)
	k.If(k.CtaidX().Or(k.TidX()).EqI(0), func() {
		ptx.StGlobal(out, n)
		ptx.StGlobal(out.At(4), f)
		ptx.StGlobal(out.At(8), bits)
	})
	return k
}

// launchMixed returns a launcher of a mixed kernel on a device, and memory for the values that the
// kernel stores.
func launchMixed(t testing.TB) (dev *faulty.Device, s driver.Stream, l *jit.Launcher[mixedArgs], out driver.DevicePtr) {
	dev = newDevice(t)
	k, err := mixed().Build()
	require.NoError(t, err)
	f, err := load(context.Background(), dev, k.Source("mixed"))
	require.NoError(t, err)
	s, err = dev.NewStream()
	require.NoError(t, err)
	out, err = dev.Alloc(256)
	require.NoError(t, err)
	return dev, s, k.Launcher(f), out
}

func stored(t testing.TB, s driver.Stream, out driver.DevicePtr) (n uint32, f float32, bits uint32) {
	var got [12]byte
	require.NoError(t, s.CopyToHost(got[:], out))
	return binary.LittleEndian.Uint32(got[:]), math.Float32frombits(binary.LittleEndian.Uint32(got[4:])), binary.LittleEndian.Uint32(got[8:])
}

// TestLauncher checks that arguments reach the kernel, that tensor maps are encoded again only when
// they change, and that the grid is computed from the arguments.
func TestLauncher(t *testing.T) {
	dev, s, l, out := launchMixed(t)
	launched, err := l.Again(s)
	require.NoError(t, err)
	require.False(t, launched, "nothing was launched before")
	for i, a := range []mixedArgs{{N: math.MaxUint32, F: -1.5, Bits: 7}, {N: 0, F: 2}, {N: 5000, Bits: math.MaxUint32}} {
		a.Out = out + driver.DevicePtr(128*(i/2))
		require.NoError(t, l.LaunchGrid(s, a, gpu.Dim3{X: 1}))
		n, f, bits := stored(t, s, a.Out)
		assert.EqualValues(t, a.N, n)
		assert.Equal(t, a.F, f)
		assert.Equal(t, a.Bits, bits)
	}
	assert.EqualValues(t, 2, dev.Count(faulty.EncodeTensorMap), "the same map is not encoded again")
	require.NoError(t, l.Launch(s, mixedArgs{N: 3000, place: place{out}}))
	launched, err = l.Again(s)
	require.NoError(t, err)
	require.True(t, launched)
}

// TestLauncherOverlaps checks that a kernel may be launched before its predecessor has ended only
// if it waits for its predecessor itself.
func TestLauncherOverlaps(t *testing.T) {
	dev := newDevice(t)
	for _, waits := range []bool{false, true} {
		k := jit.NewBuilder[place]("waiting", 32, 1)
		out := k.Ptr(&k.Args.Out)
		if waits {
			k.GridDepWait()
		}
		ptx.StGlobal(out, ptx.Uint(1))
		built, err := k.Build()
		require.NoError(t, err)
		f, err := load(context.Background(), dev, built.Source("waiting"))
		require.NoError(t, err)
		s := &shapes{}
		require.NoError(t, built.Launcher(f).LaunchGrid(s, place{}, gpu.Dim3{X: 1}))
		require.Equal(t, waits, s.last.Programmatic)
	}
}

// shapes is a stream that does not run kernels. It records the shape of the last launch.
type shapes struct {
	driver.Stream
	last gpu.Launch
}

func (s *shapes) Launch(_ gpu.Function, l *gpu.Launch, _ []byte) error {
	s.last = *l
	return nil
}

func TestLauncherMistakes(t *testing.T) {
	dev, s, l, out := launchMixed(t)
	for _, n := range []int{-1, math.MaxUint32 + 1} {
		err := l.Launch(s, mixedArgs{N: n, place: place{out}})
		require.ErrorIs(t, err, driver.ErrInvalid)
		assert.ErrorContains(t, err, "launching kernel mixed: ")
		assert.ErrorContains(t, err, "argument n is")
	}
	err := l.LaunchGrid(s, mixedArgs{place: place{out + 3}}, gpu.Dim3{X: 1})
	require.ErrorIs(t, err, driver.ErrInvalid)
	assert.ErrorContains(t, err, "tensor map outMap")
	assert.Zero(t, dev.Count(faulty.Launch))
	require.NoError(t, l.Launch(s, mixedArgs{place: place{out}}), "a mistake has no effect on later launches")
}

func TestLauncherAllocatesNothing(t *testing.T) {
	dev, s, l, out := launchMixed(t)
	dev.Discard(true)
	require.NoError(t, l.Launch(s, mixedArgs{place: place{out}}))
	i := 0
	assert.Zero(t, testing.AllocsPerRun(100, func() {
		i++
		if err := l.Launch(s, mixedArgs{N: 1000 * i, F: float32(i), place: place{out}}); err != nil {
			panic(err)
		}
	}))
}

// TestLauncherFault checks that the error for a fault of the kernel names the Go line.
func TestLauncherFault(t *testing.T) {
	k := jit.NewBuilder[place]("stores", 32, 1)
	ptx.StGlobal(k.Ptr(&k.Args.Out), ptx.Uint(1))
	built, err := k.Build()
	require.NoError(t, err)
	dev := newDevice(t)
	f, err := load(context.Background(), dev, built.Source("stores"))
	require.NoError(t, err)
	s, err := dev.NewStream()
	require.NoError(t, err)
	err = built.Launcher(f).Launch(s, place{Out: 0x10})
	require.ErrorIs(t, err, driver.ErrBroken)
	assert.ErrorContains(t, err, "jit/launcher_test.go:")
}

// TestBuilderMistakes checks that Build returns an error for an argument that is
// not a field of Args.
func TestBuilderMistakes(t *testing.T) {
	k := jit.NewBuilder[place]("k", 32, 1)
	var other place
	k.Ptr(&other.Out)
	_, err := k.Build()
	assert.ErrorContains(t, err, "not a field of its builder's Args")
	_, err = jit.NewBuilder[int]("k", 32, 1).Build()
	assert.ErrorContains(t, err, "must be a struct")
}

// TestWrongFieldsDoNotCompile checks that a wrong field name or type is a compile
// error.
func TestWrongFieldsDoNotCompile(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: the test runs the Go compiler")
	}
	program := func(use string) string {
		return "package main\n\nimport (\n\t\"sonicmoe/driver\"\n\t\"sonicmoe/jit\"\n)\n\ntype args struct {\n\tX driver.DevicePtr\n\tN int\n}\n\nfunc main() {\n\tk := jit.NewBuilder[args](\"k\", 32, 1)\n\t" + use + "\n\t_ = k\n}\n"
	}
	for use, want := range map[string]string{
		"k.Ptr(&k.Args.X)": "",
		"k.Ptr(&k.Args.Y)": "k.Args.Y undefined",
		"k.Ptr(&k.Args.N)": "cannot use &k.Args.N",
		"k.U32(&k.Args.X)": "cannot use &k.Args.X",
		"var l jit.Launcher[args]; l.Launch(nil, args{Y: 1})": "unknown field Y",
	} {
		dir, err := os.MkdirTemp(".", "wrongfield")
		require.NoError(t, err)
		t.Cleanup(func() { os.RemoveAll(dir) })
		require.NoError(t, os.WriteFile(filepath.Join(dir, "main.go"), []byte(program(use)), 0o600))
		out, err := exec.Command("go", "vet", "./"+filepath.Base(dir)).CombinedOutput()
		if want == "" {
			require.NoError(t, err, "%s", out)
			continue
		}
		require.Error(t, err, use)
		assert.Contains(t, string(out), want)
	}
}
