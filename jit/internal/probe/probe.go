// Package probe runs small kernels on the emulator for the tests of jit's
// packages.
package probe

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"testing"

	"sonicmoe/ptx"
	"sonicmoe/ptx/emu"
)

// Poison is the value of words that no kernel has written.
const Poison = 0xffffffff

// Timing selects when asynchronous work completes.
type Timing struct {
	Name   string
	Timing emu.Timing
	Seed   uint64
}

// Timings returns the timings early, late with race checks, and some random ones.
func Timings() []Timing {
	list := []Timing{{"early", emu.Early, 0}, {"late", emu.Late, 0}}
	for seed := range uint64(4) {
		list = append(list, Timing{fmt.Sprintf("random %d", seed), emu.Random, seed})
	}
	return list
}

// Probe is a loaded kernel with a memory of its own.
type Probe struct {
	tb     testing.TB
	kernel *emu.Kernel
	mem    *emu.Memory
	// Launch is the shape of launches. Run sets its parameters and timing.
	Launch emu.Launch
}

// New builds k, prints it and loads the text. A CTA has the given numbers of threads and of bytes
// of dynamic shared memory.
func New(tb testing.TB, k *ptx.Kernel, threads, sharedBytes int) *Probe {
	tb.Helper()
	m, err := k.Build()
	must(tb, err)
	text := m.Print()
	loaded, err := emu.Load(text.PTX)
	must(tb, err)
	kernel, err := loaded.Kernel(m.Entries[0].Name)
	must(tb, err)
	return &Probe{tb: tb, kernel: kernel, mem: emu.NewMemory(1 << 28),
		Launch: emu.Launch{Block: [3]int{threads}, SharedBytes: sharedBytes,
			Where: func(line int) string { return text.Pos(line).String() }}}
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// Words allocates global memory, writes the values to it, and returns its address.
func (p *Probe) Words(values ...uint32) uint64 {
	p.tb.Helper()
	at, err := p.mem.Alloc(int64(4 * max(1, len(values))))
	must(p.tb, err)
	var b []byte
	for _, v := range values {
		b = binary.LittleEndian.AppendUint32(b, v)
	}
	must(p.tb, p.mem.Write(at, b))
	return at
}

// Room allocates n words, fills them with Poison, and returns their address.
func (p *Probe) Room(n int) uint64 {
	return p.Words(slices.Repeat([]uint32{Poison}, n)...)
}

// Read returns n words of global memory.
func (p *Probe) Read(at uint64, n int) []uint32 {
	p.tb.Helper()
	b := make([]byte, 4*n)
	must(p.tb, p.mem.Read(b, at))
	words := make([]uint32, n)
	for i := range words {
		words[i] = binary.LittleEndian.Uint32(b[4*i:])
	}
	return words
}

// Run launches a grid of ctas CTAs. params are in the kernel's order: a uint64 is an address, an
// int a word.
func (p *Probe) Run(t Timing, ctas int, params ...any) {
	p.tb.Helper()
	must(p.tb, p.Try(t, ctas, params...))
}

// Try does the same as Run, and returns the error of the launch.
func (p *Probe) Try(t Timing, ctas int, params ...any) error {
	p.tb.Helper()
	l := p.Launch
	l.Grid, l.Timing, l.Seed = [3]int{ctas}, t.Timing, t.Seed
	l.Races = t.Timing == emu.Late
	l.Params = make([]byte, p.kernel.ParamBytes())
	if got, want := len(params), len(p.kernel.Params()); got != want {
		p.tb.Fatalf("got %d parameters, kernel %s takes %d", got, p.kernel.Name(), want)
	}
	for i, q := range p.kernel.Params() {
		switch v := params[i].(type) {
		case uint64:
			binary.LittleEndian.PutUint64(l.Params[q.Offset:], v)
		case int:
			binary.LittleEndian.PutUint32(l.Params[q.Offset:], uint32(v))
		default:
			p.tb.Fatalf("parameter %s: unexpected type %T", q.Name, v)
		}
	}
	return p.kernel.Launch(context.Background(), p.mem, l)
}
