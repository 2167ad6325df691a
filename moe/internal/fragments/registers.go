package fragments

import (
	"slices"

	"sonicmoe/internal/spec"
	"sonicmoe/jit/tile"
	"sonicmoe/ptx"
)

// Lane has the offsets of a thread's codes and scales in a block.
type Lane struct {
	Format
	k *ptx.Kernel
	// codesOf and scalesOf are offsets in bytes.
	codesOf, scalesOf ptx.U32
}

// NewLane returns the offsets for the thread with the given index in its warpgroup.
func NewLane(k *ptx.Kernel, f Format, thread ptx.U32) Lane {
	return Lane{Format: f, k: k, codesOf: thread.MulI(loadBytes), scalesOf: thread.ShrI(2).MulI(4 * min(planeWords, f.scaleWords())).AddI(f.scalesAt())}
}

// Block is a thread's codes and scales of a block in shared memory.
type Block struct {
	Lane
	at ptx.Shared
	// codes are the loaded words of codes, k-tile after k-tile. factors are the words of the
	// scales and zero points.
	codes, factors []ptx.U32
	isLoaded       bool // all words are loaded
}

// Block starts to read the block at an address. It loads the scales, and codes of 4 bits, if they fit
// in a few registers. KTile loads what Block has not loaded, for one k-tile at a time.
func (l Lane) Block(at ptx.Shared) Block {
	b := Block{Lane: l, at: at}
	if l.codeBytes() == planeBytes && l.scaleWords() <= planeWords {
		b.load(0, KTiles)
	}
	if n := l.scaleWords(); n <= planeWords {
		b.factors = ptx.LdSharedVec[ptx.U32](at.Plus(l.scalesOf), n)
	} else {
		b.factors = make([]ptx.U32, n)
	}
	return b
}

// Ahead loads the words with which [Lane.Resume] starts to read the block at an address: the codes of
// the first k-tile, and the scales if they fit in a few registers.
func (l Lane) Ahead(at ptx.Shared) []ptx.U32 {
	b := Block{Lane: l, at: at}
	b.load(0, 1)
	if n := l.scaleWords(); n <= planeWords {
		b.codes = append(b.codes, ptx.LdSharedVec[ptx.U32](at.Plus(l.scalesOf), n)...)
	}
	return b.codes
}

// Resume does the same as Block, after Ahead has loaded words.
func (l Lane) Resume(at ptx.Shared, words []ptx.U32) Block {
	b := l.started(at, words)
	if l.codeBytes() == planeBytes { // more codes take too many registers
		b.load(1, KTiles)
	}
	return b
}

// started returns the block at an address with the words that Ahead has loaded.
func (l Lane) started(at ptx.Shared, words []ptx.U32) Block {
	n := l.codeBytes() / planeBytes * loadBytes / 4
	b := Block{Lane: l, at: at, codes: slices.Clone(words[:n]), factors: slices.Clone(words[n:])}
	if len(b.factors) == 0 {
		b.factors = make([]ptx.U32, l.scaleWords())
	}
	return b
}

// FirstStep returns the fragments of the first step of 16 columns of the block at an address, after
// Ahead has loaded words.
func (l Lane) FirstStep(at ptx.Shared, words []ptx.U32) []ptx.U32 {
	b := l.started(at, words)
	return b.Steps(0)(0)
}

// loadFactors loads the planes of scales and zero points that no k-tile before this one needs.
func (b *Block) loadFactors(kTile int) {
	if b.isLoaded || len(b.factors) <= planeWords {
		return
	}
	for _, list := range [][2]int{{0, b.zerosAt()}, {b.zerosAt(), len(b.factors)}} {
		first, end := list[0]+(list[1]-list[0])*kTile/KTiles, list[0]+(list[1]-list[0])*(kTile+1)/KTiles
		for plane := (first + planeWords - 1) / planeWords; plane*planeWords < end; plane++ {
			from := b.at.Plus(b.scalesOf).At(4 * plane * planeWords * rowPairs)
			copy(b.factors[plane*planeWords:], ptx.LdSharedVec[ptx.U32](from, planeWords))
		}
	}
}

// load loads the codes of k-tiles first to end-1.
func (b *Block) load(first, end int) {
	planes := b.codeBytes() / planeBytes
	for plane := first * planes; plane < end*planes; plane++ {
		b.codes = append(b.codes, ptx.LdSharedVec[ptx.U32](b.at.Plus(b.codesOf).At(plane*planeBytes), loadBytes/4)...)
	}
}

// KTile returns the fragments of a k-tile: for each step of 16 columns the four registers of
// operand A of wgmma, in bf16. The caller takes the k-tiles in order.
func (b *Block) KTile(kTile int) (steps [tile.K / tile.KStep][]ptx.U32) {
	unpack := b.Steps(kTile)
	for step := range steps {
		steps[step] = unpack(step)
	}
	return steps
}

// Steps does the same as KTile, step by step: the function that Steps returns emits the code of a step.
func (b *Block) Steps(kTile int) (unpack func(step int) []ptx.U32) {
	of := b.codeBytes() / planeBytes * loadBytes / 4
	if len(b.codes) == kTile*of {
		b.load(kTile, kTile+1)
	}
	words := b.codes[kTile*of:][:of]
	b.loadFactors(kTile)
	if b.areIntegers() {
		return b.integers(words, kTile)
	}
	zeros := b.zeros(kTile)
	registers := func(step int) []ptx.U32 {
		switch b.Code {
		case spec.E2M1:
			return e2m1(words[step])
		case spec.E4M3:
			return append(e4m3(words[2*step]), e4m3(words[2*step+1])...)
		}
		return int4(words[step], func(lower int) ptx.BF16x2 { return zeros(step, lower) })
	}
	if b.inFP32() {
		return b.wide(registers, kTile)
	}
	scale := b.multiplier(kTile)
	return func(step int) (a []ptx.U32) {
		for i, r := range registers(step) {
			a = append(a, scale(r.AsBF16x2(), step, i%2).Bits())
		}
		return a
	}
}

// e2m1 unpacks a word of codes to four registers, each with two codes.
func e2m1(w ptx.U32) []ptx.U32 {
	const places = 0x81c081c0
	fourth := w.RotateRight(6).AndI(0x81808180).Or(w.ShlI(2).AndI(0x00400040))
	return []ptx.U32{w.AndI(places), w.RotateRight(4).AndI(places), w.ShlI(6).AndI(places), fourth}
}

// e4m3 unpacks a word of codes to two registers, each with two codes.
func e4m3(w ptx.U32) []ptx.U32 {
	const swapBytes = 0x2301
	return []ptx.U32{w.AndI(0x87f087f0), w.Prmt(w, ptx.Uint(swapBytes)).AndI(0x07700770).Or(w.ShlI(4).AndI(0x80808080))}
}

// integers returns the fragments of codes Int4 with bf16 scales. The four bits of a code, from 0 to 15,
// become bits 4 to 7 of a bf16 number that is otherwise 0. This number is code·2^-129, also if bit 7,
// the lowest bit of the exponent, is set. The scales include 2^129. One fma multiplies by the scale
// and adds -8 times the scale, which bf16 represents exactly. The result is (code - 8)·scale, rounded
// once.
func (b *Block) integers(words []ptx.U32, kTile int) (unpack func(step int) []ptx.U32) {
	const places, minus = 0x00f000f0, 0x80808080 // minus is the bf16 number -2^-126 = -8·2^-129, twice
	scales := b.ofKTile(b.factors, 1, kTile)
	var offsets []ptx.U32
	for _, s := range scales {
		offsets = append(offsets, s.AsBF16x2().Mul(ptx.Uint(minus).AsBF16x2()).Bits())
	}
	scale, offset := byRows(scales), byRows(offsets)
	return func(step int) (a []ptx.U32) {
		w := words[step]
		for i, moved := range []ptx.U32{w.ShlI(4), w, w.ShrI(4), w.ShrI(8)} {
			code := moved.AndI(places).AsBF16x2()
			a = append(a, code.Fma(scale(step, i%2), offset(step, i%2)).Bits())
		}
		return a
	}
}

// int4 unpacks a word of codes to four registers, each with two bf16 numbers. A code from 0 to 15
// becomes the lowest bits of the bf16 number 128. The sum is 128 + code. zero returns 128 + the zero
// point of the upper or the lower row. The difference is exactly code - zero point.
func int4(w ptx.U32, zero func(lower int) ptx.BF16x2) (registers []ptx.U32) {
	const places = 0x000f000f
	for i := range 4 {
		above := w.ShrI(4 * i).AndI(places).Or(ptx.Uint(integerBase))
		registers = append(registers, above.AsBF16x2().Sub(zero(i%2)).Bits())
	}
	return registers
}

// zeros returns a function. The function returns 128 + the zero point of a step's group, twice in a
// register. Formats without zero points have the zero point 8.
func (b *Block) zeros(kTile int) func(step, lower int) ptx.BF16x2 {
	if b.HasZeros {
		return byRows(b.ofKTile(b.factors[b.zerosAt():], 1, kTile))
	}
	return func(int, int) ptx.BF16x2 { return ptx.Uint(integerBase | int4Zero<<16 | int4Zero).AsBF16x2() }
}

// wide returns the fragments whose products with the scales are FP32. A register has the bf16
// numbers of two codes.
func (b *Block) wide(registers func(step int) []ptx.U32, kTile int) (unpack func(step int) []ptx.U32) {
	scales := b.ofKTile(b.factors[:b.zerosAt()], 2, kTile)
	return func(step int) (a []ptx.U32) {
		group := 2 * (step * len(scales) / 2 / (tile.K / tile.KStep))
		for i, r := range registers(step) {
			first, second := r.AsBF16x2().Unpack()
			s := scales[group+i%2].AsF32()
			if b.Code == spec.Int4 { // the fma gives +0, and not -0, for the number 0
				first, second = first.Fma(s, ptx.Float(0)), second.Fma(s, ptx.Float(0))
			} else {
				first, second = first.Mul(s), second.Mul(s)
			}
			a = append(a, b.to.Pack(b.k, first, second))
		}
		return a
	}
}

// ofKTile returns the words of a k-tile's groups. Each group has `each` words.
func (b *Block) ofKTile(words []ptx.U32, each, kTile int) []ptx.U32 {
	return words[each*(kTile*b.groups()/KTiles):][:each*max(1, b.groups()/KTiles)]
}

// multiplier returns the function that multiplies the codes of a k-tile by their scales. lower is 1
// for the lower of the thread's two rows, 0 for the upper row.
func (b *Block) multiplier(kTile int) func(codes ptx.BF16x2, step, lower int) ptx.BF16x2 {
	if b.areBytes() {
		const exponents = 0x7f807f80
		word := b.factors[kTile]
		return multiplyBy(byRows([]ptx.U32{word.ShlI(7).AndI(exponents), word.ShrI(1).AndI(exponents)}))
	}
	if b.hasTerms() {
		var terms [2][]ptx.U32
		for i, w := range b.ofKTile(b.factors[:b.zerosAt()], 2, kTile) {
			terms[i%2] = append(terms[i%2], w)
		}
		high, low := byRows(terms[0]), byRows(terms[1])
		return func(codes ptx.BF16x2, step, lower int) ptx.BF16x2 {
			return codes.Fma(high(step, lower), codes.Mul(low(step, lower)))
		}
	}
	return multiplyBy(byRows(b.ofKTile(b.factors, 1, kTile)))
}

func multiplyBy(scale func(step, lower int) ptx.BF16x2) func(codes ptx.BF16x2, step, lower int) ptx.BF16x2 {
	return func(codes ptx.BF16x2, step, lower int) ptx.BF16x2 { return codes.Mul(scale(step, lower)) }
}

// byRows returns a function. The function returns the bf16 number of a step's group, twice in a
// register. lower is 1 for the lower of the thread's two rows, 0 for the upper row. words has a word
// for each group of the k-tile, with the upper row's number in the low half and the lower row's in
// the high half.
func byRows(words []ptx.U32) func(step, lower int) ptx.BF16x2 {
	var groups [][2]ptx.BF16x2
	for _, w := range words {
		upper, lower := w.AsBF16x2().Halves()
		groups = append(groups, [2]ptx.BF16x2{upper, lower})
	}
	return func(step, lower int) ptx.BF16x2 { return groups[step*len(groups)/(tile.K/tile.KStep)][lower] }
}
