// Package tile is how tiles lie in shared memory, registers and global
// memory: swizzles, wgmma descriptors and accumulator fragments for emitted code,
// and for the host the tensor maps of the boxes that TMA moves ([Map] and what is
// made of it), in the same units: elements, and 128-byte swizzle.
package tile
