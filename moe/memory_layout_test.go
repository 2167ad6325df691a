package moe

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"sonicmoe/moe/internal/registry"
)

// TestLayoutFollowsThePass checks that a call keeps its layouts of the workspace for passes of the
// same size and list, and computes them again for other passes.
func TestLayoutFollowsThePass(t *testing.T) {
	cfg := Config{Hidden: 256, Intermediate: 128, NumExperts: 8, TopK: 2, Lists: true}
	l := &Layer{of: registry.Layer{Config: cfg}, sms: 132}
	c := l.NewCall()
	for _, n := range []work{
		l.work(0), l.work(24), {tokens: 24, rows: 31, list: true}, l.work(24), l.work(7),
		{tokens: 7, rows: 14, list: true, sorted: true}, l.work(7), l.work(0),
	} {
		for range 2 {
			got := c.laid(n)
			assert.Equal(t, l.workspace(n), got.workspace, "%+v", n)
			want := cfg.Shapes(n.tokens)
			if n.list {
				want = cfg.ListShapes(n.tokens, n.rows)
			}
			assert.Equal(t, want, got.shapes, "%+v", n)
			back, gradients := c.laidBackward(n), cfg.Gradients(n.tokens, cfg.Type)
			assert.Equal(t, l.backwardWorkspace(n), back.workspace, "%+v", n)
			if n.list {
				gradients.DScores = want.Scores
			}
			assert.Equal(t, gradients, back.gradients, "%+v", n)
		}
	}
}
