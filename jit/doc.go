// Package jit goes from an emitted kernel to a function that a device can
// launch: print, key, look up, compile, load.
//
// A kernel's key is the SHA-256 of its text, target and compile options. In a
// process each key is compiled and loaded once for a device, however many
// layers ask ([Of] gives the device's one loader); on disk each key is one
// entry of a [cache.Cache], with machine code of several producers. Whatever
// goes wrong with the cache costs a compilation, never the run; machine code
// that the device refuses is said once, as a warning, and replaced. A device
// that is out of memory or broken is an error at once: another compilation would
// meet the same.
//
// [Warm] fills a cache ahead of time, on a machine without a device too: by an
// assembler ([Ptxas]), or with PTX alone.
//
// A loader and its modules live until [Forget], which goes with closing the
// device.
//
// The folders beside it are the kit that kernels are built from: pipeline
// (roles, rings), tile (layouts), schedule (who takes which tile) and gemm (the
// warp-specialised product made of them).
package jit
