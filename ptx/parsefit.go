package ptx

import (
	"math"
	"strconv"

	"sonicmoe/ptx/isa"
)

// argsFit returns "" if the operands fit the form. Otherwise it says why they do not. It turns
// symbols into labels where the form has a label.
func argsFit(e *Entry, f *isa.Form, m isa.Mods, args []Operand) string {
	if least, most := f.ArgCount(m); len(args) < least || len(args) > most {
		return f.Op + " takes " + strconv.Itoa(least) + " operands"
	}
	for i := range args {
		if o := &args[i]; f.Args[i].Kind == isa.Vec && !f.Braced(m, i) && o.Kind == OpVec && len(o.List) == 1 {
			*o = o.List[0] // a vector of one element
		}
		if !argFits(e, f, m, i, &args[i]) {
			return "operand " + strconv.Itoa(i+1) + " (" + f.Args[i].Name + ") does not fit " + f.Op
		}
	}
	for i := range args {
		if f.Args[i].Kind == isa.Label {
			args[i].Kind = OpLabel
		}
		if t := f.ArgType(m, i); args[i].Kind == OpF64 && t == isa.F32 {
			args[i] = Operand{Kind: OpF32, Imm: int64(math.Float32bits(float32(math.Float64frombits(uint64(args[i].Imm)))))}
		}
	}
	return ""
}

func argFits(e *Entry, f *isa.Form, m isa.Mods, i int, o *Operand) bool {
	a, t := &f.Args[i], f.ArgType(m, i)
	switch a.Kind {
	case isa.Reg:
		return scalarFits(e, f, a, t, o)
	case isa.PredIn:
		return (o.Kind == OpReg || o.Kind == OpNotReg) && e.Registers[o.Reg].Class == isa.Pred ||
			o.Kind == OpInt && (o.Imm == 0 || o.Imm == 1)
	case isa.SinkPred:
		return o.Kind == OpReg && e.Registers[o.Reg].Class == isa.Pred
	case isa.Pair:
		return o.Kind == OpPair && pairFits(e, t, &o.List[0]) && pairFits(e, isa.Pred, &o.List[1])
	case isa.Imm:
		return o.Kind == OpInt
	case isa.Passed:
		return o.Kind == OpPassed
	case isa.Sink:
		return o.Kind == OpSink
	case isa.Label:
		return o.Kind == OpSymbol || o.Kind == OpLabel
	case isa.Addr:
		return o.Kind == OpAddr && (o.Reg < 0 || addressFits(f.ArgSpace(m, i), e.Registers[o.Reg].Class))
	case isa.TensorAddr:
		return o.Kind == OpTensor && e.Registers[o.Reg].Class == isa.B64 && listFits(e, f, a, isa.S32, f.ArgLen(m, i), o.List)
	case isa.Vec:
		if !f.Braced(m, i) {
			return scalarFits(e, f, a, t, o)
		}
		return o.Kind == OpVec && listFits(e, f, a, t, f.ArgLen(m, i), o.List)
	}
	return false
}

func listFits(e *Entry, f *isa.Form, a *isa.Arg, t isa.Type, n int, list []Operand) bool {
	if len(list) != n {
		return false
	}
	for i := range list {
		if !scalarFits(e, f, a, t, &list[i]) {
			return false
		}
	}
	return true
}

func scalarFits(e *Entry, f *isa.Form, a *isa.Arg, t isa.Type, o *Operand) bool {
	switch o.Kind {
	case OpReg:
		c := e.Registers[o.Reg].Class
		return c == t.Class() || a.Wider && c != isa.Pred && c.Bits() > t.Bits()
	case OpInt:
		return a.Dir == isa.In && !a.RegOnly && (t != isa.Pred || f.ID == isa.Mov) && t != isa.F32 && t != isa.F64
	case OpF32:
		return a.Dir == isa.In && !a.RegOnly && (t == isa.F32 || t == isa.B32)
	case OpF64:
		return a.Dir == isa.In && !a.RegOnly && (t == isa.F32 || t == isa.F64 || t == isa.B64)
	case OpSink: // an element of a vector that is not needed
		return a.Dir == isa.Out && a.Kind == isa.Vec
	case OpSpecial:
		return a.Dir == isa.In && f.ID == isa.Mov && isa.Specials[o.Reg].Type.Class() == t.Class()
	case OpSymbol:
		return a.Dir == isa.In && (f.ID == isa.Mov || f.ID == isa.Call)
	}
	return false
}

func pairFits(e *Entry, t isa.Type, o *Operand) bool {
	return o.Kind == OpSink || o.Kind == OpReg && e.Registers[o.Reg].Class == t.Class()
}

// addressFits reports whether registers of a class can hold addresses of a space. 64-bit registers
// can hold any address, 32-bit registers only addresses of small spaces.
func addressFits(s isa.Space, class isa.Type) bool {
	switch s {
	case isa.Shared, isa.SharedCluster, isa.Local:
		return class == isa.B32 || class == isa.B64
	}
	return class == isa.B64
}
