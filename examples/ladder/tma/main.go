// Command tma is the third rung of the ladder. TMA, the GPU's copy engine, copies a tile of a
// matrix to shared memory, and an mbarrier signals its arrival.
//
// One thread starts the copy of a whole box and continues. A tensor map, which the host makes,
// gives the engine the matrix's extents and strides. A box that crosses the end of the matrix
// needs no extra code: elements outside arrive as zero. The mbarrier counts one arrival, made
// by the thread, and the bytes that the engine writes. Its phase is complete when both are
// complete. A wait names the phase by its parity.
//
// The program prints two pictures of the box in shared memory. Each line is a row of 128 bytes.
// Each entry of a line is the number of the 16-byte chunk of the matrix row that lies there.
// Without swizzle chunk c lies at place c, and the chunks of eight rows of one column are in
// the same memory banks. With the 128-byte swizzle chunk c of row r lies at place c xor (r mod
// 8), so that a column is spread over all banks. wgmma reads tiles in this layout.
//
//	go run ./examples/ladder/tma [-device cuda|emulated]
package main

import (
	"context"
	"fmt"
	"io"

	"sonicmoe/driver"
	"sonicmoe/driver/gpu"
	"sonicmoe/examples/internal/command"
	"sonicmoe/examples/internal/rung"
	"sonicmoe/jit"
	"sonicmoe/jit/pipeline"
	"sonicmoe/jit/tile"
	"sonicmoe/ptx"
)

var about = command.Program{Name: "tma", Purpose: "copies a tile by TMA: an mbarrier signals its arrival, a swizzle places its elements."}

func main() { about.Main(run) }

const (
	rows     = 13     // rows of the matrix
	columns  = tile.K // 64 elements of 16 bits are a row of 128 bytes
	firstRow = 8      // the last 3 rows of the box are past the end of the matrix
	boxRows  = 8
	boxBytes = boxRows * tile.RowBytes
	chunks   = tile.RowBytes / 16
	threads  = 128
)

// args are the arguments of a launch.
type args struct {
	Matrix, Out driver.DevicePtr
	Y           int
}

// copyBox returns a kernel that loads the box at column 0 and row y of the matrix, and copies
// the box from shared memory to out, word by word.
func copyBox(swizzle gpu.Swizzle) *jit.Builder[args] {
	k := jit.NewBuilder[args]("copy_box", threads, 1)
	m := k.Map(&k.Args.Matrix, func(a *args) gpu.TensorMap {
		return gpu.TensorMap{
			Elem: gpu.U16, Rank: 2, Address: a.Matrix,
			Dims:    [5]uint64{columns, rows},    // dimension 0 is the contiguous one
			Strides: [4]uint64{tile.RowBytes},    // distance from row to row in bytes
			Box:     [5]uint32{columns, boxRows}, // extents of the box that one copy moves
			Swizzle: swizzle,
		}
	})
	out, y := k.Ptr(&k.Args.Out), k.U32(&k.Args.Y)
	tid := k.TidX()
	cta := pipeline.NewCTA(k.Kernel)
	box := cta.Shared("box", boxBytes, 1024)  // the swizzle pattern starts at multiples of 1024
	arrived := cta.Mbarriers("arrived", 1, 1) // each phase needs one arrival
	cta.Ready(tid)                            // from here on, every thread sees the initialised barrier

	k.If(tid.EqI(0), func() {
		k.MbarrierArriveExpectTx(arrived, ptx.Uint(boxBytes)) // arrives once, and expects the bytes of the box
		k.TMALoad(box, m, arrived, ptx.Uint(0), y)
	})
	pipeline.WaitParity(k.Kernel, arrived, ptx.Uint(0)) // the first phase has parity 0

	for i := range boxBytes / 4 / threads { // a Go loop, which is unrolled: the kernel has no loop
		word := tid.AddI(i * threads)
		ptx.StGlobal(out.Index(word, 4), ptx.LdShared[ptx.U32](box.Plus(word.ShlI(2))))
	}
	return k
}

func run(ctx context.Context, words []string, stdout, stderr io.Writer) error {
	b, err := rung.New(ctx, about, words, stdout, stderr)
	if err != nil {
		return err
	}
	defer b.Close()
	matrix := make([]uint16, rows*columns)
	for i := range matrix {
		matrix[i] = uint16(1 + i) // no element is 0, so that zeros show the part out of bounds
	}
	in, out := rung.Upload(b, matrix), rung.Buffer[uint16](b, boxBytes/2)
	fmt.Fprintf(stdout, "device   %s\nmatrix   %d x %d, box of %d rows from row %d\n", b.Device(), rows, columns, boxRows, firstRow)

	for _, mode := range []struct {
		name    string
		swizzle gpu.Swizzle
	}{{"no swizzle", gpu.SwizzleNone}, {"128-byte swizzle", gpu.Swizzle128}} {
		rung.Load(b, copyBox(mode.swizzle)).Run(args{Matrix: in, Out: out, Y: firstRow})
		got := rung.Download[uint16](b, out, boxBytes/2)
		if err := b.Err(); err != nil {
			return err
		}
		fmt.Fprintf(stdout, "%s:\n", mode.name)
		picture(stdout, got)
		if err := check(got, mode.swizzle); err != nil {
			return fmt.Errorf("%s: %w", mode.name, err)
		}
	}
	fmt.Fprintf(stdout, "checked  every element of both boxes\n")
	return nil
}

// picture prints the number of the chunk at each place of the box.
func picture(stdout io.Writer, got []uint16) {
	for r := range boxRows {
		fmt.Fprintf(stdout, "  row %2d ", firstRow+r)
		for place := range chunks {
			if v := got[r*columns+place*8]; v != 0 {
				fmt.Fprintf(stdout, " %d", int(v-1)%columns/8)
			} else {
				fmt.Fprint(stdout, " -")
			}
		}
		fmt.Fprintln(stdout)
	}
}

// check compares the box with the matrix. tile.Swizzled can also emit code for a kernel; for
// constants it returns a constant.
func check(got []uint16, swizzle gpu.Swizzle) error {
	for i := range boxRows * columns {
		r, c := i/columns, i%columns
		at := i
		if swizzle == gpu.Swizzle128 {
			bytes, _ := tile.Swizzled(ptx.Uint(r), ptx.Uint(c/8)).Const()
			at = int(bytes)/2 + c%8
		}
		want := 0
		if firstRow+r < rows {
			want = 1 + (firstRow+r)*columns + c
		}
		if int(got[at]) != want {
			return fmt.Errorf("row %d column %d is %d, must be %d", firstRow+r, c, got[at], want)
		}
	}
	return nil
}
