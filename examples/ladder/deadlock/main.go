// Command deadlock is the last rung: kernels that wait forever, and how to
// find out who waits for what.
//
// The idea: a pipeline with a mistake in it does not give wrong numbers, it
// gives nothing. A GPU hangs, and all that can be learned is that it does. The
// emulated device sees that no warp can run any more and says of each where it
// stands, which barrier it waits for, what that barrier lacks, and who should
// bring it. What everything else hangs on comes first.
//
// Two roles of one thread each pass numbers through one stage of shared memory:
// the producer waits for empty, writes and arrives at full, the consumer the
// other way round. Two mistakes are made, the commonest there are:
//
//   - the consumer never releases the stage: the producer waits for empty,
//     which lacks an arrival, and the consumer for the full after that;
//   - the producer counts its phases like a consumer, from parity 0: it waits
//     at once, though the stage is empty. (A fresh barrier is in phase 0, and
//     the phase before it, of parity 1, counts as complete. So a producer
//     starts with parity 1; jit/pipeline's Ring.Producer does.)
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
	stage := cta.Shared("stage", 4, 4)
	full, empty := cta.Mbarriers("full", 1, 1), cta.Mbarriers("empty", 1, 1)
	cta.Ready(tid)

	k.If(tid.EqI(0), func() { // the producer
		first := 1
		if m == wrongPhase {
			first = 0
		}
		k.Range(ptx.Uint(numbers), func(i ptx.U32) {
			parity := i.AddI(first).AndI(1)
			pipeline.WaitParity(k.Kernel, empty, parity)
			ptx.StShared(stage, i)
			k.MbarrierArrive(full)
		})
	})
	k.If(tid.EqI(32), func() { // the consumer, in a warp of its own
		total := ptx.NewVar(k.Kernel, ptx.Uint(0))
		k.Range(ptx.Uint(numbers), func(i ptx.U32) {
			pipeline.WaitParity(k.Kernel, full, i.AndI(1))
			total.Set(total.Get().Add(ptx.LdShared[ptx.U32](stage)))
			if m != neverReleases {
				k.MbarrierArrive(empty)
			}
		})
		ptx.StGlobal(sum, total.Get())
	})
	return k
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
		{"The consumer never releases the stage", neverReleases},
		{"The producer starts with the consumer's parity", wrongPhase},
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
