package pipeline_test

import (
	"context"
	"encoding/binary"
	"fmt"

	"sonicmoe/jit/pipeline"
	"sonicmoe/ptx"
	"sonicmoe/ptx/emu"
)

// In this example, one warpgroup copies chunks of 512 bytes into a ring of three stages. Another
// warpgroup sums the chunks word by word.
func Example() {
	const stages, bytes, chunks = 3, 4 * pipeline.WarpgroupThreads, 10
	k := ptx.NewKernel("sum")
	k.SetLaunchBounds(2*pipeline.WarpgroupThreads, 1)
	in, out := k.ParamPtr("in"), k.ParamPtr("out")
	tid := k.TidX()

	cta := pipeline.NewCTA(k)
	// A stage is full after one arrival of the producer and after the chunk's bytes. It is empty
	// after one arrival of each consuming warp.
	ring := cta.Ring("chunks", stages, bytes, 1, 4)
	cta.Ready(tid)

	each := func(body func(i ptx.U32)) { k.For(ptx.Uint(0), ptx.Uint(chunks), ptx.Uint(1), body) }
	sum := pipeline.Role{Name: "sum", First: 0, Count: 1, Body: func() {
		at, total := ring.Consumer(), ptx.NewVar(k, ptx.Uint(0))
		each(func(ptx.U32) {
			s := at.Wait()
			total.Set(total.Get().Add(ptx.LdShared[ptx.U32](s.Data.Plus(tid.ShlI(2)))))
			k.BarWarpSync(ptx.Uint(ptx.FullMask))
			k.Guarded(tid.AndI(31).EqI(0), func() { s.Release(k) })
			at.Advance()
		})
		ptx.StGlobal(out.Index(tid, 4), total.Get())
	}}
	load := pipeline.Role{Name: "load", First: 1, Count: 1, Body: func() {
		k.If(tid.EqI(pipeline.WarpgroupThreads), func() {
			at := ring.Producer()
			each(func(i ptx.U32) {
				s := at.Acquire()
				k.MbarrierArriveExpectTx(s.Full, ptx.Uint(bytes))
				k.BulkLoad(s.Data, in.Index(i, bytes), ptx.Uint(bytes), s.Full)
				at.Advance()
			})
		})
	}}
	pipeline.Run(k, tid.ShrI(7), sum, load)

	columns, err := runSum(k, k.SharedBytes(), chunks)
	fmt.Println(columns[:4], err)
	// Output:
	// [10 20 30 40] <nil>
}

// runSum runs the kernel on the emulator. Word i has the value i+1 in every chunk.
func runSum(k *ptx.Kernel, sharedBytes, chunks int) ([]uint32, error) {
	columns := make([]uint32, pipeline.WarpgroupThreads)
	m, err := k.Build()
	if err != nil {
		return columns, err
	}
	loaded, err := emu.Load(m.Print().PTX)
	if err != nil {
		return columns, err
	}
	kernel, err := loaded.Kernel("sum")
	if err != nil {
		return columns, err
	}
	var words []byte
	for i := range chunks * len(columns) {
		words = binary.LittleEndian.AppendUint32(words, uint32(i%len(columns)+1))
	}
	mem := emu.NewMemory(1 << 20)
	in, err := mem.Alloc(int64(len(words)))
	if err != nil {
		return columns, err
	}
	if err := mem.Write(in, words); err != nil {
		return columns, err
	}
	out, err := mem.Alloc(int64(4 * len(columns)))
	if err != nil {
		return columns, err
	}
	launch := emu.Launch{
		Block: [3]int{2 * pipeline.WarpgroupThreads}, SharedBytes: sharedBytes, Timing: emu.Late,
		Params: binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, in), out),
	}
	if err := kernel.Launch(context.Background(), mem, launch); err != nil {
		return columns, err
	}
	sums := words[:4*len(columns)]
	err = mem.Read(sums, out)
	for i := range columns {
		columns[i] = binary.LittleEndian.Uint32(sums[4*i:])
	}
	return columns, err
}
