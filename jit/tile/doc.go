// Package tile is how tiles lie in shared memory, registers and global
// memory: swizzles, wgmma descriptors, accumulator fragments, and the boxes
// that TMA moves. Each layout is a value that host code and emitted code
// share.
package tile
