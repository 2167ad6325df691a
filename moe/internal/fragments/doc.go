// Package fragments has the order in which kernels read packed weights: the order of the
// registers of a warpgroup that multiplies them by wgmma.
//
// A unit is 64 rows of an expert's matrix. Its blocks of 128 columns follow one another in
// memory, so a copy of whole blocks needs no tensor map. A block has its codes first. A lane
// loads 16 bytes of them at a time, which hold codes of the lane's own fragments of A.
// Neighbouring lanes load neighbouring bytes. The scales of the block follow.
//
// The bits of the codes in a word are spread so that one mask, after a shift or a rotation,
// leaves two codes at the places that their bits have in a bf16. The exponents are then too
// small by a constant. The product with the scale corrects this, so it costs nothing.
package fragments
