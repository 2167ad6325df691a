package weights

import "sonicmoe/internal/spec"

// The factors of an adapter have the layouts of W1 and W2, with the rank in the place of a
// width.

// LoraA1 returns the first factor for W1 and W3: r rows of d.
func LoraA1(c spec.Config) Matrix {
	c.Intermediate, c.Hidden = c.Hidden, c.LoRARank
	return W2(c)
}

// LoraB1 returns the second factor for W1, with that of W3 as its second part if gate and up
// are apart: the rows of W1, of r.
func LoraB1(c spec.Config) Matrix {
	c.Hidden = c.LoRARank
	return W1(c)
}

// LoraA2 returns the first factor for W2: r rows of n.
func LoraA2(c spec.Config) Matrix {
	c.Hidden = c.LoRARank
	return W2(c)
}

// LoraB2 returns the second factor for W2: d rows of r.
func LoraB2(c spec.Config) Matrix {
	c.Intermediate = c.LoRARank
	return W2(c)
}

// U returns the rows of the product of a first factor.
func U(c spec.Config) Rows { return Rows{1, whole(c.LoRARank)} }
