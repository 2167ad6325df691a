package tile

import "sonicmoe/ptx"

// Element is the 16-bit format of a tile's elements. Only this type knows which instructions each
// format needs. A word holds two elements, the first in its lower half. Conversions round to
// nearest. A value that is too large becomes infinite; for F16 the limit is 65504.
type Element uint8

const (
	// BF16 is bfloat16.
	BF16 Element = iota
	// F16 is IEEE 754 half precision.
	F16
)

// Pack rounds two numbers to the format, and packs them into a word.
func (e Element) Pack(k *ptx.Kernel, lo, hi ptx.F32) ptx.U32 {
	if e == F16 {
		return k.PackF16(lo, hi).Bits()
	}
	return k.PackBF16(lo, hi).Bits()
}

// Unpack returns the two numbers of a word.
func (e Element) Unpack(word ptx.U32) (lo, hi ptx.F32) {
	if e == F16 {
		return word.AsF16x2().Unpack()
	}
	return word.AsBF16x2().Unpack()
}

// Upper returns the number in the upper half of a word. The lower half must be 0.
func (e Element) Upper(word ptx.U32) ptx.F32 {
	if e == F16 {
		return word.ShrI(16).B16().F32FromF16()
	}
	return word.AsF32()
}

// Round rounds a number to the format.
func (e Element) Round(x ptx.F32) ptx.B16 {
	if e == F16 {
		return x.F16()
	}
	return x.BF16()
}

// Wide converts an element to FP32.
func (e Element) Wide(x ptx.B16) ptx.F32 {
	if e == F16 {
		return x.F32FromF16()
	}
	return x.F32()
}

// Ones returns a word of two elements with the value 1.
func (e Element) Ones() ptx.U32 {
	if e == F16 {
		return ptx.Uint(0x3c003c00)
	}
	return ptx.Uint(0x3f803f80)
}

// Wgmma does the same as [ptx.Kernel.Wgmma] for this format.
func (e Element) Wgmma(k *ptx.Kernel, acc []ptx.F32, a, b ptx.U64, keep ptx.Pred, aMN, bMN bool) {
	if e == F16 {
		k.WgmmaF16(acc, a, b, keep, aMN, bMN)
		return
	}
	k.Wgmma(acc, a, b, keep, aMN, bMN)
}

// WgmmaRegisters does the same as [ptx.Kernel.WgmmaRegisters] for this format.
func (e Element) WgmmaRegisters(k *ptx.Kernel, acc []ptx.F32, a []ptx.U32, b ptx.U64, keep ptx.Pred, bMN bool) {
	if e == F16 {
		k.WgmmaF16Registers(acc, a, b, keep, bMN)
		return
	}
	k.WgmmaRegisters(acc, a, b, keep, bMN)
}

// Mma does the same as [ptx.Kernel.Mma] for this format.
func (e Element) Mma(k *ptx.Kernel, acc []ptx.F32, a, b []ptx.U32) {
	if e == F16 {
		k.MmaF16(acc, a, b)
		return
	}
	k.Mma(acc, a, b)
}
