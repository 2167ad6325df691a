// Package layout computes where the elements of a matrix are. In shared memory, swizzles and matrix
// descriptors define it (swizzle.go, descriptor.go). In global memory, the boxes of a tensor map
// define it (tensormap.go, box.go). In the registers of a warp, the instructions define it
// (fragment.go).
package layout
