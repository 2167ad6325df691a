// Package parallel spreads the experts of a layer over ranks. The results have the same bits as on
// one GPU, unless Options.PartialSums gives them up for fewer bytes.
//
//	at, err := nccl.FromEnv(os.Getenv)       // as torchrun, mpirun or Slurm starts the processes
//	dev, err := open.Device(ctx, fmt.Sprintf("cuda:%d", at.Local))
//	transport, err := nccl.Connect(ctx, dev, at)
//	rank, err := parallel.Join(ctx, dev, transport, parallel.Options{Config: config, MaxTokens: 4096})
//	...                                      // buffers: rank.Sizes, rank.WeightShapes
//	err = rank.Forward(ctx, stream, args)    // over this rank's tokens
//	err = rank.Wait(ctx, stream)
//
// Several devices of one process need no NCCL: [Local] makes their transports, and each rank runs in a goroutine of
// its own. The example of this package is a whole training step.
//
// A group has W ranks, each with a device. The tokens are divided among the ranks: rank 0 has the
// first ones, and each rank has any number of them. The E experts are divided, too: rank r owns the
// experts from floor(r·E/W) to floor((r+1)·E/W) - 1. Every rank has the whole router. A pass sends
// each token once to every rank that owns one of its experts. The owner multiplies the token by its
// experts' weights, and sends a row of Y back for each pair of token and expert. The token's own
// rank, its home, adds these rows in the order of the K slots. O therefore has the same bits as on
// one GPU, for every number of ranks.
//
//	home    router, pairs sorted by expert     pack X -> exchange -> window
//	owner   pairs sorted by expert, up, down   Y -> exchange
//	home    O[t] = Σ_k score·Y, in the order of k
//
// The window is the owner's buffer for the tokens that it receives. In a large pass a rank first
// multiplies half of its own tokens' rows, while tokens of other ranks arrive. Then it multiplies the
// rows of other ranks in chunks of its experts. The rows of a chunk go home while the next chunk is
// multiplied. The other half of its own tokens' rows comes last, while the last chunk goes home. With two
// ranks the rows of an expert are sent from where the expert wrote them. With more ranks, or short rows of
// an expert, the rank packs the rows of a chunk by home, so that it sends few long pieces. A chunk then has the
// tokens of some other ranks, and the tokens of the next ones arrive while it is multiplied. A small pass
// sends all rows at once.
//
// A backward pass sends the rows of dO in the same way, and computes dH of the rank's own tokens while they
// travel. The rows of dX go home while the owner computes the gradients of an expert's weights, or of its
// adapter's factors. The owner sums rows in the order of the tokens over all ranks. The router's gradient is
// summed over the same ranges of tokens as on one GPU: one rank sums each range, and then every rank adds the
// sums in the order of the ranges. The shared experts' gradients are summed over ranges of 8,192 tokens in the same way, but each rank
// adds up a part of every gradient. Losses on the logits are over the tokens of all ranks. Their values
// have the bits of a device with as many multiprocessors as the ranks' devices.
//
// With Options.PartialSums fewer bytes move, and O and DX lose one GPU's bits. A rank adds up its rows for
// each token of another rank, in FP32 in the order of the K slots, and rounds the sum once. It sends one
// sum for each token that it has received. The home adds its own rows, and the sums, in the order of the
// slots. The place of a sum is the first slot with an expert of its rank. Every run of a group has the same
// bits, but groups of other sizes have other bits. Scores, ids, and the gradients of scores and weights
// keep one GPU's bits, because the owner makes them from dO, H and the rows themselves.
//
// All gradients are complete: sums over the tokens of all ranks. A program that averages the gradients of its other
// weights over the ranks must leave these out, and divide each rank's loss by the number of tokens of all ranks.
//
// No token is dropped: [Rank.Sizes] returns the memory of the worst case, in which all tokens go to
// one rank. [Saved.Allocate] takes no more than a pass needs. The ranks exchange their counts first, so a pass waits for the device once before it
// moves rows.
//
// A [Transport] moves the bytes. [Local] is the transport for the devices of one process. Package
// nccl has the transport of GPUs between processes. Package hosted has a transport through host
// memory, for the Python package and for tests. A pass that fails on one rank fails on all ranks:
// every wait has a deadline, and an *[Error] names the rank, the phase and the ranks that are
// missing.
//
// The names here may change: v1 does not promise them yet.
package parallel
