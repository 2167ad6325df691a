package tile

import "sonicmoe/ptx"

// Element is the format of a tile's elements, all of 16 bits: the one place that
// knows which instructions a format takes. Two of them are a word, the first in
// its lower half. Numbers that are rounded go to the nearest, and what is too
// large becomes infinite: with F16 that is beyond 65504.
type Element uint8

const (
	// BF16 is bfloat16.
	BF16 Element = iota
	// F16 is IEEE 754's half.
	F16
)

// Pack rounds two numbers to a word.
func (e Element) Pack(k *ptx.Kernel, lo, hi ptx.F32) ptx.U32 {
	if e == F16 {
		return k.PackF16(lo, hi).Bits()
	}
	return k.PackBF16(lo, hi).Bits()
}

// Unpack is the two numbers of a word.
func (e Element) Unpack(word ptx.U32) (lo, hi ptx.F32) {
	if e == F16 {
		return word.AsF16x2().Unpack()
	}
	return word.AsBF16x2().Unpack()
}

// Upper is the number in the upper half of a word whose lower half is 0.
func (e Element) Upper(word ptx.U32) ptx.F32 {
	if e == F16 {
		return word.ShrI(16).B16().F32FromF16()
	}
	return word.AsF32()
}

// Round rounds a number.
func (e Element) Round(x ptx.F32) ptx.B16 {
	if e == F16 {
		return x.F16()
	}
	return x.BF16()
}

// Wide is the number that an element's bits are.
func (e Element) Wide(x ptx.B16) ptx.F32 {
	if e == F16 {
		return x.F32FromF16()
	}
	return x.F32()
}

// Ones is a word of two ones.
func (e Element) Ones() ptx.U32 {
	if e == F16 {
		return ptx.Uint(0x3c003c00)
	}
	return ptx.Uint(0x3f803f80)
}

// Wgmma is [ptx.Kernel.Wgmma] of these elements.
func (e Element) Wgmma(k *ptx.Kernel, acc []ptx.F32, a, b ptx.U64, keep ptx.Pred, aMN, bMN bool) {
	if e == F16 {
		k.WgmmaF16(acc, a, b, keep, aMN, bMN)
		return
	}
	k.Wgmma(acc, a, b, keep, aMN, bMN)
}

// WgmmaRegisters is [ptx.Kernel.WgmmaRegisters] of these elements.
func (e Element) WgmmaRegisters(k *ptx.Kernel, acc []ptx.F32, a []ptx.U32, b ptx.U64, keep ptx.Pred, bMN bool) {
	if e == F16 {
		k.WgmmaF16Registers(acc, a, b, keep, bMN)
		return
	}
	k.WgmmaRegisters(acc, a, b, keep, bMN)
}

// Mma is [ptx.Kernel.Mma] of these elements.
func (e Element) Mma(k *ptx.Kernel, acc []ptx.F32, a, b []ptx.U32) {
	if e == F16 {
		k.MmaF16(acc, a, b)
		return
	}
	k.Mma(acc, a, b)
}
