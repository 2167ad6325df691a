// Command axpy is the first rung of the ladder of example programs: a kernel from Go to a
// device.
//
// Go code writes a kernel by calling methods of a [jit.Builder]. This Go code runs once, when
// the kernel is built. The instructions that it emits run later, once for each thread. In the
// function axpy below, i, x and y are Go variables that stand for registers. k.If takes a
// closure because its body becomes a branch of the kernel.
//
// Build checks the kernel and prints PTX. The device's own assembler compiles the PTX; no other
// compiler is needed.
//
//	go run ./examples/ladder/axpy [-device cuda|emulated]
package main

import (
	"context"
	"fmt"
	"io"

	"sonicmoe/driver"
	"sonicmoe/examples/internal/command"
	"sonicmoe/examples/internal/rung"
	"sonicmoe/jit"
	"sonicmoe/ptx"
)

var about = command.Program{Name: "axpy", Purpose: "writes a kernel in Go, loads it and runs it: y = alpha x + y."}

func main() { about.Main(run) }

// args holds the arguments of a launch. Its fields are the parameters of the kernel.
type args struct {
	X, Y  driver.DevicePtr // addresses in global memory
	Alpha float32
	N     int
}

// axpy returns a kernel that computes y = alpha x + y for n floats, one in each thread.
func axpy() *jit.Builder[args] {
	k := jit.NewBuilder[args]("axpy", threads, 1)
	k.CTAs(func(a *args) int { return (a.N + threads - 1) / threads })
	x, y := k.Ptr(&k.Args.X), k.Ptr(&k.Args.Y)
	alpha, n := k.F32(&k.Args.Alpha), k.U32(&k.Args.N)

	// The index of the thread's element is the CTA's number times the threads in a CTA, plus
	// the thread's number.
	i := k.CtaidX().Mad(k.NtidX(), k.TidX())

	// n need not be a multiple of the number of threads in a CTA. Some threads of the last CTA
	// then have no element.
	k.If(i.Lt(n), func() {
		src, dst := x.Index(i, 4), y.Index(i, 4) // an element has 4 bytes
		sum := ptx.LdGlobal[ptx.F32](src).Fma(alpha, ptx.LdGlobal[ptx.F32](dst))
		ptx.StGlobal(dst, sum)
	})
	return k
}

const (
	elements = 100_003
	threads  = 256
	alpha    = float32(0.5)
)

func run(ctx context.Context, words []string, stdout, stderr io.Writer) error {
	b, err := rung.New(ctx, about, words, stdout, stderr)
	if err != nil {
		return err
	}
	defer b.Close()

	xs, ys := make([]float32, elements), make([]float32, elements)
	for i := range xs {
		xs[i], ys[i] = float32(i%1000), float32(i%7) // small numbers, so that every result is exact
	}
	x, y := rung.Upload(b, xs), rung.Upload(b, ys)
	rung.Load(b, axpy()).Run(args{X: x, Y: y, Alpha: alpha, N: elements})
	got := rung.Download[float32](b, y, elements)
	if err := b.Err(); err != nil {
		return err
	}

	fmt.Fprintf(stdout, "device   %s\n", b.Device())
	fmt.Fprintf(stdout, "launch   %d CTAs of %d threads for %d elements\n", (elements+threads-1)/threads, threads, elements)
	for i := range got {
		if want := alpha*xs[i] + ys[i]; got[i] != want {
			return fmt.Errorf("y[%d] is %v, must be %v", i, got[i], want)
		}
	}
	last := elements - 1
	fmt.Fprintf(stdout, "y[%d]  %v * %v + %v = %v\n", last, alpha, xs[last], ys[last], got[last])
	fmt.Fprintf(stdout, "checked  all %d elements, to the bit\n", elements)
	return nil
}
