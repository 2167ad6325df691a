package ptx_test

import (
	"fmt"

	"sonicmoe/ptx"
)

// axpy computes y = alpha x + y for n floats. Each thread computes one.
func axpy() *ptx.Kernel {
	k := ptx.NewKernel("axpy")
	x, y := k.ParamPtr("x"), k.ParamPtr("y")
	alpha, n := k.ParamF32("alpha"), k.ParamU32("n")
	i := k.CtaidX().Mad(k.NtidX(), k.TidX())
	k.If(i.Lt(n), func() {
		dst := y.Index(i, 4)
		ptx.StGlobal(dst, ptx.LdGlobal[ptx.F32](x.Index(i, 4)).Fma(alpha, ptx.LdGlobal[ptx.F32](dst)))
	})
	return k
}

func Example() {
	m, err := axpy().Build()
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Print(string(m.Print().PTX))
	// Output:
	// .version 7.0
	// .target sm_70
	// .address_size 64
	// .visible .entry axpy(
	// 	.param .u64 x,
	// 	.param .u64 y,
	// 	.param .f32 alpha,
	// 	.param .u32 n
	// )
	// {
	// 	.reg .b64 %d<6>;
	// 	.reg .b32 %r<8>;
	// 	.reg .b32 %tid<1>;
	// 	.reg .pred %p<1>;
	// 	ld.param.u64 %d0, [x];
	// 	cvta.to.global.u64 %d1, %d0;
	// 	ld.param.u64 %d2, [y];
	// 	cvta.to.global.u64 %d3, %d2;
	// 	ld.param.f32 %r0, [alpha];
	// 	ld.param.u32 %r1, [n];
	// 	mov.u32 %r2, %ctaid.x;
	// 	mov.u32 %r3, %ntid.x;
	// 	mov.u32 %tid0, %tid.x;
	// 	mad.lo.u32 %r4, %r2, %r3, %tid0;
	// 	setp.lt.u32 %p0, %r4, %r1;
	// 	@!%p0 bra $else0;
	// 	mad.wide.u32 %d4, %r4, 4, %d3;
	// 	mad.wide.u32 %d5, %r4, 4, %d1;
	// 	ld.global.f32 %r5, [%d5];
	// 	ld.global.f32 %r6, [%d4];
	// 	fma.rn.f32 %r7, %r5, %r0, %r6;
	// 	st.global.f32 [%d4], %r7;
	// $else0:
	// 	ret;
	// }
}
