#include "textflag.h"
#include "go_asm.h"

// Both functions walk the accumulator registers of a warp: for each 8 columns
// (quad) and parity of the column, the register of the first 8 rows and that
// of the other 8. For one register, 32 lanes, they
//
//  1. find each lane's largest exponent, top, of 16-bit sums of exponents;
//  2. multiply in FP32, scale by 2^(fraction-top) and cut to integers. All of
//     this is exact: FP32 holds a product's bits, and if the product or the
//     scaled product is subnormal it is below the last bit kept anyway;
//  3. add in 32 bits. 16 terms below 2^27 cannot overflow, the accumulator
//     on top can: that is found out by the signs;
//  4. convert to FP32 toward zero and scale back, which is exact.
//
// That holds for -90 <= top <= 119. A register with a lane out of that range
// (infinities and NaN have larger exponents), or with an overflow, is not
// stored but marked in left. Lanes in which all products and the accumulator
// are zero have a top far below and give +0 with any scale.

DATA constants<>+0(SB)/4, $-90       // lowest top
DATA constants<>+4(SB)/4, $119       // highest top
DATA constants<>+8(SB)/4, $-4096     // below: all zero
DATA constants<>+12(SB)/4, $-16384   // exponent of nothing
DATA constants<>+16(SB)/4, $0xc000c000 // the same in 16 bits, twice
DATA constants<>+20(SB)/4, $0x7fffffff // all but the sign
DATA constants<>+24(SB)/4, $255      // biased exponent
DATA constants<>+28(SB)/4, $1
DATA constants<>+32(SB)/4, $127
DATA constants<>+36(SB)/4, $0x7f000000 // (254<<23) - bits(2^x) = bits(2^-x)
GLOBL constants<>(SB), RODATA|NOPTR, $40

#define LOWEST constants<>+0(SB)
#define HIGHEST constants<>+4(SB)
#define ALLZERO constants<>+8(SB)
#define NOTHING constants<>+12(SB)
#define NOTHING16 constants<>+16(SB)
#define MAGNITUDE constants<>+20(SB)
#define BIASED constants<>+24(SB)
#define ONE constants<>+28(SB)
#define BIAS constants<>+32(SB)
#define RECIPROCAL constants<>+36(SB)

// Registers of both: R8 slots, R9 register bank, R10 quads left, SI/DI values
// and exponents of A, R11/R12 the same of B, R13 depth, R14 k left, R15 which
// register of the quad (bit 0 the other rows, bit 1 the other parity), BX
// accumulator, AX, CX, DX scratch.

// func add512(w *work) bool
TEXT ·add512(SB), NOSPLIT, $16-9
	MOVQ w+0(FP), AX
	MOVQ work_registers(AX), R9
	MOVQ work_slots(AX), R8
	MOVQ work_quads(AX), R10
	MOVQ work_a(AX), SI
	MOVQ work_aExponent(AX), DI
	MOVQ work_b(AX), R11
	MOVQ work_bExponent(AX), R12
	MOVQ work_depth(AX), R13
	MOVQ work_left(AX), DX
	MOVQ DX, left-16(SP)
	VPBROADCASTD work_bias(AX), Z31
	VPBROADCASTD work_keep(AX), Z30
	VPBROADCASTD LOWEST, Z29
	VPBROADCASTD HIGHEST, Z28
	VPBROADCASTD ALLZERO, Z27
	VPBROADCASTD NOTHING, Z26
	VPBROADCASTD MAGNITUDE, Z25
	VPBROADCASTD BIASED, Z24
	VPBROADCASTD ONE, Z23
	VPBROADCASTD BIAS, Z22
	VPBROADCASTD RECIPROCAL, Z21
	VPBROADCASTD NOTHING16, Z20
	MOVQ $0, marked-8(SP)

quad512:
	XORQ R15, R15

register512:
	// Register index inside the quad is 2*half + parity.
	MOVQ R15, AX
	ANDQ $1, AX
	MOVQ R15, DX
	SHRQ $1, DX
	LEAQ (DX)(AX*2), DX
	MOVLQSX (R8)(DX*4), BX
	SHLQ $7, BX
	ADDQ R9, BX

	// A's other half lies depth*32 elements on.
	MOVQ R13, CX
	SHLQ $5, CX
	IMULQ AX, CX
	LEAQ (SI)(CX*4), AX
	LEAQ (DI)(CX*2), CX

	// 1. top, in 16 bits.
	VMOVDQA32 Z20, Z0
	VMOVDQA32 Z20, Z1
	MOVQ R12, DX
	MOVQ R13, R14

exponents512:
	VPBROADCASTQ 0(DX), Z2
	VPBROADCASTQ 8(DX), Z3
	VPBROADCASTQ 16(DX), Z4
	VPBROADCASTQ 24(DX), Z5
	VPADDW 0(CX), Z2, Z2
	VPADDW 64(CX), Z3, Z3
	VPADDW 128(CX), Z4, Z4
	VPADDW 192(CX), Z5, Z5
	VPMAXSW Z2, Z0, Z0
	VPMAXSW Z3, Z1, Z1
	VPMAXSW Z4, Z0, Z0
	VPMAXSW Z5, Z1, Z1
	ADDQ $32, DX
	ADDQ $256, CX
	SUBQ $4, R14
	JNZ exponents512
	VPMAXSW Z1, Z0, Z0
	VEXTRACTI64X4 $1, Z0, Y1
	VPMOVSXWD Y0, Z0
	VPMOVSXWD Y1, Z1

	// The accumulator and its exponents.
	VPANDD (BX), Z30, Z2
	VPANDD 64(BX), Z30, Z3
	VPSRLD $23, Z2, Z4
	VPSRLD $23, Z3, Z5
	VPANDD Z24, Z4, Z4
	VPANDD Z24, Z5, Z5
	VPMAXSD Z23, Z4, Z4
	VPMAXSD Z23, Z5, Z5
	VPSUBD Z22, Z4, Z4
	VPSUBD Z22, Z5, Z5
	VPTESTNMD Z25, Z2, K1
	VPTESTNMD Z25, Z3, K2
	VMOVDQA32 Z26, K1, Z4
	VMOVDQA32 Z26, K2, Z5
	VPMAXSD Z4, Z0, Z0
	VPMAXSD Z5, Z1, Z1

	// K3: out of range.
	VPMINSD Z28, Z0, Z4
	VPMINSD Z28, Z1, Z5
	VPMAXSD Z29, Z4, Z4
	VPMAXSD Z29, Z5, Z5
	VPCMPGTD Z27, Z0, K1
	VPCMPGTD Z27, Z1, K2
	VPCMPD $4, Z4, Z0, K1, K3
	VPCMPD $4, Z5, Z1, K2, K4
	KORTESTW K3, K4
	JNZ mark512

	// 2 and 3. Z0, Z1: 2^(fraction-top); Z4, Z5: sums.
	VPSUBD Z4, Z31, Z0
	VPSUBD Z5, Z31, Z1
	VPSLLD $23, Z0, Z0
	VPSLLD $23, Z1, Z1
	VPXORD Z4, Z4, Z4
	VPXORD Z5, Z5, Z5
	VPXORD Z6, Z6, Z6
	VPXORD Z7, Z7, Z7
	MOVQ R11, DX
	MOVQ R13, R14

products512:
	VBROADCASTF32X4 0(DX), Z8
	VBROADCASTF32X4 16(DX), Z9
	VMULPS 0(AX), Z8, Z10
	VMULPS 64(AX), Z8, Z11
	VMULPS 128(AX), Z9, Z12
	VMULPS 192(AX), Z9, Z13
	VMULPS Z0, Z10, Z10
	VMULPS Z1, Z11, Z11
	VMULPS Z0, Z12, Z12
	VMULPS Z1, Z13, Z13
	VCVTTPS2DQ Z10, Z10
	VCVTTPS2DQ Z11, Z11
	VCVTTPS2DQ Z12, Z12
	VCVTTPS2DQ Z13, Z13
	VPADDD Z10, Z4, Z4
	VPADDD Z11, Z5, Z5
	VPADDD Z12, Z6, Z6
	VPADDD Z13, Z7, Z7
	ADDQ $32, DX
	ADDQ $256, AX
	SUBQ $2, R14
	JNZ products512
	VPADDD Z6, Z4, Z4
	VPADDD Z7, Z5, Z5

	// The accumulator comes last, for the overflow.
	VMULPS Z0, Z2, Z2
	VMULPS Z1, Z3, Z3
	VCVTTPS2DQ Z2, Z2
	VCVTTPS2DQ Z3, Z3
	VPADDD Z2, Z4, Z6
	VPADDD Z3, Z5, Z7
	VPXORD Z6, Z2, Z2
	VPXORD Z7, Z3, Z3
	VPXORD Z6, Z4, Z4
	VPXORD Z7, Z5, Z5
	VPANDD Z4, Z2, Z2
	VPANDD Z5, Z3, Z3
	VPORD Z3, Z2, Z2
	VPMOVD2M Z2, K1
	KTESTW K1, K1
	JNZ mark512

	// 4.
	VCVTDQ2PS.RZ_SAE Z6, Z6
	VCVTDQ2PS.RZ_SAE Z7, Z7
	VPSUBD Z0, Z21, Z0
	VPSUBD Z1, Z21, Z1
	VMULPS Z0, Z6, Z6
	VMULPS Z1, Z7, Z7
	VMOVDQU32 Z6, (BX)
	VMOVDQU32 Z7, 64(BX)

next512:
	INCQ R15
	TESTQ $1, R15
	JNZ register512
	// The other parity of B lies depth*4 elements on.
	MOVQ R13, AX
	SHLQ $2, AX
	LEAQ (R11)(AX*4), R11
	LEAQ (R12)(AX*2), R12
	CMPQ R15, $4
	JNE register512
	ADDQ $16, R8
	ADDQ $4, left-16(SP)
	DECQ R10
	JNZ quad512
	VZEROUPPER
	CMPQ marked-8(SP), $0
	SETEQ ret+8(FP)
	RET

mark512:
	INCQ marked-8(SP)
	MOVQ R15, AX
	ANDQ $1, AX
	MOVQ R15, DX
	SHRQ $1, DX
	LEAQ (DX)(AX*2), DX
	ADDQ left-16(SP), DX
	MOVB $1, (DX)
	JMP next512

// The same with 8 lanes in a vector: Y4 to Y7 hold the scales of the 32 lanes,
// Y8 to Y11 their sums.

#define TOP256(exponents, acc, inverse) \
	VPMOVSXWD exponents, inverse \
	VPAND acc(BX), Y15, Y2 \
	VPSRLD $23, Y2, Y3 \
	VPBROADCASTD BIASED, Y12 \
	VPAND Y12, Y3, Y3 \
	VPBROADCASTD ONE, Y12 \
	VPMAXSD Y12, Y3, Y3 \
	VPBROADCASTD BIAS, Y12 \
	VPSUBD Y12, Y3, Y3 \
	VPBROADCASTD MAGNITUDE, Y12 \
	VPAND Y12, Y2, Y2 \
	VPXOR Y12, Y12, Y12 \
	VPCMPEQD Y12, Y2, Y2 \
	VPBROADCASTD NOTHING, Y12 \
	VPBLENDVB Y2, Y12, Y3, Y3 \
	VPMAXSD Y3, inverse, inverse \
	VPBROADCASTD ALLZERO, Y12 \
	VPCMPGTD Y12, inverse, Y2 \
	VPBROADCASTD HIGHEST, Y12 \
	VPMINSD Y12, inverse, Y3 \
	VPBROADCASTD LOWEST, Y12 \
	VPMAXSD Y12, Y3, Y3 \
	VPCMPEQD Y3, inverse, inverse \
	VPANDN Y2, inverse, Y2 \
	VPOR Y2, Y13, Y13 \
	VPSUBD Y3, Y14, inverse \
	VPSLLD $23, inverse, inverse

#define ADD256(acc, inverse, sum) \
	VPAND acc(BX), Y15, Y2 \
	VMULPS inverse, Y2, Y2 \
	VCVTTPS2DQ Y2, Y2 \
	VPADDD Y2, sum, Y3 \
	VPXOR Y3, Y2, Y2 \
	VPXOR Y3, sum, sum \
	VPAND sum, Y2, Y2 \
	VPOR Y2, Y13, Y13 \
	VCVTDQ2PS Y3, sum \
	VPSUBD inverse, Y12, inverse \
	VMULPS inverse, sum, sum

// func add256(w *work) bool
TEXT ·add256(SB), NOSPLIT, $32-9
	MOVQ w+0(FP), AX
	MOVQ work_registers(AX), R9
	MOVQ work_slots(AX), R8
	MOVQ work_quads(AX), R10
	MOVQ work_a(AX), SI
	MOVQ work_aExponent(AX), DI
	MOVQ work_b(AX), R11
	MOVQ work_bExponent(AX), R12
	MOVQ work_depth(AX), R13
	MOVQ work_left(AX), DX
	MOVQ DX, left-16(SP)
	MOVQ $0, marked-8(SP)
	// Conversions round toward zero, and tiny products are 0 at once.
	STMXCSR saved-24(SP)
	MOVL saved-24(SP), DX
	ORL $0xe000, DX
	MOVL DX, rounding-32(SP)
	LDMXCSR rounding-32(SP)
	VPBROADCASTD work_bias(AX), Y14
	VPBROADCASTD work_keep(AX), Y15

quad256:
	XORQ R15, R15

register256:
	MOVQ R15, AX
	ANDQ $1, AX
	MOVQ R15, DX
	SHRQ $1, DX
	LEAQ (DX)(AX*2), DX
	MOVLQSX (R8)(DX*4), BX
	SHLQ $7, BX
	ADDQ R9, BX
	MOVQ R13, CX
	SHLQ $5, CX
	IMULQ AX, CX
	LEAQ (SI)(CX*4), AX
	LEAQ (DI)(CX*2), CX

	VPBROADCASTD NOTHING16, Y0
	VMOVDQA Y0, Y1
	MOVQ R12, DX
	MOVQ R13, R14

exponents256:
	VPBROADCASTQ 0(DX), Y2
	VPBROADCASTQ 8(DX), Y3
	VPADDW 0(CX), Y2, Y4
	VPADDW 32(CX), Y2, Y5
	VPADDW 64(CX), Y3, Y6
	VPADDW 96(CX), Y3, Y7
	VPMAXSW Y4, Y0, Y0
	VPMAXSW Y5, Y1, Y1
	VPMAXSW Y6, Y0, Y0
	VPMAXSW Y7, Y1, Y1
	ADDQ $16, DX
	ADDQ $128, CX
	SUBQ $2, R14
	JNZ exponents256

	VPXOR Y13, Y13, Y13
	TOP256(X0, 0, Y4)
	VEXTRACTI128 $1, Y0, X0
	TOP256(X0, 32, Y5)
	TOP256(X1, 64, Y6)
	VEXTRACTI128 $1, Y1, X1
	TOP256(X1, 96, Y7)
	VPTEST Y13, Y13
	JNZ mark256

	VPXOR Y8, Y8, Y8
	VPXOR Y9, Y9, Y9
	VPXOR Y10, Y10, Y10
	VPXOR Y11, Y11, Y11
	MOVQ R11, DX
	MOVQ R13, R14

products256:
	VBROADCASTF128 (DX), Y0
	VMULPS 0(AX), Y0, Y1
	VMULPS 32(AX), Y0, Y2
	VMULPS 64(AX), Y0, Y3
	VMULPS 96(AX), Y0, Y12
	VMULPS Y4, Y1, Y1
	VMULPS Y5, Y2, Y2
	VMULPS Y6, Y3, Y3
	VMULPS Y7, Y12, Y12
	VCVTTPS2DQ Y1, Y1
	VCVTTPS2DQ Y2, Y2
	VCVTTPS2DQ Y3, Y3
	VCVTTPS2DQ Y12, Y12
	VPADDD Y1, Y8, Y8
	VPADDD Y2, Y9, Y9
	VPADDD Y3, Y10, Y10
	VPADDD Y12, Y11, Y11
	ADDQ $16, DX
	ADDQ $128, AX
	DECQ R14
	JNZ products256

	VPBROADCASTD RECIPROCAL, Y12
	ADD256(0, Y4, Y8)
	ADD256(32, Y5, Y9)
	ADD256(64, Y6, Y10)
	ADD256(96, Y7, Y11)
	VMOVMSKPS Y13, AX
	TESTL AX, AX
	JNZ mark256
	VMOVDQU Y8, 0(BX)
	VMOVDQU Y9, 32(BX)
	VMOVDQU Y10, 64(BX)
	VMOVDQU Y11, 96(BX)

next256:
	INCQ R15
	TESTQ $1, R15
	JNZ register256
	MOVQ R13, AX
	SHLQ $2, AX
	LEAQ (R11)(AX*4), R11
	LEAQ (R12)(AX*2), R12
	CMPQ R15, $4
	JNE register256
	ADDQ $16, R8
	ADDQ $4, left-16(SP)
	DECQ R10
	JNZ quad256
	LDMXCSR saved-24(SP)
	VZEROUPPER
	CMPQ marked-8(SP), $0
	SETEQ ret+8(FP)
	RET

mark256:
	INCQ marked-8(SP)
	MOVQ R15, AX
	ANDQ $1, AX
	MOVQ R15, DX
	SHRQ $1, DX
	LEAQ (DX)(AX*2), DX
	ADDQ left-16(SP), DX
	MOVB $1, (DX)
	JMP next256
