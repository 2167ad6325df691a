package spec

import (
	"fmt"
	"strconv"
)

// Limits of a Config.
const (
	// MaxExperts is the largest number of experts of a layer.
	MaxExperts = 1024
	// MaxTopK is the largest number of experts that one token is sent to.
	MaxTopK = 16
	// MaxWidth bounds Hidden and Intermediate. It keeps every byte count of a
	// layer, at up to 2^31 tokens, inside an int64.
	MaxWidth = 1 << 20
)

// widthStep is what Hidden and Intermediate are multiples of: one 128-byte row
// of a swizzled bf16 tile.
const widthStep = 64

// GateUp is the order of W1's 2n rows: how gate and up of one neuron lie.
// Nothing can tell the two apart by shape, so it is said, never guessed.
type GateUp uint8

const (
	// Concatenated: rows 0..n-1 of an expert are gate, rows n..2n-1 are up.
	Concatenated GateUp = iota
	// Interleaved: row 2j is gate j, row 2j+1 is up j.
	Interleaved
)

// String gives the layout's name.
func (g GateUp) String() string {
	switch g {
	case Concatenated:
		return "concatenated"
	case Interleaved:
		return "interleaved"
	}
	return "GateUp(" + strconv.Itoa(int(g)) + ")"
}

// GateRow is the row of W1 (of 2n, within one expert) that holds neuron j's
// gate; j is in 0..n-1.
func (g GateUp) GateRow(j, n int) int {
	if g == Interleaved {
		return 2 * j
	}
	return j
}

// UpRow is the row of W1 (of 2n, within one expert) that holds neuron j's up.
func (g GateUp) UpRow(j, n int) int {
	if g == Interleaved {
		return 2*j + 1
	}
	return n + j
}

// Logits is the number format in which router logits are compared and
// turned into scores. The router product is summed in FP32 either way.
type Logits uint8

const (
	// LogitsBF16: rounded to bf16 before top-K, as a bf16 linear layer gives
	// them in PyTorch.
	LogitsBF16 Logits = iota
	// LogitsF32: kept in FP32.
	LogitsF32
)

// String gives the format's name.
func (l Logits) String() string {
	switch l {
	case LogitsBF16:
		return "bf16"
	case LogitsF32:
		return "f32"
	}
	return "Logits(" + strconv.Itoa(int(l)) + ")"
}

// Config is one Mixture-of-Experts layer: E experts, each a SwiGLU MLP of
// d → 2n → d without biases, of which every token uses K. It is comparable.
//
//	logits = X · Wrᵀ          [T, E]
//	scores = softmax over the K largest logits of a token
//	H = X_e · W1_eᵀ           [R, 2n], gate then up
//	A = silu(gate) · up       [R, n]
//	Y = A · W2_eᵀ             [R, d]
//	O_t = Σ_k score · Y       [T, d]
type Config struct {
	// Hidden is d, the width of a token: a multiple of 64 from 128.
	Hidden int
	// Intermediate is n, the width of one expert: a multiple of 64 from 64.
	Intermediate int
	// Experts is E, 1 to 1024.
	Experts int
	// TopK is K, the experts of one token: 1 to 16, and at most Experts.
	TopK int
	// GateUp is the order of W1's rows.
	GateUp GateUp
	// Logits is the format of router logits.
	Logits Logits
	// TokensHint is the number of tokens expected in one call, 0 if unknown.
	// It steers the choice of tile shapes, never what is computed or allowed.
	TokensHint int
}

// Check returns nil, or an [*ArgError] that names the first wrong field.
func (c Config) Check() error {
	if err := checkWidth("Config.Hidden", c.Hidden, 128); err != nil {
		return err
	}
	if err := checkWidth("Config.Intermediate", c.Intermediate, 64); err != nil {
		return err
	}
	if c.Experts < 1 || c.Experts > MaxExperts {
		return argErrorf("Config.Experts", c.Experts, "1 to %d", MaxExperts)
	}
	if most := min(MaxTopK, c.Experts); c.TopK < 1 || c.TopK > most {
		return argErrorf("Config.TopK", c.TopK, "1 to %d (with %d experts)", most, c.Experts)
	}
	if c.GateUp > Interleaved {
		return argErrorf("Config.GateUp", c.GateUp, "Concatenated or Interleaved")
	}
	if c.Logits > LogitsF32 {
		return argErrorf("Config.Logits", c.Logits, "LogitsBF16 or LogitsF32")
	}
	if c.TokensHint < 0 {
		return argErrorf("Config.TokensHint", c.TokensHint, "0 (unknown) or the tokens expected in a call")
	}
	return nil
}

func checkWidth(field string, width, least int) error {
	if width < least || width%widthStep != 0 {
		return argErrorf(field, width, "a multiple of %d, at least %d", widthStep, least)
	}
	if width > MaxWidth {
		return argErrorf(field, width, "at most %d", MaxWidth)
	}
	return nil
}

// String is a short form with every field that decides what is computed:
// "d=1536 n=256 E=128 K=8 w1=concatenated logits=bf16". TokensHint is left out.
func (c Config) String() string {
	return fmt.Sprintf("d=%d n=%d E=%d K=%d w1=%v logits=%v",
		c.Hidden, c.Intermediate, c.Experts, c.TopK, c.GateUp, c.Logits)
}
