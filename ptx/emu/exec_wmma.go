package emu

import (
	"strings"

	"sonicmoe/ptx/isa"
)

// wmmaMoves returns the handlers of wmma.load and wmma.store. They perform an ordinary access for
// each piece of the matrix that is contiguous in memory.
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
		sums := 0 // index of the operand with the type of the sums
		if in.form.Args[0].Kind == isa.Addr {
			sums = 1
		}
		switch strings.Split(in.form.Op, ".")[2] { // the third word of the name, as in wmma.load.a, names the matrix
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

// pieces calls visit for each contiguous piece of a fragment, once for all lanes. A piece has the
// given number of bytes, in the given register, from bit `shift` on. offsets has, for each lane,
// the piece's byte offset from the address of the matrix in memory. stride is the distance of two
// rows in elements.
func (in *inst) pieces(stride uint64, visit func(register, shift, bytes int, offsets *[warpLanes]uint64) outcome) outcome {
	f := in.fragment
	step := f.per // elements per piece
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

// fragmentAt returns the address of the matrix in memory, and the distance of its rows (or columns,
// if they are contiguous) in elements. It is a fault if either differs between lanes of the warp.
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

// scratch has the slots of an instruction's scratch registers, one per register bank.
type scratch struct{ address, value [bankPred]int32 }

// eachPiece performs an ordinary access for each contiguous piece of the matrix. It puts the
// address and the value of the piece into scratch registers, and makes them the operands with the
// indices address and value. Functions before and after are called around each access.
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

// loadFragment returns the execution of wmma.load. load is the ordinary load that it uses.
func loadFragment(load execFunc) execFunc {
	return func(w *warp, f *frag, in *inst, mask uint32) outcome {
		var loaded [8][warpLanes]uint64 // everything is loaded before a register is written, because a result may overwrite the address
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

// storeFragment returns the execution of wmma.store. store is the ordinary store that it uses.
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
