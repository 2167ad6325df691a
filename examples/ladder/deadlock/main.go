// Command deadlock is the last rung: kernels that wait forever, and how to
// find out who waits for what.
//
// The idea: a pipeline with a mistake in it does not give wrong numbers, it
// gives nothing. A GPU hangs, and all that can be learned is that it does. The
// emulated device sees that no warp can run any more and says of each which role
// it plays and where it stands, which stage of which ring it waits for, what that
// stage's barrier lacks, and who should bring it. What everything else hangs on
// comes first.
//
// Two roles of one thread each pass numbers through a ring of two stages: the
// producer waits until a stage is empty, writes and arrives at its full barrier,
// the consumer waits until it is full, reads and releases it. Two mistakes are
// made, the commonest there are:
//
//   - the consumer never releases a stage: the producer fills both and waits for
//     the first to be empty again, which lacks an arrival, and the consumer for it
//     to be full again;
//   - the producer takes the consumer's place in the ring, whose phases count from
//     parity 0: it waits at once, though the stage is empty. (A fresh barrier is
//     in phase 0, and the phase before it, of parity 1, counts as complete. So
//     jit/pipeline's Ring.Producer starts with parity 1.)
//
// Look at the Go lines in the messages, and find the mistake by them. This
// program refuses a GPU.
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

var about = command.Program{Name: "deadlock", Purpose: "runs kernels that wait forever on the emulated device, which says who waits for what at which Go line."}

func main() { about.Main(run) }

// mistake is what is wrong with the kernel.
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

// args are what a launch takes.
type args struct {
	Sum driver.DevicePtr
}

// relay passes the numbers 0, 1, … from one thread to another, which adds them.
func relay(m mistake) *jit.Builder[args] {
	k := jit.NewBuilder[args]("relay", threads, 1)
	sum := k.Ptr(&k.Args.Sum)
	tid := k.TidX()
	cta := pipeline.NewCTA(k.Kernel)
	ring := cta.Ring("numbers", stages, 4, 1, 1)
	cta.Ready(tid)

	k.If(tid.EqI(0), func() { k.Scope("producer", func() { produce(k.Kernel, ring, m) }) })
	k.If(tid.EqI(32), func() { k.Scope("consumer", func() { consume(k.Kernel, ring, sum, m) }) }) // in a warp of its own
	return k
}

// produce writes the numbers.
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

// consume adds them and writes the sum.
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

// emulate runs the kernel on the emulator itself: the device that the other
// rungs use is made of it. Where is how it learns the Go lines.
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
