package report

import (
	"fmt"

	"sonicmoe/moe/spec"
)

// ParseShape reads a report's "T,d,n,E,K".
func ParseShape(text string) (spec.Row, error) {
	r := spec.Row{Name: text}
	c := &r.Config
	if _, err := fmt.Sscanf(text+";", "%d,%d,%d,%d,%d;", &r.Tokens, &c.Hidden, &c.Intermediate, &c.NumExperts, &c.TopK); err != nil {
		return r, fmt.Errorf("the shape %q of a report, must be T,d,n,E,K: %w", text, err)
	}
	c.TokensHint = r.Tokens
	return r, nil
}

// ShapeOf is the opposite of ParseShape.
func ShapeOf(r spec.Row) string {
	c := r.Config
	return fmt.Sprintf("%d,%d,%d,%d,%d", r.Tokens, c.Hidden, c.Intermediate, c.NumExperts, c.TopK)
}
