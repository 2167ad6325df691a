//go:build cgo && linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"sync"

	"sonicmoe/driver"
	"sonicmoe/examples/emulate/internal/findings"
	"sonicmoe/examples/emulate/internal/options"
	"sonicmoe/ptx/emu"
)

// device is the one emulated device of the process.
type device struct {
	options options.Run
	target  driver.Target
	mem     *emu.Memory

	work sync.Mutex // held by work that reads or writes memory

	mu        sync.Mutex // guards the tables below
	modules   map[uintptr]*module
	functions map[uintptr]*function
	variables map[uintptr]*variable
	streams   map[uintptr]*stream
	events    map[uintptr]*event
	graphs    map[uintptr]*graph
	nodes     map[uintptr]*node
	pinned    map[uintptr]pinned
	limits    map[int32]uint64
	handles   uintptr
	told      map[finding]bool // findings that were shown; guarded by work
	traced    map[string]bool  // kernels that have a trace; guarded by work
	pages     int              // number of pages written; guarded by work
	broken    code             // the result of the first launch that failed
}

// memoryBytes is the size of the device's memory: that of an H200. The host needs memory only for
// what the program allocates.
const memoryBytes = 141 << 30

// dev returns the device. The first call makes it.
var dev = sync.OnceValue(func() *device {
	d := &device{target: driver.H200(), mem: emu.NewMemory(memoryBytes),
		modules: map[uintptr]*module{}, functions: map[uintptr]*function{}, variables: map[uintptr]*variable{},
		streams: map[uintptr]*stream{}, events: map[uintptr]*event{}, graphs: map[uintptr]*graph{}, nodes: map[uintptr]*node{}, pinned: map[uintptr]pinned{}, limits: map[int32]uint64{}, told: map[finding]bool{}, traced: map[string]bool{}}
	var err error
	if d.options, err = options.Read(os.Getenv(options.Variable)); err != nil {
		say("%v", err)
		os.Exit(2)
	}
	d.target.Name, d.target.SMs = "emulated H200", d.options.SMs
	for _, h := range defaultStreams {
		d.streams[h] = &stream{}
	}
	return d
})

// handle returns a new handle. It is a small number at which no memory lies, so a program that takes
// the handle for a pointer fails.
func (d *device) handle() uintptr {
	d.handles += 64
	return 1<<16 + d.handles
}

// look returns the object with a handle. what names the kind of object for the error.
func look[T any](d *device, table map[uintptr]T, h uintptr, what string) (T, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	x, ok := table[h]
	if !ok {
		return x, failed(invalidHandle, "%#x is not a %s", h, what)
	}
	return x, nil
}

// add stores a new object and returns its handle.
func add[T any](d *device, table map[uintptr]T, x T) uintptr {
	d.mu.Lock()
	defer d.mu.Unlock()
	h := d.handle()
	table[h] = x
	return h
}

// drop removes the object with a handle.
func drop[T any](d *device, table map[uintptr]T, h uintptr, what string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, ok := table[h]; !ok {
		return failed(invalidHandle, "%#x is not a %s", h, what)
	}
	delete(table, h)
	return nil
}

// ready returns the error of the first launch that failed, or nil. As on a GPU, later work fails with
// the same error.
func (d *device) ready() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.broken.plain()
}

// run runs a launch once, or in several orders if the options ask for a search for races.
func (d *device) run(f *function, k *emu.Kernel, l emu.Launch) error {
	o := &d.options
	l.StrictProxy, l.NaNs, l.SMs, l.Seed, l.Races = o.Strict, o.NaN, d.target.SMs, o.Seed, o.Races
	l.GoOn = func(f *emu.Fault) bool { return !o.Stop || f.Severity == emu.Note }
	l.Print, l.Known = printOut, findings.Known(o.Known).Has
	ctx := context.Background()
	d.trace(ctx, f, k, l)
	var err error
	switch {
	case o.Explore > 0:
		_, err = k.Explore(ctx, d.mem, l, o.Explore)
	case o.Check > 0:
		err = k.Check(ctx, d.mem, l, o.Check)
	default:
		err = k.Once(ctx, d.mem, l)
	}
	var found *emu.Findings
	if !errors.As(err, &found) {
		if err != nil {
			return failed(invalidConfig, "%v", err)
		}
		return nil
	}
	d.report(ctx, f.module, k.Regions(l.SharedBytes), found)
	if f := ending(found, o.Stop); f != nil {
		return d.breakDown(faultCode(f))
	}
	return nil
}

// goesOn lists the kinds of faults after which the emulator can continue a launch, see
// [emu.Launch.GoOn].
var goesOn = map[emu.FaultKind]bool{emu.Race: true, emu.ProxyRace: true, emu.CTALifetime: true, emu.IdleLane: true, emu.UninitializedShared: true}

// ending returns the fault that ended a launch, or nil.
func ending(found *emu.Findings, stop bool) *emu.Fault {
	for i := range found.List {
		if f := found.List[i].Fault; f.Severity != emu.Note && (stop || !goesOn[f.Kind]) {
			return f
		}
	}
	return nil
}

// breakDown makes every later call fail.
func (d *device) breakDown(c code) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.broken == success {
		d.broken = c
	}
	return c.plain()
}

// report writes findings: as text to standard error, and as lines of JSON to the file of command
// emulate. A kind of finding at a line of a kernel is shown as text and as a page once.
func (d *device) report(ctx context.Context, m *module, regions []emu.Region, found *emu.Findings) {
	if fresh := d.fresh(found); len(fresh.List) > 0 {
		d.show(ctx, m, regions, fresh)
	}
	if d.options.Findings == "" {
		return
	}
	f, err := os.OpenFile(d.options.Findings, os.O_APPEND|os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		say("%v", err)
		return
	}
	defer f.Close()
	for i := range found.List {
		if err := json.NewEncoder(f).Encode(&found.List[i]); err != nil {
			say("%v", err)
		}
	}
}
