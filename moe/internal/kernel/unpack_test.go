package kernel

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/internal/num"
	"sonicmoe/internal/packed"
	"sonicmoe/internal/peers"
	"sonicmoe/internal/spec"
	"sonicmoe/jit/gemm"
	kt "sonicmoe/moe/internal/kernel/kerneltest"
	"sonicmoe/moe/internal/registry"
)

// everyScale returns count scales. Scales of 8 and 16 bits are spread over all bit patterns. FP32
// scales repeat a list with numbers of every kind.
func everyScale(of spec.Scale, count int) (raw []byte) {
	floats := []float32{1, 1.0 / 3, 0, math.SmallestNonzeroFloat32, 0x1p-126, math.MaxFloat32, float32(math.Inf(-1)), float32(math.NaN()), -2.5, 0x1.fffffep-9}
	for i := range count {
		size := int(of.Type().Bytes())
		bits := uint32(i * (1 << (8 * min(size, 2))) / count)
		if of == spec.ScaleF32 {
			bits = math.Float32bits(floats[i%len(floats)])
		}
		raw = append(raw, binary.LittleEndian.AppendUint32(nil, bits)[:size]...)
	}
	return raw
}

// TestUnpack compares the kernel with package packed, for every code with every scale, zero point
// and global scale, in bf16 and f16. It also checks that an expert without rows is not written, and
// the counts of written parts. The sizes have units in columns that repeat after one, three and seven
// of a thread's units, and a last part that is smaller than the others.
func TestUnpack(t *testing.T) {
	for i, p := range spec.Packings {
		for _, of := range []spec.Type{spec.BF16, spec.F16} {
			experts := 3
			if kt.Long() {
				experts = 33
			}
			size := [][2]int{{512, 256}, {768, 256}, {7168, 128}, {640, 384}}[i%4]
			c := spec.Config{Hidden: size[0], Intermediate: size[1], NumExperts: experts, TopK: 1, Weights: p.Name, Type: of, Logits: spec.F32, Activation: spec.ReLU2}
			if c.Check() != nil {
				continue // layers of this type cannot have the format
			}
			t.Run(fmt.Sprintf("%s %v", p.Name, of), func(t *testing.T) {
				s, b := c.Shapes(0), kt.New(t, kt.Early)
				offsets := make([]uint32, experts+1)
				for e := range experts {
					offsets[e+1] = offsets[e] + min(1, uint32(e)) // expert 0 has no rows
				}
				args := UnpackArgs{Offsets: kt.Upload(b, offsets), Ready: kt.Upload(b, make([]uint32, experts)), Beside: i%2 == 0}
				var want [2][]uint16
				var to [2]driver.DevicePtr
				for i, of := range spec.PackedMatrices[:3:3] {
					if i == 1 {
						continue // with this GateUp there is no W3
					}
					rows, columns := int(s.Of(of.Codes).Dims[1]), c.Hidden
					if of.Codes == spec.TensorW2 {
						columns = c.Intermediate
					}
					m := packed.Matrices{Codes: make([]byte, s.Of(of.Codes).Bytes()), Scales: everyScale(p.Scale, int(s.Of(of.Scales).Elements()))}
					for i := range m.Codes {
						m.Codes[i] = byte(i*37 + i/256)
					}
					for i := range s.Of(of.Zeros).Elements() {
						m.Zeros = append(m.Zeros, byte(i*5%16))
					}
					for e := range s.Of(of.Global).Elements() {
						m.Global = append(m.Global, num.Bytes([]float32{[]float32{1, 1.0 / 3, 0x1p-140, 0x1p100}[e%4]})...)
					}
					side := i / 2
					want[side] = packed.Bits(&p, m, c.Type, rows, columns)
					to[side] = kt.Upload(b, kt.Poisoned[uint16](len(want[side])))
					at := map[spec.TensorID]*driver.DevicePtr{
						spec.TensorW1: &args.W1, spec.TensorW1Scale: &args.W1Scale, spec.TensorW1Zero: &args.W1Zero, spec.TensorW1Global: &args.W1Global,
						spec.TensorW2: &args.W2, spec.TensorW2Scale: &args.W2Scale, spec.TensorW2Zero: &args.W2Zero, spec.TensorW2Global: &args.W2Global,
					}
					for _, id := range of.All() {
						*at[id] = kt.Upload(b, slices.Concat(*m.Of(of, id), []byte{0}))
					}
				}
				args.ToW1, args.ToW2 = to[0], to[1]
				kt.Run(b, Unpack{Config: c, Packing: spec.PackingOf(c)}, 0, args)
				for e, parts := range kt.Download[uint32](b, args.Ready, experts) {
					require.EqualValues(t, min(1, e)*upParts(c), parts, "expert %d", e)
				}
				for side := range want {
					got, poison := kt.Download[uint16](b, to[side], len(want[side])), kt.Poisoned[uint16](1)[0]
					for i, bits := range got {
						expected := want[side][i]
						if i < len(got)/experts {
							expected = poison
						}
						if bits != expected && !(isNaN16(c.Type, bits) && isNaN16(c.Type, expected)) {
							require.Failf(t, "differs", "matrix %d, element %d is %#x, want %#x", side, i, bits, expected)
						}
					}
				}
			})
		}
	}
}

// isNaN16 reports whether bits of a type of 16 bits are NaN.
func isNaN16(of spec.Type, bits uint16) bool {
	if of == spec.F16 {
		return bits&0x7fff > 0x7c00
	}
	return bits&0x7fff > 0x7f80
}

// TestBesideFits checks that a CTA of Up and a CTA of Unpack fit on an SM together, in every published
// layer. An SM reserves 1 KB of shared memory for each CTA.
func TestBesideFits(t *testing.T) {
	target := driver.H200()
	for _, row := range peers.All() {
		c := row.Config
		if c.Weights, c.GateUp = "mxfp4", spec.Apart; !HasBeside(c) {
			continue
		}
		l := registry.Layer{Config: c, Tiles: Choose(c, target)}
		bytes := 0
		for _, k := range []registry.Any{UnpackKernel, UpBesideKernel} {
			b, err := k.Build(l)
			require.NoError(t, err)
			bytes += b.Source("").SharedBytes + 1024
		}
		require.LessOrEqual(t, bytes, target.SharedBytesPerSM, row.Name)
	}
	require.LessOrEqual(t, gemm.Threads*besideUpRegisters+unpackThreads*unpackRegisters, target.RegistersPerSM)
}
