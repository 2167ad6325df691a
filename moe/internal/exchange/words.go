package exchange

import (
	"sonicmoe/driver"
	"sonicmoe/jit"
	"sonicmoe/moe/internal/kernel/dh"
	"sonicmoe/moe/internal/registry"
	"sonicmoe/moe/internal/route/training"
	"sonicmoe/ptx"
)

// Words packs 32-bit words: word i of To is word Index[i] of From. A thread copies one word.
type Words struct{}

const wordsThreads = 256

// WordsArgs are the arguments of [Words]. N is the number of words to write.
type WordsArgs struct {
	// From holds the words to copy. Index [N] u32 has the position in From of each output word.
	From, Index driver.DevicePtr
	// To [N] is an output.
	To driver.DevicePtr
	// Count is N.
	Count int
}

// Build emits the kernel.
func (Words) Build() (*jit.Kernel[WordsArgs], error) {
	k := jit.NewBuilder[WordsArgs]("moe_words", wordsThreads, 1)
	k.CTAs(func(a *WordsArgs) int { return (a.Count + wordsThreads - 1) / wordsThreads })
	from, index, to := k.Ptr(&k.Args.From), k.Ptr(&k.Args.Index), k.Ptr(&k.Args.To)
	count := k.U32(&k.Args.Count)
	at := k.CtaidX().MulI(wordsThreads).Add(k.TidX())
	k.GridDepWait()
	k.GridDepLaunch()
	k.If(at.Lt(count), func() {
		ptx.StGlobal(to.Index(at, 4), ptx.LdGlobal[ptx.U32](from.Index(ptx.LdGlobal[ptx.U32](index.Index(at, 4)), 4)))
	})
	return k.Build()
}

// RouterInputs are the tensors from which the gradient of the router's weights is made: X [T, d],
// DLogits [T, K] f32, which are the gradients of the chosen logits, and ExpertIDs [T, K] i32. Dense
// [T, E] f32 has gradients of all logits, or is 0. If Bias is set, the gradient of b2 is made, and
// the inputs are dO, the scores, and the scores by expert. If Gate is set, the gradient of the shared
// experts' gate is made, which is a router with one expert.
type RouterInputs struct {
	X, DLogits, ExpertIDs, Dense driver.DevicePtr
	Bias, Gate                   bool
}

// WordsKernel brings the gradients of logits from the order of the list to the order of the packed
// rows. ScoresKernel and ScoresGivenKernel are [dh.DScores] with one partial sum a row: the
// gradients of the scores have come back from the experts' ranks as complete sums. ScoresKernel
// also makes the gradients of the chosen logits. SumsKernel adds the gradients of logits for each expert
// of a rank.
var (
	SumsKernel = &registry.Kernel[training.ExpertSumsArgs]{KernelName: "rank-sums", Backward: true, Emit: func(l registry.Layer) (*jit.Kernel[training.ExpertSumsArgs], error) {
		return training.ExpertSums{NumExperts: l.NumExperts, OfRank: true}.Build()
	}}
	WordsKernel = &registry.Kernel[WordsArgs]{KernelName: "words", Backward: true, Emit: func(registry.Layer) (*jit.Kernel[WordsArgs], error) {
		return Words{}.Build()
	}}
	ScoresKernel = &registry.Kernel[dh.ScoresArgs]{KernelName: "returned-dscores", Backward: true, Only: training.ScoresTellLogits, Emit: func(l registry.Layer) (*jit.Kernel[dh.ScoresArgs], error) {
		return dh.DScores{Intermediate: 64, TopK: l.TopK, Scores: true, Router: true}.Build()
	}}
	ScoresGivenKernel = &registry.Kernel[dh.ScoresArgs]{KernelName: "returned-dscores-given", Backward: true, Emit: func(l registry.Layer) (*jit.Kernel[dh.ScoresArgs], error) {
		return dh.DScores{Intermediate: 64, TopK: l.TopK, Scores: true}.Build()
	}}
)
