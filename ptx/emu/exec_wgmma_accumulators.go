package emu

import (
	"fmt"
	"slices"
)

// Accumulator registers are tracked in classes: two registers are in one class if every wgmma of
// the kernel uses both or neither. Registers that hold A are tracked one by one: while a product is
// in flight they may be read but not written. The manual demands a wgmma.fence after a write of A;
// the emulator does not, because compilers emit code that loads A after the fence, and the chip
// runs this code correctly.

// markAccumulators divides the accumulator registers into classes, and marks the ordinary
// instructions that access a register of a class or write a register of A.
func (d *decoder) markAccumulators() {
	k := d.k
	lists := map[int32][]int{} // lists maps a register slot to the indices of the wgmma that use it
	for i := range k.code {
		if in := &k.code[i]; in.product != nil {
			for _, s := range in.args[0].list {
				lists[s] = append(lists[s], i)
			}
		}
	}
	if len(lists) == 0 {
		return
	}
	k.classOf = make([]int32, k.slots[bank32])
	for s := range k.classOf {
		k.classOf[s] = noClass
	}
	classes := map[string]int32{}
	for i := range k.code {
		in := &k.code[i]
		if in.product == nil {
			continue
		}
		for _, s := range in.args[0].list {
			if k.classOf[s] == noClass {
				key := fmt.Sprint(lists[s])
				if _, ok := classes[key]; !ok {
					classes[key] = int32(len(k.classes))
					k.classes = append(k.classes, nil)
				}
				k.classOf[s] = classes[key]
				k.classes[classes[key]] = append(k.classes[classes[key]], s)
			}
			if !slices.Contains(in.classes, k.classOf[s]) {
				in.classes = append(in.classes, k.classOf[s])
			}
		}
	}
	d.markFragments()
	for i := range k.code {
		in := &k.code[i]
		for _, slots := range [2][]int32{in.use[bank32], in.def[bank32]} {
			for _, s := range slots {
				in.accs = in.accs || k.classOf[s] != noClass
			}
		}
		for _, s := range in.def[bank32] {
			in.accs = in.accs || k.fragmentOf[s] != noClass
		}
	}
}

// markFragments numbers the registers that hold A of a wgmma.
func (d *decoder) markFragments() {
	k := d.k
	k.fragmentOf = make([]int32, k.slots[bank32])
	for s := range k.fragmentOf {
		k.fragmentOf[s] = noClass
	}
	for i := range k.code {
		in := &k.code[i]
		if in.product == nil || !in.fromRegisters() {
			continue
		}
		for _, s := range in.args[1].list {
			if k.fragmentOf[s] == noClass {
				k.fragmentOf[s] = int32(k.fragments)
				k.fragments++
			}
		}
	}
}

const noClass = -1

// mmaState is the state of the wgmma instructions that a warp has executed.
type mmaState struct {
	issued  int
	groups  []int // number of wgmma issued when each group was committed
	fenced  bool
	epoch   uint32 // number of wgmma.fence that the warp has executed
	classes []accumulator
	// fragments holds an entry for each register of A: 1 + the number of the latest wgmma that
	// reads the register and that no wait_group has covered, or 0.
	fragments []int
	live      []flight
}

// accumulator is the state of one class of accumulator registers.
type accumulator struct {
	flight  int    // 1 + number of the latest wgmma that uses the class, if no wait_group has covered it; else 0
	touched uint32 // 1 + epoch of the latest access by an instruction other than wgmma
	slot    int32  // register of that access
	written bool   // a wgmma has written this class of registers, so all of them hold values
}

// flight is a wgmma that is in flight: no wait_group has covered it yet.
type flight struct {
	number int
	in     *inst
}

func (s *mmaState) reset() {
	clear(s.classes)
	clear(s.fragments)
	s.issued, s.groups, s.fenced, s.epoch, s.live = 0, s.groups[:0], false, 0, s.live[:0]
}

// touch checks an instruction other than wgmma that accesses accumulators or writes registers of A.
func (s *mmaState) touch(w *warp, in *inst) {
	k := w.cta.cluster.grid.kernel
	s.overwritesA(w, in, in.def[bank32])
	classOf := k.classOf
	for _, slots := range [2][]int32{in.use[bank32], in.def[bank32]} {
		for _, slot := range slots {
			if classOf[slot] == noClass {
				continue
			}
			acc := &s.classes[classOf[slot]]
			if acc.flight > 0 {
				w.fault(in, AccumulatorInFlight, fullMask, "%s is accessed by %s while wgmma number %d of the warpgroup may still use it: want wgmma.wait_group before",
					w.slotName(bank32, slot), in.form.Op, acc.flight)
			}
			acc.touched, acc.slot = s.epoch+1, slot
		}
	}
	w.settle()
}

// overwritesA refuses an instruction that writes registers of A while a wgmma that reads them is in
// flight.
func (s *mmaState) overwritesA(w *warp, in *inst, writes []int32) {
	k := w.cta.cluster.grid.kernel
	for _, slot := range writes {
		if k.fragmentOf[slot] == noClass {
			continue
		}
		if reader := s.fragments[k.fragmentOf[slot]]; reader > 0 {
			w.fault(in, AccumulatorInFlight, fullMask, "%s is written by %s while wgmma number %d of the warpgroup may still read A from it: want wgmma.wait_group before",
				w.slotName(bank32, slot), in.form.Op, reader)
		}
	}
}

// issue checks the accumulator registers of a new wgmma, and records the wgmma as in flight. keep
// states that the product is added to the accumulator.
func (s *mmaState) issue(w *warp, in *inst, keep bool) {
	if !s.fenced {
		w.fault(in, MissingFence, fullMask, "no wgmma.fence has run before the first wgmma")
	}
	s.overwritesA(w, in, in.args[0].list)
	for _, c := range in.classes {
		acc := &s.classes[c]
		if acc.touched == s.epoch+1 {
			w.fault(in, MissingFence, fullMask, "%s was accessed after the latest wgmma.fence: want another wgmma.fence before this wgmma", w.slotName(bank32, acc.slot))
		}
		if keep && !acc.written {
			for _, slot := range w.cta.cluster.grid.kernel.classes[c] {
				if ok := w.ok[bank32][slot]; ok != fullMask {
					w.fault(in, UninitializedRegister, ^ok, "wgmma adds to %s, which was never written", w.slotName(bank32, slot))
				}
			}
		}
		if acc.flight > 0 {
			if other := s.number(acc.flight - 1); other != nil && len(other.args[0].list) != len(in.args[0].list) {
				w.fault(in, AccumulatorInFlight, fullMask, "%s is in flight in a wgmma of another shape: want wgmma.wait_group before", w.slotName(bank32, in.args[0].list[0]))
			}
		}
	}
	s.issued++
	if in.fromRegisters() {
		for _, slot := range in.args[1].list {
			s.fragments[w.cta.cluster.grid.kernel.fragmentOf[slot]] = s.issued
		}
	}
	for _, c := range in.classes {
		acc := &s.classes[c]
		acc.flight = s.issued
		if !acc.written {
			acc.written = true
			for _, slot := range w.cta.cluster.grid.kernel.classes[c] {
				w.ok[bank32][slot] = fullMask
			}
		}
	}
	s.live = append(s.live, flight{s.issued - 1, in})
}

func (s *mmaState) number(n int) *inst {
	for i := len(s.live) - 1; i >= 0; i-- {
		if s.live[i].number == n {
			return s.live[i].in
		}
	}
	return nil
}

// land records that all wgmma with a number below upTo are complete.
func (s *mmaState) land(upTo int) {
	kept := s.live[:0]
	for _, f := range s.live {
		if f.number >= upTo {
			kept = append(kept, f)
			continue
		}
		for _, c := range f.in.classes {
			if s.classes[c].flight == f.number+1 {
				s.classes[c].flight = 0
			}
		}
		if f.in.fromRegisters() {
			for i, reader := range s.fragments {
				if reader == f.number+1 {
					s.fragments[i] = 0
				}
			}
		}
	}
	s.live = kept
}
