// Command wgmma is the fourth rung of the ladder: one tile through the tensor cores.
//
// The instruction wgmma multiplies a 64 x 16 piece of A by a 16 x N piece of B. A whole
// warpgroup, 128 threads, issues it together. It reads both pieces from shared memory, whose
// layout a 64-bit descriptor describes. It adds the products to registers: each thread holds
// N/2 of the 64 x N sums. wgmma is asynchronous.
//
// Three details matter. First, four steps of 16 make K = 64, and the descriptor of each step
// points 32 bytes further on. Second, fence, commit and wait surround the steps, because the
// tensor cores use the registers in between. Without the wait, the emulated device names the
// register that is read too early. Third, a [tile.Fragment] gives the row and the columns of
// the sums in a thread's registers.
//
//	go run ./examples/ladder/wgmma [-device cuda|emulated]
package main

import (
	"context"
	"fmt"
	"io"
	"math"

	"sonicmoe/driver"
	"sonicmoe/driver/gpu"
	"sonicmoe/examples/internal/command"
	"sonicmoe/examples/internal/rung"
	"sonicmoe/internal/num"
	"sonicmoe/internal/reference"
	"sonicmoe/jit"
	"sonicmoe/jit/pipeline"
	"sonicmoe/jit/tile"
	"sonicmoe/ptx"
)

var about = command.Program{Name: "wgmma", Purpose: "multiplies one tile on the tensor cores: descriptors, steps, accumulator fragments."}

func main() { about.Main(run) }

const (
	tileM   = 64 // rows of a tile: every wgmma has 64
	tileN   = 96 // columns of a tile: any multiple of 8 up to 256
	depth   = tile.K
	threads = pipeline.WarpgroupThreads
)

// args are the arguments of a launch.
type args struct{ A, B, C driver.DevicePtr }

// multiply returns a kernel that computes c = a·bᵀ for a [64, 64] and b [96, 64] in bf16, with
// c in FP32.
func multiply() *jit.Builder[args] {
	k := jit.NewBuilder[args]("multiply", threads, 1)
	a := k.Map(&k.Args.A, func(a *args) gpu.TensorMap { return tile.RowMap(a.A, depth, tileM, tileM) })
	b := k.Map(&k.Args.B, func(a *args) gpu.TensorMap { return tile.RowMap(a.B, depth, tileN, tileN) })
	c := k.Ptr(&k.Args.C)
	tid := k.TidX()
	cta := pipeline.NewCTA(k.Kernel)
	tileA := cta.Shared("a", tileM*tile.RowBytes, 1024)
	tileB := cta.Shared("b", tileN*tile.RowBytes, 1024)
	arrived := cta.Mbarriers("arrived", 1, 1)
	cta.Ready(tid)

	k.If(tid.EqI(0), func() { // two copies that signal one barrier, as in the third rung
		k.MbarrierArriveExpectTx(arrived, ptx.Uint((tileM+tileN)*tile.RowBytes))
		k.TMALoad(tileA, a, arrived, ptx.Uint(0), ptx.Uint(0))
		k.TMALoad(tileB, b, arrived, ptx.Uint(0), ptx.Uint(0))
	})
	pipeline.WaitParity(k.Kernel, arrived, ptx.Uint(0))

	acc := k.Accumulators(tileN / 2)
	descA, descB := tile.NewDescriptor(k.Kernel, tileA), tile.NewDescriptor(k.Kernel, tileB)
	k.WgmmaFence() // from here on the tensor cores use the registers
	for i := range depth / tile.KStep {
		add := ptx.True()
		if i == 0 {
			add = ptx.False() // the first step overwrites the content of acc
		}
		k.Wgmma(acc, descA.Step(i, 0), descB.Step(i, 0), add, false, false)
	}
	k.WgmmaCommit()
	k.WgmmaWait(0) // from here on the threads may use the registers again

	at := tile.NewFragment(tid)
	for j := range tileN / 8 {
		for half := range 2 { // half 0 is row Row, half 1 is row Row+8
			element := at.Row.AddI(8 * half).MulI(tileN).Add(at.Column).AddI(8 * j)
			ptx.StGlobal(c.Index(element, 4), acc[4*j+2*half], acc[4*j+2*half+1])
		}
	}
	return k
}

func run(ctx context.Context, words []string, stdout, stderr io.Writer) error {
	b, err := rung.New(ctx, about, words, stdout, stderr)
	if err != nil {
		return err
	}
	defer b.Close()
	as := reference.NewNormal(1, 1).Values(tileM * depth)
	bs := reference.NewNormal(2, 1).Values(tileN * depth)
	c := rung.Buffer[float32](b, tileM*tileN)
	rung.Load(b, multiply()).Run(args{A: rung.Upload(b, as), B: rung.Upload(b, bs), C: c})
	got := rung.Download[float32](b, c, tileM*tileN)
	if err := b.Err(); err != nil {
		return err
	}

	// Products of bf16 numbers are exact in FP32. Only the sum of 64 products is rounded.
	const bound = 1e-5
	worst := 0.0
	for i := range got {
		var sum, size float64
		for j := range depth {
			product := num.BF16ToFloat64(as[i/tileN*depth+j]) * num.BF16ToFloat64(bs[i%tileN*depth+j])
			sum, size = sum+product, size+math.Abs(product)
		}
		if e := math.Abs(float64(got[i])-sum) / size; !(e <= bound) { // NaN fails this comparison too
			return fmt.Errorf("c[%d,%d] is %v, must be %v", i/tileN, i%tileN, got[i], sum)
		} else if e > worst {
			worst = e
		}
	}
	fmt.Fprintf(stdout, "device   %s\n", b.Device())
	fmt.Fprintf(stdout, "product  %d x %d x %d by %d wgmma.m64n%dk16, %d floats of it in each thread\n",
		tileM, tileN, depth, depth/tile.KStep, tileN, tileN/2)
	fmt.Fprintf(stdout, "checked  all %d elements against float64: within %.1g of the sum of |a b|\n", len(got), worst)
	return nil
}
