// Package tune finds the fastest tile points of a layer's products on the GPU
// at hand, proves them right, and stores them for moe.New to pick up.
//
//	func main() {
//		autotune.WorkerMain() // candidates run in processes of their own
//		...
//		plan, err := tune.Layer(ctx, dev, config, tune.Options{})
//		fmt.Print(plan)
//		err = plan.Save(ctx, dev)
//		layer, err := moe.New(ctx, dev, config) // takes the tuned points
//	}
//
// A layer in use is never changed. A product (up, down, dh, dx, dw1, dw2) whose
// stored choice is valid is not tuned again: a second process tunes nothing.
//
// Candidates run whole passes on random tensors of the measuring rule, routed
// by the layer itself or by a histogram of the caller's. The cost model's
// layer is checked against float64 first, forward and backward; every
// candidate must then give its bits, of every element of every output, in
// every variant of its kernels, and leave the inputs alone. Only its own kernel
// is timed, in its place in the pass, between events: what it overlaps with its
// neighbours is not counted, for any candidate.
//
// The worker has tensors of its own on the same GPU: weights, their
// gradients in both types, and the activations of TokensHint tokens. Where that
// does not fit, tuning says so and changes nothing.
package tune
