package spec

// Score is the function from an expert's logit to its raw score p.
//
//	"softmax-topk"   the softmax over the K chosen logits. The zero value "" means
//	                 "softmax-topk". It equals "softmax" with Renormalize "sum" and no
//	                 epsilon, and is cheaper.
//	"softmax"        the softmax over all E logits
//	"sigmoid"        1/(1 + exp(-logit))
//	"sqrt-softplus"  √(log(1 + exp(logit)))
type Score string

// These are the score functions.
const (
	SoftmaxTopK  Score = ""
	SoftmaxAll   Score = "softmax"
	Sigmoid      Score = "sigmoid"
	SqrtSoftplus Score = "sqrt-softplus"
)

// Scores lists the score functions in the order of their numbers in sonicmoe.h.
var Scores = []Score{"softmax-topk", SoftmaxAll, Sigmoid, SqrtSoftplus}

// String returns the word of the function.
func (s Score) String() string { return text(Scores, s) }

// Renorm says by what the raw scores of a token's K experts are divided. sum is the sum of
// these scores.
//
//	"none"   1; the zero value "" means "none"
//	"sum"    sum + NormEpsilon
//	"clamp"  max(sum, NormEpsilon)
type Renorm string

// These are the ways to renormalise.
const (
	NoRenorm    Renorm = ""
	RenormSum   Renorm = "sum"
	RenormClamp Renorm = "clamp"
)

// Renorms lists the ways in the order of their numbers in sonicmoe.h.
var Renorms = []Renorm{"none", RenormSum, RenormClamp}

// String returns the word of r.
func (r Renorm) String() string { return text(Renorms, r) }
