package emulated

import (
	"bytes"
	"errors"

	"sonicmoe/driver"
	"sonicmoe/driver/gpu"
	"sonicmoe/ptx/emu"
)

// checkLaunch returns the kernel's function, or an error if the launch is wrong.
func (d *device) checkLaunch(op string, f gpu.Function, l *gpu.Launch) (*function, error) {
	fn, ok := f.(*function)
	if !ok || fn == nil || fn.module.dev != d {
		return nil, invalid(op, "the function is not of this device")
	}
	if fn.module.closed.Load() {
		return nil, invalid(op, "the module of kernel %s is unloaded", fn.Name())
	}
	if l == nil {
		return nil, invalid(op, "no launch shape")
	}
	if err := l.Check(); err != nil {
		return nil, err
	}
	if l.SharedBytes > fn.sharedLimit() {
		return nil, invalid(op, "SharedBytes is %d, kernel %s is allowed %d: call AllowSharedBytes first", l.SharedBytes, fn.Name(), fn.sharedLimit())
	}
	if n := l.Block.Count(); n > fn.kernel.MaxThreads() {
		return nil, invalid(op, "Block has %d threads, kernel %s takes at most %d", n, fn.Name(), fn.kernel.MaxThreads())
	}
	return fn, nil
}

// launch runs a kernel to its end. The caller holds the mutex work.
func (d *device) launch(f *function, s *stream, l *gpu.Launch, params []byte) error {
	if err := d.ready("Launch"); err != nil {
		return err
	}
	launch := emu.Launch{
		GoOn: func(*emu.Fault) bool { return false }, // no other note occurs in the layer's kernels
		// A tile that is wider than the tensor loads TMA boxes outside the tensor. This note is
		// expected.
		Known: func(f *emu.Fault) bool { return f.Severity == emu.Note && f.Kind == emu.OutOfBounds },
		Grid:  [3]int{l.Grid.X, l.Grid.Y, l.Grid.Z}, Block: [3]int{l.Block.X, l.Block.Y, l.Block.Z},
		Cluster: [3]int{l.Cluster.X, l.Cluster.Y, l.Cluster.Z}, SharedBytes: l.SharedBytes, Params: params,
		Timing: d.options.Timing, Seed: d.options.Seed, Parallel: d.options.Parallel, SMs: d.options.Target.SMs,
		Races: d.options.Races, StrictProxy: d.options.StrictProxy, Stream: &s.launches, Programmatic: l.Programmatic,
	}
	if see := d.options.Launching; see != nil {
		seen := launch
		seen.Stream = launch.Stream.Clone()
		see(f.kernel, d.mem.Load(), seen)
	}
	var err error
	switch {
	case d.options.Explore > 0:
		var e emu.Exploration
		e, err = f.kernel.Explore(d.life, d.mem.Load(), launch, d.options.Explore)
		if told := d.options.Explored; told != nil {
			told(f.kernel, e)
		}
	case d.options.Check > 0:
		err = f.kernel.Check(d.life, d.mem.Load(), launch, d.options.Check)
	default:
		err = f.kernel.Launch(d.life, d.mem.Load(), launch)
	}
	var fault *emu.Fault
	switch {
	case errors.As(err, &fault):
		return d.breakDown(f.Name(), err)
	case d.closed.Load():
		return d.ready("Launch")
	case err != nil && d.life.Err() != nil:
		return &driver.Error{Op: "Launch", Name: "stopped", Kernel: f.Name(), Cause: err}
	case err != nil:
		return &driver.Error{Op: "Launch", Name: "invalid value", Kernel: f.Name(), Kind: driver.ErrInvalid, Cause: err}
	}
	return nil
}

// Launch implements gpu.Stream. It returns when the kernel has ended.
func (s *stream) Launch(f gpu.Function, l *gpu.Launch, params []byte) error {
	if err := s.open("Launch"); err != nil {
		return err
	}
	fn, err := s.dev.checkLaunch("Launch", f, l)
	if err != nil {
		return err
	}
	if len(params) != fn.kernel.ParamBytes() {
		return invalid("Launch", "%d bytes of parameters, kernel %s takes %d", len(params), fn.Name(), fn.kernel.ParamBytes())
	}
	shape := *l
	if s.capturing() {
		params = bytes.Clone(params)
	}
	return s.do(func(s *stream) error { return s.dev.launch(fn, s, &shape, params) })
}

// These are limits of one multiprocessor of compute capability 9.0.
const (
	threadsPerSM   = 2048
	ctasPerSM      = 32
	reservedShared = 1 << 10 // the part that the system reserves in each CTA
)

// MaxActiveClusters implements gpu.Device.
func (d *device) MaxActiveClusters(f gpu.Function, l gpu.Launch) (int, error) {
	if err := d.ready("MaxActiveClusters"); err != nil {
		return 0, err
	}
	fn, err := d.checkLaunch("MaxActiveClusters", f, &l)
	if err != nil {
		return 0, err
	}
	t, threads := d.options.Target, (l.Block.Count()+31)/32*32
	shared := reservedShared + fn.kernel.StaticSharedBytes() + l.SharedBytes
	perSM := min(ctasPerSM, threadsPerSM/threads, t.SharedBytesPerSM/shared, t.RegistersPerSM/(fn.kernel.Registers()*threads))
	size := l.Cluster.Count()
	if n := fn.kernel.Cluster().Count(); n > 0 {
		size = n
	}
	return perSM * t.SMs / size, nil
}
