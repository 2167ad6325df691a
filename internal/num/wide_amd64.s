// Conversions of slices by AVX2. Each takes n numbers, a positive multiple of 16.

#include "textflag.h"

// CONST fills a register with a constant of 32 bits.
#define CONST(bits, x, y) \
	MOVL         bits, AX \
	VMOVD        AX, x    \
	VPBROADCASTD x, y

// PACK stores the 16 low halves of Y0 and Y1, in order, and goes on.
#define PACK(again) \
	VPACKUSDW Y1, Y0, Y0   \
	VPERMQ    $0xd8, Y0, Y0 \
	VMOVDQU   Y0, (DI)     \
	ADDQ      $64, SI      \
	ADDQ      $32, DI      \
	SUBQ      $16, CX      \
	JNE       again

// BF16 rounds x: add a half less one, and one more where the kept part is odd;
// NaN is 0x7fff. Y15 is 1, Y14 0x7fff.
#define BF16(x, t, nan) \
	VCMPPS    $3, x, x, nan  \
	VPSRLD    $16, x, t      \
	VPAND     Y15, t, t      \
	VPADDD    Y14, t, t      \
	VPADDD    x, t, t        \
	VPSRLD    $16, t, t      \
	VPBLENDVB nan, Y14, t, x

// func encodeBF16Wide(dst *uint16, src *float32, n int)
TEXT ·encodeBF16Wide(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX
	CONST($1, X15, Y15)
	CONST($0x7fff, X14, Y14)

bf16:
	VMOVUPS (SI), Y0
	VMOVUPS 32(SI), Y1
	BF16(Y0, Y2, Y3)
	BF16(Y1, Y4, Y5)
	PACK(bf16)
	VZEROUPPER
	RET

// func decodeBF16Wide(dst *float32, src *uint16, n int)
TEXT ·decodeBF16Wide(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX

shift:
	VPMOVZXWD (SI), Y0
	VPMOVZXWD 16(SI), Y1
	VPSLLD    $16, Y0, Y0
	VPSLLD    $16, Y1, Y1
	VMOVDQU   Y0, (DI)
	VMOVDQU   Y1, 32(DI)
	ADDQ      $32, SI
	ADDQ      $64, DI
	SUBQ      $16, CX
	JNE       shift
	VZEROUPPER
	RET

// F16 rounds x. Of its magnitude m: normal numbers have the exponent's bias
// changed and are rounded as BF16 does; adding a half to subnormal ones leaves
// their rounded fraction in the lowest bits; from 2^16 on it is infinity.
// Y15 is 1, Y14 0x7fff, Y13 0x7fffffff, Y12 a half less one of what is cut and the
// change of bias, Y11 FP32's 0.5, Y10 2^-14, Y9 what is just below 2^16, Y8
// FP32's infinity, Y7 FP16's.
#define F16(x, m, t, u) \
	VPAND     Y13, x, m      \
	VPXOR     m, x, x        \
	VPSRLD    $16, x, x      \ // the sign
	VPSRLD    $13, m, t      \
	VPAND     Y15, t, t      \
	VPADDD    Y12, t, t      \
	VPADDD    m, t, t        \
	VPSRLD    $13, t, t      \ // a normal number
	VADDPS    Y11, m, u      \
	VPSUBD    Y11, u, u      \ // a subnormal one
	VPCMPGTD  m, Y10, Y6     \
	VPBLENDVB Y6, u, t, t    \
	VPCMPGTD  Y9, m, Y6      \
	VPBLENDVB Y6, Y7, t, t   \
	VPOR      x, t, t        \
	VPCMPGTD  Y8, m, Y6      \
	VPBLENDVB Y6, Y14, t, x

// func encodeF16Wide(dst *uint16, src *float32, n int)
TEXT ·encodeF16Wide(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX
	CONST($1, X15, Y15)
	CONST($0x7fff, X14, Y14)
	CONST($0x7fffffff, X13, Y13)
	CONST($0xc8000fff, X12, Y12)
	CONST($0x3f000000, X11, Y11)
	CONST($0x38800000, X10, Y10)
	CONST($0x477fffff, X9, Y9)
	CONST($0x7f800000, X8, Y8)
	CONST($0x7c00, X7, Y7)

f16:
	VMOVUPS (SI), Y0
	VMOVUPS 32(SI), Y1
	F16(Y0, Y2, Y3, Y4)
	F16(Y1, Y2, Y3, Y4)
	PACK(f16)
	VZEROUPPER
	RET

// WIDEN decodes 8 numbers of src to dst: those with an exponent have its bias
// changed, once more where it is the largest; the fraction of others is what it
// adds to 2^-14. Y15 is 0x7fff, Y14 the change of bias, Y13 2^-14, Y12 the least
// with an exponent, Y11 what is just below the largest exponent, Y10 FP32's
// infinity.
#define WIDEN(src, dst) \
	VPMOVZXWD src, Y0        \
	VPAND     Y15, Y0, Y1    \
	VPXOR     Y1, Y0, Y0     \
	VPSLLD    $16, Y0, Y0    \ // the sign
	VPSLLD    $13, Y1, Y1    \
	VPADDD    Y14, Y1, Y2    \ // a normal number
	VPADDD    Y13, Y1, Y3    \
	VSUBPS    Y13, Y3, Y3    \ // a subnormal one, or 0
	VPCMPGTD  Y1, Y12, Y4    \
	VPBLENDVB Y4, Y3, Y2, Y2 \
	VPCMPGTD  Y11, Y1, Y4    \
	VPAND     Y10, Y4, Y4    \
	VPOR      Y4, Y2, Y2     \
	VPOR      Y0, Y2, Y2     \
	VMOVDQU   Y2, dst

// func decodeF16Wide(dst *float32, src *uint16, n int)
TEXT ·decodeF16Wide(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX
	CONST($0x7fff, X15, Y15)
	CONST($0x38000000, X14, Y14)
	CONST($0x38800000, X13, Y13)
	CONST($0x00800000, X12, Y12)
	CONST($0x0f7fffff, X11, Y11)
	CONST($0x7f800000, X10, Y10)

widen:
	WIDEN((SI), (DI))
	WIDEN(16(SI), 32(DI))
	ADDQ $32, SI
	ADDQ $64, DI
	SUBQ $16, CX
	JNE  widen
	VZEROUPPER
	RET
