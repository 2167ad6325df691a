package main

import "sonicmoe/ptx"

// adamThreads are a CTA's threads.
const adamThreads = 256

// adamKernel is a step of Adam on the device, as [param.update] is on the host,
// one weight a thread. The main weight is FP32; the layer reads its bf16.
func adamKernel() *ptx.Kernel {
	k := ptx.NewKernel("adam")
	weight, mainWeight := k.ParamPtr("weight"), k.ParamPtr("main")
	mean, square, grad := k.ParamPtr("mean"), k.ParamPtr("square"), k.ParamPtr("grad")
	rate, squareScale, n := k.ParamF32("rate"), k.ParamF32("squareScale"), k.ParamU32("n")
	k.SetLaunchBounds(adamThreads, 1)

	i := k.Special("%ctaid.x").Mad(k.Special("%ntid.x"), k.Special("%tid.x"))
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
	return k
}

// inverseRoot is 1/√x to FP32's precision, for x > 0: half the exponent by a
// shift of the bits, then Newton's steps, each of which doubles the digits.
func inverseRoot(x ptx.F32) ptx.F32 {
	const magic = 0x5f3759df
	y := ptx.Uint(magic).Sub(x.Bits().ShrI(1)).AsF32()
	half := x.Mul(ptx.Float(-0.5))
	for range 3 {
		y = y.Mul(half.Mul(y).Fma(y, ptx.Float(1.5)))
	}
	return y
}
