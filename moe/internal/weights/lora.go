package weights

import "sonicmoe/internal/spec"

// The factors of an adapter have the layouts of W1 and W2, with the rank in place of a width.

// LoraA1 returns the first factor for W1 and W3. Each expert has r rows of d elements.
func LoraA1(c spec.Config) Matrix {
	c.Intermediate, c.Hidden = c.Hidden, c.LoRARank
	return W2(c)
}

// LoraB1 returns the second factor for W1. It has the rows of W1, each of r elements. If gate and
// up are apart, its second part is the second factor for W3.
func LoraB1(c spec.Config) Matrix {
	c.Hidden = c.LoRARank
	return W1(c)
}

// LoraA2 returns the first factor for W2. Each expert has r rows of n elements.
func LoraA2(c spec.Config) Matrix {
	c.Hidden = c.LoRARank
	return W2(c)
}

// LoraB2 returns the second factor for W2. Each expert has d rows of r elements.
func LoraB2(c spec.Config) Matrix {
	c.Intermediate = c.LoRARank
	return W2(c)
}

// U returns the layout of the product of the packed rows with a first factor.
func U(c spec.Config) Rows { return Rows{1, whole(c.LoRARank)} }
