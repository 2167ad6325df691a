// Package rounding has the kernels that change how many tokens each expert gets: token
// rounding, capacities, and experts that choose their tokens (see [spec.Rounding]). They run
// one after the other:
//
//   - [Keys] writes for each expert and token a number that orders the expert's candidates
//   - [Cutoff] decides how many tokens each expert gets, and finds the last one's key
//   - [List] lists the tokens above the cutoff, sorted for [order.PlanSorted]
//
// If keys are equal, an expert gets the lower tokens; [List] decides this.
package rounding
