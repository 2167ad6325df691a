package choose

import (
	"sonicmoe/driver/gpu"
	"sonicmoe/internal/spec"
	"sonicmoe/jit/gemm"
	"sonicmoe/jit/tile"
	"sonicmoe/moe/internal/element"
)

// This file has the shape of the router's product: it emits no code.

// xMap returns the map that loads the tokens of one math warpgroup.
func (r Router) xMap(a *RouterArgs) gpu.TensorMap {
	return tile.RowMap(a.X, r.Hidden, a.Tokens, gemm.WarpgroupM)
}

// wMap returns the map that loads a chunk of experts.
func (r Router) wMap(a *RouterArgs) gpu.TensorMap {
	_, chunk := r.chunks()
	return tile.RowMap(a.Weights, r.Hidden, r.lines(), chunk)
}

// chunks returns the number of chunks into which the experts are split, and the number of
// experts of a chunk. Each block of tokens is multiplied once for each chunk.
func (r Router) chunks() (count, chunk int) {
	most := maxChunk
	if r.NumExperts > maxChunk || r.Logits == spec.F32 && !r.LogitsOnly || r.Bias {
		most = maxChunkKeys
	}
	count = (r.NumExperts + most - 1) / most
	chunk = (r.NumExperts + count - 1) / count
	return count, (chunk + 7) / 8 * 8
}

// chains returns the number of chains of a logit, and the number of k-tiles of each. The last chain
// has the remaining k-tiles.
func (r Router) chains() (count, depth int) {
	if _, chunk := r.chunks(); chunk > maxChunkChains {
		return 1, r.kTiles()
	}
	stages := r.kTiles() / r.stageDepth()
	depth = (stages + mostChains - 1) / mostChains * r.stageDepth()
	return (r.kTiles() + depth - 1) / depth, depth
}

// stageBytes returns the size of a stage: a k-tile of the tokens, then one of the weights.
// Each starts at a multiple of 1024 bytes, the size of the swizzle pattern.
func (r Router) stageBytes() int {
	_, chunk := r.chunks()
	return gemm.TileABytes + (chunk*tile.RowBytes+1023)/1024*1024
}

// InRouter reports whether the epilogue of [Router] chooses and scores for the layer. If not,
// [FromLogits] does.
func InRouter(c spec.Config) bool {
	if c.TopK > maxFusedTopK || c.Groups != 0 || c.Scale() != 1 || c.ExpertScale {
		return false
	}
	return c.Score == spec.SoftmaxTopK || c.Score == spec.SoftmaxAll && c.NumExperts <= maxChunkKeys && !c.SelectionBias && c.Renormalize == spec.NoRenorm
}

// maxFusedTopK is the largest K for which the keys of two rows fit in a quad's registers.
const maxFusedTopK = 16

func outsideRouter(c spec.Config) bool { return !InRouter(c) }

// RouterOf returns the router of a layer.
func RouterOf(c spec.Config) Router {
	return Router{Hidden: c.Hidden, NumExperts: c.NumExperts, TopK: c.TopK, Element: element.Of(c), Logits: c.Logits, Bias: c.RouterBias, F32: c.RouterF32, All: c.Score == spec.SoftmaxAll}
}
