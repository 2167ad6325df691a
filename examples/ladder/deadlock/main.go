// Command deadlock is the last rung of the ladder: kernels that wait forever, and how to find
// the cause.
//
// A pipeline with a mistake often hangs instead of giving wrong numbers, and a GPU gives no
// further information. The emulated device notices that no warp can continue. For each warp it
// prints the role and the Go line, the ring and the stage for which the warp waits, the
// arrivals that the barrier of the stage lacks, and the role that must arrive. The wait that
// caused all others comes first.
//
// Two roles, of one thread each, pass numbers through a ring of two stages. The producer waits
// until a stage is empty, writes a number to the stage and arrives at the stage's full barrier.
// The consumer waits until the stage is full, reads the number and releases the stage. The
// program makes two common mistakes:
//
//   - The consumer never releases a stage. The producer fills both stages and then waits
//     until the first is empty. The consumer waits until the first is full again.
//   - The producer begins with the phase of a consumer, parity 0. It waits at once, although
//     the stage is empty. A new barrier is in phase 0, and the phase before it, of parity
//     1, counts as complete. Ring.Producer of jit/pipeline therefore begins with parity 1.
//
// The Go lines in the messages lead to the mistakes. This program refuses to run on a GPU.
//
//	go run ./examples/ladder/deadlock
package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"sonicmoe/driver"
	"sonicmoe/examples/internal/command"
	"sonicmoe/examples/internal/rung"
	"sonicmoe/jit"
	"sonicmoe/jit/pipeline"
	"sonicmoe/ptx"
	"sonicmoe/ptx/emu"
)

var about = command.Program{Name: "deadlock", Purpose: "runs kernels that wait forever on the emulated device, which prints what each role waits for, with Go lines."}

func main() { about.Main(run) }

// mistake is a mistake in the kernel relay.
type mistake int

const (
	none mistake = iota
	neverReleases
	wrongPhase
)

const (
	numbers = 5
	stages  = 2
	threads = 64 // two warps
)

// args are the arguments of a launch.
type args struct {
	Sum driver.DevicePtr
}

// relay returns a kernel that passes the numbers 0, 1, … from one thread to another, which adds
// them.
func relay(m mistake) *jit.Builder[args] {
	k := jit.NewBuilder[args]("relay", threads, 1)
	sum := k.Ptr(&k.Args.Sum)
	tid := k.TidX()
	cta := pipeline.NewCTA(k.Kernel)
	ring := cta.Ring("numbers", stages, 4, 1, 1)
	cta.Ready(tid)

	k.If(tid.EqI(0), func() { k.Scope("producer", func() { produce(k.Kernel, ring, m) }) })
	k.If(tid.EqI(32), func() { k.Scope("consumer", func() { consume(k.Kernel, ring, sum, m) }) }) // the consumer runs in the second warp
	return k
}

// produce is the producer: it writes the numbers to the ring.
func produce(k *ptx.Kernel, ring *pipeline.Ring, m mistake) {
	at := ring.Producer()
	if m == wrongPhase {
		at = ring.Consumer()
	}
	k.Range(ptx.Uint(numbers), func(i ptx.U32) {
		stage := at.Acquire()
		ptx.StShared(stage.Data, i)
		k.MbarrierArrive(stage.Full)
		at.Advance()
	})
}

// consume is the consumer: it adds the numbers from the ring and writes the sum.
func consume(k *ptx.Kernel, ring *pipeline.Ring, sum ptx.Global, m mistake) {
	at, total := ring.Consumer(), ptx.NewVar(k, ptx.Uint(0))
	k.Range(ptx.Uint(numbers), func(ptx.U32) {
		stage := at.Wait()
		total.Set(total.Get().Add(ptx.LdShared[ptx.U32](stage.Data)))
		if m != neverReleases {
			stage.Release(k)
		}
		at.Advance()
	})
	ptx.StGlobal(sum, total.Get())
}

func run(_ context.Context, words []string, stdout, _ io.Writer) error {
	if err := rung.RefuseGPU(about, words, stdout, "these kernels never end, and a GPU would hang"); err != nil {
		return err
	}
	for _, c := range []struct {
		title string
		mistake
	}{
		{"No mistake", none},
		{"The consumer never releases a stage", neverReleases},
		{"The producer takes the consumer's place in the ring", wrongPhase},
	} {
		sum, err := emulate(relay(c.mistake))
		var fault *emu.Fault
		switch {
		case c.mistake == none && err == nil && sum == numbers*(numbers-1)/2:
			fmt.Fprintf(stdout, "%s: the sum of 0 to %d is %d\n", c.title, numbers-1, sum)
		case c.mistake != none && errors.As(err, &fault) && fault.Kind == emu.Deadlock:
			fmt.Fprintf(stdout, "\n%s: %v, %s\n", c.title, fault.Kind, fault.Text)
		default:
			return fmt.Errorf("%s: the sum is %d, the error %v", c.title, sum, err)
		}
	}
	return nil
}

// emulate runs the kernel directly on the emulator, without the emulated device that the other
// rungs use. Launch.Where maps PTX lines to Go lines.
func emulate(k *jit.Builder[args]) (sum uint32, err error) {
	built, err := k.Build()
	if err != nil {
		return 0, err
	}
	text := built.Module.Print()
	module, err := emu.Load(text.PTX)
	if err != nil {
		return 0, err
	}
	kernel, err := module.Kernel(built.Name)
	if err != nil {
		return 0, err
	}
	memory := emu.NewMemory(1 << 10)
	address, err := memory.Alloc(4)
	if err != nil {
		return 0, err
	}
	err = kernel.Launch(context.Background(), memory, emu.Launch{
		Block:       [3]int{threads},
		SharedBytes: built.SharedBytes,
		Params:      binary.LittleEndian.AppendUint64(nil, address),
		Where:       func(line int) string { return text.Pos(line).String() },
	})
	if err != nil {
		return 0, err
	}
	var word [4]byte
	err = memory.Read(word[:], address)
	return binary.LittleEndian.Uint32(word[:]), err
}
