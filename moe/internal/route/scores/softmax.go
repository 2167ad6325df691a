package scores

import (
	"math"

	"sonicmoe/internal/spec"
	"sonicmoe/moe/internal/lanes"
	"sonicmoe/ptx"
)

// Softmax is the softmax over all logits of a token, computed by one warp. Lane l has the
// experts l, l+32, l+64 and so on.
type Softmax struct {
	K       *ptx.Kernel
	Experts int
	Format  spec.Type
	Lane    ptx.U32
}

// PerLane returns the number of experts of a lane.
func (s Softmax) PerLane() int { return (s.Experts + lanes.Count - 1) / lanes.Count }

// Probabilities loads the token's logits and returns the probabilities of the lane's
// experts. Past the last expert they are 0.
func (s Softmax) Probabilities(logits ptx.Global, token ptx.U32) []ptx.F32 {
	return s.OfLogits(s.Load(logits, token))
}

// Load loads the token's logits of the lane's experts; they are -Inf past the last expert.
func (s Softmax) Load(logits ptx.Global, token ptx.U32) (values []ptx.F32) {
	k := s.K
	row := logits.Index(token, int(s.Format.Bytes())*s.Experts)
	for i := range s.PerLane() {
		expert, v := s.Lane.AddI(lanes.Count*i), ptx.NewVar(k, ptx.Float(math.Inf(-1)))
		k.If(expert.LtI(s.Experts), func() { v.Set(LoadLogit(s.Format, row, expert)) })
		values = append(values, v.Get())
	}
	return values
}

// OfLogits turns the logits of the lane's experts into probabilities, in place.
func (s Softmax) OfLogits(values []ptx.F32) []ptx.F32 {
	largest := ptx.Float(math.Inf(-1))
	for _, v := range values {
		largest = lanes.Larger(largest, v)
	}
	largest = lanes.Max(largest)
	sum := ptx.Float(0)
	for i, v := range values {
		values[i] = Exp(v.Sub(largest))
		sum = sum.Add(values[i])
	}
	inverse := lanes.Sum(sum).RcpApprox(".ftz")
	for i, v := range values {
		values[i] = v.Mul(inverse)
	}
	return values
}
