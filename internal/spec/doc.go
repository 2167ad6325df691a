// Package spec describes a Mixture-of-Experts layer in numbers: its
// [Config], the table of its tensors with their shapes, its operations and its
// roofline.
//
// Package spec is a leaf: it imports no package of this module, and does not depend
// on devices or kernels. Package moe exports its names.
//
// Symbols: d = Hidden, n = Intermediate, E = NumExperts, K = TopK, T = tokens of
// one call, R = T·K rows (pairs of a token and one of its experts). The method is
// SonicMoE's (arXiv 2512.14080).
//
// # What a layer computes
//
// "Type" is Config.Type, bf16 or fp16. round(v) is v in Type, to nearest even,
// and f32(v) is v in FP32. Sums and products without either are exact here; the
// kernels sum in FP32, in a fixed order. Nothing else is rounded.
//
// Router. For a token x and every expert e:
//
//	l_e = format(Σ_c x_c·Wr_ec + br_e)    one rounding, to Config.Logits
//	p_e = f32(score(l))                   the raw score
//
//	SoftmaxTopK    exp(l_e - m) / Σ_chosen exp(l_j - m), m = the largest chosen logit
//	SoftmaxAll     exp(l_e - m) / Σ_all exp(l_j - m), m = the largest logit
//	Sigmoid        1 / (1 + exp(-l_e))
//	SqrtSoftplus   √(log(1 + exp(l_e)))
//
// The logits have the format of the model's linear layer: bf16 if the layer
// runs in bf16 (Mixtral, Qwen, OLMoE, gpt-oss, Granite, Llama-4), f32 if token
// and weight are widened first (DeepSeek, GLM, Kimi, Nemotron) or the weight is FP32
// (ERNIE, Hunyuan). Scores are always FP32, also for models that round scores to
// bf16.
//
// Choice. Experts are compared by a key:
//
//	q_e = l_e                 without SelectionBias
//	q_e = f32(p_e + bias_e)   with SelectionBias
//
// Every score grows with its logit. Without a bias, logits and scores therefore give
// the same order, and logits also distinguish experts whose scores are equal: the
// sigmoid is 1 for all logits above 17. If keys are equal, the lower expert comes
// first. +0 and -0 are equal. NaN comes before every number, as in torch.topk: an
// error in a router then shows in the output.
//
// With Groups, group g is experts g·E/Groups to (g+1)·E/Groups - 1. Its score is
// its best expert's key, or f32(r_i + r_j) of the two experts with
// the best keys, r = p, or q where there is a SelectionBias, with GroupSumOfTwo. The
// TopGroups groups with the largest scores are kept, with the same order for equal
// scores and NaN. Experts of other groups are never chosen.
//
// The K experts with the best keys are chosen; slot k of a token is the k-th best.
//
// Scores. With w_k = p of the chosen experts, without selection bias:
//
//	s_k = f32(w_k / z · ScoreScale · ExpertScale_e)
//
//	NoRenorm     z = 1
//	RenormSum    z = Σ_k w_k + NormEpsilon
//	RenormClamp  z = max(Σ_k w_k, NormEpsilon)
//
// A row's raw scores can all underflow to 0 (sigmoid of logits below -104). Then z
// is NormEpsilon and the scores are 0; with NormEpsilon = 0 they are 0/0 = NaN,
// as in PyTorch. A softmax over a +Inf, a NaN, or over -Inf alone is NaN in every
// score; a sigmoid of +Inf is 1 and of -Inf is 0, √softplus +Inf and 0; a NaN
// logit is NaN in its own expert's score, and with Renormalize in all of the token.
//
// Experts. For each of a token's K pairs, with a = x·W1_eᵀ + b1_e split into gate
// and up:
//
//	H = round(a)                              saved for backward
//	A = round(act(a))                         of a, not of H
//	Y = round(A·W2_eᵀ + b2_e)
//
// With ScoreOnInput A = round(act(s·a)), where s·a is (s·x)·W1_eᵀ without rounding
// s·x, and the pair's weight below is 1 instead of s.
//
// The shared experts are one expert of width sn = SharedExperts·n. Its output is
// computed from x in the same way, with weight g = f32(sigmoid(Σ_c x_c·wg_c)), or 1
// without SharedGate.
//
//	O = round(Σ_k s_k·Y_k + g·Y_shared)       slots in order, the shared last
//
// A slot with an expert outside 0..E-1 adds nothing. Only a routing that the caller
// gives can have such a slot.
//
// Packed weights. With Weights other than "plain" the experts compute as above with the
// weights
//
//	w = round(f32(code·scale))
//
// for every number of tokens. f32 and round change nothing if the format is exact; see
// [Packing].
//
// # Gradients
//
// From dO of a token, for each of its pairs:
//
//	dA' = dO·W2_e                             without the score
//	dS  = f32(dA'·act(H) + dO·b2_e)
//	dH  = round(s·act'(H)·dA')
//	A'  = round(s·act(H))
//	dW1_e = Σ dHᵀ·x,  dW2_e = Σ dOᵀ·A',  db1_e = Σ dH,  db2_e = Σ round(s)·dO
//	dX~ = dH·W1_e
//
// In db2, s is the sum of the scores if a token has the expert more than once.
// act is applied to the saved H. With ScoreOnInput it is applied to s·H:
//
//	dS  = f32(act'(s·H)·dA'·H)
//	dH  = round(s·act'(s·H)·dA')
//	A'  = round(act(s·H))
//
// Derivatives are PyTorch's: the derivative of max(x, 0) is 0 at 0, the derivative of
// a clamp is 1 at its bounds.
//
// The router's gradients, if the scores come from the router. Rounding of logits is
// ignored, and the choice has no gradient:
//
//	dv_k = ScoreScale·ExpertScale_e·dS_k,  dExpertScale_e = Σ s_k/ExpertScale_e·dS_k
//	dw_k = (dv_k - Σ_j dv_j·w_j/z) / z        with Renormalize; else dv_k; where
//	                                          RenormClamp's z is NormEpsilon, dv_k/z
//	SoftmaxTopK    dl_k = w_k·(dw_k - Σ_j w_j·dw_j)
//	SoftmaxAll     dl_e = p_e·(dw_e - Σ_k w_k·dw_k), all e; dw_e = 0 of those not chosen
//	Sigmoid        dl_k = w_k·(1 - w_k)·dw_k
//	SqrtSoftplus   dl_k = sigmoid(l_k) / (2·w_k)·dw_k, 0 where w_k is 0
//
// each f32. SelectionBias and packed weights have no gradient. DLogits, the gradients of other losses
// with respect to the logits, are added:
//
//	dWr = Σ dlᵀ·x,  dbr = Σ dl
//	dX  = round(Σ_k round(dX~_k + dl_k·Wr_e) + round(dX~_shared + du·wg) + round(DLogits·Wr))
//
// with du = g·(1 - g)·dg for the shared experts' gate, and dwg = Σ du·x. With
// SoftmaxAll dl is dense: it is added to DLogits, not to the rows of the pairs.
// Weights' gradients are FP32 sums, rounded once to the type asked for.
package spec
