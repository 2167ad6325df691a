package reference_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/internal/num"
	"sonicmoe/internal/reference"
)

func TestCompareMeasures(t *testing.T) {
	got := []float32{3, 4, 0, 0, 1, 2.5}
	want := []float64{3, 4, 0, 0, 1, 2}
	r := reference.Compare(got, want, 3, 2)
	assert.Equal(t, 2, r.WorstRow)
	assert.InDelta(t, .5/math.Sqrt(5), r.RowError, 1e-12)
	assert.InDelta(t, .5/math.Sqrt(30), r.Frobenius, 1e-12)
	assert.Equal(t, reference.Element{Row: 2, Col: 1, Got: 2.5, Want: 2, Error: .25}, r.Worst)
	require.NoError(t, r.Check(reference.Bounds{Frobenius: .1, Row: .23, Element: .25}))
	require.NoError(t, r.Check(reference.Bounds{}))
	assert.ErrorContains(t, r.Check(reference.Bounds{Frobenius: .09}), "relative norm 0.0913 is over 0.09")
	assert.ErrorContains(t, r.Check(reference.Bounds{Row: .2}), "worst row's relative norm 0.224 is over 0.2")
	assert.ErrorContains(t, r.Check(reference.Bounds{Element: .2}), "worst element 0.25 is over 0.2")
	assert.Equal(t, "[3 2] relative norm 0.0913, worst row 2 at 0.224, "+
		"worst element [2 1] is 2.5, not 2: 0.25 of its row's largest", r.String())
}

// TestCompareHasNoAbsoluteTolerance checks that a result of zeros has an error of 100 %,
// however small the expected values are.
func TestCompareHasNoAbsoluteTolerance(t *testing.T) {
	r := reference.Compare(make([]uint16, 4), []float64{1e-4, -1e-4, 1e-30, 0}, 2, 2)
	assert.Equal(t, 1.0, r.Frobenius)
	assert.Equal(t, 1.0, r.RowError)
	assert.Error(t, r.Check(reference.VsUnrounded))
	assert.Error(t, r.Check(reference.VsRounded))
}

func TestCompareWithZeros(t *testing.T) {
	require.NoError(t, reference.Compare([]float32{0, float32(math.Copysign(0, -1))}, []float64{0, 0}, 1, 2).Check(reference.VsUnrounded))
	r := reference.Compare([]float32{0, 1e-30}, []float64{0, 0}, 1, 2)
	assert.True(t, math.IsInf(r.RowError, 1))
	assert.Error(t, r.Check(reference.VsUnrounded))
}

func TestCompareRefusesWhatIsNotFinite(t *testing.T) {
	one, inf := num.Float64ToBF16(1), num.Float64ToBF16(math.Inf(1))
	tests := []struct {
		name              string
		got               []uint16
		want              []float64
		nonFinite, poison int
	}{
		{"poison", []uint16{one, reference.Poison}, []float64{1, 1}, 1, 1},
		{"NaN", []uint16{0x7fff, one}, []float64{1, 1}, 1, 0},
		{"NaN both", []uint16{0x7fff, one}, []float64{math.NaN(), 1}, 1, 0},
		{"infinity", []uint16{inf, inf}, []float64{math.Inf(1), 1}, 2, 0},
		{"want only", []uint16{one, one}, []float64{1, math.NaN()}, 1, 0},
	}
	for _, tt := range tests {
		r := reference.Compare(tt.got, tt.want, 1, 2)
		assert.Equal(t, tt.nonFinite, r.NonFinite, tt.name)
		assert.Equal(t, tt.poison, r.Poisoned, tt.name)
		assert.Zero(t, r.Frobenius, tt.name)
		assert.ErrorContains(t, r.Check(reference.Bounds{}), "not finite", tt.name)
	}
	r := reference.Compare([]float32{math.Float32frombits(math.MaxUint32)}, []float64{1}, 1, 1)
	assert.Equal(t, 1, r.Poisoned)
}

func TestCompareMismatch(t *testing.T) {
	r := reference.Compare([]uint16{1, 2, 3}, []float64{1, 2, 3, 4}, 2, 2)
	assert.EqualError(t, r.Check(reference.Bounds{}), "Compare is 3 against 4 elements, must be 2 rows of 2 columns each")
	require.NoError(t, reference.Compare([]uint16{}, nil, 0, 2).Check(reference.VsUnrounded))
}
