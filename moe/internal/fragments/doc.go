// Package fragments defines the memory layout in which kernels read packed weights. Packed weights
// are codes of 4 or 8 bits with a scale for each group of codes. The layout follows the registers
// of a warpgroup that multiplies the weights by wgmma, as its operand A.
//
// A unit is 64 rows of an expert's matrix. It is stored as a sequence of blocks, each of 128
// columns, so a copy of whole blocks needs no tensor map. A block has its codes first, then its
// scales. A lane loads 16 bytes of codes at a time, which belong to the lane's own fragments of A.
// Neighbouring lanes load neighbouring bytes.
//
// A 32-bit word holds the codes of several registers. The bits of each code are spread over the
// word: a shift or rotation of the word and one mask leave two codes in a register, with sign,
// exponent and fraction at their positions in two bf16 numbers. The exponents of these numbers are
// too small by a constant. The kernel corrects this at no cost, because the scales that it
// multiplies by include the constant. A scale that bf16 cannot represent is two bf16 numbers,
// whose products with a code and the sum are rounded like the FP32 product, see [Format.terms]. In f16
// layers products are FP32. A code of INT4 becomes low
// bits of a bf16 number. This number is otherwise 0 (and so subnormal), but 128 in formats with zero
// points and in f16 layers.
package fragments
