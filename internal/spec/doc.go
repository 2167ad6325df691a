// Package spec describes a Mixture-of-Experts layer in numbers: its
// [Config], the shapes and bytes of its tensors, its operations, the time that
// no kernel can beat, and the configurations whose speed is known.
//
// It is a leaf: it knows no device and no kernel, and everything that speaks of
// a layer speaks in its terms. Package moe gives its names to users.
//
// Symbols: d = Hidden, n = Intermediate, E = NumExperts, K = TopK, T = tokens of
// one call, R = T·K rows (pairs of a token and one of its experts). The method is
// that of SonicMoE (arXiv 2512.14080).
//
// # What a layer computes
//
// "Type" is Config.Type, bf16 or fp16. round(v) is v in Type, to nearest even,
// and f32(v) is v in FP32. Sums and products without either are exact here; the
// kernels sum in FP32, in a fixed order, so they differ from these formulas by
// no more than that. Nothing else is rounded.
//
// Router. Of a token x, for every expert e:
//
//	l_e = format(Σ_c x_c·Wr_ec + br_e)    one rounding, to Config.Logits
//	p_e = f32(score(l))                   the raw score
//
//	SoftmaxTopK    exp(l_e - m) / Σ_chosen exp(l_j - m), m = the largest chosen logit
//	SoftmaxAll     exp(l_e - m) / Σ_all exp(l_j - m), m = the largest logit
//	Sigmoid        1 / (1 + exp(-l_e))
//	SqrtSoftplus   √(log(1 + exp(l_e)))
//
// The formats of logits are those of the models' linear layers: LogitsBF16
// where that runs in bf16 (Mixtral, Qwen, OLMoE, gpt-oss, Granite, Llama-4),
// LogitsF32 where token and weight are widened first (DeepSeek, GLM, Kimi,
// Nemotron) or the weight is FP32 (ERNIE, Hunyuan). Scores are FP32 always; some
// models round them to bf16, which is an error of theirs and not repeated.
//
// Choice. Experts are compared by a key:
//
//	q_e = l_e                 without SelectionBias
//	q_e = f32(p_e + bias_e)   with SelectionBias
//
// Every score grows with its logit, so that without a bias logits and scores
// give the same order; logits also tell apart what one score stands for, as
// sigmoid does for all logits above 17. Of equal keys the lower expert comes
// first, +0 and -0 are equal, and NaN comes before every number, as in
// torch.topk: what is wrong with a router then shows in the output.
//
// With Groups, group g is experts g·E/Groups to (g+1)·E/Groups - 1. Its score is
// its best expert's key (GroupBest), or f32(r_i + r_j) of the two experts with
// the best keys, r = p, or q where there is a SelectionBias (GroupSumOfTwo). The
// TopGroups groups with the largest scores are kept: of equal ones the lower, NaN
// before every number. The other groups' experts can't be chosen, whatever their
// keys.
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
// Shared experts are one expert of width sn = SharedExperts·n, computed alike from
// x, whose weight is g = f32(sigmoid(Σ_c x_c·wg_c)), or 1 without SharedGate.
//
//	O = round(Σ_k s_k·Y_k + g·Y_shared)       slots in order, the shared last
//
// A slot whose expert is outside 0..E-1, which only callers who route themselves
// can have, adds nothing.
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
// In db2 an expert that a token has more than once has the sum of its scores for s.
// act is taken of the saved H. With ScoreOnInput it is taken of s·H:
//
//	dS  = f32(act'(s·H)·dA'·H)
//	dH  = round(s·act'(s·H)·dA')
//	A'  = round(act(s·H))
//
// Derivatives are PyTorch's: that of max(x, 0) is 0 at 0, that of a clamp is 1 on its
// borders.
//
// The router's part, where scores come from it; logits have the gradient of their
// unrounded values, the choice none:
//
//	dv_k = ScoreScale·ExpertScale_e·dS_k,  dExpertScale_e = Σ s_k/ExpertScale_e·dS_k
//	dw_k = (dv_k - Σ_j dv_j·w_j/z) / z        with Renormalize; else dv_k; where
//	                                          RenormClamp's z is NormEpsilon, dv_k/z
//	SoftmaxTopK    dl_k = w_k·(dw_k - Σ_j w_j·dw_j)
//	SoftmaxAll     dl_e = p_e·(dw_e - Σ_k w_k·dw_k), all e; dw_e = 0 of those not chosen
//	Sigmoid        dl_k = w_k·(1 - w_k)·dw_k
//	SqrtSoftplus   dl_k = sigmoid(l_k) / (2·w_k)·dw_k, 0 where w_k is 0
//
// each f32. SelectionBias has no gradient. With other losses' gradients of the
// logits, Config's DLogits, added:
//
//	dWr = Σ dlᵀ·x,  dbr = Σ dl
//	dX  = round(Σ_k round(dX~_k + dl_k·Wr_e) + round(dX~_shared + du·wg) + round(DLogits·Wr))
//
// where du = g·(1 - g)·dg of the shared experts' gate, dwg = Σ du·x. With
// SoftmaxAll dl is dense: it is left out of the pairs' rows and added to DLogits.
// Weights' gradients are FP32 sums, rounded once to the type asked for.
package spec
