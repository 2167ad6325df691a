#include "textflag.h"

DATA words<>+0(SB)/4, $0x7fffffff // NaN, and all bits but the sign
DATA words<>+4(SB)/4, $0x7f800000 // the exponent
GLOBL words<>(SB), RODATA|NOPTR, $8

// Registers of all: DI result, SI, DX, CX operands, R8 whether to flush; Y15
// NaN, Y14 the exponent, Y13 zero, Y12 the sign to flip.
#define CONSTANTS \
	VPBROADCASTD words<>+0(SB), Y15 \
	VPBROADCASTD words<>+4(SB), Y14 \
	VPXOR Y13, Y13, Y13

// FLUSH makes subnormals of a vector zeros of their sign.
#define FLUSH(x) \
	VPAND Y14, x, Y11 \
	VPCMPEQD Y13, Y11, Y11 \
	VPAND Y15, Y11, Y11 \
	VPANDN x, Y11, x

// STORE gives every NaN its one form.
#define STORE(x, at) \
	VCMPPS $3, x, x, Y11 \
	VBLENDVPS Y11, Y15, x, x \
	VMOVDQU x, at(DI)

#define ADD(at) \
	VMOVDQU at(SI), Y0 \
	VPXOR at(DX), Y12, Y1 \
	VADDPS Y1, Y0, Y0 \
	STORE(Y0, at)

#define ADDFLUSH(at) \
	VMOVDQU at(SI), Y0 \
	VPXOR at(DX), Y12, Y1 \
	FLUSH(Y0) \
	FLUSH(Y1) \
	VADDPS Y1, Y0, Y0 \
	FLUSH(Y0) \
	STORE(Y0, at)

#define MULTIPLY(at) \
	VMOVDQU at(SI), Y0 \
	VMULPS at(DX), Y0, Y0 \
	STORE(Y0, at)

#define MULTIPLYFLUSH(at) \
	VMOVDQU at(SI), Y0 \
	VMOVDQU at(DX), Y1 \
	FLUSH(Y0) \
	FLUSH(Y1) \
	VMULPS Y1, Y0, Y0 \
	FLUSH(Y0) \
	STORE(Y0, at)

#define FMA(at) \
	VMOVDQU at(SI), Y0 \
	VMOVDQU at(DX), Y1 \
	VFMADD213PS at(CX), Y1, Y0 \
	STORE(Y0, at)

#define FMAFLUSH(at) \
	VMOVDQU at(SI), Y0 \
	VMOVDQU at(DX), Y1 \
	VMOVDQU at(CX), Y2 \
	FLUSH(Y0) \
	FLUSH(Y1) \
	FLUSH(Y2) \
	VFMADD213PS Y2, Y1, Y0 \
	FLUSH(Y0) \
	STORE(Y0, at)

// func add(d, a, b *Vector, sign, ftz uint64)
TEXT ·add(SB), NOSPLIT, $0-40
	MOVQ d+0(FP), DI
	MOVQ a+8(FP), SI
	MOVQ b+16(FP), DX
	VPBROADCASTD sign+24(FP), Y12
	CONSTANTS
	CMPQ ftz+32(FP), $0
	JNE flush
	ADD(0)
	ADD(32)
	ADD(64)
	ADD(96)
	VZEROUPPER
	RET

flush:
	ADDFLUSH(0)
	ADDFLUSH(32)
	ADDFLUSH(64)
	ADDFLUSH(96)
	VZEROUPPER
	RET

// func multiply(d, a, b *Vector, ftz uint64)
TEXT ·multiply(SB), NOSPLIT, $0-32
	MOVQ d+0(FP), DI
	MOVQ a+8(FP), SI
	MOVQ b+16(FP), DX
	CONSTANTS
	CMPQ ftz+24(FP), $0
	JNE flush
	MULTIPLY(0)
	MULTIPLY(32)
	MULTIPLY(64)
	MULTIPLY(96)
	VZEROUPPER
	RET

flush:
	MULTIPLYFLUSH(0)
	MULTIPLYFLUSH(32)
	MULTIPLYFLUSH(64)
	MULTIPLYFLUSH(96)
	VZEROUPPER
	RET

// func multiplyAdd(d, a, b, c *Vector, ftz uint64)
TEXT ·multiplyAdd(SB), NOSPLIT, $0-40
	MOVQ d+0(FP), DI
	MOVQ a+8(FP), SI
	MOVQ b+16(FP), DX
	MOVQ c+24(FP), CX
	CONSTANTS
	CMPQ ftz+32(FP), $0
	JNE flush
	FMA(0)
	FMA(32)
	FMA(64)
	FMA(96)
	VZEROUPPER
	RET

flush:
	FMAFLUSH(0)
	FMAFLUSH(32)
	FMAFLUSH(64)
	FMAFLUSH(96)
	VZEROUPPER
	RET
