package decode

import (
	"slices"

	"sonicmoe/driver"
	"sonicmoe/driver/gpu"
	"sonicmoe/internal/spec"
	"sonicmoe/jit/gemm"
	"sonicmoe/jit/pipeline"
	"sonicmoe/jit/schedule"
	"sonicmoe/jit/tile"
	"sonicmoe/moe/internal/element"
	"sonicmoe/moe/internal/fragments"
	"sonicmoe/moe/internal/route/choose"
	"sonicmoe/moe/internal/weights"
	"sonicmoe/ptx"
)

// shape is the shape of a CTA and its tiles. Each of units warpgroups multiplies 64
// rows of weights by the same tokens, at most tokens of them at once. One warp loads
// weights and one loads tokens. If an expert has more tokens, its weights are read
// again, from the L2 cache.
type shape struct{ units, tokens int }

// The three shapes are regimes of their own because each gains more than 3 % somewhere;
// decode.md of the benchmarks has the gains and the prices.
var (
	narrow = shape{2, tileTokens}
	// wide loads tokens once for 256 rows of weights. If experts have many tokens,
	// these take more of an SM's bandwidth than the weights.
	wide = shape{4, tileTokens}
	// tiny has small stages, and so more of them: twice the weights are in flight.
	tiny = shape{2, MaxTiny}
)

// packedShapes are the shapes for packed weights. These weights have a quarter or a half of
// the bytes, so the tokens take a larger part of an SM's bandwidth, and more rows of weights
// share them: all but wide CTAs have four units. Wide CTAs have room for more sums in the
// registers.
var packedShapes = map[shape]shape{narrow: {4, 64}, wide: {2, tileTokens}, tiny: {4, MaxTiny}}

func shapeOf(isPacked, isWide, isTiny bool) shape {
	s := narrow
	switch {
	case isWide:
		s = wide
	case isTiny:
		s = tiny
	}
	if isPacked {
		return packedShapes[s]
	}
	return s
}

// prefix returns the part of a kernel's name that its shape and weights give.
func prefix(isWide, isTiny, areUnits bool) (name string) {
	if areUnits {
		name = "units_"
	}
	switch {
	case isWide:
		name += "wide_"
	case isTiny:
		name += "tiny_"
	}
	return name
}

func (s shape) mathWarps() int { return s.units * pipeline.WarpgroupThreads / 32 }

// stage is the layout of a stage of the ring: weights, then tokens.
type stage struct {
	shape
	// packed is the format of packed weights.
	packed fragments.Format
	// depth is the number of k-tiles, unitBytes the size of a unit's weights.
	depth, unitBytes int
}

func stageOf(f fragments.Format, isWide, isTiny bool) stage {
	s := shapeOf(f.IsPacked(), isWide, isTiny)
	if f.IsPacked() {
		return stage{s, f, fragments.KTiles, f.BlockBytes()}
	}
	return stage{s, f, 1, weightsBytes}
}

// loadWarps is the number of warps that load weights and tokens, and fence the tokens of
// packed weights.
func (s stage) loadWarps() int {
	if s.packed.IsPacked() {
		return 3
	}
	return 2
}

func (s stage) threads() int { return 32 * (s.mathWarps() + s.loadWarps()) }

// tokensAt is the offset of a k-tile's tokens in a stage, at a whole swizzle pattern.
func (s stage) tokensAt(kTile int) int {
	const pattern = 8 * tile.RowBytes
	return (s.shape.units*s.unitBytes+pattern-1)/pattern*pattern + kTile*s.tokens*tile.RowBytes
}

func (s stage) bytes() int { return s.tokensAt(s.depth) }

const (
	// ringBytes nearly fills an SM's shared memory.
	ringBytes    = 192 << 10
	unitRows     = 64 // rows of weights in a unit
	weightsBytes = unitRows * tile.RowBytes
	tileTokens   = 128
	// MaxTiny is the largest batch for tiny CTAs.
	MaxTiny = choose.MaxApart
	// copyRows is the number of tokens of which the loading warp copies 16 bytes a
	// lane at a time.
	copyRows = 32 / tile.LanesOfRow
)

// MaxTokens is the largest small batch. With up to 512 experts these kernels are at
// least as fast as those for large batches up to there.
const MaxTokens = 2048

// WideFrom returns the batch size from which wide CTAs are faster, or 0 if they never
// are. It is 48 tokens an expert on average.
func WideFrom(c spec.Config) int {
	const rows = 48
	switch {
	case c.NumExperts <= 1: // all tiles are in the last wave
		return 0
	case (Up{Config: c}).parts() > 1: // the sums of gate and up exceed the registers
		return 0
	case rows*c.NumExperts > min(16384, MaxTokens*c.TopK): // larger batches were not measured
		return 0
	}
	return (rows*c.NumExperts + c.TopK - 1) / c.TopK
}

// hasWide reports whether the layer has kernels with wide CTAs.
func hasWide(c spec.Config) bool { return WideFrom(c) > 0 }

// product is the emission of one product: for each expert with tokens, weights times
// tokens.
type product struct {
	stage
	k       *ptx.Kernel
	element tile.Element
	sums
	kTiles int // depth of a sum in k-tiles, in whole stages
	cta    *pipeline.CTA
	// ring "ab" has stages of weights and tokens. Ring "copied" has no data: with packed
	// weights it says which stages have their tokens.
	ring, copied *pipeline.Ring
	queue        *schedule.Queue[block] // the CTA's tiles
}

// sums describes the sums of a product.
type sums struct {
	// columns is the number of terms of a sum, units the number of units of an expert.
	columns, units int
	// parts is the number of sums of a row and token: 2 if gate and up have stages of
	// their own, else 1.
	parts int
	// mnMajor reports whether rows of weights are neighbours in a stage.
	mnMajor bool
	// bias has the initial values.
	bias biases
}

// operands are the inputs of a product.
type operands struct {
	weights loadUnit
	tokens  tokens
	table   table
	tickets ptx.Global // a counter, from which the CTAs draw tiles
	// early reports whether only the tokens depend on the predecessor kernel. Weights and
	// table may then be read before it ends.
	early bool
}

// newProduct reserves the rings and the queue.
func newProduct(k *ptx.Kernel, cta *pipeline.CTA, of stage, c spec.Config, s sums) *product {
	p := &product{stage: of, k: k, element: element.Of(c), sums: s, cta: cta}
	p.kTiles = (tile.Tiles(s.columns) + p.depth - 1) / p.depth * p.depth
	// A stage is full after one arrival for the bytes of the weights, and one
	// arrival of each lane that copies tokens, or of the thread that fences them.
	stages, tokens := ringBytes/p.bytes(), 32
	if p.packed.IsPacked() {
		p.copied, tokens = p.cta.Ring("copied", stages, 0, tokens, 1), 1
	}
	p.ring = p.cta.Ring("ab", stages, p.bytes(), 1+tokens, of.mathWarps())
	const words, weightsWarp = 4, 1
	p.queue = schedule.NewQueue[block](k, p.cta, words, p.mathWarps()+p.loadWarps()-weightsWarp, 1)
	return p
}

// ctas returns the number of CTAs for a number of rows: one for each SM, but at most
// one for each unit.
func ctas(rows, experts, units, sms int) gpu.Dim3 {
	pairs := min(rows, experts+rows/schedule.PairRows)
	return gpu.Dim3{X: max(1, min(sms, pairs*units))}
}

// widths lists the numbers of columns to which a block's tokens may be rounded up.
// Each column costs as much bandwidth of an SM as a row of weights.
func (s shape) widths() []int {
	list := []int{8, 16, 24, 32, 48, 64, 72, 80, 88, 96, 112, tileTokens}
	return list[:slices.Index(list, s.tokens)+1]
}

// byWidth emits body for each width, and runs it for the narrowest that has room for
// the rows.
func (p *product) byWidth(rows ptx.U32, body func(columns int)) {
	var among func(widths []int)
	among = func(widths []int) {
		if len(widths) == 1 {
			body(widths[0])
			return
		}
		half := len(widths) / 2
		p.k.IfElse(rows.LeI(widths[half-1]), func() { among(widths[:half]) }, func() { among(widths[half:]) })
	}
	among(p.widths())
}

// eachCopy emits body once for every copyRows rows of a stage. It runs the copies
// that the narrowest sufficient width needs.
func (p *product) eachCopy(rows ptx.U32, body func(i int)) {
	widths := p.widths()
	var from func(i, width int)
	from = func(i, width int) {
		for ; i < widths[width]/copyRows; i++ {
			body(i)
		}
		if width++; width < len(widths) {
			p.k.If(rows.GtI(widths[width-1]), func() { from(i, width) })
		}
	}
	from(0, 0)
}

// stages is the number of stages of a sum.
func (p *product) stages() int { return p.kTiles / p.depth * p.parts }

// tokens says where the rows of tokens lie.
type tokens struct {
	at ptx.Global
	// rowBytes is the length of a row. k-tiles are 0 beyond it.
	rowBytes int
	// number returns the index in memory of row `row` of a block.
	number func(b block, row ptx.U32) ptx.U32
}

// loadUnit loads a unit's part of a stage, columns from the given one on.
type loadUnit func(to, full ptx.Shared, b block, column ptx.U32, part int)

// run emits the roles: "math" has one warpgroup for each unit, "load" has one warp for
// weights and one for tokens. run calls store with the sums of each block.
func (p *product) run(in operands, store func(b block, acc [][]ptx.F32)) {
	k := p.k
	awaitPredecessor := func() {
		k.GridDepWait()
		k.GridDepLaunch()
	}
	p.cta.Ready(k.TidX())
	if !in.early {
		awaitPredecessor()
	}
	in.table.prepare()
	tiles := scheduler{p, in.table, in.tickets}
	warpgroup := k.Warpgroup()
	if p.packed.IsPacked() {
		// The assembler takes the result of a shuffle for the same in all lanes, and then
		// keeps the main loop's addresses in uniform registers, from which wgmma reads them.
		warpgroup = warpgroup.ShflIdx(ptx.Uint(0))
	}
	pipeline.Run(k, warpgroup,
		pipeline.Role{Name: "math", First: 0, Count: p.shape.units, Body: func() { mathRole{p, warpgroup}.run(tiles, store) }},
		pipeline.Role{Name: "load", First: p.shape.units, Count: 1, Body: func() {
			k.IfElse(k.Warp().EqI(p.mathWarps()),
				func() { k.If(k.ElectOne(), func() { p.loadWeights(tiles, in.weights) }) },
				func() {
					tokens := func() {
						if in.early {
							awaitPredecessor()
						}
						p.loadTokens(tiles, in.tokens)
					}
					if p.copied == nil {
						tokens()
					} else {
						k.IfElse(k.Warp().EqI(p.mathWarps()+1), tokens, func() { k.If(k.ElectOne(), func() { p.fenceTokens(tiles) }) })
					}
				})
		}},
	)
}

// loadWeights fills the first part of the stages, in one thread.
func (p *product) loadWeights(tiles scheduler, load loadUnit) {
	k, ring := p.k, p.ring.Producer()
	tiles.publish(func(b block, before func(column ptx.U32)) {
		k.For(ptx.Uint(0), ptx.Uint(p.kTiles*tile.K), ptx.Uint(p.depth*tile.K), func(column ptx.U32) {
			before(column)
			for part := range p.parts {
				s := ring.Acquire()
				k.MbarrierArriveExpectTx(s.Full, b.units.MulI(p.unitBytes))
				for i := range p.shape.units {
					of := b
					of.unit = b.unit.AddI(i)
					k.If(b.units.GtI(i), func() { load(s.Data.At(i*p.unitBytes), s.Full, of, column, part) })
				}
				ring.Advance()
			}
		})
	})
}

// loadTokens fills the second part of the stages: 8 lanes copy a row's 128 bytes, 4
// rows at a time. Columns beyond the last row repeat it.
func (p *product) loadTokens(tiles scheduler, t tokens) {
	k, ring := p.k, p.ring.Producer()
	done := func(s pipeline.Stage) { k.CpAsyncMbarrierArriveNoInc(s.Full) }
	if p.copied != nil {
		copied := p.copied.Producer()
		done = func(pipeline.Stage) {
			k.CpAsyncMbarrierArriveNoInc(copied.Stage().Full)
			copied.Advance()
		}
	}
	copier := tile.NewRowCopy(k, k.Lane(), tile.LanesOfRow)
	first := copier.Row()
	at := t.at.Plus(copier.Chunk.MulI(tile.CopyBytes).U64())
	// Every second copy is in the lower half of a swizzle pattern of 8 rows.
	to := [2]ptx.U32{copier.Swizzled(first), copier.Swizzled(first.AddI(copyRows))}
	from := ptx.NewVars(k, p.tokens/copyRows, ptx.Long(0))
	tiles.read(func(b block) {
		last := b.rows.SubI(1)
		p.eachCopy(b.rows, func(i int) {
			from[i].Set(at.Index(t.number(b, first.AddI(copyRows*i).Min(last)), t.rowBytes).Addr())
		})
		k.Range(ptx.Uint(p.kTiles/p.depth), func(stage ptx.U32) {
			bytes := make([][]ptx.U32, p.depth)
			if t.rowBytes != p.kTiles*tile.RowBytes {
				for i := range bytes {
					kt := stage.MulI(p.depth).AddI(i)
					bytes[i] = append(bytes[i], tile.BytesIf(kt.MulI(tile.LanesOfRow).Add(copier.Chunk).LtI(t.rowBytes/tile.CopyBytes)))
				}
			}
			for part := range p.parts {
				s := ring.Acquire()
				p.eachCopy(b.rows, func(i int) {
					for kt, bytes := range bytes {
						copier.Copy(s.Data.At(p.tokensAt(kt)+i/2*2*copyRows*tile.RowBytes).Plus(to[i%2]), ptx.GlobalAt(from[i].Get()).At(kt*tile.RowBytes), bytes...)
					}
					if part == p.parts-1 {
						from[i].Set(from[i].Get().AddI(p.depth * tile.RowBytes))
					}
				})
				done(s)
				ring.Advance()
			}
		})
	})
}

// fenceTokens orders the copies of a stage's tokens before wgmma reads them, in one thread.
// The warps that multiply would wait for the fence, and they limit the speed of packed
// weights.
func (p *product) fenceTokens(tiles scheduler) {
	k, copied, ring := p.k, p.copied.Consumer(), p.ring.Producer()
	tiles.readAlone(func(block) {
		k.Range(ptx.Uint(p.stages()), func(ptx.U32) {
			copied.Wait()
			k.FenceProxyAsync(".shared::cta")
			k.MbarrierArrive(ring.Stage().Full)
			copied.Advance()
			ring.Advance()
		})
	})
}

// mathRole multiplies in one warpgroup.
type mathRole struct {
	*product
	warpgroup ptx.U32 // the warpgroup's number
}

// run multiplies each of the warpgroup's blocks and hands the sums to store. Rows of
// the sums are rows of weights, columns are tokens.
func (p mathRole) run(tiles scheduler, store func(b block, acc [][]ptx.F32)) {
	k := p.k
	sums := make([][]ptx.F32, p.parts)
	for part := range sums {
		sums[part] = k.Accumulators(p.tokens / 2)
	}
	loop := gemm.MainLoop{K: k, Ring: p.ring.Consumer(), Release: pipeline.NewReleaser(k, k.Lane(), 1)}
	tiles.read(func(b block) {
		has := p.warpgroup.Lt(b.units)
		b.unit = b.unit.Add(p.warpgroup)
		k.IfElse(has, func() {
			p.multiply(loop, sums, b)
			store(b, sums)
		}, func() { loop.Drain(ptx.Uint(p.stages())) })
	})
}

// multiply computes the sums of a block. The width is chosen for each k-tile: one loop
// for all widths compiles in a third of the time, and the branches run under the
// previous k-tile's wgmma.
func (p mathRole) multiply(loop gemm.MainLoop, sums [][]ptx.F32, b block) {
	k := p.k
	// ptxas would serialise a wgmma that starts the sums of a single stage.
	isOne := p.kTiles == p.depth
	initialised := p.bias.given || isOne
	if initialised {
		p.setSums(b, sums)
	}
	multiplyStage := p.multiplyPlain
	if p.packed.IsPacked() {
		multiplyStage = p.multiplyPacked
	}
	f := loop.Begin()
	multiply := func(stage ptx.U32) {
		for part, sum := range sums {
			follows, accumulates := stage.NeI(0), stage.NeI(0)
			if part > 0 {
				follows = ptx.True()
			}
			if initialised {
				accumulates = ptx.True()
			}
			f.One(follows, 1, func(s pipeline.Stage) {
				multiplyStage(s, b, sum, accumulates)
			})
		}
	}
	if isOne {
		multiply(ptx.Uint(0))
	} else {
		k.Range(ptx.Uint(p.kTiles/p.depth), multiply)
	}
	f.Finish()
}

// multiplyPlain issues the wgmma group of a stage.
func (p mathRole) multiplyPlain(s pipeline.Stage, b block, sum []ptx.F32, adds ptx.Pred) {
	k, newDescriptor := p.k, tile.NewDescriptor
	if p.mnMajor {
		newDescriptor = tile.NewDescriptorMN
	}
	k.FenceProxyAsync(".shared::cta") // wgmma reads what cp.async wrote
	weights, tokens := newDescriptor(k, s.Data.Plus(p.warpgroup.MulI(p.unitBytes))), tile.NewDescriptor(k, s.Data.At(p.tokensAt(0)))
	p.byWidth(b.rows, func(columns int) {
		gemm.Multiply(k, p.element, sum[:columns/2], weights, tokens, adds, p.mnMajor, false)
	})
}

// multiplyPacked issues a wgmma group for each k-tile of a stage. The weights of a k-tile
// are unpacked while the group of the previous one is in flight.
func (p mathRole) multiplyPacked(s pipeline.Stage, b block, sum []ptx.F32, adds ptx.Pred) {
	k := p.k
	weights := fragments.NewLane(k, p.packed, k.ThreadInWarpgroup()).Block(s.Data.Plus(p.warpgroup.MulI(p.unitBytes)))
	for kt := range p.depth {
		if kt > 0 {
			k.WgmmaWait(1) // the registers of the group before the last are free
			adds = ptx.True()
		}
		a, tokens := weights.KTile(kt), tile.NewDescriptor(k, s.Data.At(p.tokensAt(kt)))
		p.byWidth(b.rows, func(columns int) { gemm.MultiplyRegisters(k, p.element, sum[:columns/2], a, tokens, adds) })
	}
	k.BarWarpSync(ptx.Uint(ptx.FullMask)) // all lanes have loaded before one releases the stage
}

// biases has the initial values of a thread's sums of a block.
type biases struct {
	given bool
	// of returns, for each part, the values of the thread's upper and lower row.
	of func(b block) [][2]ptx.F32
}

// noBias starts sums from 0.
func noBias(parts int) biases {
	zero := [2]ptx.F32{ptx.Float(0), ptx.Float(0)}
	return biases{of: func(block) [][2]ptx.F32 { return slices.Repeat([][2]ptx.F32{zero}, parts) }}
}

// setSums sets the sums of a block to its biases.
func (p *product) setSums(b block, acc [][]ptx.F32) {
	for part, rows := range p.bias.of(b) {
		for i, sum := range acc[part] {
			ptx.VarOf(sum).Set(rows[i/2%2])
		}
	}
}

// unchanged is the join function of a product that needs none.
func unchanged(rows [2]ptx.F32) [2]ptx.F32 { return rows }

// eachToken calls body for each of the thread's tokens, with the token's distance
// from the thread's first token and, for each part, the sums of the thread's two
// rows of weights, which are 8 apart. Before that, join maps each pair of sums;
// whole warps call it.
func eachToken(k *ptx.Kernel, f tile.Fragment, b block, acc [][]ptx.F32, join func(rows [2]ptx.F32) [2]ptx.F32, body func(beyond int, parts [][2]ptx.F32)) {
	var from func(i int)
	from = func(i int) {
		if i == len(acc[0]) {
			return
		}
		k.If(b.rows.GtI(2*i), func() { // otherwise no tokens are left
			for j := range 2 {
				beyond := 2*i + j
				var parts [][2]ptx.F32
				for _, sums := range acc {
					parts = append(parts, join([2]ptx.F32{sums[i+j], sums[i+2+j]}))
				}
				k.If(f.Column.AddI(beyond).Lt(b.rows), func() { body(beyond, parts) })
			}
			from(i + 4)
		})
	}
	from(0)
}

// fragment is the thread's place in its warpgroup's sums.
func fragment(k *ptx.Kernel) tile.Fragment { return tile.NewFragment(k.ThreadInWarpgroup()) }

// units are weights that are loaded in boxes of 64 rows of one part.
type units struct{ weights.Matrix }

// mnMajor reports whether rows are neighbours in memory.
func (u units) mnMajor() bool { return u.Out.Stride == 1 }

// hasPart reports whether the map has a dimension for gate and up.
func (u units) hasPart() bool { return u.Part.Extent > 1 && !u.Apart }

// tensorMap returns the map of the tensor at p.
func (u units) tensorMap(p driver.DevicePtr) gpu.TensorMap {
	// The capacity is constant so that a launch allocates nothing.
	box, dims := append(make([]int, 0, gpu.MaxTensorRank), tile.K, unitRows), make([]tile.Dim, 0, gpu.MaxTensorRank)
	if u.mnMajor() {
		dims = append(dims, u.Out, u.In)
	} else {
		dims = append(dims, u.In, u.Out)
	}
	if u.hasPart() {
		box, dims = append(box, 1), append(dims, u.Part)
	}
	return tile.LoadMap(p, append(box, 1), append(dims, u.Expert)...)
}

// at returns the coordinates of a block's weights in the k-tile that starts at column.
func (u units) at(b block, column ptx.U32, part int) []ptx.U32 {
	row := b.unit.MulI(unitRows)
	at := []ptx.U32{column, row}
	if u.mnMajor() {
		at = []ptx.U32{row, column}
	}
	if u.hasPart() {
		at = append(at, ptx.Uint(part))
	}
	return append(at, b.expert)
}

// formatOf returns the format of weights in units, or none.
func formatOf(c spec.Config, areUnits bool) fragments.Format {
	if areUnits {
		return fragments.FormatOf(c)
	}
	return fragments.Format{}
}

// loadPacked returns the load of a unit's block of a packed matrix.
func loadPacked(k *ptx.Kernel, at ptx.Global, m fragments.Matrix) loadUnit {
	return func(to, full ptx.Shared, b block, column ptx.U32, _ int) {
		unit := at.Index(b.expert.MulI(m.Units).Add(b.unit), m.UnitBytes())
		k.BulkLoad(to, unit.Index(column.DivI(fragments.Columns), m.BlockBytes()), ptx.Uint(m.BlockBytes()), full)
	}
}
