// Command listing is the second rung: from PTX and its mistakes back to Go.
//
// The idea: each instruction remembers the Go line that emitted it. So the
// kernel's PTX can be read beside its source, and whoever finds a mistake can
// say where it was made. Three places find them:
//
//   - the Go compiler, for wrong types (a U32 is no F32: it does not compile);
//   - Build, for what can be seen without running: here a barrier where only
//     some threads come, and a value that nothing computed;
//   - the emulated device, for what shows when the kernel runs: here a read
//     past the end of x. A GPU would read whatever lies there, in silence.
//
// The third part therefore always runs on an emulated device; -device chooses
// where the first kernel is compiled.
//
//	go run ./examples/ladder/listing [-device cuda|emulated]
package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"sonicmoe/driver"
	"sonicmoe/examples/internal/command"
	"sonicmoe/examples/internal/rung"
	"sonicmoe/jit"
	"sonicmoe/ptx"
)

var about = command.Program{Name: "listing", Purpose: "prints a kernel with the Go line behind each instruction, and two mistakes with what is said of them."}

func main() { about.Main(run) }

// mistake is what is wrong with the kernel.
type mistake int

const (
	none mistake = iota
	unfit
	unbounded
)

const elements, threads = 100, 128

// args are what a launch takes.
type args struct {
	X, Y  driver.DevicePtr
	Alpha float32
	N     int
}

// axpy is the kernel of the first rung, with room for mistakes.
func axpy(m mistake) *jit.Builder[args] {
	k := jit.NewBuilder[args]("axpy", threads, 1)
	x, y := k.Ptr(&k.Args.X), k.Ptr(&k.Args.Y)
	alpha, n := k.F32(&k.Args.Alpha), k.U32(&k.Args.N)
	i := k.CtaidX().Mad(k.NtidX(), k.TidX())
	inside := i.Lt(n)
	if m == unbounded { // a Go "if": it decides which kernel is built
		inside = ptx.True()
	}
	k.If(inside, func() { // a branch of the GPU
		src, dst := x.Index(i, 4), y.Index(i, 4)
		sum := ptx.LdGlobal[ptx.F32](src).Fma(alpha, ptx.LdGlobal[ptx.F32](dst))
		if m == unfit {
			k.BarSync(ptx.Uint(0)) // threads past n never come
			var forgotten ptx.F32
			sum = sum.Add(forgotten)
		}
		ptx.StGlobal(dst, sum)
	})
	return k
}

func run(ctx context.Context, words []string, stdout, stderr io.Writer) error {
	if err := list(ctx, words, stdout, stderr); err != nil {
		return err
	}
	if err := build(stdout); err != nil {
		return err
	}
	return fault(ctx, stdout, stderr)
}

// list prints the right kernel.
func list(ctx context.Context, words []string, stdout, stderr io.Writer) error {
	b, err := rung.New(ctx, about, words, stdout, stderr)
	if err != nil {
		return err
	}
	defer b.Close()
	program := rung.Load(b, axpy(none))
	if err := b.Err(); err != nil {
		return err
	}
	fmt.Fprintf(stdout, "The kernel, with the Go line behind each instruction:\n\n%s", program.Listing())
	return nil
}

// build shows what a kernel that can't be right gets.
func build(stdout io.Writer) error {
	_, err := axpy(unfit).Build()
	if err == nil {
		return errors.New("the wrong kernel was built, must be refused")
	}
	fmt.Fprintf(stdout, "\nA barrier in the branch and a value from nowhere. Build says:\n\n%v\n", err)
	return nil
}

// fault shows what a kernel that goes wrong gets from the emulated device.
func fault(ctx context.Context, stdout, stderr io.Writer) error {
	b, err := rung.New(ctx, about, []string{"-device", "emulated"}, stdout, stderr)
	if err != nil {
		return err
	}
	defer b.Close()
	x, y := rung.Upload(b, make([]float32, elements)), rung.Upload(b, make([]float32, elements))
	rung.Load(b, axpy(unbounded)).Run(args{X: x, Y: y, Alpha: 2, N: elements})
	if !errors.Is(b.Err(), driver.ErrBroken) {
		return fmt.Errorf("%d threads on %d elements gave %v, must be a fault", threads, elements, b.Err())
	}
	fmt.Fprintf(stdout, "\nNo comparison with n, %d threads on %d elements. The emulated device says:\n\n%v\n", threads, elements, b.Err())
	return nil
}
