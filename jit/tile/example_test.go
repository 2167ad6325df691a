package tile_test

import (
	"context"
	"encoding/binary"
	"fmt"

	"sonicmoe/jit/tile"
	"sonicmoe/ptx"
	"sonicmoe/ptx/emu"
)

// ExampleSwizzled prints the offsets of the 16-byte chunks in the first rows of a swizzled tile. A
// kernel with one thread for each chunk computes them.
func ExampleSwizzled() {
	const rows, chunks = 4, tile.RowBytes / 16
	k := ptx.NewKernel("swizzle")
	out := k.ParamPtr("out")
	tid := k.TidX()
	row, chunk := tid.ShrI(3), tid.AndI(7)
	ptx.StGlobal(out.Index(tid, 4), tile.Swizzled(row, chunk))
	m, err := k.Build()
	if err != nil {
		fmt.Println(err)
		return
	}

	// Run the kernel's text on the emulator.
	loaded, err := emu.Load(m.Print().PTX)
	if err != nil {
		fmt.Println(err)
		return
	}
	kernel, err := loaded.Kernel("swizzle")
	if err != nil {
		fmt.Println(err)
		return
	}
	mem := emu.NewMemory(1 << 20)
	at, err := mem.Alloc(4 * rows * chunks)
	if err != nil {
		fmt.Println(err)
		return
	}
	params := binary.LittleEndian.AppendUint64(nil, at)
	if err := kernel.Launch(context.Background(), mem, emu.Launch{Block: [3]int{rows * chunks}, Params: params}); err != nil {
		fmt.Println(err)
		return
	}
	words := make([]byte, 4*rows*chunks)
	if err := mem.Read(words, at); err != nil {
		fmt.Println(err)
		return
	}
	for i := range rows * chunks {
		fmt.Printf("%4d", binary.LittleEndian.Uint32(words[4*i:]))
		if i%chunks == chunks-1 {
			fmt.Println()
		}
	}
	// Output:
	//    0  16  32  48  64  80  96 112
	//  144 128 176 160 208 192 240 224
	//  288 304 256 272 352 368 320 336
	//  432 416 400 384 496 480 464 448
}
