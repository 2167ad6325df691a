package bias

import (
	"slices"

	"sonicmoe/driver"
	"sonicmoe/internal/spec"
	"sonicmoe/jit"
	"sonicmoe/jit/pipeline"
	"sonicmoe/moe/internal/element"
	"sonicmoe/moe/internal/gradient"
	"sonicmoe/moe/internal/kernel/dh"
	"sonicmoe/moe/internal/registry"
	"sonicmoe/moe/internal/weights"
	"sonicmoe/ptx"
)

// Sum adds up the column sums of dH that [dh.DH] writes for an expert's rows, and writes db1 in the
// layout of b1. A CTA computes 32 elements of one expert's db1. A thread adds every 16th column sum
// of 4 elements. At the end the CTA adds the results of its threads in order.
type Sum struct {
	spec.Config
	Store gradient.Mode
}

const (
	sumThreads = 128
	// ofThread and ofCTA are the numbers of elements of db1 that a thread and a CTA
	// compute.
	ofThread = 4
	ofCTA    = 32
	// strides is the number of threads that compute the same element.
	strides = sumThreads * ofThread / ofCTA
	// inFlight is the number of column sums that a thread loads before it adds the first. All
	// threads of a CTA then have loads of 3,072 rows' sums in flight.
	inFlight = 3
)

// SumArgs are the arguments of [Sum].
type SumArgs struct {
	// ColumnSums has the sums of dH's columns, written by [dh.DH]. Offsets [E+1] u32 is the first
	// packed row of each expert.
	ColumnSums driver.DevicePtr
	Offsets    driver.DevicePtr
	// DB [E, width] is the output, in the format of Store. If gate and up are separate
	// tensors, DB3 is the output for up.
	DB, DB3 driver.DevicePtr
}

// Build emits the kernel.
func (s Sum) Build() (*jit.Kernel[SumArgs], error) {
	width, layout := s.HWidth(), weights.B1(s.Config)
	chunks := (width + ofCTA - 1) / ofCTA
	k := jit.NewBuilder[SumArgs]("moe_db1"+s.Store.Suffix(), sumThreads, 1)
	k.CTAs(func(*SumArgs) int { return s.NumExperts * chunks })
	columns, offsets := k.Ptr(&k.Args.ColumnSums), k.Ptr(&k.Args.Offsets)
	out := []ptx.Global{k.Ptr(&k.Args.DB)}
	if layout.Apart {
		out = append(out, k.Ptr(&k.Args.DB3))
	}
	sums := pipeline.NewCTA(k.Kernel).Shared("sums", 4*ofThread*sumThreads, 16)
	tid := k.TidX()
	expert := k.CtaidX().DivI(chunks)
	column := k.CtaidX().Sub(expert.MulI(chunks)).MulI(ofCTA).Add(tid.AndI(ofCTA/ofThread - 1).MulI(ofThread))
	stride := tid.DivI(ofCTA / ofThread)
	k.GridDepWait()
	k.GridDepLaunch()
	at := offsets.Index(expert, 4)
	row := ptx.LdGlobal[ptx.U32](at)
	n := ptx.LdGlobal[ptx.U32](at.At(4)).Sub(row).AddI(dh.ColumnSumRows - 1).DivI(dh.ColumnSumRows)
	k.If(column.LtI(width), func() {
		first := dh.ColumnSumsOf(row, expert)
		own := s.columns(k.Kernel, columns, layout, column, first.Add(stride), first.Add(n))
		ptx.StShared(sums.Plus(tid.MulI(4*ofThread)), own...)
	})
	k.BarSync(ptx.Uint(0))
	wanted := column.LtI(width).And(stride.EqI(0))
	if s.Store.Accumulate {
		wanted = wanted.And(n.NeI(0)) // with Accumulate an expert without rows keeps its gradient
	}
	k.If(wanted, func() {
		total := make([]ptx.F32, ofThread)
		for i := range strides {
			for j, v := range ptx.LdSharedVec[ptx.F32](sums.Plus(tid.MulI(4*ofThread)).At(4*ofCTA*i), ofThread) {
				if i > 0 {
					v = total[j].Add(v)
				}
				total[j] = v
			}
		}
		to := out[0].Index(expert, layout.Width()*s.Store.Bytes()).Index(column, s.Store.Bytes())
		if layout.Apart {
			isUp := column.GeI(layout.N)
			at := column.Sub(ptx.Select(isUp, ptx.Uint(layout.N), ptx.Uint(0)))
			to = ptx.GlobalAt(ptx.Select(isUp, out[1].Addr(), out[0].Addr())).Index(expert, layout.N*s.Store.Bytes()).Index(at, s.Store.Bytes())
		}
		s.Store.Write(k.Kernel, element.Of(s.Config), to, total...)
	})
	return k.Build()
}

// columns adds up a thread's elements, which begin at the given column of b1. It adds
// every strides-th column sum from first to end - 1.
func (s Sum) columns(k *ptx.Kernel, from ptx.Global, layout weights.Bias, column, first, end ptx.U32) []ptx.F32 {
	row := weights.DH(s.Config)
	at, count := []ptx.U32{column}, ofThread
	switch {
	case layout.Interleaved: // gate and up of a neuron are neighbouring columns, and a thread has two neurons
		neuron := column.ShrI(1)
		at, count = []ptx.U32{neuron, neuron.AddI(row.Width)}, ofThread/2
	case row.Parts > 1 && row.Width != s.Intermediate: // each part of dH is padded to whole tiles
		at[0] = column.Add(ptx.Select(column.GeI(s.Intermediate), ptx.Uint(row.Width-s.Intermediate), ptx.Uint(0)))
	}
	sums := ptx.NewVars(k, ofThread, ptx.Float(0))
	last := end.SubI(1)
	k.For(first, end, ptx.Uint(inFlight*strides), func(of ptx.U32) {
		var values [][]ptx.F32
		for i := range inFlight {
			row := from.Index(of.AddI(i*strides).Min(last), 4*row.Elements())
			for _, c := range at {
				values = append(values, ptx.LdGlobalVec[ptx.F32](row.Index(c, 4), count))
			}
		}
		for i, list := range values {
			there := of.AddI(i / len(at) * strides).Lt(end)
			for j, v := range list {
				sum := sums[j*len(at)+i%len(at)]
				sum.Set(sum.Get().Add(ptx.Select(there, v, ptx.Float(0))))
			}
		}
	})
	list := make([]ptx.F32, ofThread)
	for i, sum := range sums {
		list[i] = sum.Get()
	}
	return list
}

// B1Kernels write db1.
var B1Kernels = gradient.NewSet("db1", func(k *registry.Kernel[SumArgs], _ gradient.Mode) { k.Only = Has },
	func(l registry.Layer, g gradient.Mode) (*jit.Kernel[SumArgs], error) {
		return Sum{Config: l.Config, Store: g}.Build()
	})

// Kernels lists the kernels of this package.
var Kernels = slices.Concat(registry.Registry{DotKernel}, B1Kernels.Kernels(), registry.Registry{ScoresKernel, ScoresListKernel, B2Kernel, B2RoutedKernel})
