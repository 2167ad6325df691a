// Package tune finds the fastest tilings of a layer's products on the present GPU, checks that
// their results are right, and stores them for moe.New.
//
//	func main() {
//		tune.WorkerMain() // candidates run in processes of their own
//		...
//		plan, err := tune.Layer(ctx, dev, config, tune.Options{})
//		fmt.Print(plan)
//		err = plan.Save(ctx, dev)
//		layer, err := moe.New(ctx, dev, config) // uses the tuned tilings
//	}
//
// Tuning never changes a layer in use. A product (up, down, dh, dx, dw1, dw2) that has a valid
// stored choice is not tuned again, so a second process tunes nothing.
//
// A candidate is a tiling of one product. It runs whole passes on random tensors. Either the layer
// routes the tokens itself, or a histogram of the caller determines the routing. First, the layer
// with the cost model's tilings is checked against float64, forward and backward. Every candidate
// must then give the same bits in every element of every output, in every variant of its kernels,
// and must not change the inputs. Only the candidate's own kernel is timed. It is timed in its
// place in the pass, between two events. Its overlap with the kernels before and after it is not
// counted, for any candidate.
//
// The worker process has its own tensors on the same GPU: weights, their gradients in both types,
// and the activations of TokensHint tokens. If they do not fit, tuning returns an error and changes
// nothing.
package tune
