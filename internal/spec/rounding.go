package spec

import (
	"strconv"
	"strings"
)

// RoundingRule says how many tokens each expert gets, given how many have it
// among their K: f. With M the tile, ⌊f⌋ and ⌈f⌉ are the multiples of M next to f.
// The rules are those of SonicMoE (arXiv 2512.14080, token rounding, and the
// table of its subroutines) but for the last two.
type RoundingRule uint8

const (
	// NoRounding leaves every expert its f tokens.
	NoRounding RoundingRule = iota
	// RoundNearest goes to the nearer multiple, down from the middle (NR-f).
	RoundNearest
	// RoundStochastic goes up with probability (f-⌊f⌋)/M (SR-f).
	RoundStochastic
	// RoundMass goes up with the probability that the part of the scores between
	// ⌊f⌋ and ⌈f⌉ which the top-K has gives: (Σs-Σ⌊s⌋)/(Σ⌈s⌉-Σ⌊s⌋), the sums over the
	// f, ⌊f⌋ and ⌈f⌉ best tokens (NR-s).
	RoundMass
	// RoundBalanced goes, expert by expert, where the sum of all changes up to
	// this one stays nearer to 0, down from the middle (Balance-f).
	RoundBalanced
	// RoundUp always goes up: it only adds.
	RoundUp
	// RoundDown always goes down: it only drops.
	RoundDown
	// ExpertChoice gives each expert the tokens that score best for it (arXiv
	// 2202.09368), whatever these would choose: its capacity of them, or f.
	ExpertChoice
	// CapacityDrop leaves each expert the best of its f tokens, as many as its
	// capacity (arXiv 2101.03961).
	CapacityDrop
)

var roundingNames = []string{"none", "nearest", "stochastic", "mass", "balanced", "up", "down", "expert-choice", "capacity-drop"}

// String gives the rule's name.
func (r RoundingRule) String() string { return name("RoundingRule", roundingNames, r) }

// ParseRoundingRule is the rule of that name.
func ParseRoundingRule(text string) (RoundingRule, error) {
	for i, n := range roundingNames {
		if n == text {
			return RoundingRule(i), nil
		}
	}
	return 0, &ArgError{Field: "rounding", Got: text, Want: "one of " + strings.Join(roundingNames, ", ")}
}

// Rounding changes which tokens go to an expert after every token chose its K.
// The zero value changes nothing.
//
// An expert prefers tokens that have it among their K to those that have not;
// of the ones those with the larger score, of the others those with the larger
// raw score, the softmax over all logits; NaN comes first; of equal ones the lower
// token. It gets the tokens it prefers most, as many as Rule says. What is dropped
// is lost to the token, whose other scores stay as they are.
//
// Counts become multiples of Tile. Where a call has fewer tokens than the
// multiple above f, an expert goes down, whatever the rule.
type Rounding struct {
	Rule RoundingRule
	// Tile is M, 1 to 4096; 0 means 128, the rows of a tile of the products.
	// ExpertChoice and CapacityDrop have none.
	Tile int
	// Capacity times T·K/E, rounded up and at most T, is how many tokens an
	// expert gets with ExpertChoice (0: f), and at most gets with CapacityDrop.
	Capacity float64
	// RawScores makes raw scores the weights of all tokens, as the published
	// benchmark script has it. Else only those of tokens that were added are raw,
	// as in the paper.
	RawScores bool
}

const (
	defaultRoundTile = 128
	maxRoundTile     = 4096
)

// Rows is M, the tile that counts are multiples of.
func (r Rounding) Rows() int {
	if r.Tile == 0 {
		return defaultRoundTile
	}
	return r.Tile
}

// toTile reports whether counts become multiples of the tile.
func (r Rounding) toTile() bool { return r.Rule >= RoundNearest && r.Rule <= RoundDown }

// CapacityOf is how many tokens an expert gets, or at most gets, by Capacity; 0
// where that is 0.
func (r Rounding) CapacityOf(c Config, tokens int) int {
	even := r.Capacity * float64(tokens) * float64(c.TopK) / float64(c.NumExperts)
	whole := int(min(even, float64(tokens)))
	if float64(whole) < even {
		whole++
	}
	return min(whole, tokens)
}

// MaxRows is the most rows (pairs of a token and one of its experts) that a call
// with so many tokens can have after rounding.
func (r Rounding) MaxRows(c Config, tokens int) int64 {
	chosen, all := int64(tokens)*int64(c.TopK), int64(tokens)*int64(c.NumExperts)
	added := int64(0)
	switch r.Rule {
	case RoundNearest:
		added = int64(r.Rows()-1) / 2
	case RoundStochastic, RoundMass, RoundBalanced, RoundUp:
		added = int64(r.Rows() - 1)
	case ExpertChoice:
		if r.Capacity != 0 {
			return int64(c.NumExperts) * int64(r.CapacityOf(c, tokens))
		}
	case CapacityDrop:
		return min(chosen, int64(c.NumExperts)*int64(r.CapacityOf(c, tokens)))
	}
	return min(chosen+int64(c.NumExperts)*added, all)
}

// Draw is the 32 random bits by which RoundStochastic and RoundMass decide on an
// expert: up if they, taken as a fraction of 2^32, are below the probability.
func (r Rounding) Draw(seed uint64, expert int) uint32 {
	return mix(mix(uint32(seed)+DrawStep*uint32(expert+1)) ^ uint32(seed>>32))
}

// DrawStep, and the steps of mix, are those of Draw, for kernels to do the same.
const (
	DrawStep  = 0x9e3779b9
	MixFirst  = 0x85ebca6b
	MixSecond = 0xc2b2ae35
)

// mix is the finalizer of MurmurHash3.
func mix(x uint32) uint32 {
	x = (x ^ x>>16) * MixFirst
	x = (x ^ x>>13) * MixSecond
	return x ^ x>>16
}

// String reads "nearest/128", with "/raw" behind it where scores are raw, or
// "capacity-drop*1.25".
func (r Rounding) String() string {
	text := r.Rule.String()
	if r.toTile() {
		text += "/" + strconv.Itoa(r.Rows())
	}
	if r.Capacity != 0 {
		text += "*" + number(r.Capacity)
	}
	if r.RawScores {
		text += "/raw"
	}
	return text
}

// Check returns nil, or an [*ArgError] that names the first wrong field.
func (r Rounding) Check() error {
	switch {
	case !known(roundingNames, r.Rule):
		return argErrorf("Rounding.Rule", r.Rule, "one of %s", strings.Join(roundingNames, ", "))
	case r.Tile != 0 && !r.toTile():
		return argErrorf("Rounding.Tile", r.Tile, "0: %v has none", r.Rule)
	case r.Tile < 0 || r.Tile > maxRoundTile:
		return argErrorf("Rounding.Tile", r.Tile, "1 to %d, or 0, which means %d", maxRoundTile, defaultRoundTile)
	case r.Capacity != 0 && r.Rule != ExpertChoice && r.Rule != CapacityDrop:
		return argErrorf("Rounding.Capacity", number(r.Capacity), "0: %v has none", r.Rule)
	case r.Rule == CapacityDrop && !positive(r.Capacity):
		return argErrorf("Rounding.Capacity", number(r.Capacity), "a number above 0 with CapacityDrop")
	case r.Capacity != 0 && !positive(r.Capacity):
		return argErrorf("Rounding.Capacity", number(r.Capacity), "0 or a number above 0")
	case r.RawScores && r.Rule == NoRounding:
		return argErrorf("Rounding.RawScores", true, "false without a Rule")
	}
	return nil
}
