package emu_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"sonicmoe/ptx/emu"
)

// A kernel runs from its PTX text, without a GPU: each of 32 threads adds 1 to a counter.
func Example() {
	module, err := emu.Load([]byte(`.version 7.0
.target sm_70
.address_size 64
.visible .entry count(.param .u64 total)
{
	.reg .b64 %a<2>;
	ld.param.u64 %a0, [total];
	cvta.to.global.u64 %a1, %a0;
	red.global.add.u32 [%a1], 1;
	ret;
}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	kernel, err := module.Kernel("count")
	if err != nil {
		fmt.Println(err)
		return
	}
	memory := emu.NewMemory(1 << 10)
	total, err := memory.Alloc(4)
	if err != nil {
		fmt.Println(err)
		return
	}
	word := make([]byte, 4)
	err = errors.Join(memory.Write(total, word),
		kernel.Launch(context.Background(), memory, emu.Launch{Block: [3]int{32}, Params: binary.LittleEndian.AppendUint64(nil, total)}),
		memory.Read(word, total))
	fmt.Println(binary.LittleEndian.Uint32(word), err)

	// The launch passes address 0, which is not allocated. The error is a fault with its kind and
	// the line of the text.
	var fault *emu.Fault
	err = kernel.Launch(context.Background(), memory, emu.Launch{Block: [3]int{32}, Params: make([]byte, 8)})
	fmt.Println(errors.As(err, &fault), fault.Kind, "at line", fault.Line)
	// Output:
	// 32 <nil>
	// true access out of bounds at line 9
}
