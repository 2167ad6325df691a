package report

import (
	"fmt"

	"sonicmoe/internal/peers"
)

// Size is the size of a layer and of a batch.
type Size struct {
	// Shape is "d,n,E,K": Hidden, Intermediate, NumExperts and TopK.
	Shape  string `json:"shape"`
	Tokens int    `json:"tokens"`
}

// SizeOf returns the size of a row.
func SizeOf(r peers.Row) Size {
	c := r.Config
	return Size{Shape: fmt.Sprintf("%d,%d,%d,%d", c.Hidden, c.Intermediate, c.NumExperts, c.TopK), Tokens: r.Tokens}
}

// Row returns a row for peers with this size, named by the size.
func (s Size) Row() (peers.Row, error) {
	r := peers.Row{Name: s.String(), Tokens: s.Tokens}
	c := &r.Config
	if _, err := fmt.Sscanf(s.Shape+";", "%d,%d,%d,%d;", &c.Hidden, &c.Intermediate, &c.NumExperts, &c.TopK); err != nil {
		return r, fmt.Errorf("the shape %q of a report, must be d,n,E,K: %w", s.Shape, err)
	}
	c.TokensHint = s.Tokens
	return r, nil
}

// String returns "4096,1024,64,4 T=16384".
func (s Size) String() string { return fmt.Sprintf("%s T=%d", s.Shape, s.Tokens) }
