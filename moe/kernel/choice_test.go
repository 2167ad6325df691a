package kernel

import (
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/moe/spec"
)

// The cost model picks points of the spaces that fit the chip, for every
// known row, and prefers what was measured to be faster.
func TestChoose(t *testing.T) {
	target := driver.H200()
	for _, r := range spec.Rows() {
		c := Choose(r.Config, target)
		require.Contains(t, UpSpace(target), c.Up, r.Name)
		require.Contains(t, DownSpace(target), c.Down, r.Name)
		require.Contains(t, DHSpace(target), c.DH, r.Name)
		require.Contains(t, DXSpace(target), c.DX, r.Name)
		require.Contains(t, DWSpace(target), c.DW1, r.Name)
		require.Contains(t, DWSpace(target), c.DW2, r.Name)
		t.Logf("%-16s %+v", r.Name, c)
	}
	for _, m := range []struct{ row, product, point string }{
		{"30B n=512", "up", "128x256 s4 p8 c2"}, {"DeepSeek-V3", "up", "128x256 s4 p8 c2"},
		{"7B n=512", "down", "128x256 s4 p8 c1"}, {"120B n=2048", "down", "128x256 s4 p8 c2"},
		{"7B n=256", "dh", "128x128 s6 p8 c1"}, {"30B n=256", "dh", "128x128 s6 p8 c2"},
	} {
		r, ok := spec.FindRow(m.row)
		require.True(t, ok)
		p, err := FindProduct(m.product)
		require.NoError(t, err)
		require.Equal(t, m.point, p.In(Choose(r.Config, target)).String(), m.row)
	}
}

// Clusters share MN-major weights in whole blocks of 64 columns: not of 192.
func TestPointMN(t *testing.T) {
	p := Point{TileN: 192, Stages: 3, Panel: 8, CTAs: 2}
	_, err := DX{Hidden: 256, Intermediate: 64, Point: p}.Build()
	require.ErrorContains(t, err, "128x192 s3 p8 c2")
	_, err = DH{Hidden: 256, Intermediate: 64, Point: p}.Build()
	require.ErrorContains(t, err, "128x192 s3 p8 c2")
	_, err = DH{Hidden: 256, Intermediate: 64, Point: Point{TileN: 192, Stages: 3, Panel: 8}}.Build()
	require.ErrorContains(t, err, "multiple of 128")
	_, err = DH{Hidden: 64, Intermediate: 64, Point: Point{TileN: 128, Stages: 3, Panel: 8}}.Build()
	require.ErrorContains(t, err, "hidden size 64, must be at least 128")
	require.ErrorContains(t, p.check("Choice.DX", DXSpace(driver.H200())), "Choice.DX.CTAs")
	p.CTAs = 1
	require.NoError(t, p.check("Choice.DX", DXSpace(driver.H200())))
	p.TileN, p.CTAs = 256, 2
	require.ErrorContains(t, p.check("Choice.DX", DXSpace(driver.H200())), "Choice.DX.CTAs")
	require.ErrorContains(t, p.check("Choice.DH", DHSpace(driver.H200())), "Choice.DH.TileN")
	p.TileN = 128
	require.NoError(t, p.check("Choice.DH", DHSpace(driver.H200())))
}
