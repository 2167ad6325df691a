package kernel

import (
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/internal/spec"
	kt "sonicmoe/moe/internal/kernel/kerneltest"
)

// TestProductsWithoutRows checks that without rows, every CTA ends without touching
// memory, even if the table has stale entries.
func TestProductsWithoutRows(t *testing.T) {
	const d, n, experts, rows = 128, 64, 3, 6
	b := kt.New(t, kt.Early)
	up := Up{Config: spec.Config{Hidden: d, Intermediate: n, NumExperts: experts}, SaveH: true, Tiling: UpProduct.Space(driver.H200())[0]}
	h, a := b.Room(2*rows*2*n), b.Room(2*rows*n)
	kt.Run(b, up, 3, UpArgs{
		X: b.Room(2 * rows * d), Gather: b.Room(4 * rows), W1: b.Room(2 * experts * 2 * n * d), A: a, H: h, Rows: rows, TileArgs: kt.NoTiles(b),
	})
	require.Equal(t, kt.Poisoned[uint16](rows*2*n), kt.Download[uint16](b, h, rows*2*n))
	require.Equal(t, kt.Poisoned[uint16](rows*n), kt.Download[uint16](b, a, rows*n))

	down := Down{Config: spec.Config{Hidden: d, Intermediate: n, NumExperts: experts}, Tiling: DownProduct.Space(driver.H200())[0]}
	y := b.Room(2 * rows * d)
	kt.Run(b, down, 3, DownArgs{A: a, W2: b.Room(2 * experts * d * n), Y: y, Rows: rows, TileArgs: kt.NoTiles(b)})
	require.Equal(t, kt.Poisoned[uint16](rows*d), kt.Download[uint16](b, y, rows*d))
}
