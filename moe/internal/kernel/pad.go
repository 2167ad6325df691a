package kernel

import (
	"sonicmoe/driver"
	"sonicmoe/driver/gpu"
	"sonicmoe/internal/spec"
	"sonicmoe/jit"
	"sonicmoe/jit/tile"
	"sonicmoe/moe/internal/element"
	"sonicmoe/moe/internal/gradient"
	"sonicmoe/moe/internal/registry"
	"sonicmoe/ptx"
)

// Pad copies the factors of an adapter whose rank is no multiple of 8, and writes zeros for the ranks
// up to the padded rank (see [spec.PaddedRank]). The other kernels then read the copies. Its roofline
// is the time to move the factors' bytes twice.
type Pad struct{ spec.Config }

// PadArgs are the arguments of [Pad]. LoraB3 is used with GateUp "apart". The outputs have the layout
// of the factors of [spec.Padded].
type PadArgs struct {
	LoraA1, LoraB1, LoraB3, LoraA2, LoraB2           driver.DevicePtr
	ToLoraA1, ToLoraB1, ToLoraB3, ToLoraA2, ToLoraB2 driver.DevicePtr
}

// A thread copies padStep elements at a time, which are 8 bytes. Ranks and widths are multiples of
// padStep.
const (
	padThreads, padCTAs = 256, 4
	padStep             = 4
)

// Build emits the kernel.
func (p Pad) Build() (*jit.Kernel[PadArgs], error) {
	k := jit.NewBuilder[PadArgs]("moe_lora_pad", padThreads, padCTAs)
	k.SetGrid(func(_ *PadArgs, sms int) gpu.Dim3 { return gpu.Dim3{X: padCTAs * sms} })
	type copied struct {
		id       spec.TensorID
		from, to ptx.Global
	}
	a := k.Args
	list := []copied{
		{spec.TensorLoraA1, k.Ptr(&a.LoraA1), k.Ptr(&a.ToLoraA1)}, {spec.TensorLoraB1, k.Ptr(&a.LoraB1), k.Ptr(&a.ToLoraB1)},
		{spec.TensorLoraA2, k.Ptr(&a.LoraA2), k.Ptr(&a.ToLoraA2)}, {spec.TensorLoraB2, k.Ptr(&a.LoraB2), k.Ptr(&a.ToLoraB2)},
	}
	if p.GateUp == spec.Apart {
		list = append(list, copied{spec.TensorLoraB3, k.Ptr(&a.LoraB3), k.Ptr(&a.ToLoraB3)})
	}
	k.GridDepWait()
	k.GridDepLaunch()
	have, padded := p.Shapes(0), spec.Padded(p.Config).Shapes(0)
	for _, c := range list {
		p.copy(k.Kernel, have.Of(c.id), padded.Of(c.id), c.from, c.to)
	}
	return k.Build()
}

// copy copies the matrices of a factor.
func (p Pad) copy(k *ptx.Kernel, have, padded spec.Shape, from, to ptx.Global) {
	const bytes = padStep * tile.ElementBytes
	experts, rows, steps := int(have.Dims[0]), int(have.Dims[1]), int(have.Dims[2])/padStep
	toRows, toSteps := int(padded.Dims[1]), int(padded.Dims[2])/padStep
	eachStep(k, ptx.Uint(experts*toRows*toSteps), func(i ptx.U32) {
		line, step := i.DivI(toSteps), i.RemI(toSteps)
		expert, row := line.DivI(toRows), line.RemI(toRows)
		words := []*ptx.Var[ptx.U32]{ptx.NewVar(k, ptx.Uint(0)), ptx.NewVar(k, ptx.Uint(0))}
		k.If(row.LtI(rows).And(step.LtI(steps)), func() {
			for w, v := range ptx.LdGlobalVec[ptx.U32](from.Index(expert.MulI(rows).Add(row).MulI(steps).Add(step), bytes), len(words)) {
				words[w].Set(v)
			}
		})
		ptx.StGlobal(to.Index(i, bytes), words[0].Get(), words[1].Get())
	})
}

// eachStep runs the body for each number below count, spread over the threads of the grid.
func eachStep(k *ptx.Kernel, count ptx.U32, body func(i ptx.U32)) {
	k.For(k.CtaidX().MulI(padThreads).Add(k.TidX()), count, k.NctaidX().MulI(padThreads), body)
}

// Unpad writes the gradient of a factor, or adds it to the old values. It leaves out the ranks that
// [Pad] has added.
type Unpad struct {
	spec.Config
	Store gradient.Mode
}

// UnpadArgs are the arguments of [Unpad].
type UnpadArgs struct {
	// From [E, PaddedRows, PaddedColumns] f32 is the gradient with the padded rank.
	From driver.DevicePtr
	// To [E, Rows, Columns] is the output, in the format of Store.
	To                                       driver.DevicePtr
	Rows, Columns, PaddedRows, PaddedColumns int
}

// Build emits the kernel.
func (u Unpad) Build() (*jit.Kernel[UnpadArgs], error) {
	k := jit.NewBuilder[UnpadArgs]("moe_lora_unpad"+u.Store.Suffix(), padThreads, padCTAs)
	k.SetGrid(func(_ *UnpadArgs, sms int) gpu.Dim3 { return gpu.Dim3{X: padCTAs * sms} })
	a := k.Args
	from, to := k.Ptr(&a.From), k.Ptr(&a.To)
	rows, columns, paddedRows, paddedColumns := k.U32(&a.Rows), k.U32(&a.Columns), k.U32(&a.PaddedRows), k.U32(&a.PaddedColumns)
	k.GridDepWait()
	k.GridDepLaunch()
	steps := columns.DivI(padStep)
	eachStep(k.Kernel, rows.Mul(steps).MulI(u.NumExperts), func(i ptx.U32) {
		line, step := i.Div(steps), i.Rem(steps)
		expert, row := line.Div(rows), line.Rem(rows)
		at := expert.Mul(paddedRows).Add(row).Mul(paddedColumns.DivI(padStep)).Add(step)
		values := ptx.LdGlobalVec[ptx.F32](from.Index(at, padStep*4), padStep)
		u.Store.Write(k.Kernel, element.Of(u.Config), to.Index(i, padStep*u.Store.Bytes()), values...)
	})
	return k.Build()
}

// PadKernel pads the factors. UnpadKernels write their gradients.
var (
	PadKernel = &registry.Kernel[PadArgs]{KernelName: "lora-pad", Only: spec.PadsRank, From: registry.OfExperts,
		Emit: func(l registry.Layer) (*jit.Kernel[PadArgs], error) { return Pad{l.Config}.Build() }}
	UnpadKernels = gradient.NewSet("lora-unpad", func(k *registry.Kernel[UnpadArgs], _ gradient.Mode) {
		k.Only, k.From = spec.PadsRank, registry.OfExperts
	}, func(l registry.Layer, g gradient.Mode) (*jit.Kernel[UnpadArgs], error) {
		return Unpad{Config: l.Config, Store: g}.Build()
	})
)
