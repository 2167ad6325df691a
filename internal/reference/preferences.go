package reference

import (
	"math"
	"slices"

	"sonicmoe/internal/spec"
)

// Preferences are the scores by which experts choose tokens, [T, E] for T tokens and E experts.
// The rounding rules of [spec.Rounding] use them.
type Preferences struct {
	Experts int
	// Raw is the softmax over all logits of a token. Chosen reports whether the token chose the
	// expert. Score is the score of the token's slot if it chose the expert, otherwise the raw
	// score.
	Raw, Score []float64
	Chosen     []bool
}

// Preferences computes the experts' preferences from the logits and the chosen experts of a routing.
// The layer must have softmax scores.
func (r Routing) Preferences(c spec.Config, round Rounding) Preferences {
	e, k := c.NumExperts, c.TopK
	p := Preferences{Experts: e, Raw: slices.Clone(r.Logits), Chosen: make([]bool, len(r.Logits))}
	for i := 0; i < len(p.Raw); i += e {
		softmax(p.Raw[i : i+e])
	}
	for i, v := range p.Raw {
		p.Raw[i] = rounder{rounding: round}.f32(v)
	}
	p.Score = slices.Clone(p.Raw)
	for i, of := range r.ExpertIDs {
		at := i/k*e + int(of)
		p.Chosen[at], p.Score[at] = true, r.Scores[i]
	}
	return p
}

// Entry is a token that an expert takes after rounding. Score multiplies the expert's output.
type Entry struct {
	Token, Expert int32
	Score         float64
	// Raw reports whether the rule added a token that had not chosen the expert. There is then no
	// slot whose score could be used, so Score is the router's raw score of that expert.
	Raw bool
}

// Round applies a rounding rule. It returns the tokens of each expert, by expert, then by
// token, and the number of tokens of each expert. c is the layer's configuration.
func (p Preferences) Round(c spec.Config, how spec.Rounding, seed uint64) (list []Entry, counts []int) {
	var drift int // the sum of the changes so far, for RoundBalanced
	for e := range p.Experts {
		order, chosen := p.order(e, how.Rule == spec.ExpertChoice)
		n := p.count(order, chosen, e, &drift, c, how, seed)
		taken := slices.Clone(order[:n])
		slices.Sort(taken)
		for _, t := range taken {
			at := int(t)*p.Experts + e
			entry := Entry{t, int32(e), p.Score[at], !p.Chosen[at]}
			if how.RawScores || how.Rule == spec.ExpertChoice {
				entry.Score, entry.Raw = p.Raw[at], true
			}
			list = append(list, entry)
		}
		counts = append(counts, n)
	}
	return list, counts
}

// order returns all tokens in an expert's order of preference, and the number of tokens that
// chose the expert. If raw is true, the order depends only on raw scores. Otherwise, tokens
// that chose the expert come first.
func (p Preferences) order(expert int, raw bool) (order []int32, chosen int) {
	tokens := len(p.Raw) / p.Experts
	for t := range tokens {
		order = append(order, int32(t))
		if p.Chosen[t*p.Experts+expert] {
			chosen++
		}
	}
	slices.SortStableFunc(order, func(a, b int32) int {
		i, j := int(a)*p.Experts+expert, int(b)*p.Experts+expert
		if raw {
			return before(p.Raw[i], p.Raw[j])
		}
		if p.Chosen[i] != p.Chosen[j] {
			if p.Chosen[i] {
				return -1
			}
			return 1
		}
		return before(p.Score[i], p.Score[j])
	})
	return order, chosen
}

// before returns -1 if score x comes before y, 1 if it comes after y, and 0 if they are equal.
// Larger scores come first, NaN before all.
func before(x, y float64) int {
	switch {
	case x > y || x != x && y == y:
		return -1
	case x < y || x == x && y != y:
		return 1
	}
	return 0
}

// count returns the number of tokens that an expert gets. f is the number of tokens that chose
// the expert. They are the first f of order.
func (p Preferences) count(order []int32, f, expert int, drift *int, c spec.Config, how spec.Rounding, seed uint64) int {
	tile := how.Rows()
	down := f / tile * tile
	up := down
	if f > down {
		up += tile
	}
	if up > len(order) && how.Rule != spec.NoRounding {
		up = down // the batch has fewer tokens than up
	}
	chance := float64(how.Draw(seed, expert)) / (1 << 32)
	goesUp := false
	switch how.Rule {
	case spec.NoRounding:
		return f
	case spec.ExpertChoice:
		if n := how.CapacityOf(c, len(order)); n > 0 {
			return n
		}
		return f
	case spec.CapacityDrop:
		return min(f, how.CapacityOf(c, len(order)))
	case spec.RoundNearest:
		goesUp = down+tile-f < f-down
	case spec.RoundStochastic:
		goesUp = chance < float64(f-down)/float64(tile)
	case spec.RoundMass:
		if up > down {
			kept, most := p.mass(order[down:f], expert), p.mass(order[down:up], expert)
			goesUp = chance < kept/most
		}
	case spec.RoundBalanced:
		goesUp = math.Abs(float64(up-f+*drift)) < math.Abs(float64(down-f+*drift))
	case spec.RoundUp:
		goesUp = true
	}
	if !goesUp {
		up = down
	}
	*drift += up - f
	return up
}

// mass returns the sum of the scores that an expert has for some tokens.
func (p Preferences) mass(tokens []int32, expert int) (sum float64) {
	for _, t := range tokens {
		sum += p.Score[int(t)*p.Experts+expert]
	}
	return sum
}

// RoundedLogits returns the gradients of all logits [T, E] of a pass with rounding, given the
// gradients of the scores of list. The gradient of a slot's score goes through the softmax over
// the K chosen logits. The gradient of a raw score goes through the softmax over all logits.
// The choice of the tokens that are dropped or added has no gradient.
func (r Routing) RoundedLogits(c spec.Config, p Preferences, list []Entry, dscores []float64) []float64 {
	e, k := c.NumExperts, c.TopK
	out := make([]float64, len(r.Logits))
	raw, slots := make([]float64, len(out)), make([]float64, len(out))
	for i, entry := range list {
		to := slots
		if entry.Raw {
			to = raw
		}
		to[int(entry.Token)*e+int(entry.Expert)] = dscores[i]
	}
	for t := range len(out) / e {
		row := out[t*e:][:e]
		copy(row, SoftmaxBackward(p.Raw[t*e:][:e], raw[t*e:][:e], e))
		ids := r.ExpertIDs[t*k:][:k]
		ds := make([]float64, k)
		for j, of := range ids {
			ds[j] = slots[t*e+int(of)]
		}
		for j, v := range SoftmaxBackward(r.Scores[t*k:][:k], ds, k) {
			row[ids[j]] += v
		}
	}
	return out
}
