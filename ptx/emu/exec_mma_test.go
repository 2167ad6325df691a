package emu_test

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/driver/emulated"
	"sonicmoe/driver/gpu"
)

// registerProduct is a type of mma.sync product, whose operands are in registers.
type registerProduct struct {
	op      string
	m, n, k int
	element string
	a, b, c int // number of registers of a lane that hold A, B and C
	sparse  *sparseTile
}

func registerProducts() (list []registerProduct) {
	add := func(m, n, k int, element string, a, b, c int, more ...string) {
		sums := "s32"
		if element == "f64" {
			sums = "f64"
		}
		for _, x := range append([]string{""}, more...) {
			op := fmt.Sprintf("mma.sync.aligned.m%dn%dk%d.row.col", m, n, k)
			if x == ".satfinite" {
				op, x = op+x, ""
			}
			if op += fmt.Sprintf(".%s.%s.%s.%s%s", sums, element, element, sums, x); element == "b1" && x == "" {
				continue
			}
			list = append(list, registerProduct{op, m, n, k, element, a, b, c, nil})
		}
	}
	for _, e := range []string{"s4", "u4"} {
		add(16, 8, 64, e, 4, 2, 4, ".satfinite")
		add(16, 8, 32, e, 2, 1, 4)
		add(8, 8, 32, e, 1, 1, 2)
		for k, registers := range map[int]int{64: 2, 128: 4} {
			for selector := range 256 / k / 2 {
				list = append(list, registerProduct{fmt.Sprintf("mma.sp.sync.aligned.m16n8k%d.row.col.satfinite.s32.%s.%s.s32", k, e, e), 16, 8, k, e, registers, registers, 4,
					&sparseTile{chunk: 8, bits: 4, lanes: k / 32, selector: selector, nibbles: allNibbles}})
			}
		}
	}
	add(8, 8, 16, "s8", 1, 1, 2, ".satfinite")
	add(16, 8, 256, "b1", 4, 2, 4, ".xor.popc", ".and.popc")
	add(16, 8, 128, "b1", 2, 1, 4, ".xor.popc")
	add(8, 8, 128, "b1", 1, 1, 2, ".and.popc")
	add(16, 8, 16, "f64", 8, 4, 4)
	add(16, 8, 8, "f64", 4, 2, 4)
	add(16, 8, 4, "f64", 2, 1, 4)
	add(8, 8, 4, "f64", 1, 1, 2)
	return list
}

// text returns the PTX of a kernel of one warp. Register r of lane l is word r*32+l of the input:
// first all registers of A, then B, then C. The kernel writes D to the parameter sums.
func (p registerProduct) text() string {
	bytes, class := 4, "r"
	if p.element == "f64" {
		bytes, class = 8, "x"
	}
	var t strings.Builder
	fmt.Fprintf(&t, `.version 8.0
.target sm_90a
.address_size 64
.visible .entry tile(.param .u64 image, .param .u64 sums)
{
.reg .b32 %%i, %%ra<8>, %%rb<4>, %%rc<4>, %%e;
.reg .b64 %%p<3>, %%xa<8>, %%xb<4>, %%xc<4>;
ld.param.u64 %%p0, [image];
ld.param.u64 %%p1, [sums];
mov.u32 %%i, %%tid.x;
mul.wide.u32 %%p2, %%i, %d;
add.u64 %%p0, %%p0, %%p2;
add.u64 %%p1, %%p1, %%p2;
`, bytes)
	at := 0
	list := func(name string, n int, load bool) string {
		var s []string
		for i := range n {
			s = append(s, fmt.Sprintf("%%%s%s%d", class, name, i))
			if load {
				fmt.Fprintf(&t, "ld.global.b%d %s, [%%p0+%d];\n", 8*bytes, s[i], at)
				at += 32 * bytes
			}
		}
		return "{" + strings.Join(s, ", ") + "}"
	}
	a, b, c := list("a", p.a, true), list("b", p.b, true), list("c", p.c, true)
	if p.sparse != nil {
		fmt.Fprintf(&t, "ld.global.b32 %%e, [%%p0+%d];\n", at)
	}
	fmt.Fprintf(&t, "%s %s, %s, %s, %s%s;\n", p.op, c, a, b, c, p.sparse.operands())
	for i := range p.c {
		fmt.Fprintf(&t, "st.global.b%d [%%p1+%d], %%%sc%d;\n", 8*bytes, 32*i*bytes, class, i)
	}
	t.WriteString("ret;\n}\n")
	return t.String()
}

// operand returns element (row, k) of A or B. In the manual's layout, a register holds 8 rows, and
// 4 lanes share a row.
func (p registerProduct) operand(words []uint64, rows, row, k int) uint64 {
	w := width(p.element)
	per := max(32/w, 1)
	group := k / per
	register := group/4*(rows/8) + row/8
	x := words[register*32+row%8*4+group%4]
	if w < 32 {
		x = x >> (k % per * w) & (1<<w - 1)
	}
	return x
}

func TestMmaOfSmallAndWide(t *testing.T) {
	dev := eitherDevice(t, emulated.Options{})
	r := rand.New(rand.NewPCG(3, 5))
	for _, p := range registerProducts() {
		t.Run(p.op, func(t *testing.T) {
			b := &bed{t, dev}
			bytes, element, sums := 4, p.element, "s32"
			if p.element == "f64" {
				bytes, sums = 8, "f64"
			}
			image := slices.Concat(drawElements(r, element, "near", 32*bytes*(p.a+p.b)), drawElements(r, sums, "near", 32*bytes*p.c))
			metadata := []byte{}
			for range 32 {
				metadata = binary.LittleEndian.AppendUint32(metadata, p.sparse.draw(r))
			}
			in, out := b.put(slices.Concat(image, metadata)), b.put(make([]byte, 32*bytes*p.c))
			b.launch([]byte(p.text()), "tile", gpu.Launch{Grid: gpu.Dim3{X: 1}, Block: gpu.Dim3{X: 32}},
				binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, uint64(in)), uint64(out)))
			read := func(b []byte) (words []uint64) {
				for at := 0; at < len(b); at += bytes {
					var x [8]byte
					copy(x[:], b[at:at+bytes])
					words = append(words, binary.LittleEndian.Uint64(x[:]))
				}
				return words
			}
			words, got := read(image), read(b.get(out, 32*bytes*p.c))
			of := matrices{element: p.element}
			if i := strings.Index(p.op, ".popc"); i > 0 {
				of.more = p.op[i-4 : i]
			} else if strings.Contains(p.op, ".satfinite") {
				of.more = ".satfinite"
			}
			for register := range p.c {
				for lane := range 32 {
					row, column := lane/4+register/2*8, lane%4*2+register%2
					var x, y []uint64
					for k := range p.k / p.sparse.share() {
						x = append(x, p.operand(words, p.m, row, k))
					}
					for k := range p.k {
						y = append(y, p.operand(words[32*p.a:], p.n, column, k))
					}
					y = pick(p.sparse, metadata, row, y)
					at := register*32 + lane
					require.Equal(t, of.sum(words[32*(p.a+p.b)+at], x, y), got[at], "row %d, column %d", row, column)
				}
			}
		})
	}
}
