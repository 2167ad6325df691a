package emu

import (
	"slices"
)

// This file enters and leaves functions, and saves registers for calls in progress.
// load_functions.go describes the functions.

// call is a function call in progress.
type call struct {
	pc   int32 // index of the call instruction
	fn   *function
	base int // offset of the call's variables in each lane's local memory
	kept *keptRegisters
}

// keptRegisters holds the saved registers of an outer call of the same function.
type keptRegisters struct {
	r32 [][warpLanes]uint32
	r64 [][warpLanes]uint64
	p   []uint32
	ok  [numBanks][]uint32
}

// at returns the fragment's pc at a depth of calls: the pc of the call instruction at that depth,
// or of the current instruction.
func (f *frag) at(depth int) int32 {
	if depth < len(f.calls) {
		return f.calls[depth].pc
	}
	return f.pc
}

// before reports whether f is further than g from the place where the two may merge.
func (f *frag) before(g *frag) bool {
	for i := 0; ; i++ {
		if a, b := f.at(i), g.at(i); a != b {
			return a < b
		}
		if i >= len(f.calls) || i >= len(g.calls) {
			return len(f.calls) < len(g.calls)
		}
	}
}

// sameAs reports whether two fragments are at the same instruction, in the same calls.
func (f *frag) sameAs(g *frag) bool {
	return f.pc == g.pc && slices.EqualFunc(f.calls, g.calls, func(a, b call) bool { return a.pc == b.pc && a.fn == b.fn && a.base == b.base })
}

// adopt copies the registers that g's calls have saved for g's lanes to f's calls.
func (f *frag) adopt(g *frag) {
	for i := range f.calls {
		if to, from := f.calls[i].kept, g.calls[i].kept; to != from {
			to.take(from, g.mask)
		}
	}
}

func (k *keptRegisters) take(from *keptRegisters, lanes uint32) {
	for l := range lanesIn(lanes) {
		for i := range k.r32 {
			k.r32[i][l] = from.r32[i][l]
		}
		for i := range k.r64 {
			k.r64[i][l] = from.r64[i][l]
		}
	}
	blend := func(to, from []uint32) {
		for i := range to {
			to[i] = to[i]&^lanes | from[i]&lanes
		}
	}
	blend(k.p, from.p)
	for b := range k.ok {
		blend(k.ok[b], from.ok[b])
	}
}

// keep returns a copy of the registers of function fn.
func (w *warp) keep(fn *function) *keptRegisters {
	k := &keptRegisters{}
	for _, s := range fn.slots[bank32] {
		k.r32 = append(k.r32, w.r32[s])
	}
	for _, s := range fn.slots[bank64] {
		k.r64 = append(k.r64, w.r64[s])
	}
	for _, s := range fn.slots[bankPred] {
		k.p = append(k.p, w.p[s])
	}
	for b := range k.ok {
		for _, s := range fn.slots[b] {
			k.ok[b] = append(k.ok[b], w.ok[b][s])
		}
	}
	return k
}

// giveBack restores the registers of function fn in some lanes.
func (w *warp) giveBack(fn *function, k *keptRegisters, lanes uint32) {
	now := w.keep(fn)
	now.take(k, lanes)
	for i, s := range fn.slots[bank32] {
		w.r32[s] = now.r32[i]
	}
	for i, s := range fn.slots[bank64] {
		w.r64[s] = now.r64[i]
	}
	for i, s := range fn.slots[bankPred] {
		w.p[s] = now.p[i]
	}
	for b := range now.ok {
		for i, s := range fn.slots[b] {
			w.ok[b][s] = now.ok[b][i]
		}
	}
}

// maxOwnBytes is the largest local memory of a lane that the emulator provides. The default of a
// chip is 1 KiB, and a program may ask for more.
const maxOwnBytes = 64 << 10

// growOwn enlarges the local memory of the warp's lanes to the given number of bytes each.
func (w *warp) growOwn(bytes int) {
	if bytes <= w.ownBytes {
		return
	}
	bytes = min(max(bytes, 2*w.ownBytes), maxOwnBytes)
	grown := make([]byte, bytes*warpLanes)
	fillBytes(grown, poison)
	for l := range warpLanes {
		copy(grown[l*bytes:], w.local[l*w.ownBytes:(l+1)*w.ownBytes])
	}
	w.local, w.ownBytes = grown, bytes
}

// pass copies arguments or results from the variables of one call to the variables of another.
func (w *warp) pass(lanes uint32, from []place, fromBase int, to []place, toBase int) {
	for l := range lanesIn(lanes) {
		own := w.local[l*w.ownBytes:][:w.ownBytes]
		for i, p := range from {
			copy(own[toBase+to[i].at:][:p.bytes], own[fromBase+p.at:])
		}
	}
}

// base returns the offset of the variables of the fragment's innermost call.
func (f *frag) base() int {
	if n := len(f.calls); n > 0 {
		return f.calls[n-1].base
	}
	return 0
}

func callFunction(w *warp, f *frag, in *inst, mask uint32) outcome {
	c, k := in.called, w.cta.cluster.grid.kernel
	fn, lanes := c.function, mask
	if fn == nil {
		at := w.r64[in.slot[1]][first(mask)]
		lanes = run(mask, func(l int) bool { return w.r64[in.slot[1]][l] == at })
		for _, g := range k.functions {
			if at == functionAddress(numberOf(k.module.text, g.Name)) {
				fn = g
			}
		}
		if fn == nil {
			return w.fault(in, OutOfBounds, lanes, "call of %#x, which is not the address of a function", at)
		}
		if why := c.misfit(fn); why != "" {
			return w.fault(in, IllegalInstruction, lanes, "%s", why)
		}
	}
	if fn.start < 0 {
		return w.callOutside(f, in, fn, mask, lanes)
	}
	x := call{pc: f.pc, fn: fn, base: fn.from}
	top, again := k.localBytes, false
	for _, y := range f.calls {
		again = again || y.fn == fn
		top = max(top, (y.base+y.fn.bytes+15)&^15)
	}
	if again {
		if x.base = top; top+fn.bytes > maxOwnBytes || len(f.calls) >= maxOwnBytes/16 {
			return w.fault(in, OutOfBounds, lanes, "%s calls itself recursively: at depth %d it needs more than %d bytes of a thread's local memory", fn.Name, len(f.calls), maxOwnBytes)
		}
		w.growOwn(top + fn.bytes)
		x.kept = w.keep(fn)
	}
	w.pass(lanes, c.params, f.base(), fn.params, x.base)
	for b := range fn.slots {
		for _, s := range fn.slots[b] {
			w.ok[b][s] &^= lanes
		}
	}
	for _, s := range fn.symbols {
		for l := range lanesIn(lanes) {
			w.r64[s.slot][l] = uint64(x.base + s.at)
		}
		w.ok[bank64][s.slot] |= lanes
	}
	w.leave(f, mask, lanes, frag{pc: fn.start, calls: append(slices.Clip(f.calls), x)})
	return jumped
}

// leave sends some lanes of a fragment to another instruction. mask is the set of lanes that
// execute the present instruction. Lanes of mask that do not leave must still execute it; lanes
// outside mask skip it.
func (w *warp) leave(f *frag, mask, lanes uint32, to frag) {
	if lanes == f.mask {
		f.pc, f.calls = to.pc, to.calls
		return
	}
	later := frag{pc: f.pc, mask: mask &^ lanes, calls: f.calls}
	if f.mask &^= mask; f.mask == 0 {
		f.mask = later.mask
	} else if f.pc++; later.mask != 0 {
		w.place(&later)
	}
	to.mask = lanes
	w.place(&to)
}

// comeBack ends the innermost call of the lanes of mask: they continue after the call instruction.
func (w *warp) comeBack(f *frag, mask uint32) outcome {
	n := len(f.calls) - 1
	x := f.calls[n]
	base := (&frag{calls: f.calls[:n]}).base()
	w.pass(mask, x.fn.results, x.base, w.cta.cluster.grid.kernel.code[x.pc].called.results, base)
	if x.kept != nil {
		w.giveBack(x.fn, x.kept, mask)
	}
	w.leave(f, mask, mask, frag{pc: x.pc + 1, calls: f.calls[:n]})
	return jumped
}

// branchIndexed executes brx.idx: a jump through a table.
func branchIndexed(w *warp, f *frag, in *inst, mask uint32) outcome {
	i := w.r32[in.slot[0]][first(mask)]
	if i >= uint32(len(in.targets)) {
		return w.fault(in, OutOfBounds, 1<<first(mask), "brx.idx has index %d, want less than %d, the number of labels", i, len(in.targets))
	}
	lanes := run(mask, func(l int) bool { return w.r32[in.slot[0]][l] == i })
	if lanes != f.mask && in.has(".uni") {
		w.fault(in, DivergentAligned, lanes, "brx.idx.uni, but %s of the active lanes does not branch to the same label: want brx.idx without .uni", laneList(f.mask&^lanes))
	}
	w.leave(f, mask, lanes, frag{pc: in.targets[i], calls: f.calls})
	return jumped
}
