// Package dh has the kernels that take the output's gradient through an expert's
// down-projection and activation: [DH], a grouped product whose epilogue gives dH,
// the activation once more and parts of the scores' gradient, and [DScores], which
// adds these parts and goes on to the chosen logits.
package dh
