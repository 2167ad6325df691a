package ptx_test

import (
	"context"
	bytesOf "encoding/binary"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/ptx"
	"sonicmoe/ptx/emu"
)

// divisors returns small divisors, and larger ones near powers of two, near 3/2 times powers of
// two, and at random. Divisors of each bit length are needed because the multiplier and the shift
// depend on it.
func divisors() (list []uint32) {
	for d := uint32(1); d <= 1000; d++ {
		list = append(list, d)
	}
	r := rand.New(rand.NewPCG(1, 2))
	for bit := 10; bit < 32; bit++ {
		p := uint32(1) << bit
		list = append(list, p-1, p, p+1, p+p/2, p+p/2+1, 2*(p-1)+1)
		for range 4 {
			list = append(list, p+r.Uint32N(p))
		}
	}
	return append(list, 1<<32-2, 1<<32-1, 641, 6700417)
}

// dividends returns edge cases for divisor d (ends of the range, multiples of d and their
// neighbours), and random values.
func dividends(r *rand.Rand, d uint32) []uint32 {
	list := []uint32{0, 1, d - 1, d, d + 1, 2*d - 1, 2 * d, 1<<31 - 1, 1 << 31, 1<<31 + 1, 1<<32 - 2, 1<<32 - 1}
	last := (1<<32 - 1) / d * d // the largest multiple of d
	list = append(list, last-1, last, last+1)
	for len(list) < 32 {
		m := uint32(uint64(d) * r.Uint64N(uint64((1<<32-1)/d)+1))
		list = append(list, m, m-1, r.Uint32()>>r.IntN(32))
	}
	return list[:32]
}

// divisionKernel returns a kernel that divides word [i][lane] of in by divisor i. It writes
// quotient and remainder to out [i][lane][2].
func divisionKernel(t *testing.T, list []uint32) *emu.Kernel {
	k := ptx.NewKernel("divide")
	in, out := k.ParamPtr("in"), k.ParamPtr("out")
	lane := k.TidX()
	in, out = in.Index(lane, 4), out.Index(lane, 8)
	for i, d := range list {
		x := ptx.LdGlobal[ptx.U32](in.At(4 * 32 * i))
		ptx.StGlobal(out.At(8*32*i), x.DivI(int(d)), x.RemI(int(d)))
	}
	m, err := k.Build()
	require.NoError(t, err)
	loaded, err := emu.Load(m.Print().PTX)
	require.NoError(t, err)
	kernel, err := loaded.Kernel("divide")
	require.NoError(t, err)
	return kernel
}

// TestDivideByConstants checks that division by a constant is exact.
func TestDivideByConstants(t *testing.T) {
	list := divisors()
	rounds := 3
	if os.Getenv("SONICMOE_LONG") != "" {
		rounds = 1000
	}
	kernel := divisionKernel(t, list)
	mem := emu.NewMemory(1 << 26)
	in, err := mem.Alloc(int64(4 * 32 * len(list)))
	require.NoError(t, err)
	out, err := mem.Alloc(int64(8 * 32 * len(list)))
	require.NoError(t, err)
	params := bytesOf.LittleEndian.AppendUint64(bytesOf.LittleEndian.AppendUint64(nil, in), out)
	for round := range rounds {
		r := rand.New(rand.NewPCG(3, uint64(round)))
		var x []uint32
		var packed []byte
		for _, d := range list {
			for _, v := range dividends(r, d) {
				x, packed = append(x, v), bytesOf.LittleEndian.AppendUint32(packed, v)
			}
		}
		require.NoError(t, mem.Write(in, packed))
		require.NoError(t, kernel.Launch(context.Background(), mem, emu.Launch{Block: [3]int{32}, Params: params}))
		got := make([]byte, 8*len(x))
		require.NoError(t, mem.Read(got, out))
		for i, v := range x {
			d := list[i/32]
			q, rem := bytesOf.LittleEndian.Uint32(got[8*i:]), bytesOf.LittleEndian.Uint32(got[8*i+4:])
			if q != v/d || rem != v%d {
				t.Fatalf("%d / %d = %d remainder %d, want %d remainder %d", v, d, v/d, v%d, q, rem)
			}
		}
	}
}

// TestDivideByConstantsEmitsNoDivision checks that the builder emits no div or rem for a constant
// divisor. The assembler would expand these instructions into an approximate reciprocal and
// corrections.
func TestDivideByConstantsEmitsNoDivision(t *testing.T) {
	k := ptx.NewKernel("k")
	out := k.ParamPtr("out")
	x := k.ParamU32("x")
	for i, d := range []int{1, 3, 7, 64, 1000, 1 << 31, 1<<31 + 1, 1<<32 - 1} {
		ptx.StGlobal(out.At(8*i), x.DivI(d), x.RemI(d))
	}
	m, err := k.Build()
	require.NoError(t, err)
	require.NotRegexp(t, `\b(div|rem)\.`, string(m.Print().PTX))
}
