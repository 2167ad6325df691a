package reference

import (
	"fmt"
	"slices"

	"sonicmoe/internal/spec"
)

// Routing is the routing of a list of tokens. Row i belongs to the i-th token of the list.
type Routing struct {
	// Logits is [tokens, E], for the layer's E experts.
	Logits []float64
	// ExpertIDs [tokens, K] are the K experts that a token chose, the one with the largest key
	// first (see [Layer.Keys]). Scores [tokens, K] are the scores of these experts.
	Scores    []float64
	ExpertIDs []int32
}

// Route returns the routing of a list of tokens of x [T, d], or of all tokens if tokens is nil.
// Package spec defines the routing.
func (l *Layer) Route(x []uint16, tokens []int32, r Rounding) (Routing, error) {
	tokens, err := l.tokens(x, tokens)
	if err != nil {
		return Routing{}, err
	}
	logits := make([]float64, len(tokens)*l.config.NumExperts)
	l.eachLogits(x, tokens, rounder{r, l.config}, func(i int, row []float64) {
		copy(logits[i*l.config.NumExperts:], row)
	})
	return l.RouteLogits(logits, r)
}

// RouteLogits returns the routing of tokens with the given logits [tokens, E]. It does not
// round the logits.
func (l *Layer) RouteLogits(logits []float64, r Rounding) (Routing, error) {
	e, k := l.config.NumExperts, l.config.TopK
	if len(logits)%e != 0 {
		return Routing{}, &spec.ArgError{Field: "logits", Got: elements(len(logits)), Want: fmt.Sprintf("[T, %d]", e)}
	}
	tokens, round := len(logits)/e, rounder{r, l.config}
	out := Routing{Logits: logits, Scores: make([]float64, tokens*k), ExpertIDs: make([]int32, tokens*k)}
	each(tokens, func(i int) {
		row, experts := logits[i*e:][:e], out.ExpertIDs[i*k:][:k]
		raw := l.rawScores(row, nil, round)
		l.choose(experts, row, raw, round)
		if raw == nil {
			raw = l.rawScores(row, experts, round)
		}
		l.scores(out.Scores[i*k:][:k], raw, experts, round)
	})
	return out, nil
}

// routeTokens is the largest number of tokens decoded at a time. routeGroup is the number of
// tokens of one task.
const (
	routeTokens = 2048
	routeGroup  = 64
)

// eachLogits calls do for each token of the list, in order, with the token's index in the list
// and its logits.
func (l *Layer) eachLogits(x []uint16, tokens []int32, r rounder, do func(i int, logits []float64)) {
	for first := 0; first < len(tokens); first += routeTokens {
		rows := l.tokenRows(x, tokens[first:min(first+routeTokens, len(tokens))])
		var groups []group
		for i := 0; i < len(rows); i += routeGroup {
			groups = append(groups, group{first: i, count: min(routeGroup, len(rows)-i), weights: l.router})
		}
		for i, row := range product(rows, groups, l.config.NumExperts, l.config.Hidden) {
			for e := range row {
				if l.routerBias != nil {
					row[e] += l.routerBias[e]
				}
				row[e] = r.logit(row[e])
			}
			do(first+i, row)
		}
	}
}

// choose writes a token's experts to experts, the best first. raw are the raw scores. It may be
// nil if experts are compared by logits alone.
func (l *Layer) choose(experts []int32, logits, raw []float64, r rounder) {
	c := l.config
	keys, sums := l.keys(logits, raw, r), raw
	if c.SelectionBias {
		sums = keys
	}
	if c.Groups == 0 {
		TopK(experts, keys)
		return
	}
	size := c.NumExperts / c.Groups
	groups := make([]float64, c.Groups)
	for g := range groups {
		if !c.GroupSumOfTwo {
			var best [1]int32
			TopK(best[:], keys[g*size:][:size])
			groups[g] = keys[g*size+int(best[0])]
			continue
		}
		var best [2]int32
		TopK(best[:], keys[g*size:][:size])
		groups[g] = r.f32(sums[g*size+int(best[0])] + sums[g*size+int(best[1])])
	}
	kept := make([]int32, c.TopGroups)
	TopK(kept, groups)
	slices.Sort(kept)
	var from []int32
	var of []float64
	for _, g := range kept {
		for e := int(g) * size; e < (int(g)+1)*size; e++ {
			from, of = append(from, int32(e)), append(of, keys[e])
		}
	}
	TopK(experts, of)
	for i, at := range experts {
		experts[i] = from[at]
	}
}

// Keys returns the keys, [E], of a token with the given logits. The token chooses the experts
// with the largest keys.
func (l *Layer) Keys(logits []float64, r Rounding) []float64 {
	round := rounder{r, l.config}
	return l.keys(logits, l.rawScores(logits, nil, round), round)
}

func (l *Layer) keys(logits, raw []float64, r rounder) []float64 {
	if !l.config.SelectionBias {
		return logits
	}
	keys := make([]float64, len(raw))
	for e, p := range raw {
		keys[e] = r.f32(p + l.selectionBias[e])
	}
	return keys
}

// TopK writes the indices of the largest logits to experts, the largest logit first. If logits
// are equal, the lower index comes first. NaN comes before all, as in torch.topk. len(experts) must
// not exceed len(logits).
func TopK(experts []int32, logits []float64) {
	order := indices(len(logits))
	slices.SortStableFunc(order, func(a, b int32) int { return before(logits[a], logits[b]) })
	copy(experts, order)
}
