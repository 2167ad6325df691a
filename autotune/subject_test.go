package autotune_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"sonicmoe/autotune"
	"sonicmoe/driver"
	"sonicmoe/driver/gpu"
	"sonicmoe/driver/open"
	"sonicmoe/internal/child"
	"sonicmoe/internal/drivertest"
	"sonicmoe/jit"
	"sonicmoe/jit/pipeline"
	"sonicmoe/jit/tile"
	"sonicmoe/ptx"
)

// These are the roles of a worker process.
const (
	stuck   = "stuck"   // the worker process never becomes ready
	telling = "telling" // the worker process prints two variables of its environment and ends
)

// TestMain makes the test binary its own worker.
func TestMain(m *testing.M) {
	if os.Getenv("SONICMOE_AUTOTUNE_WORKER") != "" {
		switch child.Role() {
		case stuck:
			time.Sleep(time.Hour)
		case telling:
			fmt.Fprintf(os.Stderr, "%s, %s", os.Getenv("CUDA_VISIBLE_DEVICES"), os.Getenv("HF_TOKEN"))
			os.Exit(1)
		}
	}
	autotune.WorkerMain()
	os.Exit(drivertest.Main(m, open.Device))
}

// point is a candidate in these tests: a way to copy a tile through shared memory.
type point struct {
	// Threads is the number of threads that copy. Points with different numbers have different
	// kernels.
	Threads int
	// Mistake is the mistake that is planted in the kernel, or empty.
	Mistake string
}

func (p point) String() string { return fmt.Sprintf("%d threads %s", p.Threads, p.Mistake) }

// These are the mistakes that can be planted.
const (
	swapped  = "swapped swizzle"
	hangs    = "hang"
	illegal  = "illegal access"
	spoils   = "spoils the input" // spoils the input, although the result is right
	exits    = "exit"
	alias    = "alias"   // no mistake: the same kernel under another name
	refused  = "refused" // no kernel can have this PTX
	unstable = "unstable"
)

const (
	rows, columns = 64, tile.K
	boxBytes      = rows * tile.RowBytes
)

// copierArgs are the arguments of the copier kernel.
type copierArgs struct{ In, Out driver.DevicePtr }

// copier returns a kernel that copies a matrix of 64 rows of 128 bytes.
func copier(p point) (*jit.Kernel[copierArgs], error) {
	k := jit.NewBuilder[copierArgs]("copier", p.Threads, 1)
	m := k.Map(&k.Args.In, func(a *copierArgs) gpu.TensorMap { return tile.RowMap(a.In, columns, rows, rows) })
	in, out := k.Ptr(&k.Args.In), k.Ptr(&k.Args.Out)
	tid := k.TidX()
	cta := pipeline.NewCTA(k.Kernel)
	box, arrived := cta.Shared("box", boxBytes, 1024), cta.Mbarriers("arrived", 1, 1)
	cta.Ready(tid)
	k.If(tid.EqI(0), func() {
		k.MbarrierArriveExpectTx(arrived, ptx.Uint(boxBytes))
		k.TMALoad(box, m, arrived, ptx.Uint(0), ptx.Uint(0))
	})
	pipeline.WaitParity(k.Kernel, arrived, ptx.Uint(0))
	k.For(tid, ptx.Uint(rows*columns/2), ptx.Uint(p.Threads), func(word ptx.U32) {
		row, chunk := word.ShrI(5), word.ShrI(2).AndI(7)
		if p.Mistake == swapped {
			row, chunk = word.ShrI(5), word.ShrI(2).AndI(7).Xor(ptx.Uint(1))
		}
		ptx.StGlobal(out.Index(word, 4), ptx.LdShared[ptx.U32](box.Plus(tile.Swizzled(row, chunk)).Plus(word.AndI(3).ShlI(2))))
	})
	switch p.Mistake {
	case hangs:
		k.Loop(func() { k.RedGlobalAdd(in, ptx.Uint(1)) }) // each step changes memory, so that the loop's state never repeats
	case illegal:
		ptx.StGlobal(out.Index(ptx.Uint(1<<30), 64), tid)
	case spoils:
		ptx.StGlobal(in, ptx.Uint(0xffffffff))
	case refused:
		return nil, errors.New("no such kernel")
	}
	return k.Build()
}

// copierSource returns a copier in the form that a loader takes.
func copierSource(p point) (jit.Source, error) {
	k, err := copier(p)
	if err != nil {
		return jit.Source{}, err
	}
	return k.Source(p.String()), nil
}

// copySpec is the input from which the bench of copiers is made.
type copySpec struct {
	Device string
	// For each number of threads, Times has the results that Time returns, one after another, for
	// the points with this number. If Times is nil, Time measures with the clock.
	Times map[int][]time.Duration
	// Refuse is the reason why no bench can be made, or "".
	Refuse string
	// SleepSetup is the time that it takes to make the bench.
	SleepSetup time.Duration
}

var copiers = autotune.NewSubject("autotune test copiers", newCopyBench)

// copyBench is the bench of copiers.
type copyBench struct {
	copySpec
	autotune.Setting
	dev     driver.Device
	stream  driver.Stream
	in, out driver.DevicePtr
	want    []byte
	timed   map[int]int
}

func newCopyBench(ctx context.Context, s autotune.Setting) (autotune.Bench[point], error) {
	b := &copyBench{Setting: s, dev: s.Device, timed: map[int]int{}}
	err := json.Unmarshal(s.Spec, &b.copySpec)
	if err == nil && b.Refuse != "" {
		err = errors.New(b.Refuse)
	}
	time.Sleep(b.SleepSetup)
	if err == nil && b.dev == nil {
		fmt.Println("a program may print what it likes")
		b.dev, err = open.Device(ctx, b.copySpec.Device)
	}
	if err == nil {
		b.stream, err = b.dev.NewStream()
	}
	if err == nil {
		b.in, err = b.dev.Alloc(boxBytes)
	}
	if err == nil {
		b.out, err = b.dev.Alloc(boxBytes)
	}
	if err != nil {
		return nil, err
	}
	for i := range boxBytes {
		b.want = append(b.want, byte(i*7+i/251))
	}
	return b, b.stream.CopyToDevice(b.in, b.want)
}

func (b *copyBench) launch(ctx context.Context, p point) error {
	k, err := copier(p)
	if err != nil {
		return err
	}
	f, err := jit.Of(b.dev).Load(ctx, b.Cache, k.Source(p.String()), gpu.CompileOptions{})
	if err != nil {
		return err
	}
	return k.Launcher(f).Launch(b.stream, copierArgs{In: b.in, Out: b.out})
}

func (b *copyBench) Verify(ctx context.Context, _ string, p point) error {
	if p.Mistake == exits {
		fmt.Fprintln(os.Stderr, "last words")
		os.Exit(3)
	}
	if err := b.stream.Fill32(b.out, 0xffffffff, boxBytes/4); err != nil {
		return err
	}
	if err := b.launch(ctx, p); err != nil {
		return err
	}
	if err := b.stream.Synchronize(ctx); err != nil {
		return err
	}
	got := make([]byte, boxBytes)
	for _, c := range []struct {
		what string
		at   driver.DevicePtr
	}{{"output", b.out}, {"input", b.in}} {
		if err := b.stream.CopyToHost(got, c.at); err != nil {
			return err
		}
		for i, g := range got {
			if g != b.want[i] {
				return fmt.Errorf("byte %d of the %s's row %d is %#x, must be %#x", i%tile.RowBytes, c.what, i/tile.RowBytes, g, b.want[i])
			}
		}
	}
	return nil
}

func (b *copyBench) Time(ctx context.Context, _ string, p point) (time.Duration, error) {
	if times := b.Times[p.Threads]; times != nil {
		if p.Mistake == unstable && b.timed[p.Threads] > 0 {
			return 0, errors.New("it was right before")
		}
		b.timed[p.Threads]++
		return times[(b.timed[p.Threads]-1)%len(times)], nil
	}
	start := time.Now()
	if err := b.launch(ctx, p); err != nil {
		return 0, err
	}
	return time.Since(start), b.stream.Synchronize(ctx)
}

func (b *copyBench) Close() error { return b.stream.Close() }
