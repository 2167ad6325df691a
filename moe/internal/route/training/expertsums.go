package training

import (
	"sonicmoe/driver"
	"sonicmoe/internal/spec"
	"sonicmoe/jit"
	"sonicmoe/jit/pipeline"
	"sonicmoe/moe/internal/lanes"
	"sonicmoe/moe/internal/registry"
	"sonicmoe/ptx"
)

// ExpertSums computes a sum for each expert, over the values of its rows and over its column of a
// dense tensor. These sums are the gradients of router biases and expert scales. One CTA sums for
// one expert, in a fixed order.
type ExpertSums struct {
	NumExperts int
	// OfRank means that Dense has the columns of all ranks' experts, as many as the argument Columns.
	OfRank bool
}

const (
	sumsThreads = 256
	sumsWarps   = sumsThreads / lanes.Count
)

// ExpertSumsArgs are the arguments of [ExpertSums].
type ExpertSumsArgs struct {
	// Rows [R] f32, unless 0, has one value for each row. Offsets [E+1] u32 comes from the
	// plan.
	Rows, Offsets driver.DevicePtr
	// Dense [T, E] f32, unless 0, is added to the sums.
	Dense driver.DevicePtr
	// Sums [E] f32 is the output. Add [E] f32, unless 0, is added last; it may be the same
	// tensor.
	Add, Sums driver.DevicePtr
	// Tokens is T. With OfRank, Columns is the number of columns of Dense, and Dense points to the rank's
	// first column.
	Tokens, Columns int
}

// Build emits the kernel.
func (s ExpertSums) Build() (*jit.Kernel[ExpertSumsArgs], error) {
	k := jit.NewBuilder[ExpertSumsArgs]("moe_expert_sums", sumsThreads, 1)
	k.CTAs(func(*ExpertSumsArgs) int { return s.NumExperts })
	rows, offsets, dense := k.Ptr(&k.Args.Rows), k.Ptr(&k.Args.Offsets), k.Ptr(&k.Args.Dense)
	add, sums, tokens := k.Ptr(&k.Args.Add), k.Ptr(&k.Args.Sums), k.U32(&k.Args.Tokens)
	tid, expert := k.TidX(), k.CtaidX()
	row := func(token ptx.U32) ptx.Global { return dense.Index(token, 4*s.NumExperts) }
	if s.OfRank {
		bytes := k.U32(&k.Args.Columns).MulI(4)
		row = func(token ptx.U32) ptx.Global { return dense.Plus(token.MulWide(bytes)) }
	}
	perWarp := pipeline.NewCTA(k.Kernel).Shared("perWarp", 4*sumsWarps, 16)
	k.GridDepWait()
	k.GridDepLaunch()
	sum := ptx.NewVar(k.Kernel, ptx.Float(0))
	each := func(from, to ptx.U32, at func(i ptx.U32) ptx.Global) {
		k.For(from.Add(tid), to, ptx.Uint(sumsThreads), func(i ptx.U32) {
			sum.Set(sum.Get().Add(ptx.LdGlobal[ptx.F32](at(i))))
		})
	}
	k.If(rows.Given(), func() {
		of := offsets.Index(expert, 4)
		each(ptx.LdGlobal[ptx.U32](of), ptx.LdGlobal[ptx.U32](of.At(4)), func(row ptx.U32) ptx.Global { return rows.Index(row, 4) })
	})
	k.If(dense.Given(), func() {
		each(ptx.Uint(0), tokens, func(token ptx.U32) ptx.Global { return row(token).Index(expert, 4) })
	})
	total := lanes.Sum(sum.Get())
	k.If(k.Lane().EqI(0), func() { ptx.StShared(perWarp.Plus(k.Warp().ShlI(2)), total) })
	k.BarSync(ptx.Uint(0))
	k.If(tid.EqI(0), func() {
		all := ptx.NewVar(k.Kernel, ptx.LdShared[ptx.F32](perWarp))
		for w := 1; w < sumsWarps; w++ {
			all.Set(all.Get().Add(ptx.LdShared[ptx.F32](perWarp.At(4 * w))))
		}
		k.If(add.Given(), func() { all.Set(all.Get().Add(ptx.LdGlobal[ptx.F32](add.Index(expert, 4)))) })
		ptx.StGlobal(sums.Index(expert, 4), all.Get())
	})
	return k.Build()
}

// ExpertSumsKernel is for layers with router biases or expert scales.
var ExpertSumsKernel = &registry.Kernel[ExpertSumsArgs]{KernelName: "expert-sums", Backward: true,
	Only: func(c spec.Config) bool { return c.RouterBias || c.ExpertScale },
	Emit: func(l registry.Layer) (*jit.Kernel[ExpertSumsArgs], error) {
		return ExpertSums{NumExperts: l.NumExperts}.Build()
	}}
