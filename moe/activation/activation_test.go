package activation_test

import (
	"context"
	"math"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/driver/open"
	"sonicmoe/internal/drivertest"
	"sonicmoe/internal/spec"
	"sonicmoe/moe/activation"
	"sonicmoe/ptx"
)

func TestMain(m *testing.M) { os.Exit(drivertest.Main(m, open.Device)) }

func device(t *testing.T) driver.Device {
	dev, err := open.Device(context.Background(), drivertest.Name())
	require.NoError(t, err)
	t.Cleanup(func() { dev.Close() })
	return dev
}

// configs has every activation, some with several constants.
var configs = []spec.Config{
	{Activation: spec.SwiGLU}, {Activation: spec.SwiGLU, Limit: 3.5}, {Activation: spec.SwiGLUOAI, Alpha: 1.702, Limit: 5},
	{Activation: spec.GeGLUTanh}, {Activation: spec.GeGLUErf}, {Activation: spec.ReGLU},
	{Activation: spec.ReLU}, {Activation: spec.ReLU2}, {Activation: spec.SiLU}, {Activation: spec.GELUTanh}, {Activation: spec.GELUErf},
}

// exact returns a layer's activation in float64.
func exact(c spec.Config, g, u float64) float64 {
	silu := func(x, alpha float64) float64 { return x / (1 + math.Exp(-alpha*x)) }
	gelu := func(x float64) float64 { return x * math.Erfc(-x/math.Sqrt2) / 2 }
	tanh := func(x float64) float64 {
		return x / 2 * (1 + math.Tanh(math.Sqrt(2/math.Pi)*(x+0.044715*x*x*x)))
	}
	switch c.Activation {
	case spec.SwiGLU:
		if c.Limit > 0 {
			g, u = min(g, c.Limit), min(max(u, -c.Limit), c.Limit)
		}
		return silu(g, 1) * u
	case spec.SwiGLUOAI:
		g, u = min(g, c.Limit), min(max(u, -c.Limit), c.Limit)
		return silu(g, c.Alpha) * (u + 1)
	case spec.GeGLUTanh:
		return tanh(g) * u
	case spec.GeGLUErf:
		return gelu(g) * u
	case spec.ReGLU:
		return max(g, 0) * u
	case spec.ReLU:
		return max(g, 0)
	case spec.ReLU2:
		return max(g, 0) * max(g, 0)
	case spec.SiLU:
		return silu(g, 1)
	case spec.GELUTanh:
		return tanh(g)
	case spec.GELUErf:
		return gelu(g)
	}
	panic("no formula of " + c.Activation)
}

// TestActivations checks that values match the definition to a few units of FP32,
// tails included, and that derivatives match the values.
func TestActivations(t *testing.T) {
	dev := device(t)
	for _, c := range configs {
		t.Run(c.Activation.String(), func(t *testing.T) {
			f := activation.Of(c)
			require.Equal(t, c.Activation.Gated(), f.Gated)
			require.NoError(t, activation.Verify(t.Context(), dev, f))
			var points []activation.Point
			for x := -9.0; x <= 9; x += 0.0371 {
				points = append(points, activation.Point{Gate: float32(x), Up: float32(1.7 - x/2), Grad: 0.5})
			}
			require.NoError(t, activation.Evaluate(t.Context(), dev, f, points))
			for _, p := range points {
				want := exact(c, float64(p.Gate), float64(p.Up))
				slack := 4e-6 * math.Abs(want)
				if p.Gate < -4 && (c.Activation == spec.GeGLUTanh || c.Activation == spec.GELUTanh) {
					slack += 1e-12 // 1 + tanh cancels in float64 too
				}
				require.InDelta(t, want, float64(p.Value), slack+1e-20, "gate %g, up %g", p.Gate, p.Up)
			}
		})
	}
}

// TestCorners checks that grad is a factor of the derivatives, and that the
// derivatives at corners are PyTorch's.
func TestCorners(t *testing.T) {
	dev := device(t)
	for _, w := range []struct {
		of          spec.Config
		gate, up    float32
		dGate, dUp  float32
		description string
	}{
		{spec.Config{Activation: spec.ReLU}, 0, 0, 0, 0, "relu at 0"},
		{spec.Config{Activation: spec.ReGLU}, 0, 2, 0, 0, "relu at 0"},
		{spec.Config{Activation: spec.ReLU2}, 1.5, 0, 3 * 3, 0, "2x"},
		{spec.Config{Activation: spec.ReGLU}, 2, 5, 3 * 5, 3 * 2, "x·up"},
		{spec.Config{Activation: spec.SwiGLUOAI, Alpha: 1, Limit: 2}, 3, 0.5, 0, 3 * 2 * float32(1/(1+math.Exp(-2))), "gate past the limit"},
		{spec.Config{Activation: spec.SwiGLU, Limit: 2}, 1, 2.5, 3 * 2 * float32(sigmoid(1)+sigmoid(1)*(1-sigmoid(1))), 0, "up past the limit"},
		{spec.Config{Activation: spec.SwiGLU, Limit: 2}, 1, -2, -3 * 2 * float32(sigmoid(1)+sigmoid(1)*(1-sigmoid(1))), 3 * float32(sigmoid(1)), "up on the limit"},
	} {
		points := []activation.Point{{Gate: w.gate, Up: w.up, Grad: 3}}
		require.NoError(t, activation.Evaluate(t.Context(), dev, activation.Of(w.of), points))
		require.InDelta(t, w.dGate, points[0].DGate, 1e-5, w.description)
		require.InDelta(t, w.dUp, points[0].DUp, 1e-5, w.description)
	}
}

func sigmoid(x float64) float64 { return 1 / (1 + math.Exp(-x)) }

// TestNaN checks that a NaN argument gives NaN, also in clamped activations.
func TestNaN(t *testing.T) {
	dev, nan := device(t), float32(math.NaN())
	for _, c := range configs {
		points := []activation.Point{{Gate: nan, Up: 1, Grad: 1}, {Gate: 1, Up: nan, Grad: 1}}
		require.NoError(t, activation.Evaluate(t.Context(), dev, activation.Of(c), points))
		require.True(t, points[0].Value != points[0].Value, "%v of NaN", c.Activation)
		require.Equal(t, c.Activation.Gated(), points[1].Value != points[1].Value, "%v times NaN", c.Activation)
	}
}

// TestVerifySees checks that Verify finds a wrong derivative, and a value that
// differs in its last bit.
func TestVerifySees(t *testing.T) {
	dev, good := device(t), activation.Of(spec.Config{})
	wrong := good
	wrong.Gradient = func(gate, up, grad ptx.F32) (value, dGate, dUp ptx.F32) {
		value, dGate, dUp = good.Gradient(gate, up, grad)
		return value, dGate.Mul(ptx.Float(1.01)), dUp
	}
	require.ErrorContains(t, activation.Verify(t.Context(), dev, wrong), "derivative by gate")
	wrong.Gradient = func(gate, up, grad ptx.F32) (value, dGate, dUp ptx.F32) {
		value, dGate, dUp = good.Gradient(gate, up, grad)
		return value.Mul(ptx.Float(1 + 0x1p-23)), dGate, dUp
	}
	require.ErrorContains(t, activation.Verify(t.Context(), dev, wrong), "same bits")
	wrong.Gradient = func(gate, up, grad ptx.F32) (value, dGate, dUp ptx.F32) {
		value, dGate, dUp = good.Gradient(gate, up, grad)
		return value, dGate, dUp.Neg()
	}
	require.ErrorContains(t, activation.Verify(t.Context(), dev, wrong), "derivative by up")
}
