package main

import (
	"bytes"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sonicmoe/moe"
	"sonicmoe/moe/checkpoint"
)

// TestOver compares the figures of a rank with values computed by hand.
func TestOver(t *testing.T) {
	p := plan{Model: checkpoint.Model{Config: moe.Config{Hidden: 64, Intermediate: 32, NumExperts: 4, TopK: 2}}, Cost: moe.Cost{Forward: time.Second}}
	s := p.over(2, 6)
	require.Equal(t, 2, s.experts)
	require.EqualValues(t, 2*(2*64*64+2*64*32), s.weights)
	require.EqualValues(t, 12*(128+2*12), s.window)
	require.EqualValues(t, 12*(128+2*12)+24*128, s.saved)
	// A token chooses one of 6 pairs of experts. One of the pairs has no expert of a given
	// rank, so 5/6 of the tokens are sent to it.
	require.InDelta(t, 6*5.0/6*128+6*12, s.out, 1e-9)
	require.InDelta(t, 6*128, s.back, 1e-9)
	big := p.over(2, 6_000_000)
	require.InDelta(t, (712e6+768e6)/393e9, big.exchange.Seconds(), 1e-6)
	require.InDelta(t, (712e6+768e6/4)/393e9, big.left.Seconds(), 1e-6)
	p.Forward = 0 // no time of products that could hide a transfer
	require.InDelta(t, (712e6+768e6)/393e9, p.over(2, 6_000_000).left.Seconds(), 1e-6)
	one := p.over(1, 6)
	require.Zero(t, one.out+one.back)
	require.Zero(t, one.left)
}

func TestRanks(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), []string{"-ranks", "8", "Qwen3-30B-A3B", "Mixtral 8x7B"}, &out, io.Discard))
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	qwen := strings.Fields(lines[len(lines)-2])
	require.Equal(t, []string{"Qwen3-30B-A3B", "16", "144"}, qwen[:3])
	require.ErrorContains(t, run(t.Context(), []string{"-ranks", "-1"}, &out, io.Discard), "want a number of GPUs")
	out.Reset()
	require.NoError(t, run(t.Context(), []string{"-ranks", "9", "Mixtral 8x7B"}, &out, io.Discard))
	require.Contains(t, out.String(), "fewer experts than ranks")
}
