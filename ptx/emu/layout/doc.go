// Package layout describes where the elements of a matrix are: in shared memory, as swizzles
// and matrix descriptors define it (swizzle.go, descriptor.go); in global memory, as the
// boxes of a tensor map (tensormap.go, box.go); and in the registers of a warp (fragment.go).
package layout
