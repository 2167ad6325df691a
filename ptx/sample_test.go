package ptx_test

import (
	"math/rand/v2"
	"strconv"
	"strings"

	"sonicmoe/ptx"
	"sonicmoe/ptx/isa"
)

// sampler generates an instruction of any form, with random operands of the right kinds.
type sampler struct {
	rng *rand.Rand
	// constants makes the sampler use immediates for some operands, if the form allows them.
	constants bool
}

// pools lists, for each class, the registers that every sample kernel declares.
var pools = []struct {
	class isa.Type
	name  string
	count int
}{{isa.Pred, "%p", 8}, {isa.B16, "%h", 8}, {isa.B32, "%r", 16}, {isa.B64, "%d", 16}, {isa.B32, "%acc", 128}}

// sampleModule returns a module with one kernel that has no instructions.
func sampleModule() *ptx.Module {
	e := &ptx.Entry{
		Name: "sample", MaxThreads: 128, MinCTAs: 1,
		Params: []ptx.Param{
			{Name: "wide", Type: isa.U64, Align: 8, Bytes: 8},
			{Name: "map", Type: isa.B8, Align: 64, Bytes: 128},
			{Name: "word", Type: isa.U32, Align: 4, Bytes: 4},
		},
		Shared: []ptx.Variable{{Name: "tile", Align: 16, Bytes: 1024}},
		Local: []ptx.Variable{{Name: "own", Space: isa.Local, Align: 16, Bytes: 128}, {Name: "passed", Space: isa.Param, Align: 16, Bytes: 128},
			{Name: "result", Space: isa.Param, Scalar: isa.B32, Align: 4, Bytes: 4}},
	}
	for _, p := range pools {
		e.Decls = append(e.Decls, ptx.RegDecl{Class: p.class, Prefix: p.name, Count: p.count})
		for i := range p.count {
			e.Registers = append(e.Registers, ptx.Register{Name: p.name + strconv.Itoa(i), Class: p.class})
		}
	}
	return &ptx.Module{
		Version: 87, Arch: isa.SM90a, Entries: []*ptx.Entry{e},
		Globals: []ptx.Variable{{Name: "smem", Extern: true, Align: 1024}},
		Funcs: []*ptx.Func{{Entry: ptx.Entry{Name: "helper", Params: []ptx.Param{{Name: "given", Type: isa.B8, Align: 16, Bytes: 128}}, Body: []ptx.Inst{{Form: &isa.Table[isa.Ret]}}},
			Results: []ptx.Param{{Name: "returned", Type: isa.B32, Align: 4, Bytes: 4}}}},
	}
}

func (s *sampler) reg(t isa.Type) ptx.Operand {
	at := 0
	for _, p := range pools {
		if p.class == t.Class() {
			return ptx.Operand{Kind: ptx.OpReg, Reg: int32(at + s.rng.IntN(p.count))}
		}
		at += p.count
	}
	panic("no registers of type " + t.String())
}

// start returns the labels with which every sample kernel begins.
func start() []ptx.Inst {
	to := []ptx.Operand{{Kind: ptx.OpLabel, Sym: "$start"}}
	return []ptx.Inst{{Label: "$start"}, {Label: "$table", Directive: ".branchtargets", Args: to},
		{Label: "$prototype", Directive: ".callprototype (.param .b32 _) _ (.param .align 16 .b8 _[128])"}}
}

// inst returns an instruction of form f with modifiers m and random operands.
func (s *sampler) inst(f *isa.Form, m isa.Mods) ptx.Inst {
	in := ptx.Inst{Form: f, Mods: m}
	if f.ID == isa.Call {
		passed := func(name string) ptx.Operand {
			return ptx.Operand{Kind: ptx.OpPassed, List: []ptx.Operand{{Kind: ptx.OpSymbol, Sym: name}}}
		}
		in.Args = []ptx.Operand{passed("result"), {Kind: ptx.OpSymbol, Sym: "helper"}, passed("passed")}
		if s.rng.IntN(2) == 0 {
			in.Args[1] = s.reg(isa.U64)
			in.Args = append(in.Args, ptx.Operand{Kind: ptx.OpLabel, Sym: "$prototype"})
		}
		return in
	}
	least, most := f.ArgCount(m)
	for i := range most {
		if i >= least && s.rng.IntN(2) == 0 {
			break
		}
		in.Args = append(in.Args, s.arg(f, m, i))
	}
	return in
}

func (s *sampler) arg(f *isa.Form, m isa.Mods, i int) ptx.Operand {
	a, t := &f.Args[i], f.ArgType(m, i)
	switch a.Kind {
	case isa.Imm:
		return ptx.Operand{Kind: ptx.OpInt, Imm: s.immediate(f, a)}
	case isa.PredIn:
		p := s.reg(isa.Pred)
		switch s.rng.IntN(4) {
		case 0:
			p.Kind = ptx.OpNotReg
		case 1:
			if s.constants {
				return ptx.Operand{Kind: ptx.OpInt, Imm: int64(s.rng.IntN(2))}
			}
		}
		return p
	case isa.SinkPred:
		return s.reg(isa.Pred)
	case isa.Pair:
		d, p := s.reg(t), s.reg(isa.Pred)
		for t == isa.Pred && d.Reg == p.Reg {
			p = s.reg(isa.Pred)
		}
		return ptx.Operand{Kind: ptx.OpPair, List: []ptx.Operand{d, p}}
	case isa.Sink:
		return ptx.Operand{Kind: ptx.OpSink}
	case isa.Label:
		if f.ID == isa.BrxIdx {
			return ptx.Operand{Kind: ptx.OpLabel, Sym: "$table"}
		}
		return ptx.Operand{Kind: ptx.OpLabel, Sym: "$start"}
	case isa.Addr:
		return s.address(f, f.ArgSpace(m, i))
	case isa.TensorAddr:
		return ptx.Operand{Kind: ptx.OpTensor, Reg: s.reg(isa.U64).Reg, List: s.list(f, a, isa.S32, f.ArgLen(m, i))}
	case isa.Vec:
		l := s.list(f, a, t, f.ArgLen(m, i))
		if !f.Braced(m, i) {
			return l[0]
		}
		return ptx.Operand{Kind: ptx.OpVec, List: l}
	}
	return s.scalar(f, a, t)
}

func (s *sampler) address(f *isa.Form, space isa.Space) ptx.Operand {
	o := ptx.Operand{Kind: ptx.OpAddr, Reg: -1, Imm: 16 * int64(s.rng.IntN(4))}
	switch space {
	case isa.Param:
		if o.Sym = "map"; f.ID == isa.StParam {
			o.Sym = "passed"
		}
	case isa.Shared:
		if s.rng.IntN(4) == 0 {
			o.Sym = "tile"
			return o
		}
		o.Reg = s.reg(isa.U32).Reg
	case isa.Local:
		o.Sym = "own"
	case isa.SharedCluster:
		o.Reg = s.reg(isa.U32).Reg
	default:
		o.Reg = s.reg(isa.U64).Reg
	}
	return o
}

// list returns the elements of a vector operand. Elements of an output are different registers.
func (s *sampler) list(f *isa.Form, a *isa.Arg, t isa.Type, n int) []ptx.Operand {
	l := make([]ptx.Operand, n)
	for i := range l {
		if a.Dir != isa.In {
			first := 0
			for _, p := range pools {
				if p.class == t.Class() && p.count >= n {
					l[i] = ptx.Operand{Kind: ptx.OpReg, Reg: int32(first + i)}
				}
				first += p.count
			}
			continue
		}
		l[i] = s.scalar(f, a, t)
	}
	return l
}

func (s *sampler) scalar(f *isa.Form, a *isa.Arg, t isa.Type) ptx.Operand {
	if s.constants && a.Dir == isa.In && !a.RegOnly && t != isa.Pred && s.rng.IntN(2) == 0 {
		if a.Name == "fraction" {
			return ptx.Operand{Kind: ptx.OpF32, Imm: 0x3f800000}
		}
		if t == isa.F32 {
			return ptx.Operand{Kind: ptx.OpF32, Imm: int64(s.rng.Uint32())}
		}
		if t == isa.F64 {
			return ptx.Operand{Kind: ptx.OpF64, Imm: int64(s.rng.Uint64())}
		}
		return ptx.Operand{Kind: ptx.OpInt, Imm: s.constant(f, a, t)}
	}
	return s.reg(t)
}

func (s *sampler) immediate(f *isa.Form, a *isa.Arg) int64 {
	if a.Below > 0 {
		return s.rng.Int64N(a.Below)
	}
	switch a.Name {
	case "bytes":
		return 16
	case "mapBytes":
		return 128
	case "dimension": // a dimension of a tensor map
		return int64(s.rng.IntN(3))
	case "value": // the values 0 and 1 are valid for each field of a tensor map
		return int64(s.rng.IntN(2))
	case "n":
		return 24 + 8*int64(s.rng.IntN(4)) // a small count, because the assembler has few registers left in the sample
	case "scaleA", "scaleB":
		return 1 - 2*int64(s.rng.IntN(2))
	case "transA", "transB":
		return int64(s.rng.IntN(2))
	}
	return int64(s.rng.IntN(8))
}

func (s *sampler) constant(f *isa.Form, a *isa.Arg, t isa.Type) int64 {
	switch {
	case strings.HasPrefix(f.Op, "bar.") || strings.HasPrefix(f.Op, "barrier."):
		if a.Name == "id" {
			return int64(s.rng.IntN(16))
		}
		return 32 + 32*int64(s.rng.IntN(4))
	case a.Name == "parity" || a.Name == "rank":
		return int64(s.rng.IntN(2))
	case a.Name == "srcBytes" || a.Name == "bytes":
		return 16
	case a.Name == "count":
		return 1 + int64(s.rng.IntN(1024))
	case (f.Op == "bfe" || f.Op == "bfi") && (a.Name == "at" || a.Name == "n"):
		return int64(s.rng.IntN(256))
	case a.Name == "lane" || a.Name == "clamp":
		return int64(s.rng.IntN(32))
	case t.Bits() == 64:
		return int64(s.rng.Uint64())
	case t.Bits() == 16:
		return int64(s.rng.IntN(1 << 15))
	case t.Signed():
		return int64(int32(s.rng.Uint32()))
	}
	return int64(s.rng.Uint32())
}

// variants returns choices of a form's modifiers. Every modifier occurs in at least one choice, and
// every optional place is empty in at least one.
func variants(f *isa.Form) []isa.Mods {
	var out []isa.Mods
	for i, place := range f.Mods {
		first := 1
		if place.Opt {
			first = 0
		}
		for n := first; n <= len(place.Alts); n++ {
			if i > 0 && n == first {
				continue // the variants of the first place contain this modifier
			}
			out = append(out, complete(f, i, uint8(n)))
		}
	}
	if len(f.Mods) == 0 {
		out = append(out, isa.Mods{})
	}
	return out
}

// complete returns a choice with modifier n at place i. At each other place it chooses the first
// modifier that may be combined with it.
func complete(f *isa.Form, i int, n uint8) isa.Mods {
	var m isa.Mods
	m[i] = n
	for j := range f.Mods {
		if j == i || f.Mods[j].Opt {
			continue
		}
		for alt := range f.Mods[j].Alts {
			m[j] = uint8(alt + 1)
			if _, clash := f.Clash(m); !clash {
				break
			}
		}
	}
	return m
}

// mods returns a random choice of modifiers.
func (s *sampler) mods(f *isa.Form) isa.Mods {
	for {
		var m isa.Mods
		for i, place := range f.Mods {
			if n := len(place.Alts); place.Opt {
				m[i] = uint8(s.rng.IntN(n + 1))
			} else {
				m[i] = uint8(1 + s.rng.IntN(n))
			}
		}
		if _, clash := f.Clash(m); !clash {
			return m
		}
	}
}
