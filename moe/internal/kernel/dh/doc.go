// Package dh has the kernels that take the output's gradient through an expert's
// down-projection and activation. [DH] is a grouped product whose epilogue computes
// dH, the activation once more and parts of the scores' gradient. [DScores] adds these
// parts and computes the gradients of the chosen logits.
package dh
