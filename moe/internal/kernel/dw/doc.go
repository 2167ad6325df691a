// Package dw has the gradients of the experts' weights: products summed over an
// expert's rows. [Plan] lists their work, a heavy expert's in splits, and [DW] is
// the product, which adds the splits in order.
package dw
