package emulated

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/driver/gpu"
	"sonicmoe/ptx/emu"
)

// poke is a kernel that stores to a given address, on line 11.
const poke = `.version 7.0
.target sm_80
.address_size 64
.visible .entry poke(
	.param .u64 address
)
{
	.reg .u64 %a;

	ld.param.u64 %a, [address];
	st.global.u32 [%a], 1;
	ret;
}
`

func newDevice(t *testing.T, o Options) gpu.Device {
	dev, err := New(o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, dev.Close()) })
	return dev
}

func loadPoke(t *testing.T, dev gpu.Device) (gpu.Function, driver.Stream) {
	image, err := dev.Compile(t.Context(), []byte(poke), gpu.CompileOptions{})
	require.NoError(t, err)
	m, err := dev.Load(image.Code)
	require.NoError(t, err)
	f, err := m.Function("poke")
	require.NoError(t, err)
	s, err := dev.NewStream()
	require.NoError(t, err)
	return f, s
}

// TestFaultIsKept checks that the driver's error has the kind, the kernel and the line of the
// first fault.
func TestFaultIsKept(t *testing.T) {
	dev := newDevice(t, Options{})
	f, s := loadPoke(t, dev)
	err := gpu.Enqueue(s, f, &gpu.Launch{}, binary.LittleEndian.AppendUint64(nil, 0x1000))
	require.ErrorIs(t, err, driver.ErrBroken)
	var fault *emu.Fault
	require.ErrorAs(t, err, &fault)
	assert.Equal(t, emu.OutOfBounds, fault.Kind)
	var e *driver.Error
	require.ErrorAs(t, err, &e)
	assert.Equal(t, "poke", e.Kernel)
	assert.Equal(t, 11, e.Line)
	assert.Equal(t, err, dev.Err())
}

func TestOptions(t *testing.T) {
	old := driver.H200()
	old.Major = 8
	for name, o := range map[string]Options{
		"chip":     {Target: old},
		"memory":   {MemoryBytes: -1},
		"timing":   {Timing: 9},
		"parallel": {Parallel: -1},
		"check":    {Check: -1},
		"explore":  {Explore: -1},
		"both":     {Explore: 1, Check: 1},
	} {
		_, err := New(o)
		require.ErrorIs(t, err, driver.ErrInvalid, name)
	}
	dev := newDevice(t, Options{Target: driver.H100(), MemoryBytes: 1000})
	assert.Equal(t, driver.H100(), dev.Target())
	_, err := dev.Alloc(1001)
	require.ErrorIs(t, err, driver.ErrOutOfMemory)
	p, err := dev.Alloc(1000)
	require.NoError(t, err)
	require.NoError(t, dev.Free(p))
	require.ErrorIs(t, dev.Free(p), driver.ErrInvalid)
	require.ErrorContains(t, dev.Free(p), "freed before")
	s, err := dev.NewStream()
	require.NoError(t, err)
	defer s.Close()
	require.ErrorContains(t, s.CopyToHost(make([]byte, 8), p+16), "byte 16 of an allocation of 1000 bytes that was freed")
	assert.Equal(t, "emulated H200", newDevice(t, Options{}).Target().Name)
}

// TestExplore checks that a device with Explore reports the number of orders, and that memory
// afterwards is the same as after one run.
func TestExplore(t *testing.T) {
	var told []string
	dev := newDevice(t, Options{Explore: 4, Explored: func(k *emu.Kernel, e emu.Exploration) { told = append(told, k.Name()+": "+e.String()) }})
	f, s := loadPoke(t, dev)
	p, err := dev.Alloc(4)
	require.NoError(t, err)
	launch := &gpu.Launch{Grid: gpu.Dim3{X: 3}}
	require.NoError(t, gpu.Enqueue(s, f, launch, binary.LittleEndian.AppendUint64(nil, uint64(p))))
	assert.Equal(t, []string{"poke: one order run: there is no other"}, told)
	got := make([]byte, 4)
	require.NoError(t, s.CopyToHost(got, p))
	assert.Equal(t, []byte{1, 0, 0, 0}, got)
	require.ErrorIs(t, gpu.Enqueue(s, f, launch, binary.LittleEndian.AppendUint64(nil, 0x1000)), driver.ErrBroken)
}

// TestProgrammaticLaunches checks that a programmatic launch without a wait races with its
// predecessor. It must not race if other work of the stream is between the two, or if a graph
// begins between them.
func TestProgrammaticLaunches(t *testing.T) {
	type enqueue = func(s driver.Stream, p driver.DevicePtr) error
	fill := func(s driver.Stream, p driver.DevicePtr) error { return s.Fill32(p, 0, 1) }
	for name, x := range map[string]struct {
		ordinary, graph bool
		between         enqueue
		race            bool
	}{
		"one after the other": {race: true},
		"ordinary":            {ordinary: true},
		"a fill between":      {between: fill},
		"in a graph":          {graph: true, race: true},
		"a fill in a graph":   {graph: true, between: fill},
	} {
		t.Run(name, func(t *testing.T) {
			dev := newDevice(t, Options{Check: 1})
			f, s := loadPoke(t, dev)
			p, err := dev.Alloc(4)
			require.NoError(t, err)
			args := binary.LittleEndian.AppendUint64(nil, uint64(p))
			if x.graph {
				require.NoError(t, s.BeginCapture())
			}
			require.NoError(t, gpu.Enqueue(s, f, &gpu.Launch{Programmatic: !x.ordinary}, args))
			if x.between != nil {
				require.NoError(t, x.between(s, p))
			}
			err = gpu.Enqueue(s, f, &gpu.Launch{Programmatic: !x.ordinary}, args)
			if x.graph {
				require.NoError(t, err)
				g, err2 := s.EndCapture()
				require.NoError(t, err2)
				err = g.Launch(s)
			}
			if x.race {
				require.ErrorContains(t, err, "griddepcontrol.wait")
				return
			}
			require.NoError(t, err)
		})
	}
}

// TestCompileLog checks that the log has each error with its line, in the format of an
// assembler's log.
func TestCompileLog(t *testing.T) {
	dev := newDevice(t, Options{})
	_, err := dev.Compile(t.Context(), []byte(".version 7.0\n.target sm_70\n.visible .entry k()\n{\n"+
		"\t.reg .f32 %f<2>;\n\ttanh.approx.f32 %f0, %f1;\n\tbra nowhere;\n}\n"), gpu.CompileOptions{})
	var e *driver.Error
	require.ErrorAs(t, err, &e)
	assert.Contains(t, e.Log, "ptxas emulated, line 6; error   : kernel k, tanh.approx.f32 needs .target sm_80")
	assert.Contains(t, e.Log, "ptxas emulated, line 7; error   : kernel k, no label nowhere")
}

// TestNestedGraph checks that a graph repeats the captured work with the captured parameters. A
// graph that is launched during a capture must become part of the capture.
func TestNestedGraph(t *testing.T) {
	dev := newDevice(t, Options{})
	f, s := loadPoke(t, dev)
	p, err := dev.Alloc(8)
	require.NoError(t, err)
	params := binary.LittleEndian.AppendUint64(nil, uint64(p))
	require.NoError(t, s.BeginCapture())
	require.ErrorIs(t, s.BeginCapture(), driver.ErrInvalid)
	require.NoError(t, gpu.Enqueue(s, f, &gpu.Launch{}, params))
	inner, err := s.EndCapture()
	require.NoError(t, err)
	clear(params)
	require.NoError(t, s.BeginCapture())
	require.NoError(t, inner.Launch(s))
	require.NoError(t, s.Copy(p+4, p, 4))
	outer, err := s.EndCapture()
	require.NoError(t, err)
	assert.Equal(t, 2, outer.Nodes())
	require.NoError(t, outer.Launch(s))
	got := make([]byte, 8)
	require.NoError(t, s.CopyToHost(got, p))
	assert.Equal(t, []byte{1, 0, 0, 0, 1, 0, 0, 0}, got)
	require.NoError(t, inner.Close())
	require.ErrorIs(t, inner.Launch(s), driver.ErrInvalid)
}

// TestClusterAlongY checks that clusters along y are launched, and that a grid
// that is not a multiple of the cluster is refused.
func TestClusterAlongY(t *testing.T) {
	dev := newDevice(t, Options{})
	f, s := loadPoke(t, dev)
	p, err := dev.Alloc(8)
	require.NoError(t, err)
	params := binary.LittleEndian.AppendUint64(nil, uint64(p))
	require.NoError(t, gpu.Enqueue(s, f, &gpu.Launch{Grid: gpu.Dim3{Y: 2}, Cluster: gpu.Dim3{Y: 2}}, params))
	require.ErrorIs(t, gpu.Enqueue(s, f, &gpu.Launch{Grid: gpu.Dim3{X: 2}, Cluster: gpu.Dim3{Y: 2}}, params), driver.ErrInvalid)
}

// TestDecodedOnce checks that a text is decoded once for all devices, although it is compiled
// and loaded several times.
func TestDecodedOnce(t *testing.T) {
	text := []byte(poke)
	sum := sha256.Sum256(text)
	first, err := decode(text, sum)
	require.NoError(t, err)
	again, err := decode(text, sum)
	require.NoError(t, err)
	assert.Same(t, first, again)
	for range 2 {
		_, err = decode([]byte("nonsense"), sha256.Sum256([]byte("nonsense")))
		require.Error(t, err)
	}
}

// TestAddressesOfDevices checks that an address of one device is invalid on
// another.
func TestAddressesOfDevices(t *testing.T) {
	first, second := newDevice(t, Options{}), newDevice(t, Options{})
	p, err := first.Alloc(64)
	require.NoError(t, err)
	q, err := second.Alloc(64)
	require.NoError(t, err)
	require.NotEqual(t, p, q)
	s, err := second.NewStream()
	require.NoError(t, err)
	require.NoError(t, s.Fill32(q, 0, 16))
	require.ErrorIs(t, s.Fill32(p, 0, 16), driver.ErrInvalid)
	require.ErrorIs(t, second.Free(p), driver.ErrInvalid)
}

// TestCloseEndsKernels checks that closing a device ends a running kernel.
func TestCloseEndsKernels(t *testing.T) {
	dev := newDevice(t, Options{})
	image, err := dev.Compile(t.Context(), []byte(".version 8.0\n.target sm_90a\n.address_size 64\n.visible .entry spin()\n{\n\t.reg .u32 %r;\n\tmov.u32 %r, 0;\nagain:\n\tadd.u32 %r, %r, 1;\n\tbra again;\n}\n"), gpu.CompileOptions{})
	require.NoError(t, err)
	m, err := dev.Load(image.Code)
	require.NoError(t, err)
	f, err := m.Function("spin")
	require.NoError(t, err)
	s, err := dev.NewStream()
	require.NoError(t, err)
	time.AfterFunc(20*time.Millisecond, func() { dev.Close() })
	err = gpu.Enqueue(s, f, &gpu.Launch{}, nil)
	require.ErrorIs(t, err, driver.ErrInvalid)
	require.ErrorContains(t, err, "the device is closed")
}

// TestCloseWhileInUse closes a device while others use it. Each call must succeed
// or be refused.
func TestCloseWhileInUse(t *testing.T) {
	for range 50 {
		dev := newDevice(t, Options{})
		s, err := dev.NewStream()
		require.NoError(t, err)
		var begun, all sync.WaitGroup
		begun.Add(4)
		for range 4 {
			all.Go(func() {
				begin := sync.OnceFunc(begun.Done)
				for {
					p, err := dev.Alloc(256)
					if err == nil {
						err = errors.Join(s.Fill32(p, 1, 64), dev.Free(p))
					}
					begin()
					if err != nil {
						assert.ErrorIs(t, err, driver.ErrInvalid)
						assert.NotErrorIs(t, err, driver.ErrOutOfMemory)
						return
					}
				}
			})
		}
		begun.Wait()
		require.NoError(t, dev.Close())
		all.Wait()
		_, err = dev.Alloc(1)
		require.ErrorContains(t, err, "the device is closed")
	}
}
