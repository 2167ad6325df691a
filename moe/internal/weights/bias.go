package weights

import (
	"sonicmoe/driver"
	"sonicmoe/jit"
	"sonicmoe/jit/tile"
	"sonicmoe/moe/internal/element"
	"sonicmoe/moe/spec"
	"sonicmoe/ptx"
)

// Bias is the bias of one of the experts' products: [E, Width], or two of them.
type Bias struct {
	// Element is its.
	Element tile.Element
	// Parts are gate and up, or one of N columns.
	Parts, N int
	// Apart: each part is a tensor of its own; Interleaved: a neuron's two touch.
	Apart, Interleaved bool
}

// B1 is the up-projection's bias, ordered as the rows of W1.
func B1(c spec.Config) Bias {
	if InPairs(c) {
		return Bias{Element: element.Of(c), Parts: 1, N: c.HWidth()} // as the columns of W1
	}
	return Bias{Element: element.Of(c), Parts: c.HParts(), N: c.Intermediate, Apart: c.GateUp == spec.Apart, Interleaved: c.GateUp == spec.Interleaved}
}

// B2 is the down-projection's.
func B2(c spec.Config) Bias { return Bias{Element: element.Of(c), Parts: 1, N: c.Hidden} }

// Tensors are the parameters of a kernel: of gate and up, or of both at once.
func (b Bias) Tensors(p jit.Params, first, second *driver.DevicePtr) []ptx.Global {
	if b.Apart {
		return []ptx.Global{p.Ptr(first), p.Ptr(second)}
	}
	return []ptx.Global{p.Ptr(first)}
}

// Width is the length of an expert's row.
func (b Bias) Width() int {
	if b.Apart {
		return b.N
	}
	return b.Parts * b.N
}

// Sums gives what a thread's sums of a tile start from: its columns of each part
// of a tile that begins at that column and has so many of each. Columns past the
// last repeat others: they are dropped.
func (b Bias) Sums(tensors []ptx.Global, expert, column ptx.U32, columns int, f tile.Fragment) []ptx.F32 {
	const block = tile.Block
	sums := make([]ptx.F32, b.Parts*columns/2)
	for i := range columns / block {
		first := column.AddI(i * block)
		if b.N%columns != 0 && b.N%block == 0 {
			first = first.Min(ptx.Uint(b.N - block))
		}
		own := first.Add(f.Column)
		for j := range block / 8 {
			at, behind := own, 8*j
			if b.N%block != 0 { // a block may end at any 8 columns
				at, behind = first.AddI(8*j).Min(ptx.Uint(b.N-8)).Add(f.Column), 0
			}
			for part, pair := range b.pairs(tensors, expert, at, behind) {
				at := part*columns/2 + i*block/2 + 4*j
				copy(sums[at:], []ptx.F32{pair[0], pair[1], pair[0], pair[1]}) // of both rows
			}
		}
	}
	return sums
}

// pairs loads each part's biases of two columns that touch: of those so many
// behind a column.
func (b Bias) pairs(tensors []ptx.Global, expert, column ptx.U32, behind int) (pairs [][2]ptx.F32) {
	at := func(tensor ptx.Global, column ptx.U32, columns int) ptx.Global {
		return tensor.Index(expert, b.Width()*tile.ElementBytes).Index(column, columns*tile.ElementBytes).At(behind * columns * tile.ElementBytes)
	}
	if b.Interleaved {
		v := ptx.LdGlobalVec[ptx.U32](at(tensors[0], column, 2), 2, ".nc")
		g0, u0 := b.Element.Unpack(v[0])
		g1, u1 := b.Element.Unpack(v[1])
		return [][2]ptx.F32{{g0, g1}, {u0, u1}}
	}
	for part := range b.Parts {
		tensor := tensors[0]
		if b.Apart {
			tensor = tensors[part]
		} else {
			tensor = tensor.At(part * b.N * tile.ElementBytes)
		}
		lo, hi := b.Element.Unpack(ptx.LdGlobal[ptx.U32](at(tensor, column, 1), ".nc"))
		pairs = append(pairs, [2]ptx.F32{lo, hi})
	}
	return pairs
}

// Column gives each part's bias of one column.
func (b Bias) Column(tensors []ptx.Global, expert, column ptx.U32) (parts []ptx.F32) {
	for part := range b.Parts {
		tensor, at := tensors[0], column
		switch {
		case b.Apart:
			tensor = tensors[part]
		case b.Interleaved:
			at = column.MulI(b.Parts).AddI(part)
		default:
			at = column.AddI(part * b.N)
		}
		parts = append(parts, b.Element.Wide(ptx.LdGlobal[ptx.B16](tensor.Index(expert, b.Width()*tile.ElementBytes).Index(at, tile.ElementBytes), ".nc")))
	}
	return parts
}
