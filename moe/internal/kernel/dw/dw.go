package dw

import (
	"sonicmoe/driver"
	"sonicmoe/internal/spec"
	"sonicmoe/jit"
	"sonicmoe/jit/gemm"
	"sonicmoe/jit/pipeline"
	"sonicmoe/jit/schedule"
	"sonicmoe/jit/tile"
	"sonicmoe/moe/internal/element"
	"sonicmoe/moe/internal/gradient"
	"sonicmoe/moe/internal/registry"
	"sonicmoe/moe/internal/tiles"
	"sonicmoe/moe/internal/weights"
	"sonicmoe/ptx"
)

// Weight is one of the two weights of an expert.
type Weight uint8

const (
	// W1 is [2n, d], gate and up.
	W1 Weight = iota
	// W2 is [d, n].
	W2
)

// DW is the gradient of an expert's weight, a product over the expert's
// packed rows p:
//
//	dW2[e] [d, n]  = Σ_p dO[gather[p]]ᵀ · A'[p]
//	dW1[e] [2n, d] = Σ_p dH[p]ᵀ · X[gather[p]]
//
// Both are multiplied as [d, N]: the gathered rows are A, the packed rows B,
// both contiguous across the sum; what has d contiguous is stored transposed. Rows past a
// split's end are zeros in both, never the next expert's, whose infinities
// would make NaN of the zeros.
type DW struct {
	spec.Config
	Of    Weight
	Store gradient.Mode
	// SplitRows is the rows of a split, as in [Plan].
	SplitRows int
	Tiling    gemm.Tiling
}

// Args are the arguments of [DW].
type Args struct {
	// X [T, d] are the rows that are gathered (X or dO), Gather [R] u32
	// the number of each packed row's.
	X      driver.DevicePtr
	Gather driver.DevicePtr
	// PackedRows [R, N] are the packed rows: dH or A', see [weights.Rows].
	PackedRows driver.DevicePtr
	// DW is written: dW1 [E, 2n, d] or dW2 [E, d, n], as Config has the weights, in
	// the format of Store. DW3 is dW1's other half.
	DW, DW3 driver.DevicePtr
	// Splits and Counts are what [Plan] wrote, Tickets one of its words.
	Splits  driver.DevicePtr
	Counts  driver.DevicePtr
	Tickets driver.DevicePtr
	// Partials are the slots for partial sums, each of PartialBytes, State two
	// words for each of them, 0 at the start.
	Partials driver.DevicePtr
	State    driver.DevicePtr
	Slots    int
	// Rows is R.
	Rows int
}

// packed are the packed rows.
func (d DW) packed() weights.Rows {
	if d.Of == W1 {
		return weights.DH(d.Config)
	}
	return weights.A(d.Config)
}

// width is N: the width of the packed rows.
func (d DW) width() int { return d.packed().Elements() }

// matrix is how the gradient lies in memory: its lines along d, its columns
// along the neurons.
func (d DW) matrix() (m weights.Matrix, lines, columns tile.Dim) {
	if d.Of == W1 {
		m = weights.W1(d.Config)
		return m, m.In, m.Out
	}
	m = weights.W2(d.Config)
	return m, m.Out, m.In
}

// transposed: lines are contiguous.
func (d DW) transposed() bool {
	_, lines, _ := d.matrix()
	return lines.Stride == 1
}

// mapped: the gradient is stored through a tensor map.
func (d DW) mapped() bool { return d.Store == gradient.Mode{} }

// PartialBytes is the size of a slot for a partial sum.
func (d DW) PartialBytes() int { return gemm.TileM * d.Tiling.TileN * 4 }

// dw is the emission of a DW.
type dw struct {
	DW
	k       *ptx.Kernel
	tid     ptx.U32
	ring    *pipeline.Ring
	queue   *schedule.Queue[item]
	items   items
	store   *gemm.Store
	stagger pipeline.NamedBarriers
	// x is gathered; rows are the packed rows, rowsMap their map.
	x, gather, rows ptx.Global
	rowsMap         ptx.TensorMap
	out             []ptx.Global    // of W1 and, apart, W3
	outMap          []ptx.TensorMap // of the same
	partials, state ptx.Global
	slots           ptx.U32
}

// Build emits the kernel.
func (d DW) Build() (*jit.Kernel[Args], error) {
	name := "moe_dw1"
	if d.Of == W2 {
		name = "moe_dw2"
	}
	k := jit.NewBuilder[Args](name+d.Store.Suffix(), gemm.Threads, 1)
	k.Persistent(1)
	e := &dw{DW: d, k: k.Kernel}
	e.x, e.gather = k.Ptr(&k.Args.X), k.Ptr(&k.Args.Gather)
	e.rows, e.rowsMap = k.Ptr(&k.Args.PackedRows), k.Map(&k.Args.PackedRows, d.rowsMap)
	e.to(k)
	e.items = items{
		k: k.Kernel, splits: k.Ptr(&k.Args.Splits), count: k.Ptr(&k.Args.Counts), tickets: k.Ptr(&k.Args.Tickets), splitRows: splitRows(d.SplitRows),
		tilesM: (d.Hidden + gemm.TileM - 1) / gemm.TileM, tilesN: (d.width() + d.Tiling.TileN - 1) / d.Tiling.TileN, widthN: d.Tiling.TileN,
	}
	e.partials, e.state, e.slots = k.Ptr(&k.Args.Partials), k.Ptr(&k.Args.State), k.U32(&k.Args.Slots)
	if d.Store.Accumulate {
		e.items.count = e.items.count.At(4) // experts without rows add nothing
	}
	e.tid = k.TidX()
	cta := pipeline.NewCTA(k.Kernel)
	e.store, e.stagger = gemm.NewStore(k.Kernel, element.Of(d.Config), cta), gemm.StaggerBarrier(cta)
	const loadWarps, oneForTheBytes = pipeline.WarpgroupThreads / 32, 1
	e.ring = cta.Ring("ab", d.Tiling.Stages, d.Tiling.StageBytes(), pipeline.WarpgroupThreads+oneForTheBytes, gemm.MathWarps)
	e.queue = schedule.NewQueue[item](k.Kernel, cta, itemWords, gemm.MathWarps+loadWarps, 1)
	cta.Ready(e.tid)
	k.GridDepWait()
	k.GridDepLaunch()
	gemm.RunRoles(k.Kernel, e.tid, e.math, e.load)
	return k.Build()
}

// to declares where the gradient goes.
func (e *dw) to(k *jit.Builder[Args]) {
	fields, apart := []*driver.DevicePtr{&k.Args.DW}, false
	if m, _, _ := e.matrix(); m.Apart {
		fields, apart = append(fields, &k.Args.DW3), true
	}
	for i, field := range fields {
		if !e.mapped() {
			e.out = append(e.out, k.Ptr(field))
			continue
		}
		e.outMap = append(e.outMap, k.Map(field, func(a *Args) driver.TensorMap {
			if apart && i == 1 {
				return e.outMapOf(a.DW3)
			}
			return e.outMapOf(a.DW)
		}))
	}
}

// kTiles is how many 64-row steps an item takes: one, of zeros, without rows.
func kTiles(t item) ptx.U32 {
	return t.rows.AddI(tile.K - 1).DivI(tile.K).Max(ptx.Uint(1))
}

// rowsAtoms are the tiles of the packed rows.
func (d DW) rowsAtoms() tile.Atoms { return tile.Atoms{Width: d.width(), Columns: d.Tiling.TileN} }

// rowsMap loads the packed rows in boxes of 64 rows x TileN columns.
func (d DW) rowsMap(a *Args) driver.TensorMap {
	return d.rowsAtoms().Map(a.PackedRows, a.Rows)
}

// outMapOf stores a 16-bit gradient that is overwritten, in boxes of 64 x 64: the
// contiguous dimension, the other one, gate or up, expert.
func (d DW) outMapOf(p driver.DevicePtr) driver.TensorMap {
	m, lines, columns := d.matrix()
	if m.Apart {
		m.Part = tile.Dim{Extent: 1}
	}
	if m.Part.Stride == 0 {
		m.Part.Stride = columns.Extent // of one, but TMA wants a stride
	}
	if d.transposed() {
		lines, columns = columns, lines
	}
	return tile.Map(p, []int{tile.Block, tile.Block, 1, 1}, columns, lines, m.Part, m.Expert)
}

// W2Product and W1Product are the gradients of the experts' weights.
var (
	W2Product = weightProduct("dw2", W2, spec.Config.DW2Work)
	W1Product = weightProduct("dw1", W1, spec.Config.DW1Work)
)

func weightProduct(name string, of Weight, work func(spec.Config, int) spec.Work) *registry.Product {
	return &registry.Product{
		Name: name, Backward: true, NoGroups: true,
		Space: func(t driver.Target) []gemm.Tiling {
			list := tiles.Deepest(t, registry.StoreBytes, 256, 192, 128)
			for i := range list {
				list[i].GroupM = 1
			}
			return list
		},
		SharedBytes: registry.StoreBytes,
		Clocks: func(m tiles.Model, p gemm.Tiling, c spec.Config, t driver.Target) float64 {
			return m.Weight(p, registry.EvenLoad(c), c.Hidden, DW{Config: c, Of: of}.width(), t)
		},
		Work: work,
	}
}

// W2Kernels and W1Kernels write the gradients in each of the [gradient.Modes].
var (
	W2Kernels = weightKernels(W2Product, W2, "DW2")
	W1Kernels = weightKernels(W1Product, W1, "DW1")
)

func weightKernels(p *registry.Product, of Weight, output string) [4]*registry.Kernel[Args] {
	list := gradient.Kernels(p.Name, func(l registry.Layer, g gradient.Mode) (*jit.Kernel[Args], error) { return Of(l, of, g).Build() })
	for i, g := range gradient.Modes {
		k := list[i]
		k.Of, k.From = p, registry.OfExperts
		k.ShownBy = registry.Pass{Name: k.KernelName, Backward: true, Given: true, Outputs: []string{output}, F32: g.F32, Accumulate: g.Accumulate}
	}
	return list
}

// Of is the gradient of a layer's weight.
func Of(l registry.Layer, of Weight, g gradient.Mode) DW {
	d := DW{Config: l.Config, Of: of, Store: g, Tiling: l.Tiling(W2Product)}
	if of == W1 {
		d.Tiling = l.Tiling(W1Product)
	}
	return d
}
