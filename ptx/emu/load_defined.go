package emu

import "sonicmoe/ptx/isa"

// Reading a register before it is written is a fault, or makes the result unknown: see
// run_unknown.go. Decoding proves most reads safe: every path to them contains an unguarded write of
// the register. Only the other reads are checked at run time, lane by lane. If a kernel has too many
// registers and branches for the proof, all its reads are checked.

// slotRef names a register: its bank and its slot there.
type slotRef struct {
	bank bank
	slot int32
}

// definedness is a data-flow analysis of one kernel. It finds, for each block of instructions, the
// slots that hold a value at its start on all paths.
type definedness struct {
	k      *Kernel
	base   [numBanks]int // index of each bank's slot 0 in a numbering of the slots of all banks
	words  int
	starts []int32 // index of each block's first instruction, then the length of the code
	block  map[int32]int
	some   []uint64   // slots that some instruction writes
	in     [][]uint64 // in[b] is the set of slots that hold a value before block b; nil if no path to it is known yet
}

// definedness returns the analysis in its initial state, in which nothing is proved.
func (k *Kernel) definedness() *definedness {
	a := &definedness{k: k, block: map[int32]int{}}
	n := 0
	for b := range a.base {
		a.base[b] = n
		n += k.slots[b]
	}
	a.words = (n + 63) / 64
	a.split()
	a.some = make([]uint64, a.words)
	for i := range k.code {
		for b := range k.code[i].def {
			for _, s := range k.code[i].def[b] {
				a.add(a.some, bank(b), s)
			}
		}
	}
	return a
}

// resolveReads sets, for each instruction, checks (the reads to check at run time) and marks (the
// writes to record at run time).
func (k *Kernel) resolveReads() {
	a := k.definedness()
	a.solve()
	tracked := make([]uint64, a.words)
	for _, class := range k.classes {
		for _, s := range class {
			a.add(tracked, bank32, s) // record writes of accumulators: a wgmma that adds to them checks at run time that they hold values
		}
	}
	for i := range a.starts[:len(a.starts)-1] {
		a.walk(i, func(in *inst, have []uint64) {
			in.checkGuard = in.guard >= 0 && !a.has(have, bankPred, in.guard)
			if in.checkGuard {
				a.add(tracked, bankPred, in.guard)
			}
			in.checks, in.passes = nil, a.passes(in, have)
			for b := range in.use {
				for _, s := range in.use[b] {
					if !a.has(have, bank(b), s) {
						in.checks = append(in.checks, slotRef{bank(b), s})
						a.add(tracked, bank(b), s)
					}
				}
			}
		})
	}
	for i := range k.code {
		in := &k.code[i]
		in.marks = nil
		for b := range in.def {
			for _, s := range in.def[b] {
				if a.has(tracked, bank(b), s) {
					in.marks = append(in.marks, slotRef{bank(b), s})
				}
			}
		}
	}
}

func (a *definedness) at(b bank, s int32) (word int, bit uint64) {
	n := a.base[b] + int(s)
	return n / 64, 1 << (n % 64)
}

func (a *definedness) add(set []uint64, b bank, s int32) {
	w, bit := a.at(b, s)
	set[w] |= bit
}

func (a *definedness) remove(set []uint64, b bank, s int32) {
	w, bit := a.at(b, s)
	set[w] &^= bit
}

func (a *definedness) has(set []uint64, b bank, s int32) bool {
	w, bit := a.at(b, s)
	return set[w]&bit != 0
}

func (in *inst) branches() bool { return in.form.Effects&isa.Branches != 0 }

// jumps returns the possible targets of a branch.
func (in *inst) jumps() []int32 {
	switch {
	case !in.branches():
		return nil
	case in.targets != nil:
		return in.targets
	}
	return []int32{in.target}
}

func (in *inst) exits() bool { return in.form.Effects&isa.Exits != 0 }

// split divides the code into basic blocks.
func (a *definedness) split() {
	code := a.k.code
	leader := make([]bool, len(code)+1)
	leader[0], leader[len(code)] = true, true
	for _, f := range a.k.functions {
		if f.start >= 0 {
			leader[f.start] = true
		}
	}
	for i := range code {
		for _, to := range code[i].jumps() {
			leader[to] = true
		}
		if code[i].branches() || code[i].exits() {
			leader[i+1] = true
		}
	}
	for i, is := range leader {
		if is {
			a.block[int32(i)] = len(a.starts)
			a.starts = append(a.starts, int32(i))
		}
	}
	a.in = make([][]uint64, len(a.starts))
}

// maxProof bounds the size of the analysis's sets in words, maxProofWork the number of words that
// it may process. Large kernels of this repository need about 2^14.
const (
	maxProof     = 1 << 22
	maxProofWork = maxProof << 6
)

// solve propagates the sets until nothing changes. If that takes too long, it proves nothing.
func (a *definedness) solve() {
	if len(a.starts)*a.words > maxProof {
		return
	}
	start := make([]uint64, a.words)
	a.add(start, bankPred, slotZero)
	a.add(start, bankPred, slotTrue)
	for _, c := range a.k.const32 {
		a.add(start, bank32, c.slot)
	}
	for _, c := range a.k.const64 {
		a.add(start, bank64, c.slot)
	}
	for _, c := range a.k.symbols {
		a.add(start, bank32, c.slot)
	}
	for _, c := range a.k.wideSymbols {
		a.add(start, bank64, c.slot)
	}
	for _, c := range a.k.specials {
		a.add(start, c.bank, c.slot)
	}
	a.in[0] = start
	work := []int{0}
	for _, f := range a.k.functions { // when a function is called, only these slots are sure to hold values
		if f.start >= 0 {
			a.in[a.block[f.start]] = append([]uint64(nil), start...)
			work = append(work, a.block[f.start])
		}
	}
	for walked := 0; len(work) > 0; walked += a.words {
		if walked > maxProofWork {
			clear(a.in)
			return
		}
		i := work[len(work)-1]
		work = work[:len(work)-1]
		out := a.walk(i, func(*inst, []uint64) {})
		for _, next := range a.successors(i) {
			if a.meet(next, out) {
				work = append(work, next)
			}
		}
	}
}

// walk visits the instructions of a block with the set of slots that hold values before each. It
// returns the set at the block's end.
func (a *definedness) walk(block int, visit func(in *inst, have []uint64)) []uint64 {
	have := make([]uint64, a.words)
	copy(have, a.in[block])
	for i := a.starts[block]; i < a.starts[block+1]; i++ {
		in := &a.k.code[i]
		visit(in, have)
		unknown := a.passes(in, have)
		if in.guard >= 0 && !unknown {
			continue
		}
		for b := range in.def {
			for _, s := range in.def[b] {
				if unknown {
					a.remove(have, bank(b), s)
				} else {
					a.add(have, bank(b), s)
				}
			}
		}
		if in.product != nil {
			for _, s := range in.args[0].list {
				a.add(have, bank32, s)
			}
		}
	}
	return have
}

func (a *definedness) successors(block int) (next []int) {
	last := &a.k.code[a.starts[block+1]-1]
	for _, to := range last.jumps() {
		next = append(next, a.block[to])
	}
	falls := last.guard >= 0 || !last.branches() && !last.exits()
	if falls && block+2 < len(a.starts) {
		next = append(next, block+1)
	}
	return next
}

// meet intersects a block's set with the set at the end of a predecessor. It reports whether the
// block's set changed.
func (a *definedness) meet(block int, out []uint64) bool {
	if a.in[block] == nil {
		a.in[block] = append([]uint64(nil), out...)
		return true
	}
	changed := false
	for w, v := range a.in[block] {
		if v&^out[w] != 0 {
			a.in[block][w] = v & out[w]
			changed = true
		}
	}
	return changed
}
