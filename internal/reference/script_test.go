package reference_test

import (
	"encoding/binary"
	"encoding/json"
	"hash/crc32"
	"math"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/internal/reference"
	"sonicmoe/internal/spec"
)

// scriptCase is the output of testdata/rounding.py for one size. For each rule and expert it
// has the number of tokens, the CRC-32 of the token numbers as ascending int32, and the sum of
// their scores.
type scriptCase struct {
	Tokens, Experts, K int
	Ways               map[string]struct {
		Counts []int
		Tokens []uint32
		Scores []float64
	}
}

// scriptLogits returns the logits that testdata/rounding.py uses.
func scriptLogits(tokens, experts int) []float64 {
	v := make([]float64, tokens*experts)
	for i := range v {
		h := uint32(i)*2654435761 + 12345
		h ^= h >> 15
		h *= 2246822519
		h ^= h >> 13
		h *= 3266489917
		h ^= h >> 16
		v[i] = (float64(h>>8)/(1<<24) - 0.5) * 4
	}
	return v
}

// TestRoundAsTheScript checks that Round chooses the same tokens as SonicMoE's script, at the
// sizes of the script. There is one difference: if both multiples of the tile are equally near,
// the rule nr of the script takes the even multiple, while the paper and this package take the
// lower one.
func TestRoundAsTheScript(t *testing.T) {
	text, err := os.ReadFile("testdata/rounding.json")
	require.NoError(t, err)
	var cases []scriptCase
	require.NoError(t, json.Unmarshal(text, &cases))
	require.Len(t, cases, 3)
	long := os.Getenv("SONICMOE_LONG") != ""
	if testing.Short() && !long {
		cases = cases[:1]
	}
	for i, g := range cases {
		c := spec.Config{NumExperts: g.Experts, TopK: g.K}
		routing := reference.Routing{Logits: scriptLogits(g.Tokens, g.Experts), ExpertIDs: make([]int32, g.Tokens*g.K)}
		for i := range g.Tokens {
			row, ids := routing.Logits[i*g.Experts:][:g.Experts], routing.ExpertIDs[i*g.K:][:g.K]
			reference.TopK(ids, row)
			var sum float64
			for _, id := range ids {
				sum += math.Exp(row[id])
			}
			for _, id := range ids {
				routing.Scores = append(routing.Scores, math.Exp(row[id])/sum)
			}
		}
		p := routing.Preferences(c, reference.Unrounded)
		for way, rule := range map[string]spec.RoundingRule{
			"nr": spec.RoundNearest, "up": spec.RoundUp, "down": spec.RoundDown, "top_k": spec.NoRounding,
		} {
			if i > 0 && !long && (i > 1 || way != "nr") {
				continue // skipped because it takes too long
			}
			t.Run(c.String()+" "+way, func(t *testing.T) {
				want := g.Ways[way]
				list, counts := p.Round(c, spec.Rounding{Rule: rule, Tile: 128}, 0)
				halves := 0
				for e, n := range counts {
					var tokens []byte
					var scores float64
					for _, entry := range list[:n] {
						require.Equal(t, int32(e), entry.Expert)
						tokens = binary.LittleEndian.AppendUint32(tokens, uint32(entry.Token))
						scores += entry.Score
					}
					list = list[n:]
					if half := g.Ways["top_k"].Counts[e]%128 == 64; half && way == "nr" && n != want.Counts[e] {
						halves++
						require.Equal(t, want.Counts[e]-128, n, "expert %d", e)
						continue
					}
					require.Equal(t, want.Counts[e], n, "expert %d", e)
					require.Equal(t, want.Tokens[e], crc32.ChecksumIEEE(tokens), "expert %d's tokens", e)
					require.InDelta(t, want.Scores[e], scores, 1e-8*float64(n+1), "expert %d's scores", e)
				}
				require.Empty(t, list)
				require.Less(t, halves, g.Experts/16, "such as the script rounds another way")
			})
		}
	}
}
