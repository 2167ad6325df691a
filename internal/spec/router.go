package spec

// Logits is the number format in which router logits are compared and turned
// into scores. The router product is summed in FP32 in any, and rounded once.
type Logits uint8

const (
	// LogitsBF16: rounded to bf16 before top-K, as a bf16 linear layer gives
	// them in PyTorch.
	LogitsBF16 Logits = iota
	// LogitsF32: kept in FP32.
	LogitsF32
	// LogitsF16: rounded to fp16, for layers whose Type is F16.
	LogitsF16
)

var logitsNames = []string{"bf16", "f32", "f16"}

// String gives the format's name.
func (l Logits) String() string { return name("Logits", logitsNames, l) }

// Type is the element type of a tensor of logits.
func (l Logits) Type() Type { return [...]Type{BF16, F32, F16}[min(int(l), 2)] }

// Score is what becomes of logits: an expert's raw score p.
type Score uint8

const (
	// SoftmaxTopK is the softmax over the K chosen logits. It is the same
	// function as SoftmaxAll renormalised without an epsilon, and cheaper.
	SoftmaxTopK Score = iota
	// SoftmaxAll is the softmax over all E logits.
	SoftmaxAll
	// Sigmoid is 1/(1 + exp(-logit)).
	Sigmoid
	// SqrtSoftplus is √(log(1 + exp(logit))).
	SqrtSoftplus
)

var scoreNames = []string{"softmax-topk", "softmax", "sigmoid", "sqrt-softplus"}

// String gives the function's name.
func (s Score) String() string { return name("Score", scoreNames, s) }

// Renorm says how the raw scores of a token's K experts are divided by their sum.
type Renorm uint8

const (
	// NoRenorm leaves them as they are.
	NoRenorm Renorm = iota
	// RenormSum divides by sum + NormEpsilon.
	RenormSum
	// RenormClamp divides by max(sum, NormEpsilon).
	RenormClamp
)

var renormNames = []string{"none", "sum", "clamp"}

// String gives the rule's name.
func (r Renorm) String() string { return name("Renorm", renormNames, r) }

// GroupScore is what a group of experts is judged by, where a token may use the
// experts of some groups only.
type GroupScore uint8

const (
	// GroupBest is the key of the group's best expert (DeepSeek-V2).
	GroupBest GroupScore = iota
	// GroupSumOfTwo is the sum of the scores, with their selection biases, of
	// its two best (DeepSeek-V3).
	GroupSumOfTwo
)

var groupScoreNames = []string{"best", "sum2"}

// String gives the rule's name.
func (g GroupScore) String() string { return name("GroupScore", groupScoreNames, g) }
