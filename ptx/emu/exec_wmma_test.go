package emu_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/driver/emulated"
	"sonicmoe/driver/gpu"
	"sonicmoe/ptx/emu"
	"sonicmoe/ptx/emu/internal/arith"
	"sonicmoe/ptx/emu/internal/mma"
)

// These tests multiply matrices in memory by wmma. They run on the emulated device, or on a GPU if
// SONICMOE_DEVICE is cuda. The expected bits are the GPU's.

// matrices is a type of wmma product: m by n sums over k.
type matrices struct {
	m, n, k int
	element string // element type of A and B
	c, d    string // types of C and D
	more    string // further modifiers: rounding, saturation, or the bit operation of b1
}

func (p matrices) String() string {
	return fmt.Sprintf("m%dn%dk%d %s %s %s %s", p.m, p.n, p.k, p.element, p.c, p.d, p.more)
}

var wmmaElement = map[string]bits{"f16": f16, "bf16": bf16, "tf32": tf32, "s8": s8, "u8": u8}

// width returns the number of bits of an element type.
func width(element string) int {
	switch element {
	case "bf16":
		return 16
	case "tf32":
		return 32
	}
	n := 0
	fmt.Sscanf(element[1:], "%d", &n)
	return n
}

func wmmaProducts() (list []matrices) {
	for _, s := range [][2]int{{16, 16}, {8, 32}, {32, 8}} {
		for _, c := range []string{"f16", "f32"} {
			for _, d := range []string{"f16", "f32"} {
				list = append(list, matrices{s[0], s[1], 16, "f16", c, d, ""})
			}
		}
		list = append(list, matrices{s[0], s[1], 16, "bf16", "f32", "f32", ""})
		for _, e := range []string{"s8", "u8"} {
			list = append(list, matrices{s[0], s[1], 16, e, "s32", "s32", ""}, matrices{s[0], s[1], 16, e, "s32", "s32", ".satfinite"})
		}
	}
	for _, rnd := range []string{"", ".rn", ".rz", ".rm", ".rp"} {
		list = append(list, matrices{8, 8, 4, "f64", "f64", "f64", rnd})
	}
	return append(list, matrices{16, 16, 8, "tf32", "f32", "f32", ""},
		matrices{8, 8, 32, "s4", "s32", "s32", ""}, matrices{8, 8, 32, "u4", "s32", "s32", ".satfinite"},
		matrices{8, 8, 128, "b1", "s32", "s32", ".xor"}, matrices{8, 8, 128, "b1", "s32", "s32", ".and"})
}

// memoryLayout describes how A, B, C and D lie in memory: "row" or "col", and the state space.
type memoryLayout struct {
	a, b, c, d string
	space      string
	pad        int // padding after each row (or column, if columns are contiguous), in units of 32 bytes
}

// small reports whether elements are smaller than a byte. Such matrices have only one layout.
func (p matrices) small() bool { return width(p.element) < 8 }

// lines returns the distance between two rows of a matrix, or two columns if columns are
// contiguous, in bytes and in elements.
func (l memoryLayout) lines(elements int, element string) (bytes, stride int) {
	stride = elements + l.pad*256/width(element)
	return stride * width(element) / 8, stride
}

// text returns the PTX of a kernel for product p, and the sizes of A, B, C and D in bytes.
func (p matrices) text(l memoryLayout) (text string, sizes [4]int) {
	shape := fmt.Sprintf("m%dn%dk%d", p.m, p.n, p.k)
	var strides [4]int
	for i, x := range []struct {
		rows, columns   int
		element, layout string
	}{{p.m, p.k, p.element, l.a}, {p.k, p.n, p.element, l.b}, {p.m, p.n, p.c, l.c}, {p.m, p.n, p.d, l.d}} {
		if x.layout == "col" {
			x.rows, x.columns = x.columns, x.rows
		}
		line, stride := l.lines(x.columns, x.element)
		sizes[i], strides[i] = x.rows*line, stride
	}
	registers := func(element string, sums int) (string, int) {
		switch {
		case element == "f64":
			return "x", 1 + sums
		case sums > 0 && p.m*p.n == 64:
			return "r", 2
		case sums > 0 && element == "f16":
			return "r", 4
		case sums > 0, element == "f16":
			return "r", 8
		}
		return "r", 0
	}
	fragment := func(name, element string, sums, elements int) string {
		class, n := registers(element, sums)
		if n == 0 {
			n = elements * width(element) / 1024
		}
		var s []string
		for i := range n {
			s = append(s, fmt.Sprintf("%%%s%s%d", class, name, i))
		}
		return "{" + strings.Join(s, ", ") + "}"
	}
	a, b := fragment("a", p.element, 0, p.m*p.k), fragment("b", p.element, 0, p.k*p.n)
	c, d := fragment("c", p.c, 1, 0), fragment("d", p.d, 1, 0)
	var t strings.Builder
	fmt.Fprintf(&t, `.version 8.0
.target sm_90a
.address_size 64
.visible .entry tile(.param .u64 image, .param .u64 sums)
{
.reg .b32 %%ra<8>, %%rb<8>, %%rc<8>, %%rd<8>, %%i, %%at, %%end, %%s<2>;
.reg .b64 %%xa<2>, %%xb<2>, %%xc<2>, %%xd<2>, %%p<6>, %%q<2>;
.reg .pred %%more;
.shared .align 128 .b8 tile[%d];
ld.param.u64 %%p0, [image];
ld.param.u64 %%p3, [sums];
`, sizes[0]+sizes[1]+sizes[2])
	space, base := l.space, "%p0"
	if l.space == ".shared" {
		fmt.Fprintf(&t, `mov.u32 %%i, %%tid.x;
shl.b32 %%i, %%i, 2;
mov.u32 %%at, tile;
fill:
cvt.u64.u32 %%q0, %%i;
add.u64 %%q0, %%q0, %%p0;
ld.global.b32 %%s0, [%%q0];
add.u32 %%s1, %%at, %%i;
st.shared.b32 [%%s1], %%s0;
add.u32 %%i, %%i, 128;
setp.lt.u32 %%more, %%i, %d;
@%%more bra fill;
bar.sync 0;
`, sizes[0]+sizes[1]+sizes[2])
		base = "%at"
	}
	for i, x := range []struct{ matrix, layout, fragment, element string }{{"a", l.a, a, p.element}, {"b", l.b, b, p.element}, {"c", l.c, c, p.c}} {
		at := 0
		for _, size := range sizes[:i] {
			at += size
		}
		stride := fmt.Sprintf(", %d", strides[i])
		if l.pad == 0 {
			stride = "" // without a stride operand, the stride is the width of the matrix
		}
		fmt.Fprintf(&t, "wmma.load.%s.sync.aligned.%s.%s%s.%s %s, [%s+%d]%s;\n", x.matrix, x.layout, shape, space, x.element, x.fragment, base, at, stride)
	}
	more, op, types := p.more, "wmma.mma", fmt.Sprintf(".%s.%s.%s.%s", p.d, p.element, p.element, p.c)
	rounding := ""
	switch p.element {
	case "f16":
		types = fmt.Sprintf(".%s.%s", p.d, p.c)
	case "f64":
		rounding, more = more, ""
	case "b1":
		op, more = op+more+".popc", ""
	}
	fmt.Fprintf(&t, "%s.sync.aligned.%s.%s.%s%s%s%s %s, %s, %s, %s;\n", op, l.a, l.b, shape, rounding, types, more, d, a, b, c)
	into := ".global"
	if space == "" {
		into = ""
	}
	fmt.Fprintf(&t, "wmma.store.d.sync.aligned.%s.%s%s.%s [%%p3], %s, %d;\nret;\n}\n", l.d, shape, into, p.d, d, strides[3])
	return t.String(), sizes
}

// matrix gives access to the elements of a matrix in memory.
type matrix struct {
	bytes         []byte
	line, element int // bytes between two rows or columns; bits of an element
	across        bool
}

func (m matrix) at(row, column int) uint64 {
	if m.across {
		row, column = column, row
	}
	var x [8]byte
	bit := column * m.element
	copy(x[:], m.bytes[row*m.line+bit/8:][:max(m.element/8, 1)])
	v := binary.LittleEndian.Uint64(x[:])
	if m.element < 8 {
		v = v >> (bit % 8) & (1<<m.element - 1)
	}
	return v
}

// sum returns one sum, with c and the given row of A and column of B, as the emulator defines it.
func (p matrices) sum(c uint64, a, b []uint64) uint64 {
	w := width(p.element)
	signed := func(x uint64) int64 {
		if p.element[0] == 's' {
			return int64(x) << (64 - w) >> (64 - w)
		}
		return int64(x)
	}
	switch p.element {
	case "f64":
		x := math.Float64frombits(c)
		for k := range a {
			x = fused(math.Float64frombits(a[k]), math.Float64frombits(b[k]), x, p.more)
		}
		return math.Float64bits(x)
	case "b1":
		n := 0
		for k := range a {
			if p.more == ".xor" {
				n += int(a[k] ^ b[k])
			} else {
				n += int(a[k] & b[k])
			}
		}
		return uint64(uint32(c) + uint32(n))
	case "s4", "u4", "s8", "u8":
		total := int64(int32(c))
		for k := range a {
			total += signed(a[k]) * signed(b[k])
		}
		if p.more != "" {
			total = min(max(total, math.MinInt32), math.MaxInt32)
		}
		return uint64(uint32(total))
	}
	format := emu.ElementFormats["."+p.element]
	sum := uint32(c)
	if p.c == "f16" {
		sum = arith.F32FromF16(uint16(c))
	}
	if p.d == "f16" && p.c == "f16" {
		format = format.InHalves()
	}
	narrow := func(list []uint64) (out []uint32) {
		for _, x := range list {
			out = append(out, uint32(x))
		}
		return out
	}
	if p.element == "tf32" { // for TF32, k8 takes two steps of four elements, each filled up with zeros
		zeros := make([]uint64, 4)
		sum = mma.Dot(sum, narrow(append(a[:4:4], zeros...)), narrow(append(b[:4:4], zeros...)), format)
		a, b = append(a[4:], zeros...), append(b[4:], zeros...)
	}
	sum = mma.Dot(sum, narrow(a), narrow(b), format)
	if p.d == "f16" {
		return uint64(arith.F16Nearest(sum))
	}
	return uint64(sum)
}

// fused returns a*b+c, rounded once to float64 in the given rounding mode.
func fused(a, b, c float64, rounding string) float64 {
	mode, ok := map[string]big.RoundingMode{".rz": big.ToZero, ".rm": big.ToNegativeInf, ".rp": big.ToPositiveInf}[rounding]
	if !ok {
		return math.FMA(a, b, c)
	}
	exact := new(big.Float).SetPrec(2000).Mul(big.NewFloat(a), big.NewFloat(b))
	exact.Add(exact, big.NewFloat(c))
	if exact.Sign() == 0 {
		return 0
	}
	x, _ := new(big.Float).SetPrec(53).SetMode(mode).Set(exact).Float64()
	return x
}

// drawElements returns n bytes of random elements. kind names a distribution of tileDraws.
func drawElements(r *rand.Rand, element, kind string, n int) (out []byte) {
	for len(out) < n {
		switch b, ok := wmmaElement[element]; {
		case element == "f64":
			x := math.Ldexp(1+r.Float64(), r.IntN(12)-6) * float64(1-2*r.IntN(2))
			out = binary.LittleEndian.AppendUint64(out, math.Float64bits(x))
		case element == "f32":
			out = binary.LittleEndian.AppendUint32(out, tileType{a: bf16, b: bf16}.drawSum(r, kind))
		case ok:
			out = append(out, binary.LittleEndian.AppendUint32(nil, b.draw(r, kind))[:b.bytes()]...)
		case element == "s32":
			out = binary.LittleEndian.AppendUint32(out, tileType{a: s8}.drawSum(r, kind))
		default:
			out = append(out, byte(r.Uint32()))
		}
	}
	return out
}

// eitherDevice returns the GPU if SONICMOE_DEVICE is cuda, else an emulated device.
func eitherDevice(t *testing.T, o emulated.Options) gpu.Device {
	if os.Getenv("SONICMOE_DEVICE") == "cuda" {
		return onGPU(t)
	}
	dev, err := emulated.New(o)
	require.NoError(t, err)
	return dev
}

func TestWmma(t *testing.T) {
	dev := eitherDevice(t, emulated.Options{Races: true})
	r := rand.New(rand.NewPCG(7, 11))
	for i, p := range wmmaProducts() {
		t.Run(p.String(), func(t *testing.T) {
			b := &bed{t, dev}
			layouts := []memoryLayout{{"row", "col", "row", "row", ".global", 0}, {"row", "col", "col", "row", ".shared", 1}, {"row", "col", "row", "col", "", 2}}
			if !p.small() {
				layouts = append(layouts, memoryLayout{"col", "row", "col", "col", ".shared", 0}, memoryLayout{"col", "col", "row", "col", ".global", 1}, memoryLayout{"row", "row", "row", "row", "", 1})
			}
			for _, l := range layouts {
				for j, kind := range []string{"near", tileDraws[i%len(tileDraws)]} {
					if testing.Short() && j > 0 {
						continue
					}
					text, sizes := p.text(l)
					image := slices.Concat(drawElements(r, p.element, kind, sizes[0]), drawElements(r, p.element, kind, sizes[1]), drawElements(r, p.c, kind, sizes[2]))
					in, out := b.put(image), b.put(bytes.Repeat([]byte{0xa5}, sizes[3]))
					b.launch([]byte(text), "tile", gpu.Launch{Grid: gpu.Dim3{X: 1}, Block: gpu.Dim3{X: 32}},
						binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, uint64(in)), uint64(out)))
					of := func(bytes []byte, columns int, element, layout string, rows int) matrix {
						if layout == "col" {
							columns = rows
						}
						line, _ := l.lines(columns, element)
						return matrix{bytes, line, width(element), layout == "col"}
					}
					ma := of(image, p.k, p.element, l.a, p.m)
					mb := of(image[sizes[0]:], p.n, p.element, l.b, p.k)
					mc := of(image[sizes[0]+sizes[1]:], p.n, p.c, l.c, p.m)
					md := of(b.get(out, sizes[3]), p.n, p.d, l.d, p.m)
					for row := range p.m {
						for column := range p.n {
							var x, y []uint64
							for k := range p.k {
								x, y = append(x, ma.at(row, k)), append(y, mb.at(k, column))
							}
							require.Equal(t, p.sum(mc.at(row, column), x, y), md.at(row, column), "%s, %+v, row %d, column %d", kind, l, row, column)
						}
					}
				}
			}
		})
	}
}
