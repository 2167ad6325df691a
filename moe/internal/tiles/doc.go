// Package tiles chooses tilings: it has the space of a product's [gemm.Tiling]s, and the cost model
// that picks one of them without measuring.
package tiles
