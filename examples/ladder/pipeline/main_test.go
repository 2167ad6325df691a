package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/examples/internal/rung/rungtest"
	"sonicmoe/internal/num"
	"sonicmoe/internal/reference"
)

func TestRun(t *testing.T) {
	out := rungtest.Output(t, run)
	require.Contains(t, out, "200 x 328 x 320: 2 x 2 CTAs of 128 x 256, 5 k-tiles through 3 stages")
	require.Contains(t, out, "checked  65600 of 65600 elements against float64")
	require.NotContains(t, out, "TFLOPS", "an emulated device's time says nothing")
}

func TestCheck(t *testing.T) {
	one := num.Float64ToBF16(1)
	s := size{2, 1, 2}
	checked, err := s.check([]uint16{one, one, one, one}, []uint16{one, one}, []uint16{num.Float64ToBF16(2), reference.Poison})
	require.EqualError(t, err, "c[1,0] is NaN, must be 2")
	require.Equal(t, 1, checked)
}

func TestAssembles(t *testing.T) {
	k := multiply()
	require.LessOrEqual(t, k.SharedBytes(), driver.H200().SharedBytesPerCTA)
	rungtest.Assembles(t, k.Kernel)
}
