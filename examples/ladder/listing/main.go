// Command listing is the second rung of the ladder: from PTX and its mistakes back to Go.
//
// Each instruction remembers the Go line that emitted it. A listing can therefore show the PTX
// of a kernel together with its source, and messages about mistakes name Go lines. Three tools
// find mistakes:
//
//   - The Go compiler finds wrong types: a U32 is not an F32.
//   - Build finds mistakes that are visible without running the kernel. Here they are a
//     barrier that only some threads reach, and a value that no instruction computed.
//   - The emulated device finds mistakes when the kernel runs. Here it is a read past
//     the end of x. A GPU would read other memory without a message.
//
// The last kernel always runs on an emulated device. -device chooses the device that compiles
// the first kernel.
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

var about = command.Program{Name: "listing", Purpose: "prints a kernel with the Go line of each instruction, and two mistakes with their messages."}

func main() { about.Main(run) }

// mistake is a mistake in the kernel axpy.
type mistake int

const (
	none mistake = iota
	unfit
	unbounded
)

const elements, threads = 100, 128

// args are the arguments of a launch.
type args struct {
	X, Y  driver.DevicePtr
	Alpha float32
	N     int
}

// axpy returns the kernel of the first rung, with a mistake.
func axpy(m mistake) *jit.Builder[args] {
	k := jit.NewBuilder[args]("axpy", threads, 1)
	x, y := k.Ptr(&k.Args.X), k.Ptr(&k.Args.Y)
	alpha, n := k.F32(&k.Args.Alpha), k.U32(&k.Args.N)
	i := k.CtaidX().Mad(k.NtidX(), k.TidX())
	inside := i.Lt(n)
	if m == unbounded { // a Go "if", which decides which kernel is built
		inside = ptx.True()
	}
	k.If(inside, func() { // a branch that the GPU executes
		src, dst := x.Index(i, 4), y.Index(i, 4)
		sum := ptx.LdGlobal[ptx.F32](src).Fma(alpha, ptx.LdGlobal[ptx.F32](dst))
		if m == unfit {
			k.BarSync(ptx.Uint(0)) // the mistake: threads past n do not reach this barrier
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

// list prints the listing of the kernel without a mistake.
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
	fmt.Fprintf(stdout, "The kernel, with the Go line of each instruction:\n\n%s", program.Listing())
	return nil
}

// build prints the messages of Build for a kernel with mistakes.
func build(stdout io.Writer) error {
	_, err := axpy(unfit).Build()
	if err == nil {
		return errors.New("the builder accepted the wrong kernel, must refuse it")
	}
	fmt.Fprintf(stdout, "\nA barrier in the branch and a value that nothing computed. Build says:\n\n%v\n", err)
	return nil
}

// fault prints the emulated device's message for a kernel that reads out of bounds.
func fault(ctx context.Context, stdout, stderr io.Writer) error {
	b, err := rung.New(ctx, about, []string{"-device", "emulated"}, stdout, stderr)
	if err != nil {
		return err
	}
	defer b.Close()
	x, y := rung.Upload(b, make([]float32, elements)), rung.Upload(b, make([]float32, elements))
	rung.Load(b, axpy(unbounded)).Run(args{X: x, Y: y, Alpha: 2, N: elements})
	if !errors.Is(b.Err(), driver.ErrBroken) {
		return fmt.Errorf("%d threads on %d elements gave the error %v, must be a fault", threads, elements, b.Err())
	}
	fmt.Fprintf(stdout, "\nNo comparison with n, %d threads on %d elements. The emulated device says:\n\n%v\n", threads, elements, b.Err())
	return nil
}
