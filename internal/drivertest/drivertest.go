// Package drivertest is the conformance suite of gpu.Device: tests that run the same
// hand-written PTX on every implementation.
//
//	func TestConformance(t *testing.T) {
//		drivertest.Run(t, dev)
//	}
//
// The kernels are in testdata and built into the program, so a test binary can be copied to
// the machine with the GPU.
package drivertest

import (
	"context"
	"embed"
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/driver/gpu"
	"sonicmoe/internal/devkit"
)

//go:embed testdata/*.ptx
var sources embed.FS

// source returns the PTX of a file of testdata.
func source(t testing.TB, file string) []byte {
	text, err := sources.ReadFile("testdata/" + file)
	require.NoError(t, err)
	return text
}

// Run checks that dev, a device of compute capability 9.0, follows the rules of packages
// driver and driver/gpu. dev can be used afterwards. Run takes at most a second on a GPU.
func Run(t *testing.T, dev gpu.Device) {
	if target := dev.Target(); target.Major != 9 || target.Minor != 0 {
		t.Skipf("the kernels of this suite are for compute capability 9.0, %s has %d.%d", target.Name, target.Major, target.Minor)
	}
	for _, test := range []struct {
		name string
		run  func(*bench)
	}{
		{"Target", testTarget},
		{"Compile", testCompile},
		{"CompileError", testCompileError},
		{"WrongImage", testWrongImage},
		{"MissingFunction", testMissingFunction},
		{"Attributes", testAttributes},
		{"Memory", testMemory},
		{"OutOfMemory", testOutOfMemory},
		{"Copies", testCopies},
		{"WrongCopies", testWrongCopies},
		{"Fill32", testFill32},
		{"AllocAsync", testAllocAsync},
		{"Launch", testLaunch},
		{"ParamsAreCopied", testParamsAreCopied},
		{"SharedMemory", testSharedMemory},
		{"TooMuchShared", testTooMuchShared},
		{"WrongLaunches", testWrongLaunches},
		{"Programmatic", testProgrammatic},
		{"Cluster", testCluster},
		{"MaxActiveClusters", testMaxActiveClusters},
		{"TensorMapErrors", testTensorMapErrors},
		{"LoadTile", testLoadTile},
		{"StoreTile", testStoreTile},
		{"RaggedStore", testRaggedStore},
		{"Events", testEvents},
		{"EventAcrossStreams", testEventAcrossStreams},
		{"EndedContext", testEndedContext},
		{"WrappedStream", testWrappedStream},
		{"Graph", testGraph},
		{"CaptureRefusesHostCopies", testCaptureRefusesHostCopies},
		{"Goroutines", testGoroutines},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := newBench(t, dev)
			test.run(b)
			require.NoError(t, dev.Synchronize(t.Context()))
			require.NoError(t, dev.Err(), "the device must stay usable")
		})
	}
}

// bench is a device, a stream and a test, with helper methods.
type bench struct {
	*testing.T
	dev    gpu.Device
	stream driver.Stream
}

func newBench(t *testing.T, dev gpu.Device) *bench {
	b := &bench{T: t, dev: dev}
	b.stream = b.newStream()
	return b
}

func (b *bench) newStream() driver.Stream {
	b.Helper()
	s, err := b.dev.NewStream()
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, s.Close()) })
	return s
}

func (b *bench) newEvent() driver.Event {
	b.Helper()
	e, err := b.dev.NewEvent()
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, e.Close()) })
	return e
}

// load compiles a file of testdata and loads the module.
func (b *bench) load(file string) gpu.Module {
	b.Helper()
	image, err := b.dev.Compile(b.Context(), source(b, file), gpu.CompileOptions{})
	require.NoError(b, err)
	m, err := b.dev.Load(image.Code)
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, m.Unload()) })
	return m
}

// function returns a kernel of a file of testdata.
func (b *bench) function(file, name string) gpu.Function {
	b.Helper()
	f, err := b.load(file).Function(name)
	require.NoError(b, err)
	return f
}

// poison is the word with which alloc fills memory.
const poison = 0xCDCDCDCD

// alloc reserves poisoned memory until the test ends.
func (b *bench) alloc(bytes int) driver.DevicePtr {
	b.Helper()
	p, err := b.dev.Alloc(int64(bytes))
	require.NoError(b, err)
	b.Cleanup(func() {
		require.NoError(b, b.dev.Synchronize(context.Background()))
		require.NoError(b, b.dev.Free(p))
	})
	require.Zero(b, uint64(p)%256, "memory must be aligned to 256 bytes")
	require.NoError(b, b.stream.Fill32(p, poison, int64(bytes/4)))
	require.NoError(b, b.stream.Synchronize(b.Context()))
	return p
}

// put copies 32-bit words to new device memory.
func (b *bench) put(words []uint32) driver.DevicePtr {
	b.Helper()
	p := b.alloc(4 * len(words))
	require.NoError(b, b.stream.CopyToDevice(p, encode(words)))
	return p
}

// get copies n 32-bit words from the device, after all work on the stream.
func (b *bench) get(p driver.DevicePtr, n int) []uint32 {
	b.Helper()
	raw := make([]byte, 4*n)
	require.NoError(b, b.stream.CopyToHost(raw, p))
	words := make([]uint32, n)
	for i := range words {
		words[i] = binary.LittleEndian.Uint32(raw[4*i:])
	}
	return words
}

func encode(words []uint32) []byte {
	var raw []byte
	for _, w := range words {
		raw = binary.LittleEndian.AppendUint32(raw, w)
	}
	return raw
}

// pack packs parameters of the types that devkit.PackParams takes.
func pack(values ...any) []byte {
	packed, err := devkit.PackParams(values...)
	if err != nil {
		panic(err) // reached only by a mistake in this suite, and then on every run
	}
	return packed
}

// line returns a launch of n threads in CTAs of 128.
func line(n int) *gpu.Launch {
	return &gpu.Launch{Grid: gpu.Dim3{X: (n + 127) / 128}, Block: gpu.Dim3{X: 128}}
}
