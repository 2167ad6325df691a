// Package jit turns an emitted kernel into a function that a device can launch. It prints the
// kernel, computes its key, looks the key up in a cache, compiles if the cache has no machine code,
// and loads.
//
// A kernel's key is the SHA-256 of its text, target and compile options. A process compiles and
// loads each key once for a device, however many layers load it: [Of] returns the device's only
// loader. On disk, each key is one entry of a [cache.Cache]; an entry can hold machine code of
// several producers. A failure of the cache is not an error: it costs a compilation. If the device
// refuses cached machine code, the loader logs one warning and replaces the code. If the device is
// out of memory or broken, the error is returned at once, because compiling again would fail as
// well.
//
// [Warm] fills a cache ahead of time, even on a machine without a device. It stores machine code of
// an assembler ([Ptxas]), or only PTX.
//
// A loader and its modules live until [Forget]. Call Forget when you close the device.
//
// The subfolders have the parts from which kernels are built: pipeline (roles, rings), tile
// (layouts), schedule (which CTA computes which tile) and gemm (the warp-specialised product that
// consists of these parts).
package jit
