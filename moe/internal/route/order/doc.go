// Package order has the kernels that order the rows of the experts' products: by expert, then
// token, then slot. A row is a pair of a token and one of its K slots, each slot with a chosen
// expert. [Count] counts the tokens of each expert. [Plan] gives each pair its row. The routing may
// also be a list, in which each entry has any token and any expert: [ByToken] then lists each
// token's rows, and [PlanSorted] plans a list that is sorted already.
package order
