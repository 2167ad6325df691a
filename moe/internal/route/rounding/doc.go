// Package rounding has the kernels that change how many tokens each expert gets: token rounding,
// capacities, and experts that choose their tokens (see [spec.Rounding]). They run one after the
// other:
//
//   - [Keys] writes, for each expert and token, a number (the key) by which the expert ranks its tokens
//   - [Cutoff] decides how many tokens each expert gets, and finds the key of the last of them
//   - [List] lists the tokens that each expert gets, sorted for [order.PlanSorted]
//
// If keys are equal, an expert gets the lower tokens; [List] decides this.
package rounding
