package decode

import (
	"sonicmoe/driver"
	"sonicmoe/internal/spec"
	"sonicmoe/jit"
	"sonicmoe/jit/gemm"
	"sonicmoe/jit/pipeline"
	"sonicmoe/jit/schedule"
	"sonicmoe/jit/tile"
	"sonicmoe/moe/internal/element"
	"sonicmoe/moe/internal/route/choose"
	"sonicmoe/moe/internal/weights"
	"sonicmoe/ptx"
)

// shape is that of a CTA: so many warpgroups multiply, each its unit with the same
// tokens, up to so many at once, one warp loads weights and one tokens. An expert with
// more tokens has its weights read again, from the L2 cache.
type shape struct{ units, tokens int }

var (
	narrow = shape{2, mostTokens}
	// wide has tokens come to an SM once for 256 rows of weights: where experts have
	// many, they take more of its way in than weights do.
	wide = shape{4, mostTokens}
	// small has room for twice the weights on their way, as stages have few tokens.
	small = shape{2, MostSmall}
)

func shapeOf(isWide, isSmall bool) shape {
	switch {
	case isWide:
		return wide
	case isSmall:
		return small
	}
	return narrow
}

// prefix is that of kernels' names.
func (s shape) prefix() string {
	switch s {
	case wide:
		return "wide_"
	case small:
		return "small_"
	}
	return ""
}

func (s shape) mathWarps() int { return s.units * pipeline.WarpgroupThreads / 32 }
func (s shape) threads() int   { return 32 * (s.mathWarps() + 2) }

// tokensAt is where a stage's tokens lie, behind the weights.
func (s shape) tokensAt() int   { return s.units * weightsBytes }
func (s shape) stageBytes() int { return s.tokensAt() + s.tokens*tile.RowBytes }

// stages is how many the ring has.
func (s shape) stages() int {
	return ringBytes / s.stageBytes()
}

const (
	// ringBytes are about as many as fit in an SM's shared memory.
	ringBytes    = 192 << 10
	unitRows     = 64 // of weights
	weightsBytes = unitRows * tile.RowBytes
	mostTokens   = 128
	// MostSmall is the tokens of a pass for small CTAs.
	MostSmall = choose.MostApart
	// copyRows are the tokens that the tokens' warp copies 16 bytes each of at
	// a time.
	copyRows = 32 / tile.LanesOfRow
)

// MostTokens is the number of tokens of a pass up to which these kernels gain: on an H200
// they were level at more than 23,000 rows of 512 experts.
const MostTokens = 2048

// WideFrom is the tokens of a pass from which CTAs are better wide: 48 an expert, on
// average, measured on an H200. 0 means that they never are.
func WideFrom(c spec.Config) int {
	const rows = 48
	switch {
	case c.NumExperts <= 1: // all of whose units are last turns'
		return 0
	case (Up{Config: c}).parts() > 1: // whose sums don't fit in the registers
		return 0
	case rows*c.NumExperts > min(16384, MostTokens*c.TopK): // more rows than they were measured with
		return 0
	}
	return (rows*c.NumExperts + c.TopK - 1) / c.TopK
}

// hasWide: there are kernels whose CTAs are wide.
func hasWide(c spec.Config) bool { return WideFrom(c) > 0 }

// product is a product that is being emitted: for each expert with tokens,
// weights times tokens.
type product struct {
	shape
	k               *ptx.Kernel
	element         tile.Element
	table, rowPairs ptx.Global
	// kTiles is the depth of a sum in tiles of 64, units the units of an expert.
	kTiles, units int
	// parts is the sums of a row and token: a k-tile has as many stages, of gate
	// and of up where these come apart.
	parts int
	// mnMajor: neighbours of the weights in a stage are rows.
	mnMajor bool
	// bias, unless nil, is what the thread's sums of a block start from: of each
	// part those of its upper row and of its lower one.
	bias   func(b block) [][2]ptx.F32
	thread ptx.U32
	// early: weights and table do not depend on the kernel before this one, only
	// the tokens do; or, told, the table's length is 0 until that one has written it.
	early, told bool
	// chosen, unless nil, is the plan that the CTA has made itself.
	chosen *choice
	cta    *pipeline.CTA
	ring   *pipeline.Ring
	turns  *turns
}

func newProduct(k *ptx.Kernel, of shape, c spec.Config, params jit.Params, args *gemm.TileArgs, kTiles, units int) *product {
	p := &product{shape: of, k: k, element: element.Of(c), table: params.Ptr(&args.Table), rowPairs: params.Ptr(&args.RowPairs), kTiles: kTiles, units: units, parts: 1,
		thread: k.TidX(), cta: pipeline.NewCTA(k)}
	// A stage is full when the weights' bytes have come, and the copies of every
	// lane of the tokens' warp.
	p.ring = p.cta.Ring("ab", of.stages(), of.stageBytes(), 1+32, of.mathWarps())
	p.turns = newTurns(p, params.Ptr(&args.Tickets))
	return p
}

// ctas is the number of CTAs for so many rows of tokens: one on each SM, or as
// many as there can be units.
func ctas(rows, experts, units, sms int) driver.Dim3 {
	pairs := min(rows, experts+rows/schedule.PairRows)
	return driver.Dim3{X: max(1, min(sms, pairs*units))}
}

// widths are the numbers of columns that the tokens of a block may take: every one
// more is brought to the SM as weights are.
var widths = []int{8, 16, 24, 32, 48, 64, 72, 80, 88, 96, 112, mostTokens}

// byWidth emits body for each width, and runs that of the narrowest that has so many
// rows.
func (p *product) byWidth(rows ptx.U32, body func(columns int)) {
	var from func(widths []int)
	from = func(widths []int) {
		if len(widths) == 1 {
			body(widths[0])
			return
		}
		half := len(widths) / 2
		p.k.IfElse(rows.LeI(widths[half-1]), func() { from(widths[:half]) }, func() { from(widths[half:]) })
	}
	from(p.widths())
}

// widths are those that a block may have.
func (s shape) widths() []int {
	if s == small {
		return []int{s.tokens}
	}
	return widths
}

// tokens are where the rows of tokens come from.
type tokens struct {
	at ptx.Global
	// rowBytes is the length of a row: what the k-tiles have beyond it is 0.
	rowBytes int
	// number is which row one of a block's is.
	number func(b block, row ptx.U32) ptx.U32
}

// run emits the roles. weights loads a unit's part of a stage, columns from the given
// one on; store has the sums of each part.
func (p *product) run(weights func(to, full ptx.Shared, b block, column ptx.U32, part int), t tokens, store func(b block, acc [][]ptx.F32)) {
	k := p.k
	p.cta.Ready(p.thread)
	if !p.early {
		k.GridDepWait()
		k.GridDepLaunch()
	}
	if p.chosen != nil {
		p.chosen.choose()
	}
	pipeline.Run(k, p.thread.ShrI(7),
		pipeline.Role{Name: "math", First: 0, Count: p.shape.units, Body: func() { p.math(store) }},
		pipeline.Role{Name: "load", First: p.shape.units, Count: 1, Body: func() {
			k.IfElse(p.thread.ShrI(5).EqI(p.mathWarps()),
				func() { k.If(k.ElectOne(), func() { p.loadWeights(weights) }) },
				func() {
					if p.early {
						k.GridDepWait()
						k.GridDepLaunch()
					}
					p.loadTokens(t)
				})
		}},
	)
}

// loadWeights fills the first part of the stages, in one thread.
func (p *product) loadWeights(weights func(to, full ptx.Shared, b block, column ptx.U32, part int)) {
	k, ring := p.k, p.ring.Producer()
	p.turns.publish(func(b block, before func(column ptx.U32)) {
		k.For(ptx.Uint(0), ptx.Uint(p.kTiles*tile.K), ptx.Uint(tile.K), func(column ptx.U32) {
			before(column)
			for part := range p.parts {
				s := ring.Acquire()
				k.MbarrierArriveExpectTx(s.Full, b.units.MulI(weightsBytes))
				for i := range p.shape.units {
					of := b
					of.unit = b.unit.AddI(i)
					k.If(b.units.GtI(i), func() { weights(s.Data.At(i*weightsBytes), s.Full, of, column, part) })
				}
				ring.Advance()
			}
		})
	})
}

// loadTokens fills the second part: 8 lanes copy a row's 128 bytes, 4 rows at a
// time. Rows past the last, up to what is multiplied, repeat it.
func (p *product) loadTokens(t tokens) {
	k, ring := p.k, p.ring.Producer()
	lane := p.thread.AndI(31)
	copier := tile.NewRowCopy(k, lane, tile.LanesOfRow)
	first := copier.Row()
	at := t.at.Plus(copier.Chunk.MulI(tile.CopyBytes).U64())
	// Every other pass is in the lower half of a swizzle pattern of 8 rows.
	to := [2]ptx.U32{copier.Swizzled(first), copier.Swizzled(first.AddI(copyRows))}
	from := ptx.NewVars(k, p.tokens/copyRows, ptx.Long(0))
	p.turns.read(func(b block) {
		last := b.rows.SubI(1)
		p.eachCopy(b.rows, func(i int) {
			from[i].Set(at.Index(t.number(b, first.AddI(copyRows*i).Min(last)), t.rowBytes).Addr())
		})
		k.Range(ptx.Uint(p.kTiles), func(kt ptx.U32) {
			var bytes []ptx.U32
			if t.rowBytes != p.kTiles*tile.RowBytes {
				bytes = append(bytes, tile.BytesIf(kt.MulI(tile.LanesOfRow).Add(copier.Chunk).LtI(t.rowBytes/tile.CopyBytes)))
			}
			for part := range p.parts {
				s := ring.Acquire()
				p.eachCopy(b.rows, func(i int) {
					copier.Copy(s.Data.At(p.tokensAt()+i/2*2*copyRows*tile.RowBytes).Plus(to[i%2]), ptx.GlobalAt(from[i].Get()), bytes...)
					if part == p.parts-1 {
						from[i].Set(from[i].Get().AddI(tile.RowBytes))
					}
				})
				k.CpAsyncMbarrierArriveNoInc(s.Full)
				ring.Advance()
			}
		})
	})
}

// eachCopy emits body once for each copyRows rows of a stage, and runs it for those of
// the narrowest width that has so many rows.
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

// math multiplies each of the warpgroup's blocks and hands the sums to store: rows
// are rows of weights, columns tokens.
func (p *product) math(store func(b block, acc [][]ptx.F32)) {
	k := p.k
	sums := make([][]ptx.F32, p.parts)
	for part := range sums {
		sums[part] = k.Accumulators(p.tokens / 2)
	}
	newDescriptor := tile.NewDescriptor
	if p.mnMajor {
		newDescriptor = tile.NewDescriptorMN
	}
	loop := gemm.MainLoop{K: k, Ring: p.ring.Consumer(), Release: pipeline.NewReleaser(k, p.thread.AndI(31), 1)}
	// In this role, thread is that of the warpgroup.
	warpgroup, ofCTA := p.thread.ShrI(7), p.thread
	p.thread = p.thread.AndI(pipeline.WarpgroupThreads - 1)
	defer func() { p.thread = ofCTA }()
	unit := warpgroup.MulI(weightsBytes)
	p.turns.read(func(b block) {
		has := warpgroup.Lt(b.units)
		b.unit = b.unit.Add(warpgroup)
		k.IfElse(has, func() {
			p.multiply(loop, newDescriptor, unit, sums, b)
			store(b, sums)
		}, func() { loop.Drain(ptx.Uint(p.kTiles * p.parts)) })
	})
}

// multiply sums a block.
func (p *product) multiply(loop gemm.MainLoop, newDescriptor func(k *ptx.Kernel, at ptx.Shared) tile.Descriptor, unit ptx.U32, sums [][]ptx.F32, b block) {
	k := p.k
	p.startSums(b, sums)
	f := loop.Begin()
	multiply := func(kt ptx.U32) {
		for part, sum := range sums {
			f.One(p.isLater(kt, part > 0), 1, func(s pipeline.Stage) {
				k.FenceProxyAsync(".shared::cta") // wgmma shall see what cp.async has written
				weights, tokens := newDescriptor(k, s.Data.Plus(unit)), tile.NewDescriptor(k, s.Data.At(p.tokensAt()))
				p.byWidth(b.rows, func(columns int) {
					gemm.Multiply(k, p.element, sum[:columns/2], weights, tokens, p.isLater(kt, p.started()), p.mnMajor, false)
				})
			})
		}
	}
	if p.kTiles == 1 {
		multiply(ptx.Uint(0))
	} else {
		k.Range(ptx.Uint(p.kTiles), multiply)
	}
	f.Finish()
}

// isLater: a k-tile is not the first, or something comes before that one too.
func (p *product) isLater(kt ptx.U32, always bool) ptx.Pred {
	if always {
		return ptx.True()
	}
	return kt.NeI(0)
}

// started: the sums of a block are set before its first stages, to biases or, of
// one k-tile, to 0: ptxas would serialise a wgmma that starts them.
func (p *product) started() bool { return p.bias != nil || p.kTiles == 1 }

// startSums sets the sums of a block, which are otherwise started by its first
// stages.
func (p *product) startSums(b block, acc [][]ptx.F32) {
	if !p.started() {
		return
	}
	rows := make([][2]ptx.F32, len(acc))
	for part := range rows {
		rows[part] = [2]ptx.F32{ptx.Float(0), ptx.Float(0)}
	}
	if p.bias != nil {
		rows = p.bias(b)
	}
	for part := range rows {
		for i, sum := range acc[part] {
			ptx.VarOf(sum).Set(rows[part][i/2%2])
		}
	}
}

// eachToken runs body for each of the thread's tokens: its number in the block,
// as a constant beyond that of the thread's first, and of each part the two sums
// of it, 8 rows of weights apart, or what join, where there is one, has a warp make of
// them.
func eachToken(k *ptx.Kernel, f tile.Fragment, b block, acc [][]ptx.F32, join func(rows [2]ptx.F32) [2]ptx.F32, body func(beyond int, parts [][2]ptx.F32)) {
	var from func(i int)
	from = func(i int) {
		if i == len(acc[0]) {
			return
		}
		k.If(b.rows.GtI(2*i), func() { // then there are more tokens
			for j := range 2 {
				beyond := 2*i + j
				var parts [][2]ptx.F32
				for _, sums := range acc {
					rows := [2]ptx.F32{sums[i+j], sums[i+2+j]}
					if join != nil {
						rows = join(rows)
					}
					parts = append(parts, rows)
				}
				k.If(f.Column.AddI(beyond).Lt(b.rows), func() { body(beyond, parts) })
			}
			from(i + 4)
		})
	}
	from(0)
}

// units are weights in boxes of 64 rows of one part.
type units struct{ weights.Matrix }

// mnMajor reports whether neighbours in memory are rows.
func (u units) mnMajor() bool { return u.Out.Stride == 1 }

// hasPart: the map has a dimension for gate and up.
func (u units) hasPart() bool { return u.Part.Extent > 1 && !u.Apart }

// tensorMap is the map of the tensor at p.
func (u units) tensorMap(p driver.DevicePtr) driver.TensorMap {
	// Of a constant capacity, so that a launch takes no memory.
	box, dims := append(make([]int, 0, driver.MaxTensorRank), tile.K, unitRows), make([]tile.Dim, 0, driver.MaxTensorRank)
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

// at are the coordinates of a block's weights: of the sum the 64 from column on.
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
