// Package devkit has the code that implementations of gpu.Device share. It also packs kernel
// parameters, which code that launches kernels without package jit needs, too.
package devkit
