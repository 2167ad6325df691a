// Package jit turns an emitted kernel into a function that a device can launch: it
// prints the kernel, computes its key, looks the key up, compiles and loads.
//
// A kernel's key is the SHA-256 of its text, target and compile options. A process
// compiles and loads each key once for a device, however many layers load it ([Of]
// returns the device's one loader). On disk each key is one entry of a
// [cache.Cache], with machine code of several producers. A failure of the cache
// costs a compilation and is no error. If the device refuses cached machine code,
// the loader logs one warning and replaces the code. If the device is out of
// memory or broken, the error is returned at once, because compiling again would
// fail as well.
//
// [Warm] fills a cache ahead of time, also on a machine without a device: with
// machine code of an assembler ([Ptxas]), or with PTX alone.
//
// A loader and its modules live until [Forget], which belongs with closing the
// device.
//
// The subfolders are the kit that kernels are built from: pipeline (roles, rings),
// tile (layouts), schedule (which CTA computes which tile) and gemm (the
// warp-specialised product made of these parts).
package jit
