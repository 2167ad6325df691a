package main

import (
	"context"
	"fmt"

	"sonicmoe/driver"
	"sonicmoe/driver/gpu"
	"sonicmoe/examples/bench/report"
	"sonicmoe/internal/num"
	"sonicmoe/jit"
	"sonicmoe/ptx"
)

// clockProbe measures the mean SM clock between two places in a stream. At each place a small
// kernel writes, for every SM, %clock64 (clock cycles) and %globaltimer (nanoseconds). The
// cycle counter also counts between kernels. For one SM, the difference of the cycles divided
// by the difference of the times is therefore the mean clock between the two places.
type clockProbe struct {
	dev      driver.Device
	fn       *jit.Function
	launcher *jit.Launcher[probeArgs]
	readings driver.DevicePtr
	places   int
}

// probeArgs are the kernel's arguments. Out has readingBytes for each SM.
type probeArgs struct{ Out driver.DevicePtr }

const (
	readingBytes = 3 * 8 // the SM's number, its cycles, nanoseconds
	// Two CTAs with probeThreads threads and probeShared bytes do not fit on one SM. A launch
	// with one CTA for each SM therefore reaches nearly all SMs.
	probeThreads = 1024
	probeShared  = 128 << 10
)

// probeKernel builds the kernel. Thread 0 of each CTA writes the number of the SM, the cycles
// and the nanoseconds.
func probeKernel() (*jit.Kernel[probeArgs], error) {
	k := jit.NewBuilder[probeArgs]("bench_clock", probeThreads, 1)
	k.Persistent(1)
	k.AddName(ptx.Name{Kind: ptx.SharedRegion, Count: 1, Bytes: probeShared, Text: "unused"})
	k.SharedBase()
	out := k.Ptr(&k.Args.Out)
	k.If(k.TidX().EqI(0), func() {
		at := out.Index(k.CtaidX(), readingBytes)
		ptx.StGlobal(at, k.Smid().U64())
		ptx.StGlobal(at.At(8), k.Clock64())
		ptx.StGlobal(at.At(16), k.Globaltimer())
	})
	return k.Build()
}

func newClockProbe(ctx context.Context, dev driver.Device, places int) (*clockProbe, error) {
	k, err := probeKernel()
	if err != nil {
		return nil, err
	}
	p := &clockProbe{dev: dev, places: places}
	if p.fn, err = jit.Of(dev).Load(ctx, nil, k.Source("clock probe"), gpu.CompileOptions{}); err != nil {
		return nil, err
	}
	p.launcher = k.Launcher(p.fn)
	p.readings, err = dev.Alloc(int64(places) * p.placeBytes())
	return p, err
}

func (p *clockProbe) placeBytes() int64 { return int64(p.dev.Target().SMs) * readingBytes }

// read queues a kernel that writes the readings of one place.
func (p *clockProbe) read(s driver.Stream, place int) error {
	if place < 0 || place >= p.places {
		return fmt.Errorf("clock reading %d, there are %d", place, p.places)
	}
	return p.launcher.Launch(s, probeArgs{Out: p.readings + driver.DevicePtr(int64(place)*p.placeBytes())})
}

// gigahertz returns the mean clock between two places whose kernels have run. It is the median
// over the SMs, or 0 if no SM was read at both places.
func (p *clockProbe) gigahertz(s driver.Stream, from, to int) (float64, error) {
	var at [2]map[uint64][2]uint64
	for i, place := range []int{from, to} {
		words := make([]uint32, p.placeBytes()/4)
		if err := s.CopyToHost(num.Bytes(words), p.readings+driver.DevicePtr(int64(place)*p.placeBytes())); err != nil {
			return 0, err
		}
		at[i] = map[uint64][2]uint64{}
		long := func(i int) uint64 { return uint64(words[i]) | uint64(words[i+1])<<32 }
		for j := 0; j < len(words); j += readingBytes / 4 {
			at[i][long(j)] = [2]uint64{long(j + 2), long(j + 4)}
		}
	}
	return meanClock(at[0], at[1]), nil
}

// meanClock returns the median over the SMs of the mean clock, in cycles per nanosecond. from
// and to have {cycles, nanoseconds} for each SM.
func meanClock(from, to map[uint64][2]uint64) float64 {
	var all []float64
	for sm, b := range to {
		a, ok := from[sm]
		if ok && b[0] > a[0] && b[1] > a[1] {
			all = append(all, float64(b[0]-a[0])/float64(b[1]-a[1]))
		}
	}
	return report.Median(all)
}

func (p *clockProbe) close() error { return p.dev.Free(p.readings) }
