package dw

import (
	"slices"

	"sonicmoe/driver"
	"sonicmoe/driver/gpu"
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

// Weight selects one of the two weights of an expert.
type Weight uint8

const (
	// W1 is [2n, d], gate and up.
	W1 Weight = iota
	// W2 is [d, n].
	W2
)

// DW is the gradient of an expert's weight, a sum over the expert's packed rows p:
//
//	dW2[e] [d, n]  = Σ_p dO[gather[p]]ᵀ · A'[p]
//	dW1[e] [2n, d] = Σ_p dH[p]ᵀ · X[gather[p]]
//
// Both are computed as [d, N]: the gathered rows are operand A, the packed rows are
// operand B, and both operands are contiguous across the sum. If the gradient is
// contiguous along d in memory, it is stored transposed. Rows past a split's end must be
// zeros in both operands: with the next expert's rows in one of them, 0 times infinity
// would give NaN.
type DW struct {
	spec.Config
	Of Weight
	// Factor names the factor of an adapter whose gradient this is, in the place of a weight. "" is
	// none. Config is then that of a smaller layer.
	Factor string
	// IsPacked means that the rows of X are packed too: row p takes the place of X[gather[p]].
	// They are the rows of an adapter's product, in the layout of [weights.U].
	IsPacked bool
	Store    gradient.Mode
	// SplitRows is the number of rows of a split, as in [Plan].
	SplitRows int
	Tiling    gemm.Tiling
}

// Args are the arguments of [DW].
type Args struct {
	// X [T, d] is the tensor whose rows are gathered: X or dO. Gather [R] u32 is the token
	// of each packed row.
	X      driver.DevicePtr
	Gather driver.DevicePtr
	// PackedRows [R, N] is dH or A', see [weights.Rows].
	PackedRows driver.DevicePtr
	// DW is the output, in the format of Store: dW1 [E, 2n, d] or dW2 [E, d, n], in the
	// layout that Config gives the weights. If gate and up are separate tensors, DW3 is
	// up's half of dW1.
	DW, DW3 driver.DevicePtr
	// Splits and Counts come from [Plan]. Tickets is one of the two words that Plan clears.
	Splits  driver.DevicePtr
	Counts  driver.DevicePtr
	Tickets driver.DevicePtr
	// Partials has Slots slots of PartialBytes each, for partial sums. State has two words
	// for each slot, which are 0 at the start.
	Partials driver.DevicePtr
	State    driver.DevicePtr
	Slots    int
	// Factor and Factor3 are the factor of [Both], in the layout of DW and DW3. Sums is an output of
	// [Both], of [Both.SumsBytes].
	Factor, Factor3 driver.DevicePtr
	Sums            driver.DevicePtr
	// Rows is R.
	Rows int
}

// packed returns the layout of the packed rows.
func (d DW) packed() weights.Rows {
	switch {
	case d.hasU():
		return weights.Rows{Parts: 1, Width: d.Intermediate}
	case d.Of == W1:
		return weights.DH(d.Config)
	}
	return weights.A(d.Config)
}

// width returns N, the width of the packed rows.
func (d DW) width() int { return d.packed().Elements() }

// matrix returns the layout of the gradient in memory: lines are along d, columns along
// the neurons.
func (d DW) matrix() (m weights.Matrix, lines, columns tile.Dim) {
	if d.Of == W1 {
		m = weights.W1(d.Config)
		return m, m.In, m.Out
	}
	m = weights.W2(d.Config)
	return m, m.Out, m.In
}

// transposed reports whether the gradient is contiguous along d.
func (d DW) transposed() bool {
	_, lines, _ := d.matrix()
	return lines.Stride == 1
}

// mapped reports whether the gradient is stored through a tensor map.
func (d DW) mapped() bool { return d.Store == gradient.Mode{} }

// PartialBytes returns the size of a slot for a partial sum.
func (d DW) PartialBytes() int { return gemm.TileM * d.Tiling.TileN * 4 }

// Build emits the kernel.
func (d DW) Build() (*jit.Kernel[Args], error) {
	k := jit.NewBuilder[Args](d.name(), gemm.Threads, 1)
	k.Persistent(1)

	// Operands.
	in, out := d.operands(k), d.gradient(k)
	work, partial := d.items(k), d.partials(k)
	tid := k.TidX()

	// Ring "ab" holds stages of the gathered and the packed rows, and a queue holds the
	// items of work.
	cta := pipeline.NewCTA(k.Kernel)
	store, stagger := d.newStore(k.Kernel, cta), gemm.StaggerBarrier(cta)
	const loadWarps, bytesOfB = pipeline.WarpgroupThreads / 32, 1
	ring := cta.Ring("ab", d.Tiling.Stages, d.Tiling.StageBytes(), pipeline.WarpgroupThreads+bytesOfB, gemm.MathWarps)
	queue := schedule.NewQueue[item](k.Kernel, cta, itemWords, gemm.MathWarps+loadWarps, 1)
	cta.Ready(tid)
	k.GridDepWait()
	k.GridDepLaunch()

	// Roles. The load role fills the ring. The math role multiplies, adds the splits of a heavy
	// expert, and stores.
	shared := role{DW: d, k: k.Kernel, ring: ring, queue: queue, bytesOfA: gemm.TileABytes}
	gemm.RunRoles(k.Kernel, tid,
		mathRole{role: shared, store: store, stagger: stagger, gradient: out, partials: partial}.run,
		loadRole{role: shared, operands: in, items: work}.run)
	return k.Build()
}

// name returns the name of the kernel's entry, which errors show.
func (d DW) name() string {
	if d.Factor != "" {
		return "moe_dlora_" + d.Factor + d.Store.Suffix()
	}
	if d.Of == W2 {
		return "moe_dw2" + d.Store.Suffix()
	}
	return "moe_dw1" + d.Store.Suffix()
}

// role is what both roles use.
type role struct {
	DW
	k     *ptx.Kernel
	ring  *pipeline.Ring
	queue *schedule.Queue[item]
	// bytesOfA is the size of operand A in a stage. Operand B follows it.
	bytesOfA int
}

// operands has the tensors of both operands.
type operands struct {
	// x is the tensor that gather indexes. rows are the packed rows, with their map
	// packedMap.
	x, gather, rows ptx.Global
	packedMap       ptx.TensorMap
}

func (d DW) operands(k *jit.Builder[Args]) operands {
	of := operands{x: k.Ptr(&k.Args.X)}
	if !d.IsPacked {
		of.gather = k.Ptr(&k.Args.Gather)
	}
	of.rows, of.packedMap = k.Ptr(&k.Args.PackedRows), k.Map(&k.Args.PackedRows, d.rowsMap)
	return of
}

// gradientPlace is the destination of the gradient: tensor maps if [DW.mapped] is true,
// else addresses. There are two destinations if gate and up are separate tensors.
type gradientPlace struct {
	at   []ptx.Global
	maps []ptx.TensorMap
}

func (d DW) gradient(k *jit.Builder[Args]) (g gradientPlace) {
	fields := []*driver.DevicePtr{&k.Args.DW}
	of := []func(a *Args) driver.DevicePtr{func(a *Args) driver.DevicePtr { return a.DW }, func(a *Args) driver.DevicePtr { return a.DW3 }}
	if m, _, _ := d.matrix(); m.Apart {
		fields = append(fields, &k.Args.DW3)
	}
	for i, field := range fields {
		if d.mapped() {
			g.maps = append(g.maps, k.Map(field, func(a *Args) gpu.TensorMap { return d.outMap(of[i](a)) }))
		} else {
			g.at = append(g.at, k.Ptr(field))
		}
	}
	return g
}

// items are the items of work of one launch.
func (d DW) items(k *jit.Builder[Args]) items {
	i := items{
		k: k.Kernel, splits: k.Ptr(&k.Args.Splits), count: k.Ptr(&k.Args.Counts), tickets: k.Ptr(&k.Args.Tickets), splitRows: splitRows(d.SplitRows),
		tilesM: (d.Hidden + gemm.TileM - 1) / gemm.TileM, tilesN: d.Tiling.Columns(d.width()), widthN: d.Tiling.TileN,
	}
	if d.Store.Accumulate {
		i.count = i.count.At(4) // count only splits with rows: an expert without rows adds nothing to its gradient
	}
	return i
}

// partials are the slots for the partial sums of split experts.
type partials struct {
	sums, state ptx.Global
	slots       ptx.U32
}

func (d DW) partials(k *jit.Builder[Args]) partials {
	return partials{sums: k.Ptr(&k.Args.Partials), state: k.Ptr(&k.Args.State), slots: k.U32(&k.Args.Slots)}
}

func (d DW) newStore(k *ptx.Kernel, cta *pipeline.CTA) *gemm.Store {
	if d.transposed() {
		return gemm.NewTransposedStore(k, element.Of(d.Config), cta)
	}
	return gemm.NewStore(k, element.Of(d.Config), cta)
}

// kTiles returns the number of 64-row steps of an item. An item without rows has one step,
// of zeros.
func kTiles(t item) ptx.U32 {
	return t.rows.AddI(tile.K - 1).DivI(tile.K).Max(ptx.Uint(1))
}

// rowsAtoms returns the atoms of a tile of the packed rows.
func (d DW) rowsAtoms() tile.Atoms { return tile.Atoms{Width: d.width(), Columns: d.Tiling.TileN} }

// rowsMap returns the map of the packed rows, with boxes of 64 rows x TileN columns.
func (d DW) rowsMap(a *Args) gpu.TensorMap {
	return d.rowsAtoms().Map(a.PackedRows, a.Rows)
}

// outMap returns the map, with boxes of 64 x 64, of a 16-bit gradient at p that is
// overwritten. Its dimensions are the contiguous one, the other one, part (gate or up),
// and expert.
func (d DW) outMap(p driver.DevicePtr) gpu.TensorMap {
	m, lines, columns := d.matrix()
	if m.Apart {
		m.Part = tile.Dim{Extent: 1}
	}
	if m.Part.Stride == 0 {
		m.Part.Stride = columns.Extent // TMA also demands a stride for a dimension of one part
	}
	if d.transposed() {
		lines, columns = columns, lines
	}
	return tile.Map(p, []int{tile.Block, tile.Block, 1, 1}, columns, lines, m.Part, m.Expert)
}

// W2Product and W1Product are the products of the weights' gradients.
var (
	W2Product = weightProduct(spec.ProductDW2, W2)
	W1Product = weightProduct(spec.ProductDW1, W1)
)

func weightProduct(id spec.ProductID, of Weight) *registry.Product {
	return &registry.Product{
		ID: id, NoGroups: true,
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
	}
}

// W2Kernels and W1Kernels are the kernels of the gradients of the experts' weights, one
// for each mode of the gradient.
var (
	W2Kernels = weightKernels(W2Product, W2, spec.TensorDW2)
	W1Kernels = weightKernels(W1Product, W1, spec.TensorDW1)
)

// Kernels lists the kernels of this package but those of [FactorKernels].
var Kernels = slices.Concat(registry.Registry{PlanKernel}, W2Kernels.Kernels(), W1Kernels.Kernels())

func weightKernels(p *registry.Product, of Weight, output spec.TensorID) gradient.Set[Args] {
	return gradient.NewSet(p.String(), func(k *registry.Kernel[Args], g gradient.Mode) {
		k.Of, k.From, k.Only = p, registry.OfExperts, trainsWeights
		k.ShownBy = registry.Pass{Name: k.KernelName, Backward: true, Given: true, Outputs: []spec.TensorID{output}, F32: g.F32, Accumulate: g.Accumulate}
	}, func(l registry.Layer, g gradient.Mode) (*jit.Kernel[Args], error) { return Of(l, of, g).Build() })
}

// trainsWeights reports whether the weights of a layer's experts have gradients.
func trainsWeights(c spec.Config) bool { return spec.IsPlain(c) && !spec.HasLoRA(c) }

// Of returns the gradient of one of a layer's weights.
func Of(l registry.Layer, of Weight, g gradient.Mode) DW {
	d := DW{Config: l.Config, Of: of, Store: g, Tiling: l.Tiling(W2Product)}
	if of == W1 {
		d.Tiling = l.Tiling(W1Product)
	}
	return d
}
