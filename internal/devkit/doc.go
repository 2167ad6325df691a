// Package devkit has what the implementations of driver.Device share, and what
// code that launches kernels by hand needs: the packing of parameters.
package devkit
