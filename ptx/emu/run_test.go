package emu

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/ptx"
	"sonicmoe/ptx/emu/layout"
	"sonicmoe/ptx/isa"
)

// TestEveryFormIsEmulated checks that the emulator has a handler for every row of the instruction
// table.
func TestEveryFormIsEmulated(t *testing.T) {
	for i := range isa.Table {
		if forms[i].exec == nil {
			t.Errorf("%s (%s) is not emulated", isa.Table[i].Name, isa.Table[i].Op)
		}
	}
}

// program is a kernel under test, with its memory and launch.
type program struct {
	t      testing.TB
	text   ptx.Text
	kernel *Kernel
	mem    *Memory
	launch Launch
}

// build loads the PTX text of a kernel from the builder.
func build(t testing.TB, k *ptx.Kernel) *program {
	t.Helper()
	m, err := k.Build()
	require.NoError(t, err)
	p := assemble(t, string(m.Print().PTX), m.Entries[0].Name)
	p.text = m.Print()
	p.launch.Where = func(line int) string { return p.text.Pos(line).String() }
	return p
}

// assemble loads the kernel of the given name from PTX text.
func assemble(t testing.TB, text, name string) *program {
	t.Helper()
	m, err := Load([]byte(text))
	require.NoError(t, err, text)
	k, err := m.Kernel(name)
	require.NoError(t, err)
	return &program{t: t, kernel: k, mem: NewMemory(1 << 30), launch: Launch{Block: [3]int{32}, GoOn: never}}
}

// never is a Launch.GoOn that ends a launch at each finding, including notes.
func never(*Fault) bool { return false }

// body returns PTX of a kernel k with the given instructions and the parameters out (u64) and n
// (u32).
func body(instructions string) string {
	return `.version 8.5
.target sm_90a
.address_size 64
.extern .shared .align 1024 .b8 smem[];
.visible .entry k(.param .u64 out, .param .u32 n)
.maxntid 512
.minnctapersm 1
{
	.reg .pred %p<8>;
	.reg .b16 %h<8>;
	.reg .b32 %r<32>;
	.reg .b32 %f<64>;
	.reg .b64 %d<16>;
` + instructions + "\n}\n"
}

// params packs values as the kernel's parameters. A value is a uint64, uint32, float32 or
// TensorMap.
func (p *program) params(values ...any) {
	p.t.Helper()
	buf := make([]byte, p.kernel.ParamBytes())
	require.Len(p.t, values, len(p.kernel.Params()))
	for i, q := range p.kernel.Params() {
		switch v := values[i].(type) {
		case uint64:
			binary.LittleEndian.PutUint64(buf[q.Offset:], v)
		case uint32:
			binary.LittleEndian.PutUint32(buf[q.Offset:], v)
		case int:
			binary.LittleEndian.PutUint32(buf[q.Offset:], uint32(v))
		case float32:
			binary.LittleEndian.PutUint32(buf[q.Offset:], math.Float32bits(v))
		case layout.TensorMap:
			b := v.Encode()
			copy(buf[q.Offset:], b[:])
		default:
			p.t.Fatalf("parameter %d is a %T", i, v)
		}
	}
	p.launch.Params = buf
}

func (p *program) run() error { return p.kernel.Launch(context.Background(), p.mem, p.launch) }

// u32s allocates memory for the values and returns its address.
func (p *program) u32s(values ...uint32) uint64 {
	a, err := p.mem.Alloc(int64(4 * len(values)))
	require.NoError(p.t, err)
	b := make([]byte, 0, 4*len(values))
	for _, v := range values {
		b = binary.LittleEndian.AppendUint32(b, v)
	}
	require.NoError(p.t, p.mem.Write(a, b))
	return a
}

func (p *program) read(a uint64, n int) []uint32 {
	b := make([]byte, 4*n)
	require.NoError(p.t, p.mem.Read(b, a))
	out := make([]uint32, n)
	for i := range out {
		out[i] = binary.LittleEndian.Uint32(b[4*i:])
	}
	return out
}

// eachTiming runs a test under all timings, and under Random with several seeds.
func eachTiming(t *testing.T, test func(t *testing.T, timing Timing, seed uint64)) {
	for _, c := range []struct {
		name   string
		timing Timing
		seeds  uint64
	}{{"early", Early, 1}, {"late", Late, 1}, {"random", Random, 8}} {
		for seed := range c.seeds {
			t.Run(fmt.Sprintf("%s %d", c.name, seed), func(t *testing.T) { test(t, c.timing, seed) })
		}
	}
}

// requireFault checks that err is a fault of the given kind, and that the faulting line of the text
// contains the fragment.
func requireFault(t *testing.T, err error, kind FaultKind, text, fragment string) *Fault {
	t.Helper()
	var f *Fault
	require.True(t, errors.As(err, &f), "no fault: %v", err)
	require.Equal(t, kind.String(), f.Kind.String(), f.Error())
	lines := strings.Split(text, "\n")
	require.Contains(t, lines[f.Line-1], fragment, f.Error())
	require.Equal(t, "k", f.Kernel)
	return f
}

func TestAxpy(t *testing.T) {
	k := ptx.NewKernel("axpy")
	x, y := k.ParamPtr("x"), k.ParamPtr("y")
	alpha, n := k.ParamF32("alpha"), k.ParamU32("n")
	i := k.CtaidX().Mad(k.NtidX(), k.TidX())
	k.If(i.Lt(n), func() {
		dst := y.Index(i, 4)
		ptx.StGlobal(dst, ptx.LdGlobal[ptx.F32](x.Index(i, 4)).Fma(alpha, ptx.LdGlobal[ptx.F32](dst)))
	})
	p := build(t, k)
	const size = 1000
	var xs, ys, want []uint32
	for i := range size {
		a, b := float32(i)*0.5, float32(size-i)
		xs, ys = append(xs, math.Float32bits(a)), append(ys, math.Float32bits(b))
		want = append(want, math.Float32bits(3*a+b))
	}
	px, py := p.u32s(xs...), p.u32s(ys...)
	p.params(px, py, float32(3), size)
	p.launch.Grid, p.launch.Block = [3]int{8}, [3]int{128}
	require.NoError(t, p.run())
	require.Equal(t, want, p.read(py, size))
}

// TestSharedMemoryAndBarrier checks that warps exchange values through shared memory: every lane
// sums its column of what the warps wrote.
func TestSharedMemoryAndBarrier(t *testing.T) {
	k := ptx.NewKernel("k")
	out := k.ParamPtr("out")
	smem := k.SharedBase()
	tid := k.TidX()
	ptx.StShared(smem.Plus(tid.ShlI(2)), tid.Mul(tid))
	k.BarSync(ptx.Uint(0))
	other := ptx.Uint(127).Sub(tid)
	ptx.StGlobal(out.Index(tid, 4), ptx.LdShared[ptx.U32](smem.Plus(other.ShlI(2))))
	p := build(t, k)
	a := p.u32s(make([]uint32, 128)...)
	p.params(a)
	p.launch.Block, p.launch.SharedBytes = [3]int{128}, 512
	eachTiming(t, func(t *testing.T, timing Timing, seed uint64) {
		p.launch.Timing, p.launch.Seed = timing, seed
		require.NoError(t, p.run())
		for i, v := range p.read(a, 128) {
			require.Equal(t, uint32((127-i)*(127-i)), v)
		}
	})
}
