package main

import (
	"bytes"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sonicmoe/moe"
	"sonicmoe/moe/checkpoint"
	"sonicmoe/moe/parallel"
)

// TestOver compares the figures of a rank with values computed by hand.
func TestOver(t *testing.T) {
	p := plan{Model: checkpoint.Model{Config: moe.Config{Hidden: 64, Intermediate: 32, NumExperts: 4, TopK: 2}}, Cost: moe.Cost{Forward: time.Second}}
	s := p.over(2, 6, false)
	require.Equal(t, 2, s.experts)
	require.EqualValues(t, 2*(2*64*64+2*64*32), s.weights)
	require.EqualValues(t, 12*(128+2*12), s.window)
	require.EqualValues(t, 12*(128+2*12)+24*128, s.saved)
	// A token chooses one of 6 pairs of experts. One of the pairs has no expert of a given
	// rank, so 5/6 of the tokens are sent to it.
	require.Equal(t, sent{inside: 6*5.0/6*128 + 6*12}, s.out)
	require.Equal(t, sent{inside: 6 * 128}, s.back)
	router := parallel.RouterBytes(p.Config, 12)
	require.InDelta(t, 6*5.0/6*128+2*6*4+6*128+float64(router)/2+6*8, s.grads.inside, 1e-9)
	start := startTime.Seconds()
	require.Zero(t, p.over(2, 6_000_000, false).left) // the products take a second
	p.Forward = 2 * time.Millisecond
	// Half of the products of own tokens take 0.5 ms, and the products of the first chunk, too.
	require.InDelta(t, (712e6+768e6)/393e9+2*start-0.5e-3-2*0.5e-3, p.over(2, 6_000_000, false).left.Seconds(), 1e-6)
	words := (2*24e6+48e6+float64(parallel.RouterBytes(p.Config, 12_000_000))/2)/393e9 + 4*start
	rest := words + 640e6/393e9 + start
	p.Backward = time.Second
	require.InDelta(t, words, p.over(2, 6_000_000, false).gradsLeft.Seconds(), 1e-6)
	// dH takes 0.4 ms, of which half is for own tokens. dW2 and dW1 take 1.2 ms.
	p.Backward = 2400 * time.Microsecond
	require.InDelta(t, rest-0.2e-3+768e6/393e9+start-1.2e-3, p.over(2, 6_000_000, false).gradsLeft.Seconds(), 1e-6)
	p.Forward, p.Backward = 0, 0 // no time of products that could hide a transfer
	require.InDelta(t, (712e6+768e6)/393e9+2*start, p.over(2, 6_000_000, false).left.Seconds(), 1e-6)
	require.InDelta(t, rest+768e6/393e9+start, p.over(2, 6_000_000, false).gradsLeft.Seconds(), 1e-6)
	// With partial sums the rows of dO and of dX are as many as the tokens, and an entry has a slot.
	sums := p.over(2, 6, true)
	require.Equal(t, sent{inside: 6*5.0/6*128 + 6*16}, sums.out)
	require.Equal(t, sent{inside: 6 * 5.0 / 6 * 128}, sums.back)
	require.EqualValues(t, 12*(128+2*16), sums.window)
	require.InDelta(t, 2*6*5.0/6*128+2*6*4+float64(router)/2+6*8, sums.grads.inside, 1e-9)
	require.InDelta(t, (736e6+640e6)/393e9+2*start, p.over(2, 6_000_000, true).left.Seconds(), 1e-6)
	// With four ranks the tokens arrive in two groups. The second one takes 3.020 ms, behind 0.5 ms of own
	// products and 1.5 ms of the first group's. Half of the rows, 1.489 ms, come behind the other 0.5 ms.
	grouped := p
	grouped.Config.NumExperts, grouped.Forward = 8, 4*time.Millisecond
	require.InDelta(t, 3.01972e-3-2e-3+1.48865e-3-0.5e-3, grouped.over(4, 6_000_000, false).left.Seconds(), 1e-6)
	require.Equal(t, p.over(1, 6, false), p.over(1, 6, true))
	one := p.over(1, 6, false)
	require.Zero(t, one.out.total()+one.back.total()+one.grads.total())
	require.Zero(t, one.left+one.gradsLeft)
}

// TestSharedOver checks the bytes of the shared experts' gradients: three weights of 64 by 32, whose sums
// over up to 8,192 tokens are in FP32. Two ranks have three such ranges, so a rank has one and a half on
// average. It sends one half of each, and one half of the gradients.
func TestSharedOver(t *testing.T) {
	c := moe.Config{Hidden: 64, Intermediate: 32, NumExperts: 4, TopK: 2}
	require.Empty(t, sharedOver(c, 2, 12_000))
	c.SharedExperts = 1
	list := sharedOver(c, 2, 12_000)
	require.Equal(t, []sent{{inside: 1.5 * 4 * 3 * 64 * 32 / 2}, {inside: 2 * 3 * 64 * 32 / 2}}, list)
	c.SharedGate = true
	require.Equal(t, append(list, sent{inside: float64(parallel.RouterBytes(moe.Config{Hidden: 64, NumExperts: 1}, 24_000)) / 2}), sharedOver(c, 2, 12_000))
}

// TestHosts checks that ranks beyond the eighth are in other hosts, and that the slower network
// decides.
func TestHosts(t *testing.T) {
	require.Equal(t, sent{inside: 70}, toEach(8, 10))
	require.Equal(t, sent{inside: 70, outside: 560}, toEach(64, 10))
	require.Equal(t, startTime+time.Second, sent{inside: copyRate, outside: netRate / 2}.took())
	require.Equal(t, startTime+2*time.Second, sent{inside: copyRate, outside: 2 * netRate}.took())
}

// TestPage checks that the table of ranks.md is the output of the program.
func TestPage(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), []string{"-ranks", "8,64,512", "Qwen3-30B-A3B", "gpt-oss-120b", "DeepSeek-V3", "Qwen3-Next-80B-A3B"}, &out, io.Discard))
	page, err := os.ReadFile("ranks.md")
	require.NoError(t, err)
	require.Contains(t, string(page), out.String(), "go run ./examples/plan -ranks 8,64,512 Qwen3-30B-A3B gpt-oss-120b DeepSeek-V3 Qwen3-Next-80B-A3B writes the table anew")
}

func TestRanks(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), []string{"-ranks", "8", "Qwen3-30B-A3B", "Mixtral 8x7B"}, &out, io.Discard))
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	qwen := strings.Fields(lines[len(lines)-2])
	require.Equal(t, []string{"Qwen3-30B-A3B", "8", "16", "144"}, qwen[:4])
	require.ErrorContains(t, run(t.Context(), []string{"-ranks", "-1"}, &out, io.Discard), "want numbers of GPUs")
	require.ErrorContains(t, run(t.Context(), []string{"-partial-sums"}, &out, io.Discard), "-partial-sums is set, must not be without -ranks")
	out.Reset()
	require.NoError(t, run(t.Context(), []string{"-ranks", "9", "mixtral-8x7B"}, &out, io.Discard))
	require.Contains(t, out.String(), "fewer experts than ranks")
}
