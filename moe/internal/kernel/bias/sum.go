package bias

import (
	"sonicmoe/driver"
	"sonicmoe/jit"
	"sonicmoe/jit/schedule"
	"sonicmoe/moe/internal/element"
	"sonicmoe/moe/internal/gradient"
	"sonicmoe/moe/internal/registry"
	"sonicmoe/moe/internal/weights"
	"sonicmoe/moe/spec"
	"sonicmoe/ptx"
)

// Sum adds up the partial sums of each expert's row pairs, in their order, and
// writes the bias's gradient, laid out as the bias is. A thread owns 4 numbers.
type Sum struct {
	spec.Config
	Of    Of
	Store gradient.Mode
}

// SumArgs are the arguments of [Sum].
type SumArgs struct {
	// Partials are what [Partials] wrote, Offsets [E+1] u32 the experts' first
	// packed rows.
	Partials driver.DevicePtr
	Offsets  driver.DevicePtr
	// DB [E, width] is written, in the format of Store; DB3 is db1's other half
	// where gate and up are apart.
	DB, DB3 driver.DevicePtr
}

// ofThread is the numbers of a thread.
const ofThread = 4

// layout is how the bias lies in memory.
func (s Sum) layout() weights.Bias {
	if s.Of == B1 {
		return weights.B1(s.Config)
	}
	return weights.B2(s.Config)
}

// Build emits the kernel.
func (s Sum) Build() (*jit.Kernel[SumArgs], error) {
	name, width, layout := "moe_db1", s.Of.width(s.Config), s.layout()
	if s.Of == B2 {
		name = "moe_db2"
	}
	k := jit.NewBuilder[SumArgs](name+s.Store.Suffix(), sumThreads, 1)
	k.CTAs(func(*SumArgs) int { return s.NumExperts * chunks(width, ofThread) })
	partials, offsets := k.Ptr(&k.Args.Partials), k.Ptr(&k.Args.Offsets)
	out := []ptx.Global{k.Ptr(&k.Args.DB)}
	if layout.Apart {
		out = append(out, k.Ptr(&k.Args.DB3))
	}
	expert := k.CtaidX().DivI(chunks(width, ofThread))
	chunk := k.CtaidX().Sub(expert.MulI(chunks(width, ofThread)))
	column := chunk.MulI(sumThreads).Add(k.TidX()).MulI(ofThread)
	k.GridDepWait()
	k.GridDepLaunch()
	first, n := s.pairsOf(k.Kernel, offsets, expert)
	wanted := column.LtI(width)
	if s.Store.Accumulate {
		wanted = wanted.And(n.NeI(0)) // an expert without rows stays as it is
	}
	k.If(wanted, func() {
		// From where the thread's numbers are summed, and where they go.
		from, count, to := []ptx.U32{column}, ofThread, out[0].Index(expert, layout.Width()*s.Store.Bytes()).Index(column, s.Store.Bytes())
		switch {
		case layout.Interleaved: // two neurons' gates and ups
			neuron := column.ShrI(1)
			from, count = []ptx.U32{neuron, neuron.AddI(layout.N)}, ofThread/2
		case layout.Apart:
			isUp := column.GeI(layout.N)
			at := column.Sub(ptx.Select(isUp, ptx.Uint(layout.N), ptx.Uint(0)))
			to = ptx.GlobalAt(ptx.Select(isUp, out[1].Addr(), out[0].Addr())).Index(expert, layout.N*s.Store.Bytes()).Index(at, s.Store.Bytes())
		}
		sums := ptx.NewVars(k.Kernel, ofThread, ptx.Float(0))
		k.For(first, first.Add(n), ptx.Uint(1), func(pair ptx.U32) {
			for part, c := range from {
				for i, v := range ptx.LdGlobalVec[ptx.F32](partials.Index(pair, width*4).Index(c, 4), count) {
					sum := sums[i*len(from)+part]
					sum.Set(sum.Get().Add(v))
				}
			}
		})
		var v []ptx.F32
		for _, sum := range sums {
			v = append(v, sum.Get())
		}
		s.Store.Write(k.Kernel, element.Of(s.Config), to, v...)
	})
	return k.Build()
}

// pairsOf are the expert's first row pair and how many it has: every warp counts
// those of the experts before.
func (s Sum) pairsOf(k *ptx.Kernel, offsets ptx.Global, expert ptx.U32) (first, n ptx.U32) {
	of := func(e ptx.U32) ptx.U32 {
		at := offsets.Index(e, 4)
		return ptx.LdGlobal[ptx.U32](at.At(4)).Sub(ptx.LdGlobal[ptx.U32](at)).AddI(schedule.PairRows - 1).DivI(schedule.PairRows)
	}
	before := ptx.NewVar(k, ptx.Uint(0))
	k.For(k.TidX().AndI(31), expert, ptx.Uint(32), func(e ptx.U32) { before.Set(before.Get().Add(of(e))) })
	k.BarWarpSync(ptx.Uint(ptx.FullMask))
	return before.Get().ReduxAdd(), of(expert)
}

// B1Kernels and B2Kernels write the gradients in each of the [gradient.Modes].
var (
	B1Kernels = sumKernels("db1", B1)
	B2Kernels = sumKernels("db2", B2)
)

func sumKernels(name string, of Of) [4]*registry.Kernel[SumArgs] {
	list := gradient.Kernels(name, func(l registry.Layer, g gradient.Mode) (*jit.Kernel[SumArgs], error) {
		return Sum{Config: l.Config, Of: of, Store: g}.Build()
	})
	for _, k := range list {
		k.Only = Has
	}
	return list
}
