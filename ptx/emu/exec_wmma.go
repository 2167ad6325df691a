package emu

import (
	"strings"

	"sonicmoe/ptx/isa"
)

// wmmaMoves returns the loads and stores of wmma. Each performs ordinary accesses of the
// elements that are contiguous in memory.
func wmmaMoves() handlers {
	forms := handlers{}
	for i := range isa.Table {
		f := &isa.Table[i]
		switch {
		case strings.HasPrefix(f.Op, "wmma.load."):
			forms[f.ID] = moves(loadFragment, loadGlobal, loadShared)
		case strings.HasPrefix(f.Op, "wmma.store."):
			forms[f.ID] = moves(storeFragment, storeGlobal, storeShared)
		}
	}
	return forms
}

func moves(fragment func(access execFunc) execFunc, global, shared execFunc) handler {
	h := inSpace(&spaceExecs{fragment(global), fragment(shared), nil}, false)
	h.scratch = true
	choose := h.prepare
	h.prepare = func(in *inst) {
		choose(in)
		prepareMatrix(in)
		m, n, k := shapeOf(in.mod("shape"))
		element, layout := in.mod("element"), in.mod("layout")
		sums := 0 // index of the operand that holds the sums
		if in.form.Args[0].Kind == isa.Addr {
			sums = 1
		}
		switch strings.Split(in.form.Op, ".")[2] { // wmma.load.a
		case "a":
			in.fragment = operandFragment(m, k, element)
			in.across = layout == ".col"
		case "b":
			in.fragment = operandFragment(n, k, element)
			in.across = layout == ".row"
		default:
			in.fragment = sumsFragment(m, n, in.form.Args[sums].Type)
			in.across = layout == ".col"
		}
	}
	return h
}

// pieces visits the pieces of a fragment that are contiguous in memory, in all lanes at
// once. A piece has the given number of bytes. offsets has its byte offset from the
// fragment's address in each lane, and shift its position in the register in bits.
func (in *inst) pieces(stride uint64, visit func(register, shift, bytes int, offsets *[warpLanes]uint64) outcome) outcome {
	f := in.fragment
	step := f.per // number of elements of a piece
	if in.across {
		step = 1
	}
	for r := range f.at {
		for e := 0; e < f.per; e += step {
			var offsets [warpLanes]uint64
			for l, at := range f.at[r][e] {
				row, column := uint64(int(at)/f.columns), uint64(int(at)%f.columns)
				if in.across {
					row, column = column, row
				}
				offsets[l] = (row*stride*uint64(f.width) + column*uint64(f.bits)) / 8
			}
			if out := visit(r, e*f.bits, step*f.bits/8, &offsets); out != next {
				return out
			}
		}
	}
	return next
}

// fragmentAt returns the address of a fragment, and the distance of its rows in elements.
// Both must be the same in the whole warp.
func (w *warp) fragmentAt(in *inst, mask uint32, address *operand) (at, stride uint64, out outcome) {
	if mask != fullMask {
		return 0, 0, w.fault(in, DivergentAligned, mask, "%s needs all 32 lanes of the warp", in.form.Op)
	}
	f := in.fragment
	stride = uint64(f.columns * f.bits / f.width)
	if in.across {
		stride = uint64(f.rows)
	}
	same := true
	if len(in.args) > 2 {
		var s uint32
		s, same = uniform(&w.r32[in.args[2].slot], mask)
		stride = uint64(s)
	}
	agree := false
	if address.bank == bank64 {
		at, agree = uniform(&w.r64[address.slot], mask)
	} else {
		var a uint32
		a, agree = uniform(&w.r32[address.slot], mask)
		at = uint64(a)
	}
	if !same || !agree {
		return 0, 0, w.fault(in, IllegalInstruction, mask, "%s: address or stride differ between lanes of the warp", in.form.Op)
	}
	return at, stride, next
}

// scratch is an instruction's scratch registers in each bank.
type scratch struct{ address, value [bankPred]int32 }

// eachPiece performs an ordinary access for each piece of the fragment, with address and value
// in scratch registers.
func (w *warp) eachPiece(f *frag, in *inst, mask uint32, address, value int, access execFunc, before, after func(o *operand, register, shift int)) outcome {
	o := in.args[address]
	at, stride, out := w.fragmentAt(in, mask, &o)
	if out != next {
		return out
	}
	piece := *in
	piece.args = make([]operand, 2)
	v := &piece.args[value]
	v.bank = in.args[value].bank
	v.list = []int32{in.scratch.value[v.bank]}
	o.slot = in.scratch.address[o.bank]
	piece.args[address] = o
	return in.pieces(stride, func(register, shift, bytes int, offsets *[warpLanes]uint64) outcome {
		for l, off := range offsets {
			w.setElem(&o, o.slot, l, at+off)
		}
		piece.size = uint8(bytes)
		before(v, register, shift)
		out := access(w, f, &piece, mask)
		if out == next {
			after(v, register, shift)
		}
		return out
	})
}

// loadFragment performs a fragment's load by ordinary loads.
func loadFragment(load execFunc) execFunc {
	return func(w *warp, f *frag, in *inst, mask uint32) outcome {
		var loaded [8][warpLanes]uint64 // all elements are loaded before any is stored, because a result may overwrite the address register
		out := w.eachPiece(f, in, mask, 1, 0, load, func(*operand, int, int) {}, func(v *operand, register, shift int) {
			for l := range warpLanes {
				loaded[register][l] |= w.elem(v, v.list[0], l) << shift
			}
		})
		if out != next {
			return out
		}
		d := &in.args[0]
		for i, s := range d.list {
			for l, x := range loaded[i%len(in.fragment.at)] {
				w.setElem(d, s, l, x)
			}
		}
		return next
	}
}

// storeFragment performs a fragment's store by ordinary stores.
func storeFragment(store execFunc) execFunc {
	return func(w *warp, f *frag, in *inst, mask uint32) outcome {
		d := &in.args[1]
		return w.eachPiece(f, in, mask, 0, 1, store, func(v *operand, register, shift int) {
			for l := range warpLanes {
				w.setElem(v, v.list[0], l, w.elem(d, d.list[register], l)>>shift)
			}
		}, func(*operand, int, int) {})
	}
}
