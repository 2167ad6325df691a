package decode

import (
	"slices"

	"sonicmoe/internal/spec"
	"sonicmoe/jit/gemm"
	"sonicmoe/jit/pipeline"
	"sonicmoe/jit/schedule"
	"sonicmoe/jit/tile"
	"sonicmoe/moe/internal/element"
	"sonicmoe/moe/internal/fragments"
	"sonicmoe/ptx"
)

// product is the state of one product while its code is emitted: for each expert with tokens,
// weights times tokens.
type product struct {
	stage
	k       *ptx.Kernel
	element tile.Element
	sums
	kTiles int // depth of a sum in k-tiles, rounded up to whole blocks of packed weights
	cta    *pipeline.CTA
	// ring "ab" has stages of weights and tokens. Ring "copied" has barriers but no data. With
	// packed weights it tells which stages have received their tokens.
	ring, copied *pipeline.Ring
	queue        *schedule.Queue[block] // the CTA's tiles
	// progress counts the blocks that the kernel has stored. before is the progress of the kernel that
	// computes the tokens.
	progress, before progress
}

// sums describes the sums of a product. Each sum multiplies a row of weights with a token, column
// by column.
type sums struct {
	// columns is the number of terms of a sum. units is the number of units of an expert.
	columns, units int
	// parts is the number of sums for a row of a unit and a token. It is 2 if gate and up have
	// stages of their own, else 1.
	parts int
	// mnMajor reports whether the weights in a stage are contiguous along the rows.
	mnMajor bool
	// bias has the initial values of the sums.
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

// newProduct reserves the rings and the queue of a product.
func newProduct(k *ptx.Kernel, cta *pipeline.CTA, of stage, c spec.Config, s sums) *product {
	// A stage is full after one arrival for the bytes of the weights, and the arrivals for the
	// tokens: one of each lane that copies tokens, or one of the thread that fences them.
	stages, tokens, kTiles := of.stages(), 32, tile.Tiles(s.columns)
	var copied *pipeline.Ring
	if of.packed.IsPacked() {
		kTiles = fragments.Blocks(s.columns) * fragments.KTiles
		copied, tokens = cta.Ring("copied", stages, 0, tokens*of.copiers(), 1), 1
	}
	const words, weightsWarp = 4, 1
	return &product{
		stage: of, k: k, element: element.Of(c), sums: s, cta: cta, kTiles: kTiles,
		copied: copied, ring: cta.Ring("ab", stages, of.bytes(), 1+tokens, of.mathWarps()),
		queue: schedule.NewQueue[block](k, cta, words, of.mathWarps()+of.loadWarps()-weightsWarp, 1),
	}
}

// byWidth emits body for each width in columns. At run time the narrowest width that has room for
// the rows runs.
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

// eachCopy emits body once for every copyRows rows of a stage that a warp copies. At run time only the
// copies run that cover the narrowest width with room for the rows.
func (p *product) eachCopy(rows ptx.U32, body func(i int)) {
	widths := p.widths()
	var from func(i, width int)
	from = func(i, width int) {
		for ; i < widths[width]/copyRows/p.copiers(); i++ {
			body(i)
		}
		if width++; width < len(widths) {
			p.k.If(rows.GtI(widths[width-1]), func() { from(i, width) })
		}
	}
	from(0, 0)
}

// stages returns the number of stages that a sum takes.
func (p *product) stages() int { return ceil(p.kTiles, p.depth) * p.parts }

// rest returns the number of k-tiles of a sum's last stage if it has fewer than the others, else 0.
func (p *product) rest() int { return p.kTiles % p.depth }

// bytesAt returns the size of a unit's weights in the stage that starts at a column.
func (p *product) bytesAt(column ptx.U32) ptx.U32 {
	if p.rest() == 0 {
		return ptx.Uint(p.unitBytes)
	}
	return ptx.Select(column.EqI((p.kTiles-p.rest())*tile.K), ptx.Uint(p.unitBytes/p.depth*p.rest()), ptx.Uint(p.unitBytes))
}

// tokens describes the rows of tokens in memory.
type tokens struct {
	at ptx.Global
	// rowBytes is the length of a row. A k-tile that is longer than the row is filled with zeros.
	rowBytes int
	// number returns the index in memory of a block's row. The parameter row counts from the
	// block's first row.
	number func(b block, row ptx.U32) ptx.U32
}

// loadUnit loads a unit's part of a stage, which has a number of bytes. column is the first column,
// part is 0 for gate and 1 for up.
type loadUnit func(to, full ptx.Shared, b block, column, bytes ptx.U32, part int)

// run emits the roles: "math" has one warpgroup for each unit, "load" has one warp for
// weights and one or two for tokens. run calls store with the sums of each block. boxes are the boxes
// through which store stores, if any.
func (p *product) run(in operands, boxes boxes, store func(b block, acc [][]ptx.F32)) {
	k := p.k
	p.cta.Ready(k.TidX())
	if !in.early {
		k.GridDepWait()
		k.GridDepLaunch()
	}
	in.table.prepare()
	tiles := scheduler{p, in.table, in.tickets}
	warpgroup := k.Warpgroup()
	if p.packed.IsPacked() {
		// The shuffle makes the assembler assume the same value in all lanes. The assembler then
		// keeps the addresses of the main loop in uniform registers, where wgmma needs them.
		warpgroup = warpgroup.ShflIdx(ptx.Uint(0))
	}
	pipeline.Run(k, warpgroup,
		pipeline.Role{Name: "math", First: 0, Count: p.shape.units, Body: func() { mathRole{p, warpgroup}.run(tiles, boxes, store) }},
		pipeline.Role{Name: "load", First: p.shape.units, Count: 1, Body: func() {
			k.IfElse(k.Warp().EqI(p.mathWarps()),
				func() { k.If(k.ElectOne(), func() { p.loadWeights(tiles, in.weights) }) },
				func() {
					tokens := func() { p.loadReady(tiles, in) }
					if p.packed.IsPacked() {
						k.IfElse(p.copiesTokens(), tokens, func() { k.If(k.ElectOne(), func() { p.follow(tiles) }) })
					} else {
						tokens()
					}
				})
		}},
	)
}

// copiesTokens reports whether the warp is one of those that copy tokens.
func (p *product) copiesTokens() ptx.Pred {
	first := p.mathWarps() + 1
	if p.copiers() == 1 {
		return p.k.Warp().EqI(first)
	}
	return p.k.Warp().SubI(first).LtI(p.copiers())
}

// loadReady loads the tokens when they are there.
func (p *product) loadReady(tiles scheduler, in operands) {
	k := p.k
	switch {
	case p.before.units > 0:
		k.GridDepLaunch()
		p.before.begin(k)
		p.loadTokens(tiles, in.tokens, func(tile block) { p.before.await(k, tile) })
		k.GridDepWait() // a kernel that waits for this one may rely on the end of the kernel before
	case in.early:
		k.GridDepWait()
		k.GridDepLaunch()
		p.loadTokens(tiles, in.tokens, func(block) {})
	default:
		p.loadTokens(tiles, in.tokens, func(block) {})
	}
}

// loadWeights fills the weights' part of the stages. It runs in one thread.
func (p *product) loadWeights(tiles scheduler, load loadUnit) {
	k, ring := p.k, p.ring.Producer()
	tiles.publish(func(b block, before func(column ptx.U32)) {
		k.For(ptx.Uint(0), ptx.Uint(p.kTiles*tile.K), ptx.Uint(p.depth*tile.K), func(column ptx.U32) {
			before(column)
			bytes := p.bytesAt(column)
			for part := range p.parts {
				s := ring.Acquire()
				k.MbarrierArriveExpectTx(s.Full, b.units.Mul(bytes))
				for i := range p.shape.units {
					of := b
					of.unit = b.unit.AddI(i)
					k.If(b.units.GtI(i), func() { load(s.Data.At(i*p.unitBytes), s.Full, of, column, bytes, part) })
				}
				ring.Advance()
			}
		})
	})
}

// mathRole multiplies in one warpgroup.
type mathRole struct {
	*product
	warpgroup ptx.U32 // number of the warpgroup
}

// run multiplies each of the warpgroup's blocks and passes the sums to store. Rows of the sums are
// rows of weights, and columns are tokens.
func (p mathRole) run(tiles scheduler, boxes boxes, store func(b block, acc [][]ptx.F32)) {
	k := p.k
	sums := make([][]ptx.F32, p.parts)
	for part := range sums {
		sums[part] = k.Accumulators(p.tokens / 2) // the threads also write the sums past a block's width to a box; TMA drops them
	}
	hasStored := p.progress.hasStored(k)
	loop := gemm.MainLoop{K: k, Ring: p.ring.Consumer(), Release: pipeline.NewReleaser(k, k.Lane(), 1)}
	tiles.read(func(b block) {
		has := p.warpgroup.Lt(b.units)
		b.unit = b.unit.Add(p.warpgroup)
		k.IfElse(has, func() { p.compute(loop, sums, b, store) }, func() { loop.Drain(ptx.Uint(p.stages())) })
		hasStored()
	})
	if boxes.given() {
		boxes.finish()
	}
}

// warpTokens is the largest number of tokens that warps multiply on their own.
const warpTokens = tile.WarpColumns

// compute multiplies a block and passes the sums to store.
func (p mathRole) compute(loop gemm.MainLoop, sums [][]ptx.F32, b block, store func(b block, acc [][]ptx.F32)) {
	byWarps := func() { store(b, [][]ptx.F32{p.multiplyByWarps(loop, b)}) }
	byWarpgroup := func() {
		p.multiply(loop, sums, b)
		store(b, sums)
	}
	switch {
	case p.hasBoxes(): // nearly always more tokens
		p.multiplyWide(loop, sums[0], b)
		store(b, sums)
	case !p.packed.IsPacked():
		byWarpgroup()
	case p.tokens <= warpTokens:
		byWarps()
	default:
		p.k.IfElse(b.rows.LeI(warpTokens), byWarps, byWarpgroup)
	}
}

// multiplyByWarps returns the sums of a block with up to warpTokens tokens. Each warp multiplies 16 rows
// of its unit by mma.sync, which gives the bits of wgmma. wgmma takes as long for 8 tokens as for 16, and
// needs descriptors and all four warps at once. A warp that uses mma.sync needs fewer instructions, and
// does not wait for other warps.
func (p mathRole) multiplyByWarps(loop gemm.MainLoop, b block) []ptx.F32 {
	k := p.k
	sum := k.Accumulators(tile.WarpSums)
	if p.bias.given {
		p.setSums(b, [][]ptx.F32{sum})
	} else {
		for _, s := range sum {
			ptx.VarOf(s).Set(ptx.Float(0))
		}
	}
	product := tile.NewWarpProduct(k, p.element, k.Lane())
	k.Range(ptx.Uint(p.kTiles/p.depth), func(ptx.U32) { p.stageByWarps(loop, product, p.depth, sum) })
	if p.rest() > 0 {
		p.stageByWarps(loop, product, p.rest(), sum)
	}
	return sum
}

// stageByWarps multiplies a number of k-tiles of the next stage by up to warpTokens tokens.
func (p mathRole) stageByWarps(loop gemm.MainLoop, product tile.WarpProduct, kTiles int, sum []ptx.F32) {
	k := p.k
	s := loop.Ring.Wait()
	weights := p.newUnit(s)
	for kt := range kTiles {
		tokens := product.B(s.Data.At(p.tokensAt(kt)))
		steps := weights.kTile(kt)
		a := slices.Concat(steps[:]...)
		if kt == kTiles-1 {
			k.BarWarpSync(ptx.Uint(ptx.FullMask)) // all lanes have loaded before one lane releases the stage
			loop.Release.Release(s, ptx.True())
		}
		product.Multiply(sum, a, tokens, 0, tile.K/tile.KStep)
	}
	loop.Ring.Advance()
}

// restByWarps multiplies the last stage of a sum, if it has fewer k-tiles than the others, after wgmma
// has multiplied the other stages. A sum of mma.sync is in the same registers as a sum of wgmma.
func (p mathRole) restByWarps(loop gemm.MainLoop, b block, sum []ptx.F32) {
	k, product := p.k, tile.NewWarpProduct(p.k, p.element, p.k.Lane())
	s := loop.Ring.Wait()
	weights := p.newUnit(s)
	for kt := range p.rest() {
		steps := weights.kTile(kt)
		a := slices.Concat(steps[:]...)
		for i := 0; i < p.tokens; i += warpTokens {
			k.If(b.rows.GtI(i), func() {
				tokens := product.B(s.Data.At(p.tokensAt(kt) + i*tile.RowBytes))
				product.Multiply(sum[i*tile.WarpSums/warpTokens:][:tile.WarpSums], a, tokens, 0, tile.K/tile.KStep)
			})
		}
	}
	k.BarWarpSync(ptx.Uint(ptx.FullMask)) // all lanes have loaded before one lane releases the stage
	loop.Release.Release(s, ptx.True())
	loop.Ring.Advance()
}

// multiply computes the sums of a block. A branch chooses the width for each k-tile. One loop for
// all widths compiles in a third of the time, and the branches run during the wgmma of the previous
// k-tile.
func (p mathRole) multiply(loop gemm.MainLoop, sums [][]ptx.F32, b block) {
	k := p.k
	// A sum of a single stage starts from explicit zeros, because ptxas would serialise its wgmma
	// otherwise.
	isOne := p.kTiles/p.depth == 1
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
	if p.rest() > 0 { // a second loop would make the assembler serialise wgmma
		p.restByWarps(loop, b, sums[0])
	}
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

// unit has the packed weights of the warpgroup's unit in a stage.
type unit struct {
	lane  fragments.Lane
	at    ptx.Shared
	block fragments.Block // the block of the present k-tile
}

// newUnit starts to read a stage.
func (p mathRole) newUnit(s pipeline.Stage) *unit {
	return &unit{lane: fragments.NewLane(p.k, p.packed, p.k.ThreadInWarpgroup()), at: s.Data.Plus(p.warpgroup.MulI(p.unitBytes))}
}

// kTile returns the fragments of a k-tile. The caller takes the k-tiles in order.
func (u *unit) kTile(kt int) [tile.K / tile.KStep][]ptx.U32 {
	if kt%fragments.KTiles == 0 {
		u.block = u.lane.Block(u.at.At(kt / fragments.KTiles * u.lane.BlockBytes()))
	}
	return u.block.KTile(kt % fragments.KTiles)
}

// multiplyPacked issues a wgmma group for each k-tile of a stage. It unpacks the weights of a
// k-tile while the wgmma group of the previous k-tile is in flight.
func (p mathRole) multiplyPacked(s pipeline.Stage, b block, sum []ptx.F32, adds ptx.Pred) {
	k := p.k
	weights := p.newUnit(s)
	for kt := range p.depth {
		if kt > 0 {
			k.WgmmaWait(1) // frees the registers of the group before the last one
			adds = ptx.True()
		}
		a, tokens := weights.kTile(kt), tile.NewDescriptor(k, s.Data.At(p.tokensAt(kt)))
		p.byWidth(b.rows, func(columns int) { gemm.MultiplyRegisters(k, p.element, sum[:columns/2], a, tokens, adds) })
	}
	k.BarWarpSync(ptx.Uint(ptx.FullMask)) // all lanes have loaded before one lane releases the stage
}

// setSums sets the sums of a block to its biases.
func (p *product) setSums(b block, acc [][]ptx.F32) {
	for part, rows := range p.bias.of(b) {
		for i, sum := range acc[part] {
			ptx.VarOf(sum).Set(rows[i/2%2])
		}
	}
}

// unchanged is the parameter join of [eachToken] for a product that leaves the sums as they are.
func unchanged(rows [2]ptx.F32) [2]ptx.F32 { return rows }

// eachToken calls body for each token of the thread's sums. body gets the token's distance from the
// thread's first token and, for each part, the sums of the thread's two rows of weights, which are
// 8 apart. Before body gets such a pair of sums, the function join maps it. All lanes of a warp
// call join.
func eachToken(k *ptx.Kernel, f tile.Fragment, b block, acc [][]ptx.F32, join func(rows [2]ptx.F32) [2]ptx.F32, body func(beyond int, parts [][2]ptx.F32)) {
	var from func(i int)
	from = func(i int) {
		if i == len(acc[0]) {
			return
		}
		k.If(b.rows.GtI(2*i), func() { // otherwise the thread has no more tokens
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

// fragment is the thread's position in its warpgroup's sums.
func fragment(k *ptx.Kernel) tile.Fragment { return tile.NewFragment(k.ThreadInWarpgroup()) }
