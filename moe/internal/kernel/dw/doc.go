// Package dw has the gradients of the experts' weights, which are products summed over
// an expert's rows. [Plan] lists the work, with the rows of a heavy expert in several
// splits. [DW] is the product; it adds the splits in order.
package dw
