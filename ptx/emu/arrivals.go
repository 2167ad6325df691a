package emu

import (
	"sonicmoe/ptx/isa"
)

// The mbarrier of an arriving instruction often follows from the text: the address is a shared
// symbol plus a constant, plus the stage number times eight. Reports on a phase without any
// arrival need it.

// barrierOperand returns the operand that holds the mbarrier's address, for an instruction that
// arrives or copies bytes, or nil.
func (in *inst) barrierOperand() *operand {
	switch in.form.ID {
	case isa.MbarrierArrive, isa.MbarrierArriveCluster, isa.MbarrierArriveExpectTx, isa.MbarrierArriveExpectTxCluster:
		return &in.args[1]
	case isa.CpAsyncMbarrierArriveNoInc:
		return &in.args[0]
	case isa.TMALoad, isa.TMALoadMulticast:
		return &in.args[2]
	case isa.BulkLoad, isa.BulkCopyCluster:
		return &in.args[3]
	}
	return nil
}

// couldArrive returns the warps with a fragment other than f that can still reach an
// instruction that arrives at the mbarrier at an offset (or, if bytes, copies to it), and one
// such instruction.
func (cl *cluster) couldArrive(w *warp, f *frag, c *cta, at uint32, bytes bool) (warps []*warp, where *inst) {
	k := cl.grid.kernel
	targets := map[int32]bool{}
	for i := range k.code {
		in := &k.code[i]
		if o := in.barrierOperand(); o != nil && (arrival{w, in}).copies() == bytes && k.mayName(o, at) {
			targets[int32(i)] = true
		}
	}
	for _, x := range cl.warps {
		for _, g := range x.frags {
			if pc, ok := k.reaches(g.pc, targets); ok && g != f {
				if where == nil {
					where = &k.code[pc]
				}
				warps = append(warps, x)
				break
			}
		}
	}
	return warps, where
}

// mayName reports whether the operand may hold the address at. If a part of the operand's
// address is known only at run time, the operand may name any address in the region of its
// constant part.
func (k *Kernel) mayName(o *operand, at uint32) bool {
	v := k.constantPart(o.slot, map[int32]bool{})
	if !v.address {
		return true
	}
	v.at += uint32(o.imm)
	if v.at == at {
		return true
	}
	n, _, ok := k.region(at)
	m, _, found := k.region(v.at)
	return !v.exact && ok && found && n == m
}

// partly is the statically known part of a 32-bit register's value.
type partly struct {
	at      uint32
	address bool // the register holds a shared address
	exact   bool // at is the whole value
}

// constantPart follows a register's definitions.
func (k *Kernel) constantPart(slot int32, seen map[int32]bool) partly {
	for _, c := range k.symbols {
		if c.slot == slot {
			return partly{c.value, true, true}
		}
	}
	for _, c := range k.const32 {
		if c.slot == slot {
			return partly{c.value, false, true}
		}
	}
	if seen[slot] {
		return partly{}
	}
	seen[slot] = true
	defer delete(seen, slot)
	var all partly
	some := false
	for i := range k.code {
		in := &k.code[i]
		if len(in.def[bank32]) != 1 || in.def[bank32][0] != slot {
			continue
		}
		v := partly{}
		of := func(i int) partly { return k.constantPart(in.slot[i], seen) }
		switch in.form.ID {
		case isa.Mov:
			v = of(1)
		case isa.Mapa:
			v = of(1)
		case isa.Add:
			v = sum(of(1), of(2))
		case isa.MadLo:
			v = sum(partly{}, of(3))
		case isa.Selp:
			if v = of(1); !v.address {
				v = of(2)
			}
			v.exact = false
		}
		if v.address && (!all.address || v.at < all.at) {
			all.at, all.address = v.at, true
		}
		all.exact = v.exact && !some
		some = true
	}
	return all
}

func sum(a, b partly) partly {
	if b.address {
		a, b = b, a
	}
	if !b.exact {
		return partly{a.at, a.address, false}
	}
	return partly{a.at + b.at, a.address, a.exact}
}

// reaches returns an instruction of targets that a thread at pc may reach.
func (k *Kernel) reaches(pc int32, targets map[int32]bool) (int32, bool) {
	seen := make([]bool, len(k.code))
	work := []int32{pc}
	for len(work) > 0 {
		pc := work[len(work)-1]
		work = work[:len(work)-1]
		for !seen[pc] {
			seen[pc] = true
			if targets[pc] {
				return pc, true
			}
			in := &k.code[pc]
			work = append(work, in.jumps()...)
			if (in.branches() || in.exits()) && in.guard < 0 || int(pc)+1 == len(k.code) {
				break
			}
			pc++
		}
	}
	return 0, false
}
