package choose

import (
	"sonicmoe/driver"
	"sonicmoe/driver/gpu"
	"sonicmoe/internal/spec"
	"sonicmoe/jit"
	"sonicmoe/jit/pipeline"
	"sonicmoe/jit/schedule"
	"sonicmoe/jit/tile"
	"sonicmoe/moe/internal/registry"
	"sonicmoe/ptx"
)

// SmallBatchLogits is the router's product of a small batch, logits = X·Wrᵀ. A CTA has 8 experts
// and 16 tokens, so that many SMs read the weights. A logit is the sum of several chains, which are
// partial sums. Each chain has a warp of its own, because the steps of a chain wait for each other.
// The sums have the same bits as Router's. With Apart, for up to [MaxApart] tokens, each chain has
// a CTA of its own, on more SMs. The kernel that chooses then adds the chains: see [ByChains].
type SmallBatchLogits struct {
	// Router is the layer's router.
	Router
	// Written is the format in which the logits are written.
	Written spec.Type
	// Apart gives each chain a CTA, which writes the chain's sums. It is for up to MaxApart tokens.
	Apart bool
}

const (
	// MaxApart is the largest batch for Apart: one group of tokens.
	MaxApart = tokenGroup
	// A CTA has ctaExperts experts. It has ctaTokens tokens, in one or two groups of 8.
	ctaExperts  = tile.WarpColumns
	ctaTokens   = tile.WarpRows
	tokenGroup  = ctaTokens / 2
	weightBytes = ctaExperts * tile.RowBytes
	tokenBytes  = ctaTokens * tile.RowBytes
	// ringBytes bounds the ring. A smaller ring delays the pass of a single token; a larger
	// one gains nothing.
	ringBytes = 100 << 10
	// maxDepth is the largest number of k-tiles that a stage has of each chain.
	maxDepth = 4
)

// SmallBatchLogitsArgs are the arguments of [SmallBatchLogits].
type SmallBatchLogitsArgs struct {
	// X [T, d] are the tokens. Weights [E, d] are the router's weights, or their terms.
	X       driver.DevicePtr
	Weights driver.DevicePtr
	// Bias [E] f32 is read if the router has a bias.
	Bias driver.DevicePtr
	// Logits [T, E] is the output. With Apart it is [chains, T, E] f32, without biases.
	Logits driver.DevicePtr
	// With Apart the kernel sets Chosen [K+1] and Tickets [2] u32 to 0.
	Chosen  driver.DevicePtr
	Tickets driver.DevicePtr
	// Tokens is T.
	Tokens int
}

// chainShape says how the product is divided into chains and stages.
type chainShape struct {
	// depth is the number of k-tiles of a chain in a stage. chains is the number of chains of the
	// CTA, and all is the number of chains of the product. A chain has `stages` stages, except that
	// the last chain has lastStages.
	depth, chains, all, stages, lastStages int
}

func (r SmallBatchLogits) shape() chainShape {
	all, chainDepth := r.chains()
	s := chainShape{depth: r.stageDepth(), chains: all, all: all}
	if r.Apart {
		s.chains = 1
	}
	s.stages = chainDepth / s.depth
	s.lastStages = r.kTiles()/s.depth - (all-1)*s.stages
	return s
}

// threads is the number of threads of a CTA: a warp for each chain, and one that loads.
func (s chainShape) threads() int { return (s.chains + 1) * 32 }

// chainOperands are the inputs and the output.
type chainOperands struct {
	x, w         ptx.TensorMap
	logits, bias ptx.Global
	// chosen and tickets are set with Apart.
	chosen, tickets ptx.Global
	tokens          ptx.U32
}

func (r SmallBatchLogits) operands(k *jit.Builder[SmallBatchLogitsArgs]) chainOperands {
	in := chainOperands{x: k.Map(&k.Args.X, r.xMap), w: k.Map(&k.Args.Weights, r.wMap), logits: k.Ptr(&k.Args.Logits)}
	if r.Apart {
		in.chosen, in.tickets = k.Ptr(&k.Args.Chosen), k.Ptr(&k.Args.Tickets)
	} else if r.Bias {
		in.bias = k.Ptr(&k.Args.Bias)
	}
	in.tokens = k.U32(&k.Args.Tokens)
	return in
}

// chainPart is a CTA's part of the product.
type chainPart struct {
	SmallBatchLogits
	chainShape
	chainOperands
	k         *ptx.Kernel
	tid, lane ptx.U32
	// first, expert and chain are the CTA's first token, expert and chain.
	first, expert, chain ptx.U32
	// box is the size of a k-tile's tokens in a stage.
	box  ptx.U32
	deep tile.Deep
}

func (r SmallBatchLogits) part(k *ptx.Kernel, s chainShape, in chainOperands) chainPart {
	p := chainPart{SmallBatchLogits: r, chainShape: s, chainOperands: in, k: k, tid: k.TidX(), lane: k.Lane(), deep: r.deep()}
	block := k.CtaidX().DivI(r.groups())
	p.first, p.expert = block.MulI(ctaTokens), k.CtaidX().Sub(block.MulI(r.groups())).MulI(ctaExperts)
	if r.Apart {
		p.first, p.chain = ptx.Uint(0), block
		p.logits = in.logits.Index(p.chain.Mul(in.tokens), 4*r.NumExperts)
	}
	p.box = ptx.Select(in.tokens.LeI(tokenGroup), ptx.Uint(tokenGroup*tile.RowBytes), ptx.Uint(tokenBytes))
	return p
}

// chainRooms is the shared memory of a CTA next to its ring.
type chainRooms struct {
	// zeros is a group of 8 tokens that are zeros, for CTAs without a second group.
	zeros ptx.Shared
	// partial has the sums of the chains if the CTA has several. meet synchronises the warps that
	// write them with the warp that reads them.
	partial ptx.Shared
	meet    pipeline.NamedBarriers
}

// rooms reserves the rooms and clears the zeros.
func (p chainPart) rooms(cta *pipeline.CTA) chainRooms {
	r := chainRooms{zeros: cta.Shared("zeros", tokenGroup*tile.RowBytes, 1024)}
	p.k.For(p.tid.MulI(16), ptx.Uint(tokenGroup*tile.RowBytes), ptx.Uint(16*p.threads()), func(at ptx.U32) {
		ptx.StShared(r.zeros.Plus(at), ptx.Uint(0), ptx.Uint(0), ptx.Uint(0), ptx.Uint(0))
	})
	if p.chains > 1 {
		r.partial = cta.Shared("partial", p.chains*chainSumsBytes, 16)
		r.meet = cta.NamedBarriers("partial", 1, p.chains*32)
	}
	return r
}

// stageDepth returns the number of k-tiles of a chain in a stage. It divides the number of all
// k-tiles, so that all stages are equal.
func (r Router) stageDepth() int {
	depth := maxDepth
	for tile.Tiles(r.Hidden)%depth != 0 {
		depth--
	}
	return depth
}

// groups returns the number of CTAs that all experts take.
func (r SmallBatchLogits) groups() int { return (r.NumExperts + ctaExperts - 1) / ctaExperts }

// Build emits the kernel.
func (r SmallBatchLogits) Build() (*jit.Kernel[SmallBatchLogitsArgs], error) {
	shape := r.shape()
	k := jit.NewBuilder[SmallBatchLogitsArgs](r.name(), shape.threads(), 1)
	k.CTAs(func(a *SmallBatchLogitsArgs) int {
		return r.groups() * ((a.Tokens + ctaTokens - 1) / ctaTokens) * shape.all / shape.chains
	})

	// Operands.
	p := r.part(k.Kernel, shape, r.operands(k))

	// Ring "ab" holds stages of X and the router's weights, of all chains of the CTA.
	cta, stageBytes := pipeline.NewCTA(k.Kernel), p.chains*p.chainBytes()
	ring := cta.Ring("ab", min(ringBytes/stageBytes, p.stages), stageBytes, 1, p.chains)
	rooms := p.rooms(cta)
	cta.Ready(p.tid)
	p.prefetch()
	k.GridDepWait()
	k.GridDepLaunch()
	p.clear()

	// Roles. The load role fills the ring. The math role multiplies, adds the chains, and stores the
	// logits.
	pipeline.Run(k.Kernel, k.Warp(),
		pipeline.Role{Name: "math", First: 0, Count: p.chains, Body: chainMath{p, rooms, ring}.run},
		pipeline.Role{Name: "load", First: p.chains, Count: 1, Body: func() { k.If(k.ElectOne(), func() { p.load(ring) }) }},
	)
	return k.Build()
}

// name returns the name of the kernel's entry, which errors show.
func (r SmallBatchLogits) name() string {
	if r.Apart {
		return "moe_chain_logits"
	}
	return "moe_small_batch_logits"
}

// prefetch loads the weights to the L2 cache. This is possible before the wait, even if the
// predecessor kernel writes them, because L2 is coherent. Terms are not prefetched: they are in the
// cache already.
func (e chainPart) prefetch() {
	if e.F32 {
		return
	}
	mine := ptx.Uint(e.kTiles() / e.depth)
	if e.Apart {
		mine = e.stagesOf(e.chain)
	}
	e.k.If(e.tid.Lt(mine), func() {
		e.deep.Each(e.kTile(0, e.tid), e.expert, func(_ int, at []ptx.U32) { e.k.TMAPrefetch(e.w, at...) })
	})
}

// clear sets Chosen and Tickets to 0.
func (e chainPart) clear() {
	k := e.k
	if !e.Apart {
		return
	}
	k.If(k.CtaidX().EqI(0).And(e.tid.LeI(e.TopK)), func() { ptx.StGlobal(e.chosen.Index(e.tid, 4), ptx.Uint(0)) })
	k.If(k.CtaidX().EqI(0).And(e.tid.EqI(0)), func() { schedule.ClearTickets(e.tickets) })
}

// ChainBytes returns the bytes of a token's sums of all chains.
func ChainBytes(c spec.Config) int {
	chains, _ := RouterOf(c).chains()
	return 4 * chains * c.NumExperts
}

// xMap returns the map that loads one or two groups of 8 tokens. It loads one group if the batch
// has no more tokens, because a box takes the same time whether or not its rows exist. Rows after
// the last token are loaded as 0.
func (r SmallBatchLogits) xMap(a *SmallBatchLogitsArgs) gpu.TensorMap {
	rows := ctaTokens
	if a.Tokens <= tokenGroup {
		rows = tokenGroup
	}
	return r.stageMap(a.X, a.Tokens, rows)
}

func (r SmallBatchLogits) wMap(a *SmallBatchLogitsArgs) gpu.TensorMap {
	return r.stageMap(a.Weights, r.lines(), ctaExperts)
}

// stageMap returns the tensor map that loads the k-tiles of a stage from the matrix at the given
// address. The matrix has the given number of lines, and a box has the given number of rows.
func (r SmallBatchLogits) stageMap(at driver.DevicePtr, lines, rows int) gpu.TensorMap {
	return r.deep().Map(at, []int{rows}, tile.Dim{Extent: lines, Stride: r.Hidden})
}

func (r SmallBatchLogits) deep() tile.Deep { return tile.Deep{Width: r.Hidden, Tiles: r.stageDepth()} }

// SmallBatchLogitsKernel is the router product of a small batch.
var SmallBatchLogitsKernel = &registry.Kernel[SmallBatchLogitsArgs]{KernelName: "small-batch-logits", Emit: func(l registry.Layer) (*jit.Kernel[SmallBatchLogitsArgs], error) {
	f := SmallBatchLogits{Router: RouterOf(l.Config), Written: spec.F32}
	if !InRouter(l.Config) {
		f.LogitsOnly, f.Written = true, l.Logits // another kernel chooses from the logits
	}
	return f.Build()
}}

// ChainLogitsKernel is the router's product of up to MaxApart tokens. The up-projection
// chooses their experts.
var ChainLogitsKernel = &registry.Kernel[SmallBatchLogitsArgs]{KernelName: "chain-logits", Only: ChoosesInProducts, Emit: func(l registry.Layer) (*jit.Kernel[SmallBatchLogitsArgs], error) {
	return SmallBatchLogits{Router: RouterOf(l.Config), Written: spec.F32, Apart: true}.Build()
}}
