package ptx_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"sonicmoe/ptx"
)

func TestShapes(t *testing.T) {
	for _, c := range []struct {
		name string
		body func(k *ptx.Kernel)
		want string
	}{
		{"If", func(k *ptx.Kernel) {
			k.If(k.Laneid().LtI(4), func() { k.GridDepWait() })
		}, lines(
			"mov.u32 %r0, %laneid;",
			"setp.lt.u32 %p0, %r0, 4;",
			"@!%p0 bra $else0;",
			"griddepcontrol.wait;",
			"$else0:")},
		{"IfElse", func(k *ptx.Kernel) {
			k.IfElse(k.Laneid().EqI(0).Negated(), func() { k.BulkCommit() }, func() { k.GridDepWait() })
		}, lines(
			"mov.u32 %r0, %laneid;",
			"setp.eq.u32 %p0, %r0, 0;",
			"@%p0 bra $else0;",
			"cp.async.bulk.commit_group;",
			"bra $endif0;",
			"$else0:",
			"griddepcontrol.wait;",
			"$endif0:")},
		{"If of a constant", func(k *ptx.Kernel) {
			k.If(ptx.True(), func() { k.GridDepWait() })
			k.IfElse(ptx.Uint(1).EqI(2), func() { k.BulkCommit() }, func() { k.GridDepLaunch() })
		}, lines("griddepcontrol.wait;", "griddepcontrol.launch_dependents;")},
		{"For", func(k *ptx.Kernel) {
			k.For(ptx.Uint(0), k.ParamU32("n"), ptx.Uint(2), func(i ptx.U32) { k.BarSync(i) })
		}, lines(
			"ld.param.u32 %r0, [n];",
			"mov.u32 %r1, 0;",
			"$loop0:",
			"setp.ge.u32 %p0, %r1, %r0;",
			"@%p0 bra $end0;",
			"bar.sync %r1;",
			"add.u32 %r2, %r1, 2;",
			"mov.u32 %r1, %r2;",
			"bra $loop0;",
			"$end0:")},
		{"Loop in a loop", func(k *ptx.Kernel) {
			n := k.ParamU32("n")
			k.Loop(func() {
				k.Loop(func() { k.BreakIf(n.EqI(1)) })
				k.BreakIf(n.EqI(2))
			})
		}, lines(
			"ld.param.u32 %r0, [n];",
			"$loop0:",
			"$loop1:",
			"setp.eq.u32 %p0, %r0, 1;",
			"@%p0 bra $end1;",
			"bra $loop1;",
			"$end1:",
			"setp.eq.u32 %p1, %r0, 2;",
			"@%p1 bra $end0;",
			"bra $loop0;",
			"$end0:")},
		{"Guarded", func(k *ptx.Kernel) {
			p := k.ElectOne()
			k.Guarded(p.Negated(), func() { k.BulkCommit(); k.BulkWait(0, ".read") })
			k.Guarded(ptx.False(), func() { k.Trap() })
		}, lines(
			"elect.sync _|%p0, 4294967295;",
			"@!%p0 cp.async.bulk.commit_group;",
			"@!%p0 cp.async.bulk.wait_group.read 0;")},
		{"ExitIf", func(k *ptx.Kernel) {
			k.ExitIf(k.Laneid().EqI(0).Negated())
			k.ExitIf(ptx.False())
			k.ExitIf(ptx.True())
		}, lines(
			"mov.u32 %r0, %laneid;",
			"setp.eq.u32 %p0, %r0, 0;",
			"@!%p0 exit;",
			"exit;")},
		{"Var", func(k *ptx.Kernel) {
			x := ptx.NewVar(k, ptx.Float(1))
			old := x.Copy()
			x.Set(x.Get().Add(old))
			p := ptx.NewVar(k, ptx.True())
			p.Set(p.Get().Negated())
			p.Set(ptx.False())
			d := ptx.NewVar(k, ptx.Int(-1))
			d.Set(d.Get().SubI(2))
		}, lines(
			"mov.f32 %r0, 0f3F800000;",
			"mov.f32 %r1, %r0;",
			"add.rn.f32 %r2, %r0, %r1;",
			"mov.f32 %r0, %r2;",
			"setp.eq.u32 %p0, 0, 0;",
			"not.pred %p0, %p0;",
			"setp.ne.u32 %p0, 0, 0;",
			"mov.b32 %r3, -1;",
			"sub.s32 %r4, %r3, 2;",
			"mov.b32 %r3, %r4;")},
		{"Select", func(k *ptx.Kernel) {
			n := k.ParamU32("n")
			p, q := n.EqI(0), n.EqI(1)
			ptx.Select(p, n, ptx.Uint(3))
			ptx.Select(p.Negated(), n, ptx.Uint(3))
			ptx.Select(ptx.True(), n, ptx.Uint(3))
			ptx.Select(p, ptx.Long(1), ptx.Long(2))
			ptx.Select(p, ptx.Float(1), ptx.Float(2))
			ptx.Select(p, ptx.True(), q)
		}, lines(
			"ld.param.u32 %r0, [n];",
			"setp.eq.u32 %p0, %r0, 0;",
			"setp.eq.u32 %p1, %r0, 1;",
			"selp.b32 %r1, %r0, 3, %p0;",
			"selp.b32 %r2, 3, %r0, %p0;",
			"selp.b64 %d0, 1, 2, %p0;",
			"selp.f32 %r3, 0f3F800000, 0f40000000, %p0;",
			"not.pred %p2, %p0;",
			"and.pred %p3, %p2, %p1;",
			"or.pred %p4, %p0, %p3;")},
		{"names", func(k *ptx.Kernel) {
			k.Named("row", func() {
				a := k.Laneid()
				k.Named("slot", func() { a.AddI(1) })
				a.AddI(2).U64()
				a.EqI(3)
			})
			k.TidX()
		}, lines(
			"mov.u32 %row0, %laneid;",
			"add.u32 %slot0, %row0, 1;",
			"add.u32 %row1, %row0, 2;",
			"cvt.u64.u32 %d0, %row1;", // row is the prefix of a register, so the name of its copy begins with another letter
			"setp.eq.u32 %p0, %row0, 3;",
			"mov.u32 %tid0, %tid.x;")},
		{"thread indices", func(k *ptx.Kernel) {
			k.Lane()
			k.Warp()
			k.Warpgroup()
			k.ThreadInWarpgroup()
			k.Lane().AddI(1)
			k.Warpgroup().AddI(1)
		}, lines(
			"mov.u32 %tid0, %tid.x;",
			"and.b32 %r0, %tid0, 31;",
			"shr.u32 %r1, %tid0, 5;",
			"shr.u32 %r2, %tid0, 7;",
			"and.b32 %r3, %tid0, 127;",
			"add.u32 %r4, %r0, 1;",
			"add.u32 %r5, %r2, 1;")},
		{"thread index from the kernel's own %tid.x", func(k *ptx.Kernel) {
			k.TidX()
			k.Named("row", func() { k.Lane().AddI(2) })
			k.TidX()
		}, lines(
			"mov.u32 %tid0, %tid.x;",
			"and.b32 %r0, %tid0, 31;",
			"add.u32 %row0, %r0, 2;",
			"mov.u32 %tid1, %tid.x;")},
		{"thread index after a body that computed it", func(k *ptx.Kernel) {
			k.IfElse(k.Laneid().EqI(0),
				func() { k.Range(ptx.Uint(2), func(ptx.U32) { k.Lane(); k.Lane() }) },
				func() { k.Warp() })
			k.Guarded(k.Laneid().EqI(1), func() { k.Lane().AddI(1) })
			k.If(k.Laneid().EqI(2), func() { k.Lane().AddI(2) })
		}, lines(
			"mov.u32 %r0, %laneid;",
			"setp.eq.u32 %p0, %r0, 0;",
			"@!%p0 bra $else0;",
			"mov.u32 %r1, 0;",
			"$loop0:",
			"setp.ge.u32 %p1, %r1, 2;",
			"@%p1 bra $end0;",
			"mov.u32 %tid0, %tid.x;",
			"and.b32 %r2, %tid0, 31;",
			"add.u32 %r3, %r1, 1;",
			"mov.u32 %r1, %r3;",
			"bra $loop0;",
			"$end0:",
			"bra $endif0;",
			"$else0:",
			"mov.u32 %tid1, %tid.x;",
			"shr.u32 %r4, %tid1, 5;",
			"$endif0:",
			"mov.u32 %r5, %laneid;",
			"setp.eq.u32 %p2, %r5, 1;",
			"mov.u32 %tid2, %tid.x;", // outside the guarded body, because later instructions read it too
			"and.b32 %r6, %tid2, 31;",
			"@%p2 add.u32 %r7, %r6, 1;",
			"mov.u32 %r8, %laneid;",
			"setp.eq.u32 %p3, %r8, 2;",
			"@!%p3 bra $else1;",
			"add.u32 %r9, %r6, 2;",
			"$else1:")},
		{"stmatrix", func(k *ptx.Kernel) {
			k.Stmatrix(k.SharedBase().At(16), ptx.Uint(7))
		}, lines(
			"mov.u32 %r0, smem;",
			"mov.u32 %r1, 7;",
			"stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r0+16], {%r1};")},
		{"stmatrix, transposed", func(k *ptx.Kernel) {
			w := k.Laneid()
			k.StmatrixTrans(k.SharedBase(), w, w)
		}, lines(
			"mov.u32 %r0, %laneid;",
			"mov.u32 %r1, smem;",
			"stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%r1], {%r0, %r0};")},
		{"acquire and release", func(k *ptx.Kernel) {
			x := ptx.GlobalAt(k.Laneid().U64()).At(8)
			ptx.StGlobalRelease(x, ptx.LdGlobalAcquire(x).AddI(1))
		}, lines(
			"mov.u32 %r0, %laneid;",
			"cvt.u64.u32 %d0, %r0;",
			"ld.acquire.gpu.global.u32 %r1, [%d0+8];",
			"add.u32 %r2, %r1, 1;",
			"st.release.gpu.global.u32 [%d0+8], %r2;")},
		{"a value set again", func(k *ptx.Kernel) {
			x := k.Laneid()
			ptx.VarOf(x).Set(x.AddI(1))
		}, lines(
			"mov.u32 %r0, %laneid;",
			"add.u32 %r1, %r0, 1;",
			"mov.u32 %r0, %r1;")},
	} {
		t.Run(c.name, func(t *testing.T) { assert.Equal(t, c.want, text(t, c.body)) })
	}
}
