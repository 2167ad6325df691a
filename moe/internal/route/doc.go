// Package route only documents the packages below it, which hold the routing kernels: they
// decide which experts each token goes to, and prepare what the experts' products need.
//
//   - choose: the router's product, and the choice of each token's top-K experts with their scores
//   - order: the order of the rows by expert (the plan), also for lists of tokens and experts
//   - rounding: token rounding and the choice of tokens by experts
//   - training: gradients of the logits, losses on them, and load balancing
//   - scores: the arithmetic between logits and scores, which these share
//
// Packages choose, rounding and training import order and scores; no other imports run
// between the five. The gradients of the router's weights are in moe/internal/kernel/drouter.
package route
