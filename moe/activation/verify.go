package activation

import (
	"context"
	"fmt"
	"math"

	"sonicmoe/driver"
	"sonicmoe/driver/gpu"
	"sonicmoe/internal/num"
	"sonicmoe/jit"
	"sonicmoe/ptx"
)

// pairArgs are the arguments of the kernel that evaluates a Function.
type pairArgs struct {
	// Gate, Up and Grad [N] f32 are the inputs. Out [N, 4] f32 is written: the result of
	// Value, then the three results of Gradient.
	Gate, Up, Grad driver.DevicePtr
	Out            driver.DevicePtr
	N              int
}

// Point has the arguments and results of an activation at one point.
type Point struct {
	Gate, Up, Grad float32
	// Value is the result of Function.Value. Again, DGate and DUp are the results of
	// Function.Gradient.
	Value, Again, DGate, DUp float32
}

// Evaluate computes the results of points on a device.
func Evaluate(ctx context.Context, dev driver.Device, f Function, points []Point) error {
	k, err := evaluation(f)
	if err != nil {
		return err
	}
	fn, err := jit.Of(dev).Load(ctx, nil, k.Source("activation"), gpu.CompileOptions{})
	if err != nil {
		return err
	}
	s, err := dev.NewStream()
	if err != nil {
		return err
	}
	defer s.Close()
	in, out := make([]float32, 3*len(points)), make([]float32, 4*len(points))
	for i, p := range points {
		in[i], in[len(points)+i], in[2*len(points)+i] = p.Gate, p.Up, p.Grad
	}
	at, err := dev.Alloc(int64(4 * (len(in) + len(out))))
	if err != nil {
		return err
	}
	defer dev.Free(at)
	vector := driver.DevicePtr(4 * len(points))
	args := pairArgs{Out: at, Gate: at + 4*vector, Up: at + 5*vector, Grad: at + 6*vector, N: len(points)}
	if err := s.CopyToDevice(args.Gate, num.Bytes(in)); err != nil {
		return err
	}
	if err := k.Launcher(fn).Launch(s, args); err != nil {
		return err
	}
	if err := s.CopyToHost(num.Bytes(out), args.Out); err != nil {
		return err
	}
	for i := range points {
		p := &points[i]
		p.Value, p.Again, p.DGate, p.DUp = out[4*i], out[4*i+1], out[4*i+2], out[4*i+3]
	}
	return nil
}

// evaluation is the kernel of Evaluate.
func evaluation(f Function) (*jit.Kernel[pairArgs], error) {
	const threads = 128
	k := jit.NewBuilder[pairArgs]("moe_activation", threads, 1)
	k.CTAs(func(a *pairArgs) int { return (a.N + threads - 1) / threads })
	gates, ups, grads := k.Ptr(&k.Args.Gate), k.Ptr(&k.Args.Up), k.Ptr(&k.Args.Grad)
	out, n := k.Ptr(&k.Args.Out), k.U32(&k.Args.N)
	i := k.CtaidX().MulI(threads).Add(k.TidX())
	k.If(i.Lt(n), func() {
		gate, up, grad := ptx.LdGlobal[ptx.F32](gates.Index(i, 4)), ptx.LdGlobal[ptx.F32](ups.Index(i, 4)), ptx.LdGlobal[ptx.F32](grads.Index(i, 4))
		value, dGate, dUp := f.Gradient(gate, up, grad)
		if !f.Gated {
			dUp = ptx.Float(0)
		}
		ptx.StGlobal(out.Index(i, 16), f.Value(gate, up), value, dGate, dUp)
	})
	return k.Build()
}

// Verify checks a Function at points between -6 and 6. Its derivatives must be within 1e-3
// of differences of its values, and both functions must return the same bits as the value.
func Verify(ctx context.Context, dev driver.Device, f Function) error {
	const (
		step = 1. / 64
		ends = 4 // two for gate, two for up
	)
	var points []Point
	for g := -6.03; g < 6; g += 0.31 {
		for u := -6.07; u < 6; u += 1.13 {
			points = append(points, Point{Gate: float32(g), Up: float32(u), Grad: 1})
			for _, at := range [ends][2]float64{{g + step, u}, {g - step, u}, {g, u + step}, {g, u - step}} {
				points = append(points, Point{Gate: float32(at[0]), Up: float32(at[1]), Grad: 1})
			}
		}
	}
	if err := Evaluate(ctx, dev, f, points); err != nil {
		return err
	}
	for i := 0; i < len(points); i += 1 + ends {
		p, around := points[i], points[i+1:][:ends]
		if math.Float32bits(p.Value) != math.Float32bits(p.Again) {
			return fmt.Errorf("activation at gate %g, up %g: Value gives %g, Gradient %g, must be the same bits", p.Gate, p.Up, p.Value, p.Again)
		}
		for j, d := range []struct {
			by  string
			got float32
		}{{"gate", p.DGate}, {"up", p.DUp}} {
			if j == 1 && !f.Gated {
				continue
			}
			// The difference has a second-order error and an FP32 rounding error of its own.
			want := (float64(around[2*j].Value) - float64(around[2*j+1].Value)) / (2 * step)
			if slack := 1e-3 * (1 + math.Abs(want)); !(math.Abs(float64(d.got)-want) <= slack) {
				return fmt.Errorf("activation at gate %g, up %g: derivative by %s is %g, differences give %g", p.Gate, p.Up, d.by, d.got, want)
			}
		}
	}
	return nil
}
