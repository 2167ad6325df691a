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
	// MaxWidth bounds Hidden, Intermediate and the width of the shared experts. With this bound
	// every byte count of a layer with up to 2^31 tokens fits in an int64.
	MaxWidth = 1 << 20
	// MaxRows bounds the number of rows T·K of a call (T tokens with K experts each), because
	// row numbers are signed 32-bit integers on the device.
	MaxRows = 1<<31 - 1
)

// WidthStep divides Hidden and Intermediate. It is the depth (k) of one tensor-core
// instruction, and makes every row a multiple of 32 bytes.
const WidthStep = 16

// Config is one Mixture-of-Experts layer. It has a router and E experts, each an MLP with the
// widths d → n → d. Every token uses K of the experts, and all shared experts. Config is
// comparable. The package's documentation gives the mathematics.
//
// The zero value of every field except the four sizes gives the layer of Mixtral and Qwen3-MoE:
// softmax over the chosen logits, SwiGLU, no biases, bf16.
type Config struct {
	// Hidden is d, the width of a token: a multiple of 16.
	Hidden int
	// Intermediate is n, the width of one expert: a multiple of 16.
	Intermediate int
	// NumExperts is E, the number of experts without the shared ones: 1 to 1024.
	NumExperts int
	// TopK is K, the number of experts of one token: 1 to 32, and at most NumExperts.
	TopK int

	// Type is the element type of tokens, weights and activations: BF16 or F16.
	Type Type
	// GateUp says where gate and up are in W1.
	GateUp GateUp
	// InOut swaps the last two dimensions of W1, W3 and W2. They are then W1 [E, d, 2n] and W2
	// [E, n, d], as in gpt-oss and Llama-4. Otherwise they are W1 [E, 2n, d] and W2 [E, d, n],
	// as in torch.nn.Linear. InOut does not affect the router and the shared experts, which are
	// always [out, in].
	InOut bool
	// Weights is the format of W1, W3 and W2. With "plain" they have the layer's Type. Every
	// other format is packed: W1, W3 and W2 are U8 tensors of codes, and their scales are the
	// tensors W1Scale, W3Scale and W2Scale. With packed weights InOut must be false, Type must
	// be BF16 (a format of 4-bit integers also allows F16), and these weights have no
	// gradients. A code c with the scale s of its block is the number of Type nearest to the
	// FP32 product c·s. The product is exact in bf16 where the list says "exact".
	//
	//	"plain"      the layer's Type; the zero value "" means "plain"
	//	"mxfp4"      code E2M1, a scale E8M0 for each 32 inputs, as in gpt-oss; exact
	//	"fp8"        code E4M3, a scale FP32 for each block of 128 x 128, as in DeepSeek-V3
	//	"fp8-ue8m0"  as "fp8", but the scale is E8M0; exact
	//	"int4-g32"   code 4 bits, minus 8, a scale bf16 for each 32 inputs, as in Kimi-K2-Thinking
	//	"int4-g128"  as "int4-g32", for each 128 inputs
	//	"fp8-tensor" code E4M3, a scale FP32 for each expert's matrix
	//	"nvfp4"      code E2M1, a scale E4M3 for each 16 inputs. s is the FP32 product of
	//	             the scale and an FP32 for each expert's matrix, in W1Global, W3Global
	//	             and W2Global, as in files of ModelOpt.
	//	"uint4-g32", "uint4-g128"  code 4 bits, minus a zero point from 0 to 15, which is a
	//	             byte of W1Zero, W3Zero or W2Zero. Each 32 or 128 inputs have a zero
	//	             point and a scale bf16, as in AWQ and GPTQ.
	//	"uint4-g32-f16", "uint4-g128-f16"  as "uint4-g32" and "uint4-g128", with scales f16
	Weights string

	// LoRARank, unless 0, adds a low-rank adapter (LoRA, arXiv 2106.09685) to both products
	// of the routed experts. r = LoRARank is a multiple of 4 up to 128. LoRAAlpha/r multiplies
	// the adapter's product, or LoRAAlpha/√r with RSLoRA (arXiv 2312.03732). W1, W3 and W2 may
	// be packed. If r is no multiple of 8, each pass copies the factors to the workspace and pads
	// them there. To use an adapter of any other rank, pad its factors with zeros, and multiply its
	// alpha by LoRARank over its rank, or by the root of that with RSLoRA. The factors have the
	// layer's Type: a program that keeps them in FP32 rounds them before each pass, and may take
	// their gradients in FP32. An adapter has no dropout: see examples/bench/h200/experiments.md.
	// Passes over few tokens run the kernels of large batches, and packed weights have no units. To
	// serve the adapter, copy its factors to a layer with LoRAAdapters.
	LoRARank  int
	LoRAAlpha float64
	RSLoRA    bool
	// LoRAAdapters, unless 0, is the number of places of a table of adapters, for serving: up to
	// 4096. All adapters have the rank LoRARank. ForwardArgs.AdapterIDs names the place of each
	// token's adapter, or none. Each tensor of a factor has this factor of all places. LoraScales
	// has the scale of each place. It replaces LoRAAlpha and RSLoRA, which must be 0 and false. To
	// add or remove an adapter, write to these tensors. Such a layer has no backward pass.
	LoRAAdapters int

	// Activation is applied between an expert's two products. Limit clamps the inputs of
	// "swiglu-oai", and those of "swiglu" if Limit is not 0. Alpha is a parameter of
	// "swiglu-oai".
	Activation   Activation
	Alpha, Limit float64
	// Bias adds biases to the two products of the experts: b1 [E, 2n] (or [E, n] without a
	// gate) and b2 [E, d]. Shared experts have no biases.
	Bias bool

	// Logits is the number format of the router's logits: Type, as in a linear layer of
	// PyTorch, or F32. Experts are compared by logits in this format, and scores are computed
	// from them. The router product is always summed in FP32 and rounded once.
	Logits Type
	// RouterF32 makes the router's weights FP32 instead of the layer's Type, as in ERNIE-4.5,
	// Hunyuan and MiniMax-M2. Logits must then be F32.
	RouterF32 bool
	// RouterBias adds a bias [E] f32 to the logits.
	RouterBias bool
	// Score is the function from logits to raw scores.
	Score Score
	// SelectionBias adds a bias [E] f32 to the raw scores for the choice of experts, and
	// nowhere else. The bias has no gradient. Auxiliary-loss-free load balancing (arXiv
	// 2408.15664) adjusts it: see moe.Call.UpdateSelectionBias.
	SelectionBias bool
	// Groups is the number of groups of equal size into which the experts are split in order; 0
	// means no groups. A token uses only experts of the TopGroups best groups.
	Groups, TopGroups int
	// GroupSumOfTwo makes a group's score the sum of the raw scores of its two best experts,
	// including selection biases (DeepSeek-V3). Otherwise a group's score is the key of its
	// best expert, by which experts are compared (DeepSeek-V2).
	GroupSumOfTwo bool
	// Renormalize divides the raw scores of the chosen experts by their sum. NormEpsilon is
	// added to the sum or is its lower bound.
	Renormalize Renorm
	NormEpsilon float64
	// ScoreScale multiplies the scores; 0 means 1.
	ScoreScale float64
	// ExpertScale also multiplies each score by an element of a tensor [E] f32, one for each
	// expert (Gemma-4).
	ExpertScale bool
	// ScoreOnInput multiplies an expert's input by the score, and sums the experts'
	// outputs with weight 1 (Llama-4).
	ScoreOnInput bool

	// SharedExperts is the number of experts that every token uses, each of width Intermediate.
	// They are stored as one MLP that has the neurons of all of them.
	SharedExperts int
	// SharedGate multiplies the output of the shared experts by sigmoid(x·wg) for a token x and
	// a weight vector wg (Qwen2-MoE).
	SharedGate bool

	// Rounding changes which tokens go to an expert, so that the expert gets whole tiles of
	// tokens or keeps to its capacity. Its raw scores are a softmax over all logits.
	Rounding Rounding
	// Lists adds the kernels for a routing that is given as a list of (token, expert) pairs. In
	// such a list a token has any number of experts.
	Lists bool

	// TokensHint is the number of tokens expected in one call, or 0 if unknown. It affects only
	// the choice of tile shapes, not what is computed or allowed.
	TokensHint int
}

// HWidth returns the width of the pre-activation H: 2n, or n without a gate.
func (c Config) HWidth() int { return c.HParts() * c.Intermediate }

// HParts returns the number of parts of H: 2 (gate and up), or 1 without a gate.
func (c Config) HParts() int {
	if c.Activation.Gated() {
		return 2
	}
	return 1
}

// SharedWidth returns the width of all shared experts together, or 0 without shared experts.
func (c Config) SharedWidth() int { return c.SharedExperts * c.Intermediate }

// Shared returns the shared experts as a layer with one expert that all tokens use, and reports
// whether there are shared experts. It keeps SharedGate: the gate's weight is the router of the
// returned layer.
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

// Scale returns ScoreScale, or 1 if ScoreScale is 0.
func (c Config) Scale() float64 {
	if c.ScoreScale == 0 {
		return 1
	}
	return c.ScoreScale
}

// SavesLogits reports whether a backward pass through the router needs the logits [T, E] of the
// forward pass. The score "softmax-topk" does not need them, because its gradient follows from
// the scores. With ExpertScale it needs them, because a scale of 0 makes a score 0.
func (c Config) SavesLogits() bool { return normal(Scores, c.Score) != SoftmaxTopK || c.ExpertScale }

// HasLists reports whether the layer has the kernels for routings given as lists.
func (c Config) HasLists() bool { return c.Lists || c.Rounds() }

// Rounds reports whether the layer has the kernels for a rounding rule.
func (c Config) Rounds() bool { return normal(RoundingRules, c.Rounding.Rule) != NoRounding }

// String returns a short form with every field that affects what is computed: "d=1536 n=256
// E=128 K=8 w1=concatenated logits=bf16", followed by each other field that is not zero. It
// leaves out TokensHint.
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
	add(c.LoRARank != 0, "lora=%d", c.LoRARank)
	add(c.LoRAAlpha != 0, "lora-alpha=%s", number(c.LoRAAlpha))
	add(c.RSLoRA, "rslora")
	add(c.LoRAAdapters != 0, "adapters=%d", c.LoRAAdapters)
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
