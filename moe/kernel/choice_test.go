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
		w1, w2 := ChooseDW(r.Config, W1, target), ChooseDW(r.Config, W2, target)
		require.Contains(t, DWSpace(target), w1, r.Name)
		require.Contains(t, DWSpace(target), w2, r.Name)
		t.Logf("%-16s up %v down %v dW1 %v dW2 %v", r.Name, c.Up, c.Down, w1, w2)
	}
	for name, panel := range map[string]int{"DeepSeek-V3": 8, "30B n=512": 8, "120B n=2048": 16} {
		r, ok := spec.FindRow(name)
		require.True(t, ok)
		require.Equal(t, panel, Choose(r.Config, target).Up.Panel, name)
	}
}

// The points of dH and dX~ are of their spaces.
func TestChooseGradients(t *testing.T) {
	target := driver.H200()
	for _, r := range spec.Rows() {
		dh, dx := ChooseDH(r.Config, target), ChooseDX(r.Config, target)
		require.Contains(t, DHSpace(target), dh, r.Name)
		require.Contains(t, DXSpace(target), dx, r.Name)
		t.Logf("%-16s dh %v dx %v", r.Name, dh, dx)
	}
}

// Clusters share MN-major weights in whole blocks of 64 columns: not of 192.
func TestPointMN(t *testing.T) {
	p := Point{TileN: 192, Stages: 3, Panel: 8, CTAs: 2}
	_, err := DX{Hidden: 256, Intermediate: 64, Point: p}.Build()
	require.ErrorContains(t, err, "128x192 s3 p8 c2")
	_, err = DH{Hidden: 256, Intermediate: 64, Point: p}.Build()
	require.ErrorContains(t, err, "128x192 s3 p8 c2")
	require.ErrorContains(t, p.check("Choice.DX", DXSpace(driver.H200())), "Choice.DX.CTAs")
	p.CTAs = 1
	require.NoError(t, p.check("Choice.DX", DXSpace(driver.H200())))
	p.TileN, p.CTAs = 256, 2
	require.NoError(t, p.check("Choice.DH", DHSpace(driver.H200())))
}
