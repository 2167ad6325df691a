// Package tune finds the fastest tilings of a layer's products on the present GPU,
// checks that they are right, and stores them for moe.New.
//
//	func main() {
//		autotune.WorkerMain() // candidates run in processes of their own
//		...
//		plan, err := tune.Layer(ctx, dev, config, tune.Options{})
//		fmt.Print(plan)
//		err = plan.Save(ctx, dev)
//		layer, err := moe.New(ctx, dev, config) // uses the tuned tilings
//	}
//
// Tuning never changes a layer in use. A product (up, down, dh, dx, dw1, dw2) with
// a valid stored choice is not tuned again, so a second process tunes nothing.
//
// Candidates run whole passes on random tensors. The layer routes the tokens
// itself, or a histogram of the caller does. The layer with the cost model's
// tilings is first checked against float64, forward and backward. Every candidate
// must then give the same bits in every element of every output, in every variant
// of its kernels, and must not change the inputs. Only the candidate's own kernel
// is timed, in its place in the pass, between two events. The overlap with its
// neighbours is not counted, for any candidate.
//
// The worker has tensors of its own on the same GPU: weights, their gradients in
// both types, and the activations of TokensHint tokens. If they do not fit, tuning
// returns an error and changes nothing.
package tune
