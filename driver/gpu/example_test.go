package gpu_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"sonicmoe/driver/emulated"
	"sonicmoe/driver/gpu"
)

// ExampleDevice runs hand-written PTX, from the text to the result. It works in the same way on
// all devices.
func ExampleDevice() {
	const text = `.version 7.0
.target sm_70
.address_size 64
.visible .entry answer(.param .u64 at)
{
	.reg .b64 %a<2>;
	ld.param.u64 %a0, [at];
	cvta.to.global.u64 %a1, %a0;
	st.global.u32 [%a1], 42;
	ret;
}`
	ctx := context.Background()
	dev, err := emulated.New(emulated.Options{}) // or open.Device(ctx, "cuda")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer dev.Close()
	image, err := dev.Compile(ctx, []byte(text), gpu.CompileOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	module, err := dev.Load(image.Code)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer module.Unload()
	answer, err := module.Function("answer")
	if err != nil {
		fmt.Println(err)
		return
	}
	stream, err := dev.NewStream()
	if err != nil {
		fmt.Println(err)
		return
	}
	defer stream.Close()
	at, err := dev.Alloc(4)
	if err != nil {
		fmt.Println(err)
		return
	}
	packed := binary.LittleEndian.AppendUint64(nil, uint64(at)) // the kernel's only parameter
	word := make([]byte, 4)
	err = errors.Join(err,
		gpu.Enqueue(stream, answer, &gpu.Launch{Grid: gpu.Dim3{X: 1}, Block: gpu.Dim3{X: 1}}, packed),
		stream.CopyToHost(word, at))
	fmt.Println(binary.LittleEndian.Uint32(word), err)
	// Output: 42 <nil>
}
