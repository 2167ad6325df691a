package spec

// Score is the function from an expert's logit to its raw score p.
//
//	"softmax-topk"   the softmax over the K chosen logits; the zero value, "", means
//	                 it. It equals "softmax" with Renormalize "sum" and no epsilon,
//	                 and is cheaper.
//	"softmax"        the softmax over all E logits
//	"sigmoid"        1/(1 + exp(-logit))
//	"sqrt-softplus"  √(log(1 + exp(logit)))
type Score string

// The scores.
const (
	SoftmaxTopK  Score = ""
	SoftmaxAll   Score = "softmax"
	Sigmoid      Score = "sigmoid"
	SqrtSoftplus Score = "sqrt-softplus"
)

// Scores are the words, in the order of sonicmoe.h's numbers.
var Scores = []Score{"softmax-topk", SoftmaxAll, Sigmoid, SqrtSoftplus}

// String returns the function's word.
func (s Score) String() string { return text(Scores, s) }

// Renorm says how the raw scores of a token's K experts are divided by their sum.
//
//	"none"   not at all; the zero value, "", means it
//	"sum"    by sum + NormEpsilon
//	"clamp"  by max(sum, NormEpsilon)
type Renorm string

// The ways to renormalise.
const (
	NoRenorm    Renorm = ""
	RenormSum   Renorm = "sum"
	RenormClamp Renorm = "clamp"
)

// Renorms are the words, in the order of sonicmoe.h's numbers.
var Renorms = []Renorm{"none", RenormSum, RenormClamp}

// String returns the rule's word.
func (r Renorm) String() string { return text(Renorms, r) }
