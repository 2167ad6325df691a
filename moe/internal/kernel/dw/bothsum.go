package dw

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

// Sum adds the sums of [Both] in the order of the columns, multiplies by the adapter's scale, and
// rounds. Its roofline is the time to read the sums.
type Sum struct {
	spec.Config
	Factor string
	// Blocks is the number of blocks of columns.
	Blocks int
}

// SumArgs are the arguments of [Sum].
type SumArgs struct {
	// Sums [Blocks, R, 16] f32 are the sums of [Both]. V is the output, in the layout of [weights.U].
	Sums, V driver.DevicePtr
	// Rows is R.
	Rows int
}

// A thread adds sumStep neighbouring values, and loads sumsInFlight blocks at once.
const (
	sumThreads, sumCTAs = 256, 4
	sumStep             = 4
	sumsInFlight        = 8
)

// Build emits the kernel.
func (s Sum) Build() (*jit.Kernel[SumArgs], error) {
	k := jit.NewBuilder[SumArgs]("moe_lora_sum_"+s.Factor, sumThreads, sumCTAs)
	k.SetGrid(func(_ *SumArgs, sms int) gpu.Dim3 { return gpu.Dim3{X: sumCTAs * sms} })
	sums, v, rows := k.Ptr(&k.Args.Sums), k.Ptr(&k.Args.V), k.U32(&k.Args.Rows)
	k.GridDepWait()
	k.GridDepLaunch()
	width, of, scale := spec.PaddedRank(s.Config), element.Of(s.Config), ptx.Float(float64(spec.LoRAScale(s.Config)))
	k.For(k.CtaidX().MulI(sumThreads).Add(k.TidX()), rows.MulI(width/sumStep), k.NctaidX().MulI(sumThreads), func(i ptx.U32) {
		row, step := i.DivI(width/sumStep), i.RemI(width/sumStep)
		var total []ptx.F32
		for first := 0; first < s.Blocks; first += sumsInFlight {
			var parts [][]ptx.F32
			for block := first; block < min(first+sumsInFlight, s.Blocks); block++ {
				at := sums.Index(rows.MulI(block).Add(row), productWidth*4).Index(step, sumStep*4)
				parts = append(parts, ptx.LdGlobalVec[ptx.F32](at, sumStep))
			}
			if first == 0 {
				total, parts = parts[0], parts[1:]
			}
			for _, part := range parts {
				for j := range total {
					total[j] = total[j].Add(part[j])
				}
			}
		}
		ptx.StGlobal(v.Index(row, width*tile.ElementBytes).Index(step, sumStep*tile.ElementBytes),
			of.Pack(k.Kernel, total[0].Mul(scale), total[1].Mul(scale)), of.Pack(k.Kernel, total[2].Mul(scale), total[3].Mul(scale)))
	})
	return k.Build()
}

// SumB1Kernel and SumB2Kernel add the sums of the kernels for the factors B1 and B2.
var (
	SumB1Kernel = sumKernel("b1", BothB1)
	SumB2Kernel = sumKernel("b2", BothB2)
)

func sumKernel(name string, of func(spec.Config, gradient.Mode) Both) *registry.Kernel[SumArgs] {
	return &registry.Kernel[SumArgs]{KernelName: "lora-sum-" + name, Only: ReadsOnce, From: registry.OfExperts, Backward: true,
		Emit: func(l registry.Layer) (*jit.Kernel[SumArgs], error) {
			return Sum{Config: l.Config, Factor: name, Blocks: of(l.Config, gradient.Mode{}).Blocks()}.Build()
		}}
}

// Scale multiplies rows of an adapter's product by the rows' scores.
type Scale struct{ spec.Config }

// ScaleArgs are the arguments of [Scale].
type ScaleArgs struct {
	// U are rows in the layout of [weights.U], and Scaled is the output in the same layout. Scores is
	// f32, and Pairs [R] u32 is the index in Scores of each row.
	U, Scores, Pairs, Scaled driver.DevicePtr
	// Rows is R.
	Rows int
}

// Build emits the kernel.
func (s Scale) Build() (*jit.Kernel[ScaleArgs], error) {
	k := jit.NewBuilder[ScaleArgs]("moe_lora_scale", sumThreads, sumCTAs)
	k.SetGrid(func(_ *ScaleArgs, sms int) gpu.Dim3 { return gpu.Dim3{X: sumCTAs * sms} })
	u, scores, pairs, scaled, rows := k.Ptr(&k.Args.U), k.Ptr(&k.Args.Scores), k.Ptr(&k.Args.Pairs), k.Ptr(&k.Args.Scaled), k.U32(&k.Args.Rows)
	k.GridDepWait()
	k.GridDepLaunch()
	chunks, of := spec.PaddedRank(s.Config)/tile.CopyElements, element.Of(s.Config)
	k.For(k.CtaidX().MulI(sumThreads).Add(k.TidX()), rows.MulI(chunks), k.NctaidX().MulI(sumThreads), func(i ptx.U32) {
		score := ptx.LdGlobal[ptx.F32](scores.Index(ptx.LdGlobal[ptx.U32](pairs.Index(i.DivI(chunks), 4)), 4))
		words := ptx.LdGlobalVec[ptx.U32](u.Index(i, tile.CopyBytes), 4)
		for j, word := range words {
			lo, hi := of.Unpack(word)
			words[j] = of.Pack(k.Kernel, lo.Mul(score), hi.Mul(score))
		}
		ptx.StGlobal(scaled.Index(i, tile.CopyBytes), words...)
	})
	return k.Build()
}

// ScaleKernel multiplies rows by their scores.
var ScaleKernel = &registry.Kernel[ScaleArgs]{KernelName: "lora-scale", Only: func(c spec.Config) bool { return spec.HasLoRA(c) && !c.ScoreOnInput }, From: registry.OfExperts, Backward: true,
	Emit: func(l registry.Layer) (*jit.Kernel[ScaleArgs], error) { return Scale{l.Config}.Build() }}
