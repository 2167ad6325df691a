// Package spec describes a Mixture-of-Experts layer in numbers: its
// [Config], the table of its tensors with their shapes, its operations and its
// roofline.
//
// Package spec is a leaf: it imports no package of this module, and does not depend
// on devices or kernels. Package moe exports its names.
//
// # Symbols
//
//	d  Hidden         width of a token
//	n  Intermediate   width of an expert
//	E  NumExperts
//	K  TopK           experts of a token
//	T  tokens of one call
//	R  T·K            rows; a row is a pair of a token and one of its experts
//
// x is a token, [d]. e is an expert. k is a slot of a token, from 0 to K-1: the k-th of its
// experts. v_k is the value of v in slot k. W1_e, W2_e, b1_e and b2_e are the weights and
// biases of expert e. The method is SonicMoE's (arXiv 2512.14080).
//
// # What a layer computes
//
// Two functions round. round(v) is v in Config.Type (bf16 or fp16), to nearest even. f32(v) is v
// in FP32. Arithmetic outside of both is exact in this definition. The kernels sum in FP32, in a
// fixed order, and round nothing else.
//
// # Router
//
// For a token x and every expert e:
//
//	l_e = format(Σ_c x_c·Wr_ec + br_e)    the logit, rounded once to Config.Logits
//	p_e = f32(score(l_e))                 the raw score
//
// score is a function of all logits of the token:
//
//	SoftmaxTopK    exp(l_e - m) / Σ_chosen exp(l_j - m), m = the largest chosen logit
//	SoftmaxAll     exp(l_e - m) / Σ_all exp(l_j - m), m = the largest logit
//	Sigmoid        1 / (1 + exp(-l_e))
//	SqrtSoftplus   √(log(1 + exp(l_e)))
//
// Config.Logits is the format that the published model's router computes in. It is bf16 if the
// linear layer runs in bf16 (Mixtral, Qwen, OLMoE, gpt-oss, Granite, Llama-4). It is f32 if the
// model widens token and weight first (DeepSeek, GLM, Kimi, Nemotron) or if the weight is FP32
// (ERNIE, Hunyuan). Scores are always FP32, also for models that round scores to bf16.
//
// # Choice
//
// Experts are compared by a key:
//
//	q_e = l_e                 without SelectionBias
//	q_e = f32(p_e + bias_e)   with SelectionBias
//
// The logit is the key because every score grows with its logit, and because different logits
// can have equal scores: in FP32 the sigmoid is 1 for all logits above 17.
//
// If two keys are equal, the lower expert comes first. +0 equals -0. NaN comes before every number,
// as in torch.topk: an error in a router then shows in the output.
//
// With Groups, expert e is in group e / (E/Groups), and each group has a score. The group's score
// is its largest key. With GroupSumOfTwo the group's score is f32(r_i + r_j) for its experts i and
// j with the two largest keys, where r is the key with SelectionBias and the raw score without. The
// TopGroups groups with the largest scores are kept. Equal scores and NaN are ordered like keys.
// Experts of other groups are never chosen.
//
// The K experts with the largest keys are chosen. Slot 0 has the largest.
//
// # Scores
//
// w_k is the raw score p of the expert in slot k. The selection bias is not part of it.
//
//	s_k = f32(w_k / z · ScoreScale · ExpertScale_e)
//
//	NoRenorm     z = 1
//	RenormSum    z = Σ_k w_k + NormEpsilon
//	RenormClamp  z = max(Σ_k w_k, NormEpsilon)
//
// All raw scores of a token can underflow to 0, for example sigmoids of logits below -104. The
// scores are then 0 if NormEpsilon is above 0. Otherwise they are 0/0 = NaN, as in PyTorch.
//
// Logits that are not finite give these raw scores:
//
//	              +Inf   -Inf                            NaN
//	softmax       NaN    0; NaN if all logits are -Inf   NaN
//	Sigmoid       1      0                               NaN
//	SqrtSoftplus  +Inf   0                               NaN
//
// In a softmax, one NaN or +Inf makes every score of the token NaN. In the other functions, a NaN
// stays in its own expert's score, unless Renormalize divides by a sum that contains it.
//
// # Experts
//
// For each slot of a token, with expert e and score s. a is the pre-activation. act is the
// activation function of a, with two halves gate and up for a gated function; see [Activation]:
//
//	a = x·W1_eᵀ + b1_e
//	H = round(a)                              saved for backward
//	A = round(act(a))                         act takes a, which is not rounded
//	Y = round(A·W2_eᵀ + b2_e)
//
// ScoreOnInput multiplies the token, instead of Y, by the score. s·(x·W1_eᵀ) is (s·x)·W1_eᵀ, so
// the kernels multiply a and never round s·x. H stays as above, and the output adds Y with weight 1:
//
//	A = round(act(s·a))
//
// The shared experts are one expert of width SharedExperts·n, which every token has. Y_shared is
// computed from x like Y without ScoreOnInput. Its weight g is 1, or with SharedGate:
//
//	g = f32(sigmoid(Σ_c x_c·wg_c))
//
// The output adds the slots in order, then the shared experts:
//
//	O = round(Σ_k s_k·Y_k + g·Y_shared)
//
// A slot adds nothing if its expert is outside 0..E-1. Only a routing given by the caller can have
// such a slot.
//
// # Adapters
//
// With LoRARank r, a multiple of 4, each expert has the factors A1 [r, d], B1 with the rows of W1, A2 [r, n] and
// B2 [d, r]. The factor c is f32(LoRAAlpha/r), or f32(LoRAAlpha/√r) with RSLoRA. a and Y become
//
//	u1 = round(f32(c·(x·A1_eᵀ)))
//	a  = x·W1_eᵀ + u1·B1_eᵀ + b1_e
//	u2 = round(f32(c·(A·A2_eᵀ)))
//	Y  = round(A·W2_eᵀ + u2·B2_eᵀ + b2_e)
//
// With LoRAAdapters, a token t has the factors of the place i = AdapterIDs[t] of the table, and c is
// LoraScales[i]. The adapter is added to the results of the layer without it:
//
//	H = round(round(a) + u1·B1_eᵀ)
//	A = round(act(round(a) + u1·B1_eᵀ))
//	Y = round(round(A·W2_eᵀ + b2_e) + u2·B2_eᵀ)
//
// Tokens without an adapter have the bits of the layer without the table.
//
// If B1 and B2 are 0 and u1 and u2 are finite, H and O have the bits of the layer without the
// adapter. Shared experts have no adapter.
//
// # Packed weights
//
// With Weights other than "plain", each weight is stored as a code and a scale, and the experts
// compute as above with
//
//	w = round(f32(code·scale))
//
// This holds for every number of tokens. Formats whose code·scale is a number of Config.Type lose
// nothing to either rounding; see [Packing].
//
// # Gradients of the experts
//
// The gradient of a tensor has the tensor's name with a d before it: dO is the gradient of O. For
// each slot of a token, with expert e and score s:
//
//	dA  = dO·W2_e                             without the score
//	dS  = f32(dA·act(H) + dO·b2_e)            the gradient of s
//	dH  = round(s·act'(H)·dA)                 act' is the derivative of act
//	As  = round(s·act(H))                     A times the score, for dW2
//	dX_k = dH·W1_e                            the slot's part of dX
//
// The gradients of an expert's weights sum over its rows:
//
//	dW1_e = Σ dHᵀ·x,  dW2_e = Σ dOᵀ·As,  db1_e = Σ dH,  db2_e = Σ round(s)·dO
//
// They are FP32 sums, rounded once to the type that the caller asks for. If a token has the expert
// in several slots, db2 rounds the sum of these slots' scores.
//
// With ScoreOnInput the activation was applied to s·a, so it is applied to s·H here:
//
//	dS  = f32(act'(s·H)·dA·H)
//	dH  = round(s·act'(s·H)·dA)
//	As  = round(act(s·H))
//
// Derivatives are PyTorch's: the derivative of max(x, 0) is 0 at 0, and the derivative of a clamp
// is 1 at its bounds. Packed weights have no gradient.
//
// # Gradients of the router
//
// The router has gradients if the pass used its scores. The rounding of logits counts as the
// identity, and the choice has no gradient, so SelectionBias has none. First the gradients of s_k
// become gradients of the raw scores w_k. z is the divisor above, and dv_k the gradient of w_k/z:
//
//	dv_k = ScoreScale·ExpertScale_e·dS_k
//	dExpertScale_e = Σ s_k/ExpertScale_e·dS_k  over the tokens that have e
//
//	dw_k = dv_k                                NoRenorm
//	dw_k = dv_k / z                            RenormClamp, where z is NormEpsilon
//	dw_k = (dv_k - Σ_j dv_j·w_j/z) / z         otherwise
//
// Then they become gradients of the logits, in FP32:
//
//	SoftmaxTopK    dl_k = w_k·(dw_k - Σ_j w_j·dw_j)
//	SoftmaxAll     dl_e = p_e·(dw_e - Σ_k w_k·dw_k) for every e; dw_e = 0 if e is not chosen
//	Sigmoid        dl_k = w_k·(1 - w_k)·dw_k
//	SqrtSoftplus   dl_k = sigmoid(l_k) / (2·w_k)·dw_k, 0 where w_k is 0
//
// DLogits [T, E] has the gradients of other losses with respect to the logits, and with SoftmaxAll
// also dl, which is then dense. Below, dl_k stands for the gradients of the chosen logits, and is 0
// with SoftmaxAll:
//
//	dWr = Σ (dl + DLogits)ᵀ·x,  dbr = Σ (dl + DLogits)
//
// # Gradient of the tokens
//
//	dX = round(Σ_k round(dX_k + dl_k·Wr_e) + round(dX_shared + du·wg) + round(DLogits·Wr))
//
// dX_shared is dH·W1 of the shared experts. u = Σ_c x_c·wg_c is the input of the shared gate's
// sigmoid, and dg is the shared experts' dS:
//
//	du = g·(1 - g)·dg,  dwg = Σ du·x
package spec
