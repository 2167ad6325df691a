package weights

import (
	"sonicmoe/driver"
	"sonicmoe/internal/spec"
	"sonicmoe/jit"
	"sonicmoe/jit/tile"
	"sonicmoe/moe/internal/element"
	"sonicmoe/ptx"
)

// Bias is the bias of one of the experts' products: [E, Width], or two of them.
type Bias struct {
	// Element is its.
	Element tile.Element
	// Parts are gate and up, or one of N columns.
	Parts, N int
	// Experts is how many rows there are.
	Experts int
	// Apart: each part is a tensor of its own; Interleaved: a neuron's two touch.
	Apart, Interleaved bool
}

// B1 is the up-projection's bias, ordered as the rows of W1.
func B1(c spec.Config) Bias {
	if InPairs(c) {
		return Bias{Element: element.Of(c), Parts: 1, N: c.HWidth(), Experts: c.NumExperts} // as the columns of W1
	}
	return Bias{Element: element.Of(c), Parts: c.HParts(), N: c.Intermediate, Experts: c.NumExperts, Apart: c.GateUp == spec.Apart, Interleaved: c.GateUp == spec.Interleaved}
}

// B2 is the down-projection's.
func B2(c spec.Config) Bias {
	return Bias{Element: element.Of(c), Parts: 1, N: c.Hidden, Experts: c.NumExperts}
}

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

// IsRows reports whether the columns of a part are neighbours, so that boxes of TMA
// have them.
func (b Bias) IsRows() bool { return !b.Interleaved }

// RowMap is the map of a tensor at p in boxes of so many columns: dimensions column,
// part, expert. What lies past a part's columns is 0.
func (b Bias) RowMap(p driver.DevicePtr, columns int) driver.TensorMap {
	parts := b.Parts
	if b.Apart {
		parts = 1
	}
	m := tile.LoadMap(p, []int{columns, 1, 1},
		tile.Dim{Extent: b.N, Stride: 1}, tile.Dim{Extent: parts, Stride: b.N}, tile.Dim{Extent: b.Experts, Stride: b.Width()})
	m.Swizzle = driver.SwizzleNone
	return m
}

// LoadRow starts the loads of a tile's columns, so many of each part from the given
// one on: a product's row (see gemm.Config.Row), whose biases must be finite, since
// it multiplies those beside a column with 0.
func (b Bias) LoadRow(k *ptx.Kernel, to, full ptx.Shared, maps []ptx.TensorMap, expert, column ptx.U32, columns int) {
	for part := range b.Parts {
		m, of := maps[0], part
		if b.Apart {
			m, of = maps[part], 0
		}
		k.TMALoad(to.At(part*columns*tile.ElementBytes), m, full, column, ptx.Uint(of), expert)
	}
}

// Sums gives what a thread's sums of a tile start from where [Bias.IsRows] says no:
// its columns of gate, then of up, of a tile that begins at that neuron and has so
// many. Neurons past the last repeat others: they are dropped.
func (b Bias) Sums(tensor ptx.Global, expert, neuron ptx.U32, neurons int, f tile.Fragment) []ptx.F32 {
	const block, bytes = tile.Block, 2 * tile.ElementBytes // of a neuron
	row := tensor.Index(expert, b.N*bytes)
	sums := make([]ptx.F32, neurons)
	for i := range neurons / block {
		first := neuron.AddI(i * block)
		if b.N%neurons != 0 && b.N%block == 0 {
			first = first.Min(ptx.Uint(b.N - block))
		}
		for j := range block / 8 {
			at := row.Index(first.Add(f.Column), bytes).At(8 * j * bytes)
			if b.N%block != 0 { // a block may end at any 8
				at = row.Index(first.AddI(8*j).Min(ptx.Uint(b.N-8)).Add(f.Column), bytes)
			}
			v := ptx.LdGlobalVec[ptx.U32](at, 2, ".nc")
			for h, word := range v { // of a neuron and the next
				gate, up := b.Element.Unpack(word)
				for row := range 2 {
					to := i*block/2 + 4*j + 2*row + h
					sums[to], sums[neurons/2+to] = gate, up
				}
			}
		}
	}
	return sums
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
