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
	"sonicmoe/driver/open"
	"sonicmoe/jit"
	"sonicmoe/jit/pipeline"
	"sonicmoe/jit/tile"
	"sonicmoe/ptx"
)

// The tests' program is its own worker.
func TestMain(m *testing.M) {
	autotune.WorkerMain()
	os.Exit(m.Run())
}

// point is a way to copy a tile through shared memory.
type point struct {
	// Threads copy: another number, another kernel.
	Threads int
	// Mistake is what is wrong with it, or empty.
	Mistake string
}

func (p point) String() string { return fmt.Sprintf("%d threads %s", p.Threads, p.Mistake) }

// Mistakes of a candidate.
const (
	swapped  = "swapped swizzle"
	hangs    = "hang"
	illegal  = "illegal access"
	spoils   = "spoils the input" // and gives the right answer
	exits    = "exit"
	alias    = "alias"   // no mistake: the same kernel under another name
	refused  = "refused" // PTX that no kernel has
	unstable = "unstable"
)

const (
	rows, columns = 64, tile.K
	boxBytes      = rows * tile.RowBytes
)

// copier copies a matrix of 64 rows of 128 bytes.
func copier(p point) (jit.Source, error) {
	k := ptx.NewKernel("copier")
	k.SetLaunchBounds(p.Threads, 1)
	m, in, out := k.ParamTensorMap("m"), k.ParamPtr("in"), k.ParamPtr("out")
	tid := k.Special("%tid.x")
	mem := pipeline.NewShared(k)
	box, arrived := mem.Take(boxBytes, 1024), mem.Take(8, 8)
	k.If(tid.EqI(0), func() {
		k.MbarrierInit(arrived, ptx.Uint(1))
		k.FenceMbarrierInit()
		k.MbarrierArriveExpectTx(arrived, ptx.Uint(boxBytes))
		k.TMALoad(box, m, arrived, ptx.Uint(0), ptx.Uint(0))
	})
	k.BarSync(ptx.Uint(0))
	pipeline.WaitParity(k, arrived, ptx.Uint(0))
	k.For(tid, ptx.Uint(rows*columns/2), ptx.Uint(p.Threads), func(word ptx.U32) {
		row, chunk := word.ShrI(5), word.ShrI(2).AndI(7)
		if p.Mistake == swapped {
			row, chunk = word.ShrI(5), word.ShrI(2).AndI(7).Xor(ptx.Uint(1))
		}
		ptx.StGlobal(out.Index(word, 4), ptx.LdShared[ptx.U32](box.Plus(tile.Swizzled(row, chunk)).Plus(word.AndI(3).ShlI(2))))
	})
	switch p.Mistake {
	case hangs:
		k.Loop(func() { k.RedGlobalAdd(in, ptx.Uint(0)) })
	case illegal:
		ptx.StGlobal(out.Index(ptx.Uint(1<<30), 64), tid)
	case spoils:
		ptx.StGlobal(in, ptx.Uint(0xffffffff))
	case refused:
		return jit.Source{}, errors.New("no such kernel")
	}
	built, err := k.Build()
	return jit.Source{Module: built, Name: "copier", SharedBytes: mem.Bytes(), Label: p.String()}, err
}

// copySpec is what the copiers' bench is made from.
type copySpec struct {
	Device string
	// Times, unless nil, are what points take in turn, by their threads, in
	// place of the clock's time.
	Times map[int][]time.Duration
	// Refuse is why no bench can be made.
	Refuse string
	// SleepSetup is how long making the bench takes.
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
	source, err := copier(p)
	if err != nil {
		return err
	}
	f, err := jit.Of(b.dev).Load(ctx, b.Cache, source, driver.CompileOptions{})
	if err != nil {
		return err
	}
	bind := f.Bind(b.dev, driver.Launch{Block: driver.Dim3{X: p.Threads}, SharedBytes: source.SharedBytes})
	if err := bind.TensorMap("m", driver.TensorMap{Elem: driver.U16, Rank: 2, Address: b.in,
		Dims: [5]uint64{columns, rows}, Strides: [4]uint64{tile.RowBytes},
		Box: [5]uint32{columns, rows}, Swizzle: driver.Swizzle128}); err != nil {
		return err
	}
	bind.Ptr("in", b.in)
	bind.Ptr("out", b.out)
	return bind.Launch(b.stream)
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
