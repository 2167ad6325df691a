package fragments_test

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/internal/packed"
	"sonicmoe/internal/spec"
	"sonicmoe/jit"
	"sonicmoe/jit/pipeline"
	"sonicmoe/jit/tile"
	"sonicmoe/moe/internal/fragments"
	kt "sonicmoe/moe/internal/kernel/kerneltest"
	"sonicmoe/ptx"
)

// formats returns the values of Config.Weights for packed weights.
func formats() (words []string) {
	for _, p := range spec.Packings {
		words = append(words, p.Name)
	}
	return words
}

// published returns random tensors of an expert matrix, as a published model has them. Codes take
// all values but NaN, and scales take values that units can represent.
func published(m fragments.Matrix, seed uint64) []packed.Matrices {
	r := rand.New(rand.NewPCG(seed, 1))
	tensors := m.Unpack(make([]byte, m.Bytes()))
	for _, of := range tensors {
		for j := range of.Codes {
			b := byte(r.Uint32())
			if m.Code == spec.E4M3 && b&0x7f == 0x7f {
				b ^= 1
			}
			of.Codes[j] = b
		}
		for j := range of.Zeros {
			of.Zeros[j] = byte(r.IntN(16))
		}
		for j := 0; j < len(of.Global); j += 4 {
			binary.LittleEndian.PutUint32(of.Global[j:], math.Float32bits(float32(math.Ldexp(1+r.Float64(), -12-r.IntN(69)))))
		}
		switch m.Scale {
		case spec.ScaleF32:
			for j := 0; j < len(of.Scales); j += 4 {
				binary.LittleEndian.PutUint32(of.Scales[j:], math.Float32bits(float32(math.Ldexp(1+r.Float64(), r.IntN(24)-20))))
			}
		case spec.ScaleBF16, spec.ScaleF16: // random numbers of both signs, with subnormal numbers and zeros
			for j := range of.Scales {
				of.Scales[j] = []byte{byte(r.Uint32()), byte(r.IntN(8)*32 + r.IntN(31))}[j%2]
				if m.Code == spec.Int4 && j%2 == 1 && of.Scales[j]&0x7f >= 0x3f {
					of.Scales[j] &= 0xbf // below 2^-1
				}
				if m.Scale == spec.ScaleF16 {
					of.Scales[j] &= []byte{0xff, 0x83, 0xff, 0xfb}[j%4] // every second scale is 0 or subnormal, and none is NaN
				}
			}
		case spec.ScaleE4M3:
			for j := range of.Scales {
				of.Scales[j] = byte(r.IntN(127) | r.IntN(2)<<7)
			}
		default:
			for j := range of.Scales {
				of.Scales[j] = byte(r.IntN(129))
			}
		}
	}
	return tensors
}

// layers returns layers with every order of gate and up, and a layer without a gate. Most sizes are
// not multiples of a block, unless the format's groups need whole blocks. For integers the last layer
// is in f16.
func layers(format string) []spec.Config {
	list := []spec.Config{
		{Hidden: 128, Intermediate: 64, NumExperts: 2, Weights: format},
		{Hidden: 320, Intermediate: 96, NumExperts: 2, GateUp: spec.Interleaved, Weights: format},
		{Hidden: 160, Intermediate: 160, NumExperts: 2, GateUp: spec.Apart, Weights: format},
		{Hidden: 96, Intermediate: 224, NumExperts: 1, Activation: spec.ReLU2, Weights: format},
	}
	p := spec.PackingNamed(format)
	if p.Code == spec.Int4 || p.Code == spec.UInt4 {
		list = append(list, spec.Config{Hidden: 192, Intermediate: 160, NumExperts: 2, Weights: format, Type: spec.F16})
	}
	if p.Rows == 1 {
		for i := range list {
			list[i].Hidden = (list[i].Hidden + p.Columns - 1) / p.Columns * p.Columns
			list[i].Intermediate = (list[i].Intermediate + p.Columns - 1) / p.Columns * p.Columns
		}
	}
	return list
}

// TestPackAndUnpack checks that Unpack restores each code, scale and zero point that Pack has packed.
func TestPackAndUnpack(t *testing.T) {
	for _, format := range formats() {
		for _, c := range layers(format) {
			t.Run(c.String(), func(t *testing.T) {
				for _, m := range []fragments.Matrix{fragments.W1(c), fragments.W2(c)} {
					want := published(m, 3)
					units, err := m.Pack(want)
					require.NoError(t, err)
					got := m.Unpack(units)
					for i := range want {
						if m.HasGlobal || m.Scale == spec.ScaleF32 { // Unpack does not restore the scales
							clear(want[i].Scales)
							clear(want[i].Global)
						}
					}
					require.Equal(t, want, got)
				}
			})
		}
	}
}

// reader is a kernel that unpacks each block and stores the fragments that [fragments.Block.KTile]
// returns, as [block, thread, k-tile, step, 4].
type reader struct{ fragments.Format }

type readerArgs struct {
	Packed driver.DevicePtr
	Out    driver.DevicePtr
}

const wordsOfThread = fragments.KTiles * tile.K / tile.KStep * 4

func (r reader) Build() (*jit.Kernel[readerArgs], error) {
	k := jit.NewBuilder[readerArgs]("read_fragments", pipeline.WarpgroupThreads, 1)
	cta := pipeline.NewCTA(k.Kernel)
	in, out, block := k.Ptr(&k.Args.Packed), k.Ptr(&k.Args.Out), cta.Shared("block", r.BlockBytes(), 16)
	k.For(k.TidX().MulI(16), ptx.Uint(r.BlockBytes()), ptx.Uint(16*pipeline.WarpgroupThreads), func(at ptx.U32) {
		from := in.Index(k.CtaidX(), r.BlockBytes()).Plus(at.U64())
		ptx.StShared(block.Plus(at), ptx.LdGlobalVec[ptx.U32](from, 4)...)
	})
	k.BarSync(ptx.Uint(0))
	b := fragments.NewLane(k.Kernel, r.Format, k.TidX()).Block(block)
	to := out.Index(k.CtaidX().MulI(pipeline.WarpgroupThreads).Add(k.TidX()), 4*wordsOfThread)
	for i := range fragments.KTiles {
		for step, a := range b.KTile(i) {
			ptx.StGlobal(to.At(4*4*(step+i*tile.K/tile.KStep)), a...)
		}
	}
	return k.Build()
}

// TestRegisters checks that the fragments hold the rounded value of every weight where wgmma expects
// it in operand A, and 0 past the edges of the matrix.
func TestRegisters(t *testing.T) {
	for _, format := range formats() {
		for i, c := range layers(format) {
			if testing.Short() && i > 0 && c.Type != spec.F16 {
				continue
			}
			t.Run(c.String(), func(t *testing.T) {
				m := fragments.W2(c)
				tensors := published(m, 5)
				units, err := m.Pack(tensors)
				require.NoError(t, err)
				want := packed.Bits(m.Packing, tensors[0], c.Type, c.Hidden, c.Intermediate)
				b := kt.New(t, kt.Early)
				blocks := len(units) / m.BlockBytes()
				out := b.Room(4 * blocks * pipeline.WarpgroupThreads * wordsOfThread)
				kt.Run(b, reader{m.Format}, blocks, readerArgs{Packed: kt.Upload(b, units), Out: out})
				got := kt.Download[uint16](b, out, 2*blocks*pipeline.WarpgroupThreads*wordsOfThread)
				for i, x := range got {
					half, register, step, thread := i%2, i/2%4, i/8%8, i/64%128
					block, lane := i/(128*64), thread%32
					column := block%m.Blocks()*fragments.Columns + step*16 + lane%4*2 + register/2*8 + half
					row := block/m.Blocks()%m.Units*fragments.Rows + thread/32*16 + lane/4 + register%2*8
					w := uint16(0)
					if row < c.Hidden && column < c.Intermediate {
						w = want[(block/m.Blocks()/m.Units*c.Hidden+row)*c.Intermediate+column]
					}
					if x != w {
						t.Fatalf("block %d, row %d, column %d: bits %04x, want %04x", block, row, column, x, w)
					}
				}
			})
		}
	}
}

// TestEveryCodeAndScale checks the bf16 values of all 16 codes with each of 129 scales of mxfp4.
func TestEveryCodeAndScale(t *testing.T) {
	c := spec.Config{Hidden: 192, Intermediate: 128, NumExperts: 1, Weights: "mxfp4"}
	m := fragments.W2(c)
	tensors := published(m, 1)
	for i := range tensors[0].Codes {
		tensors[0].Codes[i] = byte(i%8*2 | (i%8*2+1)<<4)
	}
	for i := range tensors[0].Scales {
		tensors[0].Scales[i] = byte(i % 129)
	}
	units, err := m.Pack(tensors)
	require.NoError(t, err)
	b := kt.New(t, kt.Early)
	blocks := len(units) / m.BlockBytes()
	words := blocks * pipeline.WarpgroupThreads * wordsOfThread
	out := b.Room(4 * words)
	kt.Run(b, reader{m.Format}, blocks, readerArgs{Packed: kt.Upload(b, units), Out: out})
	seen := func(values []uint16) (counts [1 << 16]int) {
		for _, v := range values {
			counts[v]++
		}
		return counts
	}
	require.Equal(t, seen(packed.Bits(m.Packing, tensors[0], spec.BF16, c.Hidden, c.Intermediate)), seen(kt.Download[uint16](b, out, 2*words)))
}

// TestPackRefuses checks that Pack names the first scale, code or zero point that units cannot
// represent.
func TestPackRefuses(t *testing.T) {
	for _, bad := range []struct {
		format string
		spoil  func(of packed.Matrices)
		want   string
	}{
		{"mxfp4", func(of packed.Matrices) { of.Scales[7] = 129 }, "scale of expert 0, row 3, column 32 is 2^2, want at most 2^1"},
		{"mxfp4", func(of packed.Matrices) { of.Scales[7] = 255 }, "scale of expert 0, row 3, column 32"},
		{"fp8", func(of packed.Matrices) { binary.LittleEndian.PutUint32(of.Scales, 0x7fc00000) }, "scale of expert 0, row 0, column 0 is NaN, want 0, or a magnitude from 2^-90 to below 2^8"},
		{"fp8", func(of packed.Matrices) { binary.LittleEndian.PutUint32(of.Scales, math.Float32bits(-256)) }, "scale of expert 0, row 0, column 0 is -256, want 0, or"},
		{"fp8", func(of packed.Matrices) { binary.LittleEndian.PutUint32(of.Scales, math.Float32bits(0x1p-91)) }, "want 0, or a magnitude from 2^-90"},
		{"fp8-ue8m0", func(of packed.Matrices) { of.Codes[65] = 0xff }, "code of expert 0, row 1, column 1 is NaN"},
		{"fp8-tensor", func(of packed.Matrices) { binary.LittleEndian.PutUint32(of.Scales, 0xff800000) }, "scale of expert 0, row 0, column 0 is -Inf, want 0, or"},
		{"int4-g32", func(of packed.Matrices) { of.Scales[2], of.Scales[3] = 0x80, 0x7f }, "scale of expert 0, row 0, column 32 is +Inf, want a number below 2^-1"},
		{"int4-g128", func(of packed.Matrices) { of.Scales[0], of.Scales[1] = 0, 0xbf }, "scale of expert 0, row 0, column 0 is -0.5, want a number below 2^-1"},
		{"fp8-ue8m0", func(of packed.Matrices) { of.Scales[0] = 135 }, "scale of expert 0, row 0, column 0 is 2^8, want at most 2^7"},
		{"uint4-g32", func(of packed.Matrices) { of.Zeros[3] = 16 }, "zero point of expert 0, row 1, column 32 is 16, want at most 15"},
		{"uint4-g32-f16", func(of packed.Matrices) { of.Scales[2], of.Scales[3] = 0, 0xfc }, "scale of expert 0, row 0, column 32 is -Inf, want a finite number"},
		{"nvfp4", func(of packed.Matrices) { of.Scales[1] = 0x7f }, "scale of expert 0, row 0, column 16 is NaN, want 0, or a magnitude from 2^-90 to below 2^2"},
		{"nvfp4", func(of packed.Matrices) {
			of.Scales[0] = 0x38
			binary.LittleEndian.PutUint32(of.Global, math.Float32bits(4))
		}, "scale of expert 0, row 0, column 0 is 4, want 0, or a magnitude from 2^-90 to below 2^2"},
	} {
		t.Run(fmt.Sprint(bad.format, bad.want), func(t *testing.T) {
			m := fragments.W2(spec.Config{Hidden: 128, Intermediate: 64, NumExperts: 1, Weights: bad.format})
			tensors := published(m, 2)
			bad.spoil(tensors[0])
			_, err := m.Pack(tensors)
			require.ErrorContains(t, err, bad.want)
		})
	}
}
