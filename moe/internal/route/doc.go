// Package route has the kernels that say which experts a token goes to, and what
// follows from it: the router's product with top-K and scores, the order of the
// rows that the experts' products go by (the plan), lists of tokens and experts,
// token rounding, and the losses on the router's logits. Of few tokens the router
// and the plan are two kernels of their own, [FewLogits] and [Choose], or the router is,
// [FewLogits] and [ChooseRanges]; of the fewest, other kernels choose, see [ByChains].
//
// Ties go to the lower expert: the keys of topk.go decide this for
// [Router], [Choose], [ChooseRanges], [ByChains] and [Select]; those of rounding are decided in take.go.
//
// The gradient of the router's weights is package drouter's.
package route
