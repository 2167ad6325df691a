package emu

import (
	"fmt"
	"slices"
	"strings"

	"sonicmoe/ptx/isa"
)

// For a report about a phase without any arrival, the emulator finds out from the PTX which
// instructions could arrive at the mbarrier. The address of such an instruction is often a shared
// symbol plus a constant, plus eight times the stage number.

// barrierOperand returns the operand that holds the mbarrier's address. It returns nil if the
// instruction neither arrives nor copies bytes.
func (in *inst) barrierOperand() *operand {
	if op := in.form.Op; strings.HasPrefix(op, "mbarrier.") && !strings.HasPrefix(op, "mbarrier.arrive") {
		return nil
	}
	if i := slices.IndexFunc(in.form.Args, func(a isa.Arg) bool { return a.Name == "bar" }); i >= 0 {
		return &in.args[i]
	}
	return nil
}

// couldArrive returns the warps that can still reach an instruction that arrives at the mbarrier at
// offset `at`, and one such instruction. If bytes is set, it looks for instructions that copy to
// the mbarrier instead. Fragment f, which waits, does not count.
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

// mayName reports whether operand o may hold the address at. If a part of the operand's address is
// known only at run time, the operand may hold any address in the region of its constant part.
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

// partly is the part of a 32-bit register's value that is known from the PTX.
type partly struct {
	at      uint32
	address bool // the register holds an address in shared memory
	exact   bool // the constant is the whole value, not one summand of it
}

// constantPart returns the constant summand of a register's value, from the instructions that write
// the register.
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

// reaches returns one instruction of targets that a thread at pc may reach.
func (k *Kernel) reaches(pc int32, targets map[int32]bool) (int32, bool) {
	return k.reachesWithout(pc, targets, nil)
}

// reachesWithout returns one instruction of targets that a thread at pc may reach without executing
// an instruction of ends.
func (k *Kernel) reachesWithout(pc int32, targets, ends map[int32]bool) (int32, bool) {
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
			if ends[pc] {
				break
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

// arrival records that an instruction of a warp has arrived at an mbarrier, or has copied bytes to
// it.
type arrival struct {
	warp *warp
	in   *inst
}

// copies reports whether the instruction copies bytes to the mbarrier.
func (a arrival) copies() bool {
	id := a.in.form.ID
	return forms[id].bulk || id == isa.StAsync || id == isa.RedAsync
}

// note adds an arrival to a phase's list, unless the list has it.
func note(list []arrival, a arrival) []arrival {
	if n := len(list); n > 0 && list[n-1] == a || slices.Contains(list, a) {
		return list
	}
	return append(list, a)
}

// needPhase says what fragment f needs to continue. The fragment waits for a phase of an mbarrier,
// which is at offset `at` of the shared memory of CTA c.
func (cl *cluster) needPhase(w *warp, f *frag, c *cta, at, parity uint32) need {
	b, err := c.shared.mbar.at(at)
	if err != nil {
		return need{what: "waits at " + err.Error()}
	}
	n := need{what: fmt.Sprintf("waits at mbarrier %s for the phase of parity %d to complete: %v", c.symbolic(at), parity, b), phase: b.phase}
	if n.how, n.cause = cl.tooMuch(w, f, b, at); n.cause.in != nil {
		return n
	}
	doing := "arrive"
	if b.pending == 0 {
		doing = "copy bytes"
	}
	if did := c.arrivedBefore(b, at); len(did) > 0 {
		for _, a := range did {
			if !slices.Contains(n.from, a.warp) {
				n.from = append(n.from, a.warp)
			}
		}
		last := did[len(did)-1]
		n.how = fmt.Sprintf("%s should %s there, as before at %s", cl.whereabouts(n.from), doing, cl.place(last.in))
		return n
	}
	// No earlier phase shows which warp is missing. Find the warps that could still arrive and have
	// not arrived in this phase.
	could, where := cl.couldArrive(w, f, c, at, b.pending == 0)
	var have []*warp
	could = slices.DeleteFunc(could, func(w *warp) bool {
		did := b.pending > 0 && slices.ContainsFunc(b.now, func(o arrival) bool { return o.warp == w })
		if did {
			have = append(have, w)
		}
		return did
	})
	switch {
	case len(could) == 0 && len(have) > 0:
		n.how = fmt.Sprintf("%s did, and no other warp is left that could %s there", cl.whereabouts(have), doing)
		return n
	case len(could) == 0:
		n.how = fmt.Sprintf("no warp is left that could %s there", doing)
		return n
	}
	n.from = could
	n.how = fmt.Sprintf("%s should %s there at %s, and no warp has yet", cl.whereabouts(could), doing, cl.place(where))
	if len(have) > 0 {
		n.how = fmt.Sprintf("%s did, %s should %s there too, possibly at %s", cl.whereabouts(have), cl.whereabouts(could), doing, cl.place(where))
	}
	return n
}

// arrivedBefore returns the arrivals of the previous phase whose warps have not arrived in this one.
// If there is none, as in the first phase, it returns such arrivals at other mbarriers with the same
// name. If only bytes are missing, it returns copies instead.
func (c *cta) arrivedBefore(b *mbarrier, at uint32) (did []arrival) {
	missing := func(a arrival) bool {
		arrived := b.pending > 0 && slices.ContainsFunc(b.now, func(o arrival) bool { return o.warp == a.warp })
		return a.copies() == (b.pending == 0) && !arrived
	}
	did = slices.DeleteFunc(slices.Clone(b.before), func(a arrival) bool { return !missing(a) })
	if len(did) > 0 {
		return did
	}
	for _, other := range c.siblings(at) {
		for _, a := range append(slices.Clone(other.before), other.now...) {
			if missing(a) {
				did = note(did, a)
			}
		}
	}
	return did
}

// tooMuch finds an expect_tx that announced more bytes than the copies of its phase bring. It
// returns the instruction, and a text about it. It returns nothing if an arrival is missing, if no
// copy has come, or if a warp may still copy to the mbarrier before it announces the bytes of
// another phase.
func (cl *cluster) tooMuch(w *warp, f *frag, b *mbarrier, at uint32) (how string, cause arrival) {
	copied := slices.IndexFunc(b.now, arrival.copies)
	if b.pending > 0 || b.tx <= 0 || b.bytes == 0 || len(b.announced) == 0 || copied < 0 {
		return "", cause
	}
	k := cl.grid.kernel
	copies, announces := map[int32]bool{}, map[int32]bool{}
	for i := range k.code {
		in := &k.code[i]
		bar := slices.IndexFunc(in.form.Args, func(a isa.Arg) bool { return a.Name == "bar" })
		if bar >= 0 && k.mayName(&in.args[bar], at) {
			copies[int32(i)] = (arrival{w, in}).copies()
			announces[int32(i)] = strings.Contains(in.form.Op, "expect_tx")
		}
	}
	for _, x := range cl.warps {
		for _, g := range x.frags {
			if _, ok := k.reachesWithout(g.pc, copies, announces); ok && g != f {
				return "", cause
			}
		}
	}
	cause = b.announced[len(b.announced)-1]
	return fmt.Sprintf("%s announced %d bytes with %s at %s, and copies (%s) brought %d: announce %[6]d bytes, or copy %d more",
		cl.whereabouts([]*warp{cause.warp}), b.bytes+uint32(b.tx), cause.in.form.Op, cl.place(cause.in), cl.place(b.now[copied].in), b.bytes, b.tx), cause
}

// siblings returns the live mbarriers in the named region that contains the offset, including the
// one at the offset.
func (c *cta) siblings(at uint32) (out []*mbarrier) {
	n, _, ok := c.cluster.grid.kernel.region(at)
	if !ok {
		return nil
	}
	start := c.cluster.grid.kernel.dynamicStart() + uint32(n.At)
	for a := start; a < start+uint32(n.Count*n.Bytes); a += mbarrierBytes {
		if b := c.shared.mbar[a]; b != nil {
			out = append(out, b)
		}
	}
	return out
}
