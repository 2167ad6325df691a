package mma

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// problem holds the operands of one k step.
type problem struct {
	format *Format
	n      int
	a, b   []uint32 // Rows x depth, n x depth
	acc    []uint32 // Rows x n
}

func newProblem(f *Format, n int, r *rand.Rand, acc, element func(r *rand.Rand) uint32) *problem {
	p := &problem{format: f, n: n}
	for range Rows * f.Depth() {
		p.a = append(p.a, element(r))
	}
	for range n * f.Depth() {
		p.b = append(p.b, element(r))
	}
	for range Rows * n {
		p.acc = append(p.acc, acc(r))
	}
	return p
}

// tile returns 8 rows of elements as bytes of shared memory. In parameter from, a row begins one k
// step (depth elements) after the row before it. With across, the result is transposed.
func (p *problem) tile(from []uint32, across bool) *Tile {
	var t Tile
	depth, size := p.format.Depth(), p.format.Bytes
	for row := range Group {
		for k := range depth {
			at := row*depth + k
			if across {
				at = k*Group + row
			}
			x := binary.LittleEndian.AppendUint32(nil, from[row*depth+k])
			copy(t[at*size:], x[:size])
		}
	}
	return &t
}

func (p *problem) operands(across, negate bool) (a A, b B) {
	depth := p.format.Depth()
	a.Reset(p.format)
	b.Reset(p.format, p.n)
	for row := 0; row < Rows; row += Group {
		a.Decode(row, p.tile(p.a[row*depth:], across), across, negate)
	}
	for column := 0; column < p.n; column += Group {
		b.Decode(column, p.tile(p.b[column*depth:], across), across, false)
	}
	return a, b
}

// position returns the matrix element that lane l holds in register i of a warp, as the comment of
// [Add] says.
func position(warp, i, l int) (row, column int) {
	return 16*warp + l/4 + 8*(i/2%2), 8*(i/4) + 2*(l%4) + i%2
}

// run multiplies with a register bank in which the accumulator's registers are in reverse order,
// each followed by an unrelated register.
func (p *problem) run(a *A, b *B, keep bool) []uint32 {
	slots := make([]int32, p.n/2)
	out := make([]uint32, Rows*p.n)
	for warp := range 4 {
		bank := make(Registers, p.n)
		for i := range slots {
			slots[i] = int32(2 * (len(slots) - 1 - i))
			for l := range Lanes {
				row, column := position(warp, i, l)
				bank[slots[i]][l] = p.acc[row*p.n+column]
			}
		}
		Add(bank, slots, a, warp, b, keep)
		for i := range slots {
			for l, v := range bank[slots[i]] {
				row, column := position(warp, i, l)
				out[row*p.n+column] = v
			}
			for _, v := range bank[slots[i]+1] {
				if v != 0 {
					return nil // Add wrote to a register outside the accumulator
				}
			}
		}
	}
	return out
}

func (p *problem) want(keep, negate bool) []uint32 {
	depth := p.format.Depth()
	a := p.a
	if negate {
		a = slices.Clone(a)
		for i := range a {
			a[i] ^= 1 << (8*p.format.Bytes - 1)
		}
	}
	out := make([]uint32, Rows*p.n)
	for at := range out {
		i, j := at/p.n, at%p.n
		acc := uint32(0)
		if keep {
			acc = p.acc[at]
		}
		out[at] = Dot(acc, a[i*depth:(i+1)*depth], p.b[j*depth:(j+1)*depth], p.format)
	}
	return out
}

// eachLevel runs a test with each kind of vector code that this CPU supports, and without.
func eachLevel(t *testing.T, test func(t *testing.T)) {
	for _, l := range levels() {
		t.Run(l.name, func(t *testing.T) {
			defer l.use()()
			test(t)
		})
	}
}

func TestAdd(t *testing.T) {
	eachLevel(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(5, 6))
		for i, d := range draws {
			for _, n := range []int{8, 24, 256} {
				if n == 256 && i > 1 {
					continue
				}
				p := newProblem(bf16, n, r, d.acc, d.element)
				for _, across := range []bool{false, true} {
					for _, negate := range []bool{false, true} {
						keep := r.IntN(4) != 0
						a, b := p.operands(across, negate)
						require.Equal(t, p.want(keep, negate), p.run(&a, &b, keep), "%s, N %d, across %v, negate %v, keep %v", d.name, n, across, negate, keep)
					}
				}
			}
		}
	})
}

func TestAddOfOtherFormats(t *testing.T) {
	eachLevel(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(7, 8))
		acc := func(r *rand.Rand) uint32 { return f32Bits(r.NormFloat64()) }
		for _, f := range []*Format{f16, e5m2, tf32} {
			any := func(r *rand.Rand) uint32 { return r.Uint32() >> (32 - 8*f.Bytes) }
			ones := func(*rand.Rand) uint32 { return map[*Format]uint32{f16: 0x3fff, e5m2: 0x3f, tf32: 0x3fffffff}[f] }
			for _, element := range []func(*rand.Rand) uint32{any, ones} {
				p := newProblem(f, 16, r, acc, element)
				a, b := p.operands(false, false)
				require.Equal(t, p.want(true, false), p.run(&a, &b, true), "%d bytes", f.Bytes)
			}
		}
	})
}

// TestDecode checks that the vector code and the Go code decode the same.
func TestDecode(t *testing.T) {
	r := rand.New(rand.NewPCG(13, 14))
	for _, d := range draws {
		for _, across := range []bool{false, true} {
			for _, negate := range []bool{false, true} {
				p := newProblem(bf16, 16, r, d.acc, d.element)
				var a, b []operand
				eachLevel(t, func(*testing.T) {
					x, y := p.operands(across, negate)
					a, b = append(a, x.operand), append(b, y.operand)
				})
				for i := range a {
					require.Equal(t, a[0], a[i], d.name)
					require.Equal(t, b[0], b[i], d.name)
				}
			}
		}
	}
}

// TestSet checks that Set stores an element where Decode stores it.
func TestSet(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 10))
	p := newProblem(bf16, 8, r, draws[0].acc, draws[0].element)
	a, _ := p.operands(false, true)
	var c A
	c.Reset(bf16)
	for i, x := range p.a {
		c.Set(i/16, i%16, x, true)
	}
	require.Equal(t, a, c)
}

func BenchmarkAdd(b *testing.B) {
	for _, n := range []int{64, 128, 256} {
		r := rand.New(rand.NewPCG(11, 12))
		p := newProblem(bf16, n, r, draws[0].acc, draws[0].element)
		x, y := p.operands(false, false)
		for _, l := range levels() {
			b.Run(fmt.Sprintf("%s/m64n%dk16", l.name, n), func(b *testing.B) {
				defer l.use()()
				bank, slots := make(Registers, n/2), make([]int32, n/2)
				for i := range slots {
					slots[i] = int32(i)
				}
				for b.Loop() {
					for warp := range 4 {
						Add(bank, slots, &x, warp, &y, true)
					}
				}
				b.ReportMetric(float64(2*Rows*n*16*b.N)/float64(b.Elapsed().Nanoseconds()), "GFLOP/s")
			})
		}
	}
}

func BenchmarkDecode(b *testing.B) {
	var t Tile
	for i := range t {
		t[i] = byte(i + 1)
	}
	var x A
	var y B
	x.Reset(bf16)
	y.Reset(bf16, Group)
	for _, across := range []bool{false, true} {
		b.Run(fmt.Sprintf("A/%v", across), func(b *testing.B) {
			for b.Loop() {
				x.Decode(0, &t, across, false)
			}
		})
		b.Run(fmt.Sprintf("B/%v", across), func(b *testing.B) {
			for b.Loop() {
				y.Decode(0, &t, across, false)
			}
		})
	}
}
