// Package tile describes the layout of tiles. For emitted code it has
// shared-memory swizzles, wgmma descriptors and accumulator fragments. For the
// host it has the tensor maps of the boxes that TMA moves ([Map] and its
// variants). All use the same units: elements, and 128-byte swizzle.
package tile
