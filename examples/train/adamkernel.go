package main

import (
	"sonicmoe/driver"
	"sonicmoe/jit"
	"sonicmoe/ptx"
)

// adamThreads is the number of threads in a CTA.
const adamThreads = 256

// adamKernel returns a kernel that makes one step of Adam on the device. Each thread updates
// one weight. [param.update] is the same step on the host. The main copy of the weight is FP32,
// and the layer reads a bf16 copy.
func adamKernel() (*jit.Kernel[adamArgs], error) {
	k := jit.NewBuilder[adamArgs]("adam", adamThreads, 1)
	k.CTAs(func(a *adamArgs) int { return (a.N + adamThreads - 1) / adamThreads })
	weight, mainWeight := k.Ptr(&k.Args.Weight), k.Ptr(&k.Args.Main)
	mean, square, grad := k.Ptr(&k.Args.Mean), k.Ptr(&k.Args.Square), k.Ptr(&k.Args.Grad)
	rate, squareScale, n := k.F32(&k.Args.Rate), k.F32(&k.Args.SquareScale), k.U32(&k.Args.N)

	i := k.CtaidX().Mad(k.NtidX(), k.TidX())
	k.If(i.Lt(n), func() {
		load := func(p ptx.Global) ptx.F32 { return ptx.LdGlobal[ptx.F32](p.Index(i, 4)) }
		store := func(p ptx.Global, x ptx.F32) { ptx.StGlobal(p.Index(i, 4), x) }

		g := load(grad)
		m := load(mean).Mul(ptx.Float(beta1)).Add(g.Mul(ptx.Float(1 - beta1)))
		v := load(square).Mul(ptx.Float(beta2)).Add(g.Mul(g).Mul(ptx.Float(1 - beta2)))
		store(mean, m)
		store(square, v)
		move := rate.Mul(m).Mul(inverseRoot(v.Fma(squareScale, ptx.Float(epsilon*epsilon))))
		w := load(mainWeight).Sub(move)
		store(mainWeight, w)
		ptx.StGlobal(weight.Index(i, 2), w.BF16())
	})
	return k.Build()
}

// adamArgs are the kernel's arguments.
type adamArgs struct {
	// The kernel reads and writes Main, Mean and Square [N] f32. It reads Grad [N] f32 and
	// writes Weight [N] bf16.
	Weight, Main, Mean, Square, Grad driver.DevicePtr
	Rate, SquareScale                float32
	N                                int
}

// inverseRoot returns 1/√x to FP32's precision, for x > 0. A shift of the bits halves the
// exponent and gives a first estimate. Each step of Newton's method then doubles the number of
// correct digits.
func inverseRoot(x ptx.F32) ptx.F32 {
	const magic = 0x5f3759df
	y := ptx.Uint(magic).Sub(x.Bits().ShrI(1)).AsF32()
	half := x.Mul(ptx.Float(-0.5))
	for range 3 {
		y = y.Mul(half.Mul(y).Fma(y, ptx.Float(1.5)))
	}
	return y
}
