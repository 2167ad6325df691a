package parallel

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/internal/spec"
	"sonicmoe/internal/trial"
	"sonicmoe/moe"
	kt "sonicmoe/moe/internal/kernel/kerneltest"
)

// small is a layer for groups of 1, 2, 3, 4 and 8 ranks. Some of them have unequal numbers of
// experts.
var small = moe.Config{Hidden: 64, Intermediate: 48, NumExperts: 10, TopK: 4}

// forwardCases lists layers, each named by what is special about it.
func forwardCases() (list []testCase) {
	groups := [][]int{{40}, {20, 0, 20}, {5, 0, 7, 3, 8, 0, 1, 16}, {13, 27}, {9, 11, 1, 19}}
	if testing.Short() {
		groups = groups[:3]
	}
	for _, tokens := range groups {
		list = append(list, testCase{name: "ranks", config: small, tokens: tokens})
	}
	last := func(ids []int32) { // all tokens go to experts of the last of three ranks
		for i := range ids {
			ids[i] = int32(6 + i%4)
		}
	}
	sentinels := func(ids []int32) {
		for i := range ids {
			switch {
			case i/4%5 == 0: // a token without experts
				ids[i] = 10
			case i%3 == 0:
				ids[i] = []int32{-1, 10, 11, 1 << 30}[i/3%4]
			}
		}
	}
	none := func(ids []int32) {
		for i := range ids {
			ids[i] = 10
		}
	}
	list = append(list,
		testCase{name: "all to one rank", config: small, tokens: []int{17, 20, 3}, change: last},
		testCase{name: "sentinels", config: small, tokens: []int{17, 20, 3}, change: sentinels},
		testCase{name: "no experts", config: small, tokens: []int{7, 8}, change: none},
	)
	for name, change := range map[string]func(c *moe.Config){
		"shared, biases": func(c *moe.Config) {
			c.SharedExperts, c.SharedGate, c.Bias, c.RouterBias = 1, true, true, true
		},
		"score on input": func(c *moe.Config) { c.ScoreOnInput = true },
		"fp16, groups": func(c *moe.Config) {
			c.Type, c.Logits, c.Score, c.SelectionBias, c.Groups, c.TopGroups = spec.F16, spec.F32, spec.Sigmoid, true, 5, 3
		},
		"packed": func(c *moe.Config) {
			*c = moe.Config{Hidden: 160, Intermediate: 96, NumExperts: 9, TopK: 3, Weights: "mxfp4", Bias: true}
		},
		"packed, scales in f32": func(c *moe.Config) {
			*c = moe.Config{Hidden: 208, Intermediate: 144, NumExperts: 6, TopK: 2, Weights: "fp8", GateUp: spec.Apart}
		},
		"adapter":         func(c *moe.Config) { c.LoRARank, c.LoRAAlpha = 8, 24 },
		"expert per rank": func(c *moe.Config) { c.NumExperts, c.TopK = 4, 4 },
	} {
		c := small
		change(&c)
		tokens := []int{12, 0, 9, 15}
		if testing.Short() && name != "expert per rank" {
			tokens = tokens[:3]
		}
		list = append(list, testCase{name: name, config: c, tokens: tokens})
	}
	return list
}

// random returns a layer with random sizes, and random numbers of tokens.
func random(seed uint64) testCase {
	r := rand.New(rand.NewPCG(seed, 39))
	c := moe.Config{Hidden: 16 * (1 + r.IntN(6)), Intermediate: 16 * (1 + r.IntN(4)), NumExperts: 1 + r.IntN(12)}
	c.TopK = 1 + r.IntN(min(5, c.NumExperts))
	ranks := min(c.NumExperts, []int{1, 2, 3, 4, 8}[r.IntN(5)])
	t := testCase{name: fmt.Sprintf("random %d", seed), config: c, tokens: make([]int, ranks)}
	for i := range t.tokens {
		if r.IntN(4) > 0 {
			t.tokens[i] = r.IntN(30)
		}
	}
	t.tokens[r.IntN(ranks)]++ // one token at least
	if r := rand.New(rand.NewPCG(seed, 41)); r.IntN(4) == 0 {
		t.config.LoRARank, t.config.LoRAAlpha = 4*(1+r.IntN(6)), 4
	}
	if r.IntN(2) == 0 {
		t.change = func(ids []int32) {
			only := r.Perm(c.NumExperts)[:max(c.TopK, 1+r.IntN(c.NumExperts))] // the other experts get no tokens
			for token := 0; token < len(ids); token += c.TopK {
				for slot, i := range r.Perm(len(only))[:c.TopK] {
					ids[token+slot] = int32(only[i])
					if r.IntN(5) == 0 {
						ids[token+slot] = int32(c.NumExperts + r.IntN(3))
					}
				}
			}
		}
	}
	return t
}

// randomCases makes cases of successive seeds. Short tests have a number of them (short), other tests
// more (usual), and long tests 200.
func randomCases(of func(seed uint64) testCase, first, short, usual uint64) (list []testCase) {
	count := usual
	switch {
	case kt.Long():
		count = 200
	case testing.Short():
		count = short
	}
	for seed := range count {
		list = append(list, of(first+seed))
	}
	return list
}

// TestForwardBits checks that O, scores and expert ids have the same bits as on one device, for
// groups of every size.
func TestForwardBits(t *testing.T) {
	for i, c := range append(forwardCases(), randomCases(random, 0, 3, 40)...) {
		t.Run(c.String(), func(t *testing.T) {
			devs, err := devices()
			require.NoError(t, err)
			tr := c.oneGPU(t, devs[0])
			want, err := tr.Results(false)
			require.NoError(t, err)
			members := join(t, c, Options{Chunks: c.chunks(i), Layer: forwardOnly})
			for range 2 { // the second pass finds what the first one has left in the workspace
				got := forward(t, c, members, tr, want)
				require.Equal(t, want.O, got.O)
				require.Equal(t, want.ExpertIDs, got.ExpertIDs)
				require.Equal(t, want.Scores, got.Scores)
			}
		})
	}
}

// forward runs a pass on all ranks and returns the results for all tokens. If the case changes the
// experts, the pass takes scores and experts from given.
func forward(t testing.TB, c testCase, members []*member, tr *trial.Trial, given trial.Results) (all trial.Results) {
	results, firsts := make([]trial.Results, len(members)), make([]int, len(members)+1)
	for i, n := range c.tokens {
		firsts[i+1] = firsts[i] + n
	}
	require.NoError(t, each(members, func(i int, m *member) error {
		from, n, k := firsts[i], c.tokens[i], c.config.TopK
		if m.stream == nil {
			if err := m.fill(tr, from, n); err != nil {
				return err
			}
		}
		run := m.Forward
		if c.change != nil {
			run = m.ForwardExperts
			if err := moe.Write(m.stream, m.args.Scores, given.Scores[from*k:(from+n)*k]); err != nil {
				return err
			}
			if err := moe.Write(m.stream, m.args.ExpertIDs, given.ExpertIDs[from*k:(from+n)*k]); err != nil {
				return err
			}
		}
		if err := run(context.Background(), m.stream, m.args); err != nil {
			return err
		}
		r := trial.Results{O: make([]uint16, n*c.config.Hidden), Scores: make([]float32, n*k), ExpertIDs: make([]int32, n*k)}
		for _, err := range []error{moe.Read(m.stream, m.args.O, r.O), moe.Read(m.stream, m.args.Scores, r.Scores), moe.Read(m.stream, m.args.ExpertIDs, r.ExpertIDs)} {
			if err != nil {
				return err
			}
		}
		results[i] = r
		return nil
	}))
	for _, r := range results {
		all.O, all.Scores, all.ExpertIDs = append(all.O, r.O...), append(all.Scores, r.Scores...), append(all.ExpertIDs, r.ExpertIDs...)
	}
	return all
}
