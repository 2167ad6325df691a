// Package scores emits the arithmetic between logits and scores that several routing
// kernels share: loads and stores of logits, the softmax over a token's logits, sigmoid and
// softplus, and the normalisation of the chosen scores.
package scores
