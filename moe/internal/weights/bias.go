package weights

import (
	"sonicmoe/driver"
	"sonicmoe/driver/gpu"
	"sonicmoe/internal/spec"
	"sonicmoe/jit"
	"sonicmoe/jit/tile"
	"sonicmoe/moe/internal/element"
	"sonicmoe/ptx"
)

// Bias describes the bias of one of the experts' products: one tensor [E, Width], or two of them.
type Bias struct {
	// Element is the element type.
	Element tile.Element
	// Parts is 2 for gate and up, else 1. N is the number of columns of a part.
	Parts, N int
	// Experts is the number of rows.
	Experts int
	// Apart means that gate and up are separate tensors. Interleaved means that gate and up of a
	// neuron are neighbours in memory.
	Apart, Interleaved bool
}

// B1 returns the bias of the up-projection. It has the order of W1's rows.
func B1(c spec.Config) Bias {
	if InPairs(c) {
		return Bias{Element: element.Of(c), Parts: 1, N: c.HWidth(), Experts: c.NumExperts} // gate and up of a neuron are neighbours, in the order of W1's columns
	}
	return Bias{Element: element.Of(c), Parts: c.HParts(), N: c.Intermediate, Experts: c.NumExperts, Apart: c.GateUp == spec.Apart, Interleaved: c.GateUp == spec.Interleaved}
}

// B2 returns the bias of the down-projection.
func B2(c spec.Config) Bias {
	return Bias{Element: element.Of(c), Parts: 1, N: c.Hidden, Experts: c.NumExperts}
}

// Tensors declares the parameters of a kernel for the bias: one tensor for each part if the parts
// are apart, else one tensor.
func (b Bias) Tensors(p jit.Params, first, second *driver.DevicePtr) []ptx.Global {
	if b.Apart {
		return []ptx.Global{p.Ptr(first), p.Ptr(second)}
	}
	return []ptx.Global{p.Ptr(first)}
}

// Width returns the length of an expert's row.
func (b Bias) Width() int {
	if b.Apart {
		return b.N
	}
	return b.Parts * b.N
}

// IsRows reports whether the columns of a part are neighbours in memory, so that a TMA box can
// load them.
func (b Bias) IsRows() bool { return !b.Interleaved }

// RowMap returns the tensor map of the bias at address p, with boxes of the given number of
// columns. Its dimensions are column, part and expert. Columns past the end of a part are 0.
func (b Bias) RowMap(p driver.DevicePtr, columns int) gpu.TensorMap {
	parts := b.Parts
	if b.Apart {
		parts = 1
	}
	m := tile.LoadMap(p, []int{columns, 1, 1},
		tile.Dim{Extent: b.N, Stride: 1}, tile.Dim{Extent: parts, Stride: b.N}, tile.Dim{Extent: b.Experts, Stride: b.Width()})
	m.Swizzle = gpu.SwizzleNone
	return m
}

// LoadRow starts the loads of a tile's biases: for each part the given number of columns, from the
// given column on. The biases become a row of the product (see gemm.FromRow). They must be finite,
// because the product multiplies the neighbours of a column by 0.
func (b Bias) LoadRow(k *ptx.Kernel, to, full ptx.Shared, maps []ptx.TensorMap, expert, column ptx.U32, columns int) {
	for part := range b.Parts {
		m, of := maps[0], part
		if b.Apart {
			m, of = maps[part], 0
		}
		k.TMALoad(to.At(part*columns*tile.ElementBytes), m, full, column, ptx.Uint(of), expert)
	}
}

// Sums returns the initial values of a thread's sums of a tile: the biases of its columns of gate,
// then of up. It is for biases for which [Bias.IsRows] is false. The tile has the given number of
// neurons, from the given neuron on. Values past the last neuron repeat others, and the epilogue
// does not store them.
func (b Bias) Sums(tensor ptx.Global, expert, neuron ptx.U32, neurons int, f tile.Fragment) []ptx.F32 {
	const block, bytes = tile.Block, 2 * tile.ElementBytes // bytes: the two biases of a neuron, gate and up
	row := tensor.Index(expert, b.N*bytes)
	sums := make([]ptx.F32, neurons)
	for i := range neurons / block {
		first := neuron.AddI(i * block)
		if b.N%neurons != 0 && b.N%block == 0 {
			first = first.Min(ptx.Uint(b.N - block))
		}
		for j := range block / 8 {
			at := row.Index(first.Add(f.Column), bytes).At(8 * j * bytes)
			if b.N%block != 0 { // a block may end at any multiple of 8
				at = row.Index(first.AddI(8*j).Min(ptx.Uint(b.N-8)).Add(f.Column), bytes)
			}
			v := ptx.LdGlobalVec[ptx.U32](at, 2, ".nc")
			for h, word := range v { // a word for each of the thread's two neighbouring neurons
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

// Column loads the bias of one column, for each part.
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
