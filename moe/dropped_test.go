package moe_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/driver/drivertest"
	"sonicmoe/driver/emulated"
	"sonicmoe/moe"
	kt "sonicmoe/moe/internal/kernel/kerneltest"
	"sonicmoe/ptx"
	"sonicmoe/ptx/emu"
	"sonicmoe/ptx/isa"
)

// orders are the beginnings of instructions that order others.
var orders = []string{"bar.", "cp.async.wait", "cp.async.bulk.wait", "cp.async.mbarrier", "cp.async.commit", "cp.async.bulk.commit", "fence.", "mbarrier.init", "mbarrier.arrive",
	"mbarrier.try_wait", "wgmma.fence", "wgmma.commit", "wgmma.wait", "barrier.cluster"}

// weaker is the instruction as a mistaken author could have it: gone, where
// nothing but order is its business, or without the order of its scope. False for
// what orders nothing.
func weaker(in *ptx.Inst) (others []ptx.Inst, ok bool) {
	if in.Form == nil {
		return nil, false
	}
	if slices.ContainsFunc(orders, func(s string) bool { return strings.HasPrefix(in.Form.Op, s) }) {
		return nil, true
	}
	if i := in.Form.ModIndex("sem"); i >= 0 && in.Mods[i] > 0 {
		if relaxed := slices.Index(in.Form.Mods[i].Alts, ".relaxed") + 1; relaxed > 0 && int(in.Mods[i]) != relaxed {
			other := *in
			other.Mods[i] = uint8(relaxed)
			return []ptx.Inst{other}, true
		}
	}
	return nil, false
}

// sweep checks each kernel that it is shown without each of its lines that order
// others.
type sweep struct {
	t       *testing.T
	modules map[string]*ptx.Module
	every   int // of so many lines one
	lines   int
	found   map[droppedLine]string // kind of fault, passes or unreached
}

// droppedLine is an instruction of a kernel.
type droppedLine struct {
	kernel, text string // the name, and all of the PTX
	at           int
	what         string
}

const (
	isMissed    = "passes"
	isUnreached = "unreached" // no warp executes it
)

func (s *sweep) launching(k *emu.Kernel, mem *emu.Memory, l emu.Launch) {
	m := s.modules[k.Name()]
	if m == nil {
		return
	}
	l.SpinLimit = 1 << 14
	e := m.Entry(k.Name())
	whole, text := e.Body, string(m.Print().PTX)
	defer func() { e.Body = whole }()
	// check runs the kernel with others instead of an instruction.
	check := func(at int, others ...ptx.Inst) error {
		e.Body = slices.Insert(slices.Delete(slices.Clone(whole), at, at+1), at, others...)
		code, err := emu.Load(m.Print().PTX)
		require.NoError(s.t, err)
		without, err := code.Kernel(k.Name())
		require.NoError(s.t, err)
		return without.Check(context.Background(), mem.Clone(), l, 1)
	}
	for i := range whole {
		in := &whole[i]
		others, ok := weaker(in)
		if !ok {
			continue
		}
		line := droppedLine{k.Name(), text, i, fmt.Sprintf("%v without %s", in.Pos(), in.Form.Op)}
		was, again := s.found[line]
		if !again {
			if s.lines++; s.lines%s.every != 0 {
				continue
			}
		} else if was != isMissed && was != isUnreached {
			continue
		}
		var f *emu.Fault
		if err := check(i, others...); errors.As(err, &f) {
			s.found[line] = f.Kind.String()
			continue
		} else {
			require.NoError(s.t, err)
		}
		trap := ptx.Inst{Form: &isa.Table[isa.Trap], Guard: in.Guard, GuardNot: in.GuardNot}
		if err := check(i, trap, *in); err != nil {
			s.found[line] = isMissed
		} else if !again {
			s.found[line] = isUnreached
		}
	}
}

// Each instruction of our kernels that orders others is taken out in turn, nobody
// choosing, while a small layer runs: a check names it. SONICMOE_LONG has all of
// them, else it is one of 40.
func TestDroppedLines(t *testing.T) {
	if drivertest.Name() != "emulated" {
		t.Skip("a GPU would hang for ever")
	}
	if testing.Short() {
		t.Skip("checks of kernels: not with -short")
	}
	s := &sweep{t: t, every: 40, found: map[droppedLine]string{}}
	if kt.Long() {
		s.every = 1
	}
	small := moe.Config{Hidden: 640, Intermediate: 320, NumExperts: 6, TopK: 2}
	for _, of := range []struct {
		name     string
		config   moe.Config
		tokens   int
		backward bool
	}{
		{"many tokens", small, 400, true},
		{"20 tokens", small, 20, false},
		{"60 tokens", small, 60, false},
		{"a lone token", small, 1, false},
	} {
		t.Run(of.name, func(t *testing.T) {
			s.t = t
			dev, err := emulated.New(emulated.Options{Launching: s.launching})
			require.NoError(t, err)
			options := []moe.Option{moe.WithCache(nil)}
			if !of.backward {
				options = append(options, moe.WithoutBackward())
			}
			sources, err := moe.Sources(dev.Target(), of.config, options...)
			require.NoError(t, err)
			s.modules = map[string]*ptx.Module{}
			for _, src := range sources {
				for _, e := range src.Module.Entries {
					s.modules[e.Name] = src.Module
				}
			}
			tr := trialOn(t, dev, of.config, of.tokens, options...)
			require.NoError(t, tr.Run(context.Background(), tr.Args)) // takes as long as all checks
			if of.backward {
				require.NoError(t, tr.PrepareBackward(17, moe.BF16))
				require.NoError(t, tr.RunBackward(context.Background(), tr.Back))
			}
		})
	}
	kernels, kinds := map[string][]string{}, map[string]int{}
	for line, kind := range s.found {
		kinds[kind]++
		if list := kernels[line.kernel]; kind == isMissed {
			kernels[line.kernel] = append(list, line.what)
		} else {
			kernels[line.kernel] = list
		}
	}
	for _, name := range slices.Sorted(maps.Keys(kernels)) {
		slices.Sort(kernels[name])
		t.Logf("%s:\n\t%s", name, strings.Join(kernels[name], "\n\t"))
	}
	named := len(s.found) - kinds[isMissed] - kinds[isUnreached]
	t.Logf("%d kernels, %d lines: %d named, %v", len(kernels), s.lines, named, kinds)
	assert.GreaterOrEqual(t, 10*named, 9*(named+kinds[isMissed]))
}

// All kernels of a layer, forward, backward and on few tokens, break no rule in any of
// 100 random orders (2 where SONICMOE_LONG is not set), looking for races and for every
// proxy fence.
func TestCleanInManyOrders(t *testing.T) {
	if drivertest.Name() != "emulated" {
		t.Skip("orders are the emulator's")
	}
	if testing.Short() {
		t.Skip("checks of kernels: not with -short")
	}
	orders := 2
	if kt.Long() {
		orders = 100
	}
	for _, config := range []moe.Config{
		{Hidden: 320, Intermediate: 192, NumExperts: 6, TopK: 2},
		{Hidden: 192, Intermediate: 128, NumExperts: 16, TopK: 8, GateUp: moe.Interleaved, Bias: true, RouterBias: true, SharedExperts: 1},
	} {
		for _, tokens := range []int{1, 20, 150} {
			t.Run(fmt.Sprintf("%d %v", tokens, config), func(t *testing.T) {
				dev, err := emulated.New(emulated.Options{Check: orders, StrictProxy: true})
				require.NoError(t, err)
				tr := trialOn(t, dev, config, tokens)
				require.NoError(t, tr.Run(context.Background(), tr.Args))
				require.NoError(t, tr.PrepareBackward(17, moe.BF16))
				require.NoError(t, tr.RunBackward(context.Background(), tr.Back))
			})
		}
	}
}
