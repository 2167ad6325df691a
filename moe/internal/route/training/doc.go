// Package training has the routing kernels that only training needs: the gradients of the
// logits, from the scores ([DLogits], [RoundedDLogits]) and from the balance and z-losses
// ([Losses]), sums over the tokens of an expert ([ExpertSums]), and loss-free balancing
// ([Loads], [BalanceBias]).
package training
