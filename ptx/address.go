package ptx

// Shared is an address in the CTA's shared memory, in bytes.
type Shared struct {
	base U32
	off  int
}

// SharedAt returns the shared-memory address that register a holds.
func SharedAt(a U32) Shared { return Shared{base: a} }

// At returns the address plus a constant number of bytes.
func (s Shared) At(bytes int) Shared { return Shared{s.base, s.off + bytes} }

// Plus returns the address plus a number of bytes known at run time.
func (s Shared) Plus(bytes U32) Shared {
	if n, ok := bytes.Const(); ok {
		return s.At(int(int32(n)))
	}
	return Shared{s.base.Add(bytes), s.off}
}

// Addr returns the address as an integer.
func (s Shared) Addr() U32 { return s.base.AddI(s.off) }

// Global is an address in global memory, in bytes.
type Global struct {
	base U64
	off  int
}

// GlobalAt returns the global-memory address that register a holds.
func GlobalAt(a U64) Global { return Global{base: a} }

// At returns the address plus a constant number of bytes.
func (g Global) At(bytes int) Global { return Global{g.base, g.off + bytes} }

// Plus returns the address plus a number of bytes known at run time.
func (g Global) Plus(bytes U64) Global { return Global{g.base.Add(bytes), g.off} }

// Index returns the address of element i of an array whose elements have elemBytes
// bytes.
func (g Global) Index(i U32, elemBytes int) Global {
	return Global{i.MadWide(Uint(elemBytes), g.base), g.off}
}

// Addr returns the address as an integer.
func (g Global) Addr() U64 {
	if g.off == 0 {
		return g.base
	}
	return g.base.Add(Long(uint64(int64(g.off))))
}

// Given reports, at run time, whether the address is not 0. Callers of a kernel pass 0 for an
// absent argument.
func (g Global) Given() Pred { return g.Addr().Ne(Long(0)) }

// TensorMap is a kernel parameter that is a tensor map. It holds the generic address of the
// parameter.
type TensorMap struct{ addr U64 }

// SelectMap returns tensor map a if p is true, else b.
func SelectMap(p Pred, a, b TensorMap) TensorMap { return TensorMap{Select(p, a.addr, b.addr)} }

func (s Shared) operand() Operand {
	switch b := s.base.v; {
	case b.konst:
		return Operand{Kind: OpAddr, Reg: -1, Imm: int64(b.imm) + int64(s.off)}
	case b.missing():
		return b.nowhere()
	}
	return Operand{Kind: OpAddr, Reg: s.base.v.reg, Imm: int64(s.off), owner: s.base.v.k}
}

func (g Global) operand() Operand {
	switch b := g.base.v; {
	case b.konst:
		return Operand{Kind: OpNone, Sym: "a global address that is a constant: Materialize it"}
	case b.missing():
		return b.nowhere()
	}
	return Operand{Kind: OpAddr, Reg: g.base.v.reg, Imm: int64(g.off), owner: g.base.v.k}
}

func (m TensorMap) operand() Operand {
	if m.addr.v.missing() {
		return m.addr.v.nowhere()
	}
	return Operand{Kind: OpAddr, Reg: m.addr.v.reg, owner: m.addr.v.k}
}
