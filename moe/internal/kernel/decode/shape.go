package decode

import (
	"slices"
	"sonicmoe/driver/gpu"
	"sonicmoe/internal/spec"
	"sonicmoe/jit/pipeline"
	"sonicmoe/jit/schedule"
	"sonicmoe/jit/tile"
	"sonicmoe/moe/internal/fragments"
	"sonicmoe/moe/internal/route/choose"
)

// shape is the shape of a CTA and its tiles. The CTA has `units` math warpgroups. Each multiplies
// 64 rows of weights by the same tokens, at most `tokens` of them at once. One warp loads weights,
// and one or two load tokens. If an expert has more tokens, its weights are read again, from the L2
// cache.
type shape struct{ units, tokens int }

// There are five shapes, because each of them is faster for some layers and batches.
// decode.md of the benchmarks has the gains and the prices.
var (
	narrow = shape{2, tileTokens}
	// wide loads tokens once for 256 rows of weights. With many tokens an expert, the loads of
	// tokens take more of an SM's bandwidth than the loads of weights.
	wide = shape{4, tileTokens}
	// mid has room for 96 tokens, for packed weights.
	mid = shape{2, 96}
	// few has room for fewer tokens, for packed weights. Its stages are smaller than those of narrow,
	// so the ring has more of them.
	few = shape{2, 32}
	// tiny has small stages, and so twice as many of them: twice the weights are in flight.
	tiny = shape{2, MaxTiny}
)

// packedShapes maps a shape to its replacement for packed weights. Packed weights have a quarter or
// a half of the bytes, so the tokens take a larger part of an SM's bandwidth. Narrow, mid, few and tiny CTAs
// therefore have four units, which share the tokens. Wide CTAs unpack each weight once for 128 tokens,
// not for 64. They have three units, which leaves each thread enough registers for the sums.
var packedShapes = map[shape]shape{narrow: {4, 64}, mid: {4, 96}, few: {4, 32}, wide: {3, tileTokens}, tiny: {4, MaxTiny}}

// kind selects a kernel of a product. CTAs are narrow unless wide, mid, few or tiny is true. units
// reports whether the weights are units of packed weights.
type kind struct{ wide, mid, few, tiny, units bool }

// hasProgress reports whether the down-projection follows the progress of the up-projection.
func (k kind) hasProgress() bool { return k.units && k.few }

// name returns the part of the kernel's name that tells its kind.
func (k kind) name() (name string) {
	if k.units {
		name = "units_"
	}
	switch {
	case k.wide:
		name += "wide_"
	case k.mid:
		name += "mid_"
	case k.few:
		name += "few_"
	case k.tiny:
		name += "tiny_"
	}
	return name
}

func (k kind) shape() shape {
	s := narrow
	switch {
	case k.wide:
		s = wide
	case k.mid:
		s = mid
	case k.few:
		s = few
	case k.tiny:
		s = tiny
	}
	if k.units {
		return packedShapes[s]
	}
	return s
}

// hasLoops reports whether the products of packed weights have a loop for each width, see [wideLoop].
func (s shape) hasLoops() bool { return s == packedShapes[wide] || s == packedShapes[mid] }

// copiers returns the number of warps that copy tokens. Wide and mid CTAs of packed weights have room
// for a second one: 16 warps leave each thread as many registers as 15, and 20 as many as 19.
func (s shape) copiers() int {
	if s.hasLoops() {
		return 2
	}
	return 1
}

// groups returns the number of wgmma groups that are in flight while a warp of a wide or mid CTA
// unpacks a step. A second one takes registers, which mid CTAs do not have.
func (s shape) groups() int {
	if s == packedShapes[wide] {
		return 2
	}
	return 1
}

func (s shape) mathWarps() int { return s.units * pipeline.WarpgroupThreads / 32 }

// stage is the layout of a stage of the ring: weights, then tokens.
type stage struct {
	shape
	// packed is the format of packed weights.
	packed fragments.Format
	// depth is the number of k-tiles. unitBytes is the size of a unit's weights in a stage.
	depth, unitBytes int
	// counts reports whether the kernel counts its progress.
	counts bool
}

// stageOf returns the stages of a product whose sums have a number of columns. A stage of packed weights
// has one block of each unit. With codes of 4 bits it has two, if the ring has room: waits, addresses and
// the loop then take fewer instructions a block. If the number of blocks is odd, the last stage has one.
func stageOf(c spec.Config, columns int, k kind) stage {
	s, f := k.shape(), fragments.Format{}
	if k.units {
		f = fragments.FormatOf(c)
		const least = 3 // stages of a ring
		one, two := stage{s, f, fragments.KTiles, f.BlockBytes(), false}, stage{s, f, 2 * fragments.KTiles, 2 * f.BlockBytes(), false}
		if fragments.Blocks(columns) > 1 && f.Code.Bits() == 4 && !s.hasLoops() && packedRingBytes/two.bytes() >= least {
			return two
		}
		return one
	}
	return stage{s, f, 1, weightsBytes, false}
}

// loadWarps returns the number of warps that load: one for weights, one or two for tokens and, with
// packed weights, one that fences the tokens, and one that counts the progress.
func (s stage) loadWarps() int {
	warps := 1 + s.copiers()
	if s.packed.IsPacked() {
		warps++
	}
	if s.counts {
		warps++
	}
	return warps
}

func (s stage) threads() int { return 32 * (s.mathWarps() + s.loadWarps()) }

// tokensAt returns the offset of a k-tile's tokens in a stage. It is a multiple of the swizzle
// pattern.
func (s stage) tokensAt(kTile int) int {
	const pattern = patternRows * tile.RowBytes
	return (s.shape.units*s.unitBytes+pattern-1)/pattern*pattern + kTile*s.tokens*tile.RowBytes
}

func (s stage) bytes() int { return s.tokensAt(s.depth) }

// hasBoxes reports whether the products store through [boxes]. A wide or mid tile of packed weights has
// many results, whose single stores of 2 bytes would take long.
func (s stage) hasBoxes() bool { return s.packed.IsPacked() && s.hasLoops() }

// stages returns the number of stages of a ring.
func (s stage) stages() int {
	switch {
	case s.hasBoxes():
		return min(packedRingBytes, boxedRingBytes-s.shape.units*boxBytes(tile.K)) / s.bytes()
	case s.packed.IsPacked():
		return packedRingBytes / s.bytes()
	}
	return ringBytes / s.bytes()
}

const (
	// ringBytes nearly fills an SM's shared memory. packedRingBytes fills it further, because
	// packed weights gain from each stage that fits. boxedRingBytes includes the boxes.
	ringBytes       = 192 << 10
	packedRingBytes = 208 << 10
	boxedRingBytes  = 225 << 10
	unitRows        = 64 // rows of weights in a unit
	weightsBytes    = unitRows * tile.RowBytes
	tileTokens      = 128
	// MaxTiny is the largest batch for tiny CTAs.
	MaxTiny = choose.MaxApart
	// widthStep is the step between numbers of columns of wgmma.
	widthStep = 8
	// patternRows is the number of rows of a swizzle pattern.
	patternRows = 8
	// copyRows is the number of token rows that one copy instruction of the loading warp covers. Each
	// lane copies 16 bytes.
	copyRows = 32 / tile.LanesOfRow
)

// MaxTokens is the largest batch for the kernels of this package. Up to there, and with up to 512
// experts, they are at least as fast as the kernels for large batches.
const MaxTokens = 2048

// WideFrom returns the number of tokens from which wide CTAs are faster, or 0 if they never are.
// The limit is an average of 48 tokens an expert.
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

// UnitsMidFrom returns the number of tokens from which mid CTAs are faster for packed weights. The
// limit is an average of 52 tokens an expert: some experts then have more tokens than the 64 of a
// narrow CTA.
func UnitsMidFrom(c spec.Config) int { return (52*c.NumExperts + c.TopK - 1) / c.TopK }

// UnitsWideFrom returns the number of tokens from which wide CTAs are faster for packed weights. The
// limit is an average of 80 tokens an expert: some experts then have more tokens than the 96 of a
// mid CTA.
func UnitsWideFrom(c spec.Config) int { return (80*c.NumExperts + c.TopK - 1) / c.TopK }

// UnitsFewUpTo returns the number of tokens up to which CTAs of 32 tokens are faster for packed weights.
// The limit is an average of 18 tokens an expert, of which seldom more than 32 are one expert's.
func UnitsFewUpTo(c spec.Config) int { return 18 * c.NumExperts / c.TopK }

// hasWide reports whether the layer has kernels with wide CTAs.
func hasWide(c spec.Config) bool { return WideFrom(c) > 0 }

// widths lists the numbers of columns to which the tokens of a block may be rounded up. wgmma reads
// a column from shared memory at the same cost as a row of weights.
func (s shape) widths() []int {
	switch s { // each width of these has a loop of its own
	case packedShapes[wide]:
		return []int{72, 96, tileTokens}
	case packedShapes[mid]:
		return []int{40, 48, 56, 64, 72, 80, 88, 96}
	}
	list := []int{8, 16, 24, 32, 48, 64, 72, 80, 88, 96, 112, tileTokens}
	return list[:slices.Index(list, s.tokens)+1]
}

// ctas returns the number of CTAs for a number of rows: one for each SM, but at most one for each
// unit of work.
func ctas(rows, experts, units, sms int) gpu.Dim3 {
	pairs := min(rows, experts+rows/schedule.PairRows)
	return gpu.Dim3{X: max(1, min(sms, pairs*units))}
}
