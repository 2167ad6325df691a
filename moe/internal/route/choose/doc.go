// Package choose has the kernels that compute the router's logits and choose each token's
// top-K experts, with their scores. A layer uses one of these sequences:
//
//   - [Router]: product, top-K and softmax in one kernel, where [InRouter] reports true
//   - Router with LogitsOnly, then [FromLogits]: every other kind of scores
//   - [SmallBatchLogits], then [Choose] or [ChooseRanges]: small batches
//   - [SmallBatchLogits], then another kernel that calls [ByChains]: the smallest batches
//
// If logits are equal, the lower expert wins; the keys in keys.go decide this for all of them.
package choose
