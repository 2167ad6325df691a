// Package devkit has the code that implementations of gpu.Device share, and the packing
// of parameters, which code that launches kernels without package jit needs too.
package devkit
