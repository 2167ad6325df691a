#include "textflag.h"

// func returns(to *callStack)
// A frame pointer is the address of the caller's frame pointer, and the return address lies above it.
// The loop ends at a frame pointer outside of the goroutine's stack. The outermost frame of a goroutine
// has such a pointer, and so can C code that called Go.
TEXT ·returns(SB), NOSPLIT|NOFRAME, $0-8
	MOVQ to+0(FP), DI
	MOVQ 0(SP), AX
	MOVQ AX, (DI)
	MOVQ (TLS), R8
	MOVQ 8(R8), R8  // the end of the goroutine's stack
	SUBQ $16, R8    // the last place for a frame pointer and a return address
	MOVQ SP, R9
	MOVQ BP, SI
	MOVQ $11, CX    // the other elements of callStack

next:
	CMPQ SI, R9
	JLS  done
	CMPQ SI, R8
	JHI  done
	MOVQ 8(SI), AX
	ADDQ $8, DI
	MOVQ AX, (DI)
	MOVQ SI, R9
	MOVQ (SI), SI
	DECQ CX
	JNZ  next

done:
	RET
