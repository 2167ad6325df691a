// Package moe is the Mixture-of-Experts layer of a transformer, after
// SonicMoE (arXiv 2512.14080): router, top-K, experts, weighted sum.
//
// [New] emits, compiles and loads the kernels of a [Config]; it may touch the
// disk and take a moment. What it returns, a [Layer], is immutable and may be
// used by many goroutines. Each goroutine takes a [Call] from it, and
// [Call.Forward] queues the work on a stream: it never allocates, waits for
// the device, logs or touches the disk, and it can be captured in a graph.
// The token count may differ from call to call; routing stays on the device.
//
// All buffers are the caller's: Layer.Sizes says how many bytes to bring, an
// [Arena] brings them, [Write] and [Read] copy numbers. Tensors are row-major
// and of Config.Type, bf16 or fp16, unless said otherwise:
//
//	X         [T, d]      tokens
//	Router    [E, d]      router weights
//	W1        [E, 2n, d]  gate and up, order by Config.GateUp
//	W2        [E, d, n]   down
//	O         [T, d]      output
//	H         [R, 2n]     pre-activation, gate then up, R = T·K rows by expert
//	Scores    [T, K]      f32, made of logits as Config says
//	ExpertIDs [T, K]      i32, the best first
//	Logits    [T, E]      in the format of Config.Logits, if asked for
//
// Of equal logits the lower expert comes first, and NaN before every number: what
// is wrong with a router shows in O.
//
// A layer with Config.SharedExperts has their weights beside the others', SharedW1
// to SharedGate in [Weights], and SharedH beside H; their part of O and their
// gradients come out of the same passes.
//
// H is what backward needs beside X, scores and experts, and the logits where
// Config.SavesLogits says so; without it (the zero
// Tensor) the pass is for inference and gives the same O.
//
// Call.Backward gives the gradients that are wanted, from that of O: of X, W1,
// W2, Router and Scores. Weights' gradients are of Config.Type or f32 and may be added to
// what is there; a weight whose gradient is not wanted costs nothing. Load
// balancing and z-loss are two coefficients, see [Backward]; balancing without a loss
// is [Call.Loads] and [Call.UpdateSelectionBias]. What a layer keeps
// from forward to backward is X, H, scores and experts, 2Td + 4TKn bytes and 8TK
// of metadata; the workspace can be shared by layers that run one after the other.
// Call.ForwardExperts and BackwardExperts are for callers who route themselves,
// WithoutBackward for programs that only infer.
//
// Results are deterministic: the same input gives the same bits on every run
// and for every tile shape. Each of H, A, Y, O and, in backward, of dH, A times
// score, each row's and each token's dX, the scores that db2 multiplies and the
// weights' gradients is rounded once; sums are FP32. In fp16 what passes 65504
// becomes infinite and what is below 2^-25 becomes 0, as in PyTorch: gradients want a
// loss scale. So do those of the logits, which are FP32 but are multiplied as fp16
// numbers. With any scale a score below 2^-25 adds nothing to DB2, and one that passes
// 65504 makes it infinite, or NaN.
//
// [Warm] fills a cache for a layer on a machine without a GPU,
// so that New compiles nothing where it runs; examples/warmup is the command.
//
// Passes over few tokens take kernels of their own, whose time is that of
// reading the weights of the experts that the tokens chose; see [WithDecode].
// The bits are the same: a token's output depends on nothing else in the batch,
// nor on its size.
//
// Tile shapes come from a cost model, or from choices that package moe/tune has
// measured and stored in the cache; [Layer.ChosenBy] tells which. [WithTunedFrom]
// takes them from one file for all ranks of a job, or turns them off.
//
// To read the PTX of a kernel with the Go line behind each instruction, see
// [Layer.Listing], or run
//
//	go run ./examples/quickstart -listing up
//
// # What v1 will promise
//
// The exported names of this package, moe/checkpoint and the packages
// below it, moe/tune, driver, driver/open and cache, with what they mean:
// moe/testdata/api.txt lists them, and a test compares it. New names and fields may
// come: write struct literals with field names. Bits may
// change from version to version, and CHANGELOG.md says so. No promise is made of
// the other packages: internal/reference and internal/trial, which are for tests and
// measurements, moe/activation, moe/capi, whose C header says which version it is,
// driver/cuda, driver/emulated, autotune, jit and ptx; of names and order of a layer's kernels, tilings, what a
// cache's files hold, and texts of errors.
package moe
