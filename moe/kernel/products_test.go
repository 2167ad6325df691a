package kernel

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/moe/spec"
)

// Every alternative that is not rejected is one that a Choice may have; every
// rejected one says why; the cost model's point and all of the space are there.
func TestAlternatives(t *testing.T) {
	for _, row := range spec.Rows() {
		c := Choose(row.Config, driver.H200())
		for _, p := range Products() {
			tried, points := 0, map[Point]Alternative{}
			for _, a := range p.Alternatives(row.Config, driver.H200()) {
				require.NotContains(t, points, a.Point, "listed twice")
				points[a.Point] = a
				if a.Rejected != "" {
					assert.Zero(t, a.Estimate)
					continue
				}
				tried++
				assert.Positive(t, a.Estimate)
				var choice Choice
				*p.At(&choice) = a.Point
				require.NoError(t, choice.Check(driver.H200()), "%s %v", p.Name, a.Point)
			}
			assert.GreaterOrEqual(t, tried, 6, p.Name)
			assert.LessOrEqual(t, tried, 32, p.Name)
			for _, q := range append(p.Space(driver.H200()), *p.At(&c)) {
				require.Contains(t, points, q, p.Name)
				assert.Empty(t, points[q].Rejected, "%s %v", p.Name, q)
			}
		}
	}
}

// On a chip with less shared memory other points are rejected, with its bytes.
func TestAlternativesOfAnotherChip(t *testing.T) {
	small := driver.H200()
	small.SharedBytesPerCTA = 180 << 10
	p, err := FindProduct("up")
	require.NoError(t, err)
	reasons := map[string]int{}
	for _, a := range p.Alternatives(spec.Rows()[0].Config, small) {
		reasons[a.Rejected]++
	}
	assert.NotZero(t, reasons["more than 3 stages of 256 columns don't fit a CTA's 184320 bytes of shared memory"], reasons)
	assert.NotZero(t, reasons["192 columns are no tile of this product"])
	assert.NotZero(t, reasons[""])
	_, err = FindProduct("sideways")
	assert.ErrorContains(t, err, `product is sideways, must be one of [up down dh dw2 dw1 dx]`)
}

func TestRowsPerExpert(t *testing.T) {
	for _, c := range []struct {
		config spec.Config
		want   int
	}{
		{spec.Config{Experts: 128, TopK: 8, TokensHint: 24576}, 1536},
		{spec.Config{Experts: 128, TopK: 8}, 1024},
		{spec.Config{Experts: 512, TopK: 1, TokensHint: 1}, 1},
	} {
		assert.Equal(t, c.want, RowsPerExpert(c.config))
	}
}
