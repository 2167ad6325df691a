package spec

// Logits is the number format of the router's logits, in which they are compared
// and from which scores are computed. The router product is always summed in FP32
// and rounded once.
type Logits uint8

const (
	// LogitsBF16: rounded to bf16 before top-K, as in a bf16 linear layer of PyTorch.
	LogitsBF16 Logits = iota
	// LogitsF32: not rounded.
	LogitsF32
	// LogitsF16: rounded to fp16, for layers with Type F16.
	LogitsF16
)

var logitsNames = []string{"bf16", "f32", "f16"}

// String returns the format's name.
func (l Logits) String() string { return name("Logits", logitsNames, l) }

// Type returns the element type of a tensor of logits.
func (l Logits) Type() Type { return [...]Type{BF16, F32, F16}[min(int(l), 2)] }

// Score is the function from an expert's logit to its raw score p.
type Score uint8

const (
	// SoftmaxTopK is the softmax over the K chosen logits. It equals SoftmaxAll with
	// RenormSum and no epsilon, and is cheaper.
	SoftmaxTopK Score = iota
	// SoftmaxAll is the softmax over all E logits.
	SoftmaxAll
	// Sigmoid is 1/(1 + exp(-logit)).
	Sigmoid
	// SqrtSoftplus is √(log(1 + exp(logit))).
	SqrtSoftplus
)

var scoreNames = []string{"softmax-topk", "softmax", "sigmoid", "sqrt-softplus"}

// String returns the function's name.
func (s Score) String() string { return name("Score", scoreNames, s) }

// Renorm says how the raw scores of a token's K experts are divided by their sum.
type Renorm uint8

const (
	// NoRenorm does not divide.
	NoRenorm Renorm = iota
	// RenormSum divides by sum + NormEpsilon.
	RenormSum
	// RenormClamp divides by max(sum, NormEpsilon).
	RenormClamp
)

var renormNames = []string{"none", "sum", "clamp"}

// String returns the rule's name.
func (r Renorm) String() string { return name("Renorm", renormNames, r) }

// GroupScore is the score by which a token's groups of experts are chosen.
type GroupScore uint8

const (
	// GroupBest is the key of the group's best expert (DeepSeek-V2).
	GroupBest GroupScore = iota
	// GroupSumOfTwo is the sum of the raw scores, with selection biases, of the
	// group's two best experts (DeepSeek-V3).
	GroupSumOfTwo
)

var groupScoreNames = []string{"best", "sum2"}

// String returns the rule's name.
func (g GroupScore) String() string { return name("GroupScore", groupScoreNames, g) }
