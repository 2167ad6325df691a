// Package moe is the Mixture-of-Experts layer of a transformer, after SonicMoE (arXiv 2512.14080):
// router, top-K, experts, weighted sum.
//
// A layer has a router and E = Config.NumExperts experts. Each token x of width d = Config.Hidden goes to K =
// Config.TopK experts of width n = Config.Intermediate. A forward pass computes for each token
//
//	logits = Router·x           one number for each expert; the K largest choose the experts
//	h = W1[e]·x                 for each chosen expert e: gate g and up u, n numbers each
//	a = silu(g)·u               the activation
//	y = W2[e]·a
//	o = Σ score[e]·y[e]         over the chosen experts, where the scores are the softmax of their logits
//
// The fields of Config change these lines: other activations, scores and choices of experts, biases, shared experts.
//
// [New] emits, compiles and loads the kernels of a [Config]. It may read and write the cache on
// disk, and takes up to a second. The resulting [Layer] is immutable and safe for concurrent use.
// Each goroutine makes its own [Call]. [Call.Forward] queues a pass on a stream: it does not
// allocate, wait for the device, log or use the disk, and a graph can capture it. Every call may
// have another number of tokens. Routing stays on the device.
//
// The caller provides all buffers: Layer.Sizes returns their sizes, an [Arena] allocates them,
// [Write] and [Read] copy numbers. Tensors are row-major and have the type Config.Type, bf16 or
// fp16, unless this table gives another type. T is the number of tokens of the pass:
//
//	X         [T, d]      tokens
//	Router    [E, d]      router weights
//	W1        [E, 2n, d]  gate and up, in the order of Config.GateUp
//	W2        [E, d, n]   down
//	O         [T, d]      output
//	H         [R, 2n]     pre-activation, gate then up, R = T·K rows sorted by expert
//	Scores    [T, K]      f32, made of the logits by the rules of Config
//	ExpertIDs [T, K]      i32, the best first; the place in this order is the expert's slot
//	Logits    [T, E]      in the format of Config.Logits, written if wanted
//
// If logits are equal, the lower expert wins. NaN comes before every number, so that O shows a
// broken router.
//
// A layer with Config.SharedExperts also has their weights, SharedW1 to SharedGate in [Weights],
// and SharedH in addition to H. The same passes compute their part of O and their gradients.
//
// Backward needs X, H, scores and experts of the forward pass, and the logits if Config.SavesLogits
// reports true. X and H have 2Td + 4TKn bytes, scores and experts 8TK bytes. If H is the zero
// Tensor, the pass is for inference and gives the same O. Layers that run one after another can
// share a workspace.
//
// Call.Backward computes the wanted gradients of X, of the weights and of the scores from the
// gradient of O. Gradients of weights have the type Config.Type or f32, and may accumulate. An
// unwanted gradient costs nothing. The load balancing loss and the z-loss need one coefficient
// each, see [Losses]. For balancing without a loss see [Call.Loads] and [Call.UpdateSelectionBias].
// Call.ForwardExperts and BackwardExperts are for callers with their own router. WithoutBackward is
// for programs that only infer.
//
// Results are deterministic: the same input gives the same bits on every run and for every tile
// shape. Sums are FP32. A forward pass rounds H, A, Y and O, each once. A backward pass rounds dH,
// A times score, dX of each row and of each token, the scores from which DB2 is computed, and the
// gradients of weights, each once. In fp16, values beyond 65504 become infinite and values below
// 2^-25 become 0, as in PyTorch, so gradients need a loss scale. The gradients of the logits need
// it too: they are FP32, but are multiplied as fp16 numbers. With any scale, a score below 2^-25
// adds nothing to DB2, and a score beyond 65504 makes it infinite or NaN.
//
// [Warm] fills a cache for a layer on a machine without a GPU, so that New later compiles nothing;
// examples/warmup is the command for this.
//
// Passes over small batches use separate kernels, which take about the time of reading the weights
// of the chosen experts; see [WithDecode]. The bits are the same: a token's output depends neither
// on the other tokens of the batch nor on their number.
//
// Tile shapes come from a cost model, or from choices that package moe/tune has measured and stored
// in the cache; [Layer.ChosenBy] returns the origin of each. [WithTunedFrom] takes them from one
// file for all ranks of a job, and [WithoutTuning] ignores them.
//
// To read the PTX of a kernel with the Go line of each instruction, see [Layer.Listing], or run
//
//	go run ./examples/quickstart -listing up
//
// # What v1 will promise
//
// v1 will promise the exported names, with their meaning, of this package, of moe/checkpoint with
// its packages weights and safetensors, and of moe/tune, driver, driver/open and cache.
// moe/testdata/api.txt lists the names, and a test compares them. Names and fields may be added, so write struct literals with
// field names. Bits may change from version to version; CHANGELOG.md reports it. v1 will promise
// nothing for other packages (such as moe/parallel, moe/checkpoint/adapter, moe/activation, moe/tools,
// driver/cuda, driver/emulated, autotune, jit and ptx; the header of moe/capi has its own version), for the names and the order of a
// layer's kernels, for tilings, for the content of a cache's files, and for the texts of errors.
package moe
