package spec

import "strconv"

// RoundingRule says how many tokens each expert gets. f is the number of tokens that chose the
// expert, and M is the tile. ⌊f⌋ and ⌈f⌉ are the nearest multiples of M below and above f. All
// rules except the last two are SonicMoE's (arXiv 2512.14080, token rounding, and the table of
// its subroutines); their names there are in parentheses.
//
//	"none"        f tokens; the zero value "" means "none"
//	"nearest"     the nearer multiple; ⌊f⌋ if both are equally near (NR-f)
//	"stochastic"  ⌈f⌉ with probability (f-⌊f⌋)/M, else ⌊f⌋ (SR-f)
//	"mass"        ⌈f⌉ with probability (Σs-Σ⌊s⌋)/(Σ⌈s⌉-Σ⌊s⌋), else ⌊f⌋. The sums Σs,
//	              Σ⌊s⌋ and Σ⌈s⌉ are over the scores of the best f, ⌊f⌋ and ⌈f⌉ tokens (NR-s).
//	"balanced"    the multiple that keeps the sum of the changes of this and all lower
//	              experts nearer to 0; ⌊f⌋ if both are equally near (Balance-f)
//	"up"          ⌈f⌉: only adds tokens
//	"down"        ⌊f⌋: only drops tokens
//	"expert-choice"
//	              The expert gets the tokens with the best scores for the expert, whether or
//	              not these tokens chose it (arXiv 2202.09368). Their number is the
//	              expert's capacity, or f without a capacity.
//	"capacity-drop"
//	              The expert gets the best of its f tokens, up to its capacity (arXiv
//	              2101.03961).
type RoundingRule string

// These are the rounding rules.
const (
	NoRounding      RoundingRule = ""
	RoundNearest    RoundingRule = "nearest"
	RoundStochastic RoundingRule = "stochastic"
	RoundMass       RoundingRule = "mass"
	RoundBalanced   RoundingRule = "balanced"
	RoundUp         RoundingRule = "up"
	RoundDown       RoundingRule = "down"
	ExpertChoice    RoundingRule = "expert-choice"
	CapacityDrop    RoundingRule = "capacity-drop"
)

// RoundingRules lists the rules in the order of their numbers in sonicmoe.h.
var RoundingRules = []RoundingRule{"none", RoundNearest, RoundStochastic, RoundMass, RoundBalanced, RoundUp, RoundDown, ExpertChoice, CapacityDrop}

// String returns the word of the rule.
func (r RoundingRule) String() string { return text(RoundingRules, r) }

// Rounding changes which tokens go to an expert, after every token chose its K experts. The
// zero value changes nothing.
//
// Each expert orders all tokens. The tokens that chose the expert come first, by score. The
// others follow, by raw score (the softmax over all logits). Tokens with equal scores are in
// the order of their numbers, and NaN comes before all. The expert gets the first tokens of
// this order; Rule gives their number. If a token loses an expert, its other scores do not
// change.
//
// Let f be the number of tokens that chose the expert. Rule rounds f up or down to a multiple
// of Tile. If the multiple above f exceeds the number of tokens in the call, every rule rounds
// down.
type Rounding struct {
	Rule RoundingRule
	// Tile is M, 1 to 4096. 0 means 128, the rows of a tile of the experts' products. Tile must
	// be 0 with "expert-choice" and "capacity-drop", which do not round.
	Tile int
	// Capacity gives each expert's capacity: Capacity times T·K/E, rounded up, and at most T.
	// It is the number of tokens of "expert-choice" (if Capacity is 0, that number is f) and
	// the limit of "capacity-drop".
	Capacity float64
	// RawScores uses raw scores as the weights of all tokens, as the published benchmark script
	// does. Otherwise only added tokens have raw scores, as in the paper.
	RawScores bool
}

const (
	defaultRoundTile = 128
	maxRoundTile     = 4096
)

// Rows returns M, the tile: rounding makes the number of tokens of each expert a multiple of M.
func (r Rounding) Rows() int {
	if r.Tile == 0 {
		return defaultRoundTile
	}
	return r.Tile
}

// toTile reports whether the rule makes counts multiples of the tile.
func (r Rounding) toTile() bool {
	switch r.Rule {
	case RoundNearest, RoundStochastic, RoundMass, RoundBalanced, RoundUp, RoundDown:
		return true
	}
	return false
}

// CapacityOf returns the capacity of each expert in a call with a number of tokens, or 0 if
// Capacity is 0.
func (r Rounding) CapacityOf(c Config, tokens int) int {
	even := r.Capacity * float64(tokens) * float64(c.TopK) / float64(c.NumExperts)
	whole := int(min(even, float64(tokens)))
	if float64(whole) < even {
		whole++
	}
	return min(whole, tokens)
}

// MaxRows returns the largest number of rows, that is (token, expert) pairs, that a call can
// have after rounding.
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

// Draw returns the 32 random bits of an expert for RoundStochastic and RoundMass. The rule
// rounds up if the bits, divided by 2^32, are below the rule's probability.
func (r Rounding) Draw(seed uint64, expert int) uint32 {
	return mix(mix(uint32(seed)+DrawStep*uint32(expert+1)) ^ uint32(seed>>32))
}

// DrawStep, MixFirst and MixSecond are the constants of Draw. Kernels compute Draw with them,
// too.
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

// String returns "nearest/128" or "capacity-drop*1.25", followed by "/raw" if RawScores is set.
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
	if err := checkChoice("Rounding.Rule", RoundingRules, r.Rule); err != nil {
		return err
	}
	switch r.Rule = normal(RoundingRules, r.Rule); {
	case r.Tile != 0 && !r.toTile():
		return argErrorf("Rounding.Tile", r.Tile, "0: %v has none", r.Rule)
	case r.Tile < 0 || r.Tile > maxRoundTile:
		return argErrorf("Rounding.Tile", r.Tile, "1 to %d, or 0, which means %d", maxRoundTile, defaultRoundTile)
	case r.Capacity != 0 && r.Rule != ExpertChoice && r.Rule != CapacityDrop:
		return argErrorf("Rounding.Capacity", number(r.Capacity), "0: %v has none", r.Rule)
	case r.Rule == CapacityDrop && !positive(r.Capacity):
		return argErrorf("Rounding.Capacity", number(r.Capacity), "a number above 0 with capacity-drop")
	case r.Capacity != 0 && !positive(r.Capacity):
		return argErrorf("Rounding.Capacity", number(r.Capacity), "0 or a number above 0")
	case r.RawScores && r.Rule == NoRounding:
		return argErrorf("Rounding.RawScores", true, "false without a Rule")
	}
	return nil
}
