package ptx

import (
	"cmp"
	"slices"
	"strconv"

	"sonicmoe/ptx/isa"
)

// typeMod returns the type modifier of a load or store of T.
func typeMod[T Value]() Mod {
	var t T
	return Mod("." + t.isaType().String())
}

func vecMod(n int) Mod {
	if n == 1 {
		return ""
	}
	return Mod(".v" + strconv.Itoa(n))
}

func load[T Value](base val, id isa.ID, a Operand, n int, mods []Mod) []T {
	return loadAs[T](base, id, a, n, mods, typeMod[T]())
}

// loadAs loads n values. Parameter of is their type in memory, which is not wider than T.
func loadAs[T Value](base val, id isa.ID, a Operand, n int, mods []Mod, of Mod) []T {
	f := &isa.Table[id]
	k := base.k
	out := make([]T, n)
	if k == nil {
		if base.konst {
			base = noVal("%s of a constant address: Materialize it", f.Op)
		}
		for i := range out {
			out[i] = wrap[T](base)
		}
		return out
	}
	all := append(append([]Mod{}, mods...), vecMod(n), of)
	var t T
	list := make([]Operand, n)
	for i := range out {
		d := k.result(t.isaType())
		out[i], list[i] = wrap[T](d), d.operand(isa.NoType)
	}
	k.emit(f, k.mods(f, all...), vecOrOne(list), a)
	return out
}

// store emits a store. The address or a value must be in a register: the register determines the
// kernel that gets the instruction.
func store[T Value](base val, id isa.ID, a Operand, vs []T, mods ...Mod) {
	f := &isa.Table[id]
	k := base.k
	list := make([]Operand, len(vs))
	for i, v := range vs {
		list[i] = v.val().operand(v.isaType())
		k = cmp.Or(k, v.val().k)
	}
	if k == nil {
		panic("ptx: " + f.Op + " of constants to an address without a register: Materialize the address")
	}
	if len(vs) == 0 {
		k.Errorf("%s of no values", f.Op)
		return
	}
	k.emit(f, k.mods(f, append(mods, vecMod(len(vs)), typeMod[T]())...), a, vecOrOne(list))
}

func vecOrOne(list []Operand) Operand {
	if len(list) == 1 {
		return list[0]
	}
	return Operand{Kind: OpVec, List: list}
}

// LdGlobal loads one value from global memory.
func LdGlobal[T Value](a Global, mods ...Mod) T {
	return load[T](a.base.v, isa.LdGlobal, a.operand(), 1, mods)[0]
}

// LdGlobalVec loads 2 or 4 adjacent values from global memory with one instruction. The address
// must be aligned to their total size.
func LdGlobalVec[T Value](a Global, n int, mods ...Mod) []T {
	return load[T](a.base.v, isa.LdGlobal, a.operand(), n, mods)
}

// LdGlobalByte loads one byte from global memory. The other bits of the result are 0.
func LdGlobalByte(a Global, mods ...Mod) U32 {
	return loadAs[U32](a.base.v, isa.LdGlobal, a.operand(), 1, mods, ".u8")[0]
}

// LdShared loads one value from shared memory.
func LdShared[T Value](a Shared) T {
	return load[T](a.base.v, isa.LdShared, a.operand(), 1, nil)[0]
}

// LdSharedVec loads 2 or 4 adjacent values from shared memory with one instruction.
func LdSharedVec[T Value](a Shared, n int) []T {
	return load[T](a.base.v, isa.LdShared, a.operand(), n, nil)
}

// Ldmatrix loads 1, 2 or 4 matrices of 8x8 16-bit elements. The registers have the layout from
// which [Kernel.Stmatrix] stores.
func (k *Kernel) Ldmatrix(a Shared, n int) []U32 { return k.ldmatrix("", a, n) }

// LdmatrixTrans loads 1, 2 or 4 matrices transposed. Lane l gives the address of column l%8 of
// matrix l/8.
func (k *Kernel) LdmatrixTrans(a Shared, n int) []U32 { return k.ldmatrix(".trans", a, n) }

func (k *Kernel) ldmatrix(trans Mod, a Shared, n int) []U32 {
	out := make([]U32, n)
	for i := range out {
		out[i] = U32{k.result(isa.B32)}
	}
	k.op(isa.Ldmatrix, []Mod{Mod(".x" + strconv.Itoa(n)), trans}, vecOperand(out), a.operand())
	return out
}

// StGlobal stores 1, 2 or 4 adjacent values to global memory with one instruction.
func StGlobal[T Value](a Global, vs ...T) {
	store(a.base.v, isa.StGlobal, a.operand(), vs)
}

// StShared stores 1, 2 or 4 adjacent values to shared memory with one instruction.
func StShared[T Value](a Shared, vs ...T) {
	store(a.base.v, isa.StShared, a.operand(), vs)
}

// LdGlobalAcquire loads a word that a thread of another CTA stores with [StGlobalRelease]. If it
// reads the stored value, every write that was visible to the storing thread before its store is
// visible after the load.
func LdGlobalAcquire(a Global) U32 {
	return load[U32](a.base.v, isa.LdSync, a.operand(), 1, []Mod{".acquire", ".gpu", ".global"})[0]
}

// StGlobalRelease stores a word that other CTAs read with [LdGlobalAcquire].
func StGlobalRelease(a Global, x U32) {
	k := kernelOf(a.base.v, x.v)
	if k == nil {
		panic("ptx: st.release of a constant to an address without a register: Materialize the address")
	}
	k.op(isa.StSync, []Mod{".release", ".gpu", ".global", ".u32"}, a.operand(), x.v.operand(isa.U32))
}

// AtomGlobalAdd adds n to a word of global memory and returns the word's old value.
func (k *Kernel) AtomGlobalAdd(a Global, n U32) U32 {
	return U32{k.opTo(isa.Atom, isa.U32, []Mod{".global", ".add", ".u32"}, a.operand(), n.v.operand(isa.U32))}
}

// AtomSharedAdd adds n to a word of shared memory and returns the word's old value.
func (k *Kernel) AtomSharedAdd(a Shared, n U32) U32 {
	return U32{k.opTo(isa.Atom, isa.U32, []Mod{".shared", ".add", ".u32"}, a.operand(), n.v.operand(isa.U32))}
}

// RedSharedAdd adds n to a word of shared memory. It returns nothing.
func (k *Kernel) RedSharedAdd(a Shared, n U32) {
	k.op(isa.Red, []Mod{".shared", ".add", ".u32"}, a.operand(), n.v.operand(isa.U32))
}

// RedSharedOr sets bits of a word of shared memory. It returns nothing.
func (k *Kernel) RedSharedOr(a Shared, bits U32) {
	k.op(isa.Red, []Mod{".shared", ".or", ".b32"}, a.operand(), bits.v.operand(isa.U32))
}

// RedGlobalAdd adds n to a word of global memory. It returns nothing.
func (k *Kernel) RedGlobalAdd(a Global, n U32) {
	k.op(isa.Red, []Mod{".global", ".add", ".u32"}, a.operand(), n.v.operand(isa.U32))
}

func vecOperand[T Value](vs []T) Operand {
	list := make([]Operand, len(vs))
	for i, v := range vs {
		list[i] = v.val().operand(v.isaType())
	}
	return Operand{Kind: OpVec, List: list}
}

// TMALoad starts the load of the box of m at coords into dst. coords are signed, dimension 0 first.
// The loaded bytes count in the current phase of the mbarrier at bar.
func (k *Kernel) TMALoad(dst Shared, m TensorMap, bar Shared, coords ...U32) {
	k.op(isa.TMALoad, []Mod{dimMod(coords)}, dst.operand(), tensorOperand(m, coords), bar.operand())
}

// TMALoadMulticast does the same as [Kernel.TMALoad] for every CTA of the cluster whose bit is set
// in ctas (bit r stands for rank r). In each of these CTAs it writes the box at dst's offset, and
// counts the bytes at the mbarrier at bar's offset.
func (k *Kernel) TMALoadMulticast(dst Shared, m TensorMap, bar Shared, ctas B16, coords ...U32) {
	k.op(isa.TMALoadMulticast, []Mod{dimMod(coords)}, dst.operand(), tensorOperand(m, coords), bar.operand(), ctas.v.operand(isa.B16))
}

// TMAStore starts the store of the box at src to m at coords. The thread's next [Kernel.BulkCommit]
// adds the store to a group.
func (k *Kernel) TMAStore(m TensorMap, src Shared, coords ...U32) {
	k.op(isa.TMAStore, []Mod{dimMod(coords)}, tensorOperand(m, coords), src.operand())
}

// TMAPrefetch loads the box of m at coords into the L2 cache.
func (k *Kernel) TMAPrefetch(m TensorMap, coords ...U32) {
	k.op(isa.TMAPrefetch, []Mod{dimMod(coords)}, tensorOperand(m, coords))
}

// BulkPrefetch loads a number of bytes at src into the L2 cache. Both must be multiples of 16.
func (k *Kernel) BulkPrefetch(src Global, bytes U32) {
	k.op(isa.BulkPrefetch, nil, src.operand(), bytes.v.operand(isa.U32))
}

func dimMod(coords []U32) Mod { return Mod("." + strconv.Itoa(len(coords)) + "d") }

func tensorOperand(m TensorMap, coords []U32) Operand {
	list := make([]Operand, len(coords))
	for i, c := range coords {
		list[i] = c.v.operand(isa.S32)
	}
	if m.addr.v.missing() {
		return m.addr.v.nowhere()
	}
	return Operand{Kind: OpTensor, Reg: m.addr.v.reg, List: list, owner: m.addr.v.k}
}

// Accumulators returns n new registers, which are 0: this thread's part of a 64 x 2n accumulator of
// wgmma. A product that overwrites its accumulator needs no zeros. But assemblers before CUDA 12.9
// wait after each wgmma if the accumulator has no value before the first one (C7515).
func (k *Kernel) Accumulators(n int) []F32 {
	acc := make([]F32, n)
	k.Named("acc", func() {
		for i := range acc {
			acc[i] = F32{k.result(isa.F32)}
		}
	})
	for _, a := range acc {
		VarOf(a).Set(Float(0))
	}
	return acc
}

// Wgmma starts acc = A*B + (scaleD ? acc : 0) for one step of 64 x N x 16. N is twice len(acc). A
// and B are bf16 tiles in shared memory, which the descriptors describe. A transposed operand is
// contiguous in the M or N dimension instead of K.
func (k *Kernel) Wgmma(acc []F32, descA, descB U64, scaleD Pred, transA, transB bool) {
	k.wgmma(isa.WgmmaBF16, acc, descA, descB, scaleD, transA, transB)
}

// WgmmaF16 does the same as [Kernel.Wgmma] for f16 tiles.
func (k *Kernel) WgmmaF16(acc []F32, descA, descB U64, scaleD Pred, transA, transB bool) {
	k.wgmma(isa.WgmmaF16, acc, descA, descB, scaleD, transA, transB)
}

// WgmmaRegisters does the same as [Kernel.Wgmma] with A in registers. Warp w of the warpgroup holds
// rows 16w to 16w + 15 of A, in the layout of [Kernel.Mma].
func (k *Kernel) WgmmaRegisters(acc []F32, a []U32, descB U64, scaleD Pred, transB bool) {
	k.wgmmaRegisters(isa.WgmmaBF16Registers, acc, a, descB, scaleD, transB)
}

// WgmmaF16Registers does the same as [Kernel.WgmmaRegisters] for f16.
func (k *Kernel) WgmmaF16Registers(acc []F32, a []U32, descB U64, scaleD Pred, transB bool) {
	k.wgmmaRegisters(isa.WgmmaF16Registers, acc, a, descB, scaleD, transB)
}

// Mma adds A*B to acc within one warp. A has 16 rows and 16 columns (k), B has 16 rows (k) and 8
// columns; both are bf16 in registers. Let g = l/4 and c = 2(l%4) for lane l. The lane holds rows g
// and g+8 of A, at k = c, c+1, c+8 and c+9; column g of B at the same k; and rows g and g+8 of acc,
// at columns c and c+1.
func (k *Kernel) Mma(acc []F32, a, b []U32) { k.mma(isa.MmaBF16, acc, a, b) }

// MmaF16 does the same as [Kernel.Mma] for f16.
func (k *Kernel) MmaF16(acc []F32, a, b []U32) { k.mma(isa.MmaF16, acc, a, b) }

func (k *Kernel) mma(id isa.ID, acc []F32, a, b []U32) {
	k.op(id, nil, vecOperand(acc), vecOperand(a), vecOperand(b), vecOperand(acc))
}

func (k *Kernel) wgmma(id isa.ID, acc []F32, descA, descB U64, scaleD Pred, transA, transB bool) {
	shape := Mod(".m64n" + strconv.Itoa(2*len(acc)) + "k16")
	k.op(id, []Mod{shape}, vecOperand(acc), descA.v.operand(isa.B64), descB.v.operand(isa.B64), scaleD.v.operand(isa.Pred),
		flag(true), flag(true), flag(transA), flag(transB))
}

func (k *Kernel) wgmmaRegisters(id isa.ID, acc []F32, a []U32, descB U64, scaleD Pred, transB bool) {
	a = slices.Clone(a)
	for i := range a {
		a[i] = Materialize(k, a[i])
	}
	shape := Mod(".m64n" + strconv.Itoa(2*len(acc)) + "k16")
	k.op(id, []Mod{shape}, vecOperand(acc), vecOperand(a), descB.v.operand(isa.B64), scaleD.v.operand(isa.Pred), flag(true), flag(true), flag(transB))
}

// flag returns the immediate operand 1 or 0.
func flag(b bool) Operand {
	if b {
		return Operand{Kind: OpInt, Imm: 1}
	}
	return Operand{Kind: OpInt}
}

// Stmatrix stores 1, 2 or 4 matrices of 8x8 16-bit elements. Lane l gives the
// address of row l%8 of matrix l/8.
func (k *Kernel) Stmatrix(a Shared, vs ...U32) { k.stmatrix("", a, vs) }

// StmatrixTrans stores 1, 2 or 4 matrices transposed. Lane l gives the address of column l%8 of
// matrix l/8.
func (k *Kernel) StmatrixTrans(a Shared, vs ...U32) { k.stmatrix(".trans", a, vs) }

func (k *Kernel) stmatrix(trans Mod, a Shared, vs []U32) {
	vs = slices.Clone(vs)
	for i := range vs {
		vs[i] = Materialize(k, vs[i])
	}
	f := &isa.Table[isa.Stmatrix]
	k.emit(f, k.mods(f, Mod(".x"+strconv.Itoa(len(vs))), trans), a.operand(), vecOperand(vs))
}
