package spec

import (
	"fmt"
	"strconv"
	"strings"
)

// Limits of a Config.
const (
	// MaxExperts is the largest number of experts of a layer.
	MaxExperts = 1024
	// MaxTopK is the largest number of experts that one token is sent to.
	MaxTopK = 32
	// MaxWidth bounds Hidden, Intermediate and the width of the shared experts.
	// It keeps every byte count of a layer, at up to 2^31 tokens, inside an int64.
	MaxWidth = 1 << 20
	// MaxRows bounds T·K of a call: row numbers are signed 32-bit integers on
	// the device.
	MaxRows = 1<<31 - 1
)

// WidthStep is what Hidden and Intermediate are multiples of: the depth of one
// tensor-core instruction, and 32 bytes.
const WidthStep = 16

// Config is one Mixture-of-Experts layer: a router and E experts, each an MLP of
// d → n → d, of which every token uses K, and shared experts that every token
// uses. It is comparable. The package's documentation gives the mathematics.
//
// The zero value of every field but the four sizes is the layer of Mixtral and
// Qwen3-MoE: softmax over the chosen logits, SwiGLU, no biases, bf16.
type Config struct {
	// Hidden is d, the width of a token: a multiple of 16.
	Hidden int
	// Intermediate is n, the width of one expert: a multiple of 16.
	Intermediate int
	// NumExperts is E, 1 to 1024, without the shared ones.
	NumExperts int
	// TopK is K, the experts of one token: 1 to 32, and at most NumExperts.
	TopK int

	// Type is the element type of tokens, weights and activations: BF16 or F16.
	Type Type
	// GateUp says where gate and up are in W1.
	GateUp GateUp
	// InOut swaps the last two dimensions of W1, W3 and W2: W1 [E, d, 2n] and
	// W2 [E, n, d], as in gpt-oss and Llama-4. Otherwise they are W1 [E, 2n, d] and
	// W2 [E, d, n], as in torch.nn.Linear. Router and shared experts are [out, in] with
	// both.
	InOut bool
	// Weights is the format of W1, W3 and W2. They are U8 tensors of codes with tensors of
	// scales, W1Scale, W3Scale and W2Scale, unless the format is "plain". InOut is then
	// false, and weights have no gradients. Type is BF16, or any with 4 bits of whole
	// numbers. A code c of a block with scale s means the number of Type nearest to the FP32
	// product c·s.
	//
	//	"plain"      the layer's Type; the zero value, "", means it
	//	"mxfp4"      E2M1, a scale E8M0 for each 32 inputs, as in gpt-oss; exact
	//	"fp8"        E4M3, a scale FP32 for each block of 128 x 128, as in DeepSeek-V3
	//	"fp8-ue8m0"  the same with a scale E8M0; exact
	//	"int4-g32"   4 bits less 8, a scale bf16 for each 32 inputs, as in Kimi-K2-Thinking
	//	"int4-g128"  the same for each 128 inputs
	//	"fp8-tensor" E4M3, a scale FP32 for each expert's matrix
	//	"nvfp4"      E2M1, a scale E4M3 for each 16 inputs; s is the FP32 product of
	//	             the scale and an FP32 for each expert's matrix, W1Global, W3Global
	//	             and W2Global, as in files of ModelOpt
	//	"uint4-g32", "uint4-g128"  4 bits less a zero point, a byte 0 to 15 of W1Zero,
	//	             W3Zero and W2Zero; scales and zero points for each 32 or 128 inputs,
	//	             as in AWQ and GPTQ; scales are bf16
	//	"uint4-g32-f16", "uint4-g128-f16"  the same with scales f16
	Weights string

	// Activation is applied between an expert's two products. Limit clamps the inputs
	// of "swiglu-oai", and of "swiglu" unless 0. Alpha is a parameter of "swiglu-oai".
	Activation   Activation
	Alpha, Limit float64
	// Bias adds biases to both products of the experts, b1 [E, 2n] (or n) and b2
	// [E, d]. Shared experts have no biases.
	Bias bool

	// Logits is the number format of the router's logits, in which they are compared
	// and from which scores are computed: Type, as in a linear layer of PyTorch, or F32.
	// The router product is always summed in FP32 and rounded once.
	Logits Type
	// RouterF32 makes the router's weights FP32, not the layer's Type, as in
	// ERNIE-4.5, Hunyuan and MiniMax-M2. Logits are then F32.
	RouterF32 bool
	// RouterBias adds a bias [E] f32 to the logits.
	RouterBias bool
	// Score is the function from logits to raw scores.
	Score Score
	// SelectionBias adds a bias [E] f32 to the raw scores for the choice of experts,
	// and nowhere else. Auxiliary-loss-free load balancing (arXiv 2408.15664) adjusts
	// the bias: see moe.Call.UpdateSelectionBias. It has no gradient.
	SelectionBias bool
	// Groups is the number of equal groups of neighbouring experts; 0 means no
	// groups. A token uses only experts of the TopGroups best groups.
	Groups, TopGroups int
	// GroupSumOfTwo scores a group by the sum of the raw scores, with selection biases,
	// of its two best experts (DeepSeek-V3). Otherwise a group's score is the key of its
	// best expert (DeepSeek-V2).
	GroupSumOfTwo bool
	// Renormalize divides the chosen raw scores by their sum, with NormEpsilon.
	Renormalize Renorm
	NormEpsilon float64
	// ScoreScale multiplies the scores; 0 means 1.
	ScoreScale float64
	// ExpertScale also multiplies each score by the expert's entry of a tensor [E]
	// f32 (Gemma-4).
	ExpertScale bool
	// ScoreOnInput multiplies an expert's input by the score, and sums the experts'
	// outputs with weight 1 (Llama-4).
	ScoreOnInput bool

	// SharedExperts is the number of experts that every token uses, each of width
	// Intermediate. They are stored as one MLP with the neurons of all.
	SharedExperts int
	// SharedGate multiplies the output of the shared experts by sigmoid(x·wg)
	// (Qwen2-MoE).
	SharedGate bool

	// Rounding changes which tokens go to an expert: to whole tiles of tokens, or to
	// the expert's capacity. Its raw scores are a softmax over all logits.
	Rounding Rounding
	// Lists adds the kernels for a routing given as a list of tokens and experts, in
	// which a token has any number of experts.
	Lists bool

	// TokensHint is the number of tokens expected in one call, 0 if unknown.
	// It affects the choice of tile shapes only, not what is computed or allowed.
	TokensHint int
}

// HWidth returns the width of H, 2n, or n without a gate.
func (c Config) HWidth() int { return c.HParts() * c.Intermediate }

// HParts returns the number of parts of H: 2 (gate and up), or 1 without a gate.
func (c Config) HParts() int {
	if c.Activation.Gated() {
		return 2
	}
	return 1
}

// SharedWidth returns the width of all shared experts together, 0 without any.
func (c Config) SharedWidth() int { return c.SharedExperts * c.Intermediate }

// Shared returns the shared experts as a layer with one expert that all tokens use,
// and whether there are any. SharedGate is kept: the gate's weight is the router of
// the returned layer.
func (c Config) Shared() (Config, bool) {
	s := Config{
		Hidden: c.Hidden, Intermediate: c.SharedWidth(), NumExperts: 1, TopK: 1, Type: c.Type,
		Activation: c.Activation, Alpha: c.Alpha, Limit: c.Limit, SharedGate: c.SharedGate, TokensHint: c.TokensHint,
	}
	if c.Activation.Gated() {
		s.GateUp = Apart
	}
	return s, s.Intermediate > 0
}

// Scale returns ScoreScale, or 1 if that is 0.
func (c Config) Scale() float64 {
	if c.ScoreScale == 0 {
		return 1
	}
	return c.ScoreScale
}

// SavesLogits reports whether backward through the router needs the logits [T, E]
// of the forward pass. The score "softmax-topk" does not: its gradient follows from the scores,
// unless the scores contain an expert's scale, which may be 0.
func (c Config) SavesLogits() bool { return normal(Scores, c.Score) != SoftmaxTopK || c.ExpertScale }

// HasLists reports whether the layer has the kernels of lists.
func (c Config) HasLists() bool { return c.Lists || c.Rounds() }

// Rounds reports whether the layer has the kernels of rounding.
func (c Config) Rounds() bool { return normal(RoundingRules, c.Rounding.Rule) != NoRounding }

// String returns a short form with every field that affects what is computed:
// "d=1536 n=256 E=128 K=8 w1=concatenated logits=bf16", then each other field whose
// value is not 0. TokensHint is left out.
func (c Config) String() string {
	c = c.Normal()
	var b strings.Builder
	fmt.Fprintf(&b, "d=%d n=%d E=%d K=%d w1=%v logits=%v", c.Hidden, c.Intermediate, c.NumExperts, c.TopK, c.GateUp, c.Logits)
	add := func(is bool, text string, args ...any) {
		if is {
			fmt.Fprintf(&b, " "+text, args...)
		}
	}
	add(c.Type != BF16, "type=%v", c.Type)
	add(c.InOut, "order=in-out")
	add(c.Weights != "", "weights=%s", c.Weights)
	add(c.Activation != SwiGLU, "act=%v", c.Activation)
	add(c.Alpha != 0, "alpha=%s", number(c.Alpha))
	add(c.Limit != 0, "limit=%s", number(c.Limit))
	add(c.Bias, "bias")
	add(c.RouterF32, "router=f32")
	add(c.RouterBias, "router-bias")
	add(c.Score != SoftmaxTopK, "score=%v", c.Score)
	add(c.SelectionBias, "selection-bias")
	add(c.Groups != 0 || c.TopGroups != 0, "groups=%d/%d", c.TopGroups, c.Groups)
	add(c.GroupSumOfTwo, "group-score=sum2")
	add(c.Renormalize != NoRenorm, "renorm=%v", c.Renormalize)
	add(c.NormEpsilon != 0, "epsilon=%s", number(c.NormEpsilon))
	add(c.Scale() != 1, "scale=%s", number(c.ScoreScale))
	add(c.ExpertScale, "expert-scale")
	add(c.ScoreOnInput, "score-on-input")
	add(c.SharedExperts != 0, "shared=%d", c.SharedExperts)
	add(c.SharedGate, "shared-gate")
	add(c.Rounds(), "rounding=%v", c.Rounding)
	add(c.Lists, "lists")
	return b.String()
}

// number returns the shortest text that parses to v.
func number(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }
