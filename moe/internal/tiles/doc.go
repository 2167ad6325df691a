// Package tiles is the choice of tile shapes: the spaces of a product's
// [gemm.Tiling]s, and the cost model that picks one without measuring.
package tiles
