// Command pipeline is the fifth rung of the ladder: a whole matrix product, C = A·Bᵀ in bf16,
// in the structure of fast kernels for Hopper.
//
// Loading and multiplying are two roles within a CTA. They meet only at a ring of stages in
// shared memory. The load role runs ahead as long as there are empty stages, and the math role
// consumes full stages. Each thus keeps its engine busy: TMA or the tensor cores. The ring
// hides barriers and phases. The roles in kernel.go only call Acquire, Wait and Release.
//
// There is no bounds check, although the sizes below end inside a tile: TMA loads zeros past
// the ends of a matrix, and drops elements that it would store there. There is no code for the
// end of the ring either, although there are more k-tiles than stages.
//
//	go run ./examples/ladder/pipeline [-device cuda|emulated]
package main

import (
	"context"
	"fmt"
	"io"

	"sonicmoe/examples/internal/command"
	"sonicmoe/examples/internal/rung"
	"sonicmoe/internal/num"
	"sonicmoe/internal/reference"
	"sonicmoe/jit/tile"
)

var about = command.Program{Name: "pipeline", Purpose: "multiplies two matrices with roles and a ring of stages, and prints the speed on a GPU."}

func main() { about.Main(run) }

// size holds the sizes of a product: M rows and N columns of C, and K terms in each sum.
type size struct{ m, n, k int }

var (
	small = size{200, 328, 5 * tile.K} // size for the emulated device
	large = size{4096, 4096, 4096}
)

func run(ctx context.Context, words []string, stdout, stderr io.Writer) error {
	bench, err := rung.New(ctx, about, words, stdout, stderr)
	if err != nil {
		return err
	}
	defer bench.Close()
	s := small
	if bench.GPU {
		s = large
	}
	as := reference.NewNormal(1, 0.5).Values(int64(s.m * s.k))
	bs := reference.NewNormal(2, 0.5).Values(int64(s.n * s.k))
	c := rung.Buffer[uint16](bench, s.m*s.n)
	kernel := multiply()
	program := rung.Load(bench, kernel)
	arguments := args{A: rung.Upload(bench, as), B: rung.Upload(bench, bs), C: c, M: s.m, N: s.n, K: s.k, KTiles: s.k / tile.K}
	program.Run(arguments)
	got := rung.Download[uint16](bench, c, s.m*s.n)
	if err := bench.Err(); err != nil {
		return err
	}
	fmt.Fprintf(stdout, "device   %s\n", bench.Device())
	fmt.Fprintf(stdout, "product  %d x %d x %d: %d x %d CTAs of %d x %d, %d k-tiles through %d stages, %d bytes of shared memory\n",
		s.m, s.n, s.k, (s.m+tileM-1)/tileM, (s.n+tileN-1)/tileN, tileM, tileN, s.k/tile.K, stages, kernel.SharedBytes())
	checked, err := s.check(as, bs, got)
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, "checked  %d of %d elements against float64\n", checked, len(got))
	if !bench.GPU {
		return nil // times of the emulated device mean nothing
	}
	mean := program.Time(50, arguments)
	if err := bench.Err(); err != nil {
		return err
	}
	flops := 2 * float64(s.m) * float64(s.n) * float64(s.k)
	fmt.Fprintf(stdout, "speed    %v, %.0f TFLOPS\n", mean, flops/mean.Seconds()/1e12)
	return nil
}

// check compares elements of C with a product in float64. It compares all elements of a small
// C, and a sample of a large one.
func (s size) check(a, b, got []uint16) (checked int, err error) {
	step := 1
	if len(got) > 1<<17 {
		step = 4099 // a prime step, so that the sample has elements of all rows and columns
	}
	for i := 0; i < len(got); i += step {
		row, column := i/s.n, i%s.n
		want := 0.0
		for j := range s.k {
			want += num.BF16ToFloat64(a[row*s.k+j]) * num.BF16ToFloat64(b[column*s.k+j])
		}
		// bf16 has a significand of 8 bits. The error of the FP32 sums is small compared with
		// the rounding to bf16.
		e := num.BF16ToFloat64(got[i]) - want
		if bound := max(want, -want)/256 + 1e-3; !(e <= bound && -e <= bound) { // NaN fails this comparison too
			return checked, fmt.Errorf("c[%d,%d] is %v, must be %v", row, column, num.BF16ToFloat64(got[i]), want)
		}
		checked++
	}
	return checked, nil
}
