package reference

import (
	"math"
	"slices"

	"sonicmoe/moe/spec"
)

// Routing is where tokens go. Row i is for the i-th token asked for.
type Routing struct {
	// Logits is [tokens, E].
	Logits []float64
	// Scores [tokens, K] are the softmax of the selected logits, Experts
	// [tokens, K] whose they are: largest logit first.
	Scores    []float64
	ExpertIDs []int32
}

// Route gives the routing of the listed tokens of x [T, d] (nil: all of them).
//
// A token goes to the K experts with the largest logits; of equal logits the
// lower expert wins (+0 and -0 are equal), and a NaN comes before every number,
// as in torch.topk. A NaN or +Inf makes the scores of a token that selects it NaN.
func (l *Layer) Route(x []uint16, tokens []int32, r Rounding) (Routing, error) {
	tokens, err := l.tokens(x, tokens)
	if err != nil {
		return Routing{}, err
	}
	e, k := l.config.NumExperts, l.config.TopK
	out := Routing{
		Logits:    make([]float64, len(tokens)*e),
		Scores:    make([]float64, len(tokens)*k),
		ExpertIDs: make([]int32, len(tokens)*k),
	}
	for first := 0; first < len(tokens); first += routeTokens {
		last := min(first+routeTokens, len(tokens))
		l.route(Routing{out.Logits[first*e : last*e], out.Scores[first*k : last*k], out.ExpertIDs[first*k : last*k]},
			l.tokenRows(x, tokens[first:last]), r)
	}
	return out, nil
}

// routeTokens bounds the tokens that are decoded at a time, and
// routeGroup those of one task.
const (
	routeTokens = 2048
	routeGroup  = 64
)

// route fills out, for decoded tokens.
func (l *Layer) route(out Routing, rows [][]float64, r Rounding) {
	var groups []group
	for i := 0; i < len(rows); i += routeGroup {
		groups = append(groups, group{first: i, count: min(routeGroup, len(rows)-i), weights: l.router})
	}
	e, k := l.config.NumExperts, l.config.TopK
	logits := product(rows, groups, e, l.config.Hidden)
	parallel(len(rows), func() func(int) {
		return func(i int) {
			row := out.Logits[i*e:][:e]
			copy(row, logits[i])
			if r == Rounded {
				l.roundLogits(row)
			}
			experts := out.ExpertIDs[i*k:][:k]
			TopK(experts, row)
			softmax(out.Scores[i*k:][:k], row, experts, r)
		}
	})
}

func (l *Layer) roundLogits(row []float64) {
	for i, v := range row {
		if l.config.Logits == spec.LogitsF32 {
			row[i] = float64(float32(v))
		} else {
			row[i] = roundBF16(v)
		}
	}
}

// TopK fills experts with the indices of the largest logits, largest first: of
// equal ones the lower index first, NaN before everything else. len(experts)
// must not be larger than len(logits); more stay as they were.
func TopK(experts []int32, logits []float64) {
	order := make([]int32, len(logits))
	for i := range order {
		order[i] = int32(i)
	}
	slices.SortStableFunc(order, func(a, b int32) int {
		x, y := logits[a], logits[b]
		switch {
		case x > y || x != x && y == y:
			return -1
		case x < y || x == x && y != y:
			return 1
		}
		return 0
	})
	copy(experts, order)
}

// softmax gives the scores of the selected logits, the largest first.
func softmax(scores, logits []float64, experts []int32, r Rounding) {
	most := logits[experts[0]]
	var sum float64
	for j, e := range experts {
		scores[j] = math.Exp(logits[e] - most)
		sum += scores[j]
	}
	for j := range scores {
		scores[j] /= sum
		if r == Rounded {
			scores[j] = float64(float32(scores[j]))
		}
	}
}
