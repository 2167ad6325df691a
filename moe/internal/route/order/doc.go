// Package order has the kernels that order the rows of the experts' products: by expert, then
// token, then slot. [Count] counts the tokens of each expert, [Plan] assigns each pair of
// token and slot its row. [ByToken] lists each token's rows for lists of any number of
// experts per token, and [PlanSorted] plans a list that is already sorted.
package order
