// Package tile describes the layout of tiles. Emitted code uses the package's shared-memory
// swizzles, wgmma descriptors and accumulator fragments. The host uses the package's tensor maps,
// which describe the boxes that TMA moves ([Map] and its variants). All sizes are in elements, and
// the swizzle is the 128-byte one, unless a comment says otherwise.
package tile
