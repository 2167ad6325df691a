package report

import (
	"fmt"

	"sonicmoe/internal/spec"
)

// Size is a layer's size and a call's.
type Size struct {
	// Shape is d,n,E,K.
	Shape  string `json:"shape"`
	Tokens int    `json:"tokens"`
}

// SizeOf is a row's size.
func SizeOf(r spec.Row) Size {
	c := r.Config
	return Size{Shape: fmt.Sprintf("%d,%d,%d,%d", c.Hidden, c.Intermediate, c.NumExperts, c.TopK), Tokens: r.Tokens}
}

// Row is the opposite of SizeOf. Its name is the size's.
func (s Size) Row() (spec.Row, error) {
	r := spec.Row{Name: s.String(), Tokens: s.Tokens}
	c := &r.Config
	if _, err := fmt.Sscanf(s.Shape+";", "%d,%d,%d,%d;", &c.Hidden, &c.Intermediate, &c.NumExperts, &c.TopK); err != nil {
		return r, fmt.Errorf("the shape %q of a report, must be d,n,E,K: %w", s.Shape, err)
	}
	c.TokensHint = s.Tokens
	return r, nil
}

// String is "4096,1024,64,4 T=16384".
func (s Size) String() string { return fmt.Sprintf("%s T=%d", s.Shape, s.Tokens) }
