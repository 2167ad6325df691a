package parallel

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/moe"
)

// TestTraffic compares the traffic of a pass with counts of the chosen experts.
func TestTraffic(t *testing.T) {
	for _, sums := range []bool{false, true} {
		t.Run(fmt.Sprintf("partial sums %v", sums), func(t *testing.T) { testTraffic(t, sums) })
	}
}

func testTraffic(t *testing.T, sums bool) {
	c := testCase{config: small, tokens: []int{9, 8, 7}}
	devs, err := devices()
	require.NoError(t, err)
	tr := c.oneGPU(t, devs[0])
	want, err := tr.Results(false)
	require.NoError(t, err)
	members := join(t, c, Options{PartialSums: sums, Layer: forwardOnly})
	require.Zero(t, members[0].Traffic())
	forward(t, c, members, tr, want)
	for i, m := range members {
		var tokens, pairs, sent, received int64
		from := 0
		first, count := m.Experts()
		for home, n := range c.tokens {
			for token := from; token < from+n; token++ {
				there := map[int]int64{} // number of the token's pairs for each rank
				for _, id := range want.ExpertIDs[token*small.TopK:][:small.TopK] {
					for r, other := range members {
						if f, n := other.Experts(); f <= int(id) && int(id) < f+n {
							there[r]++
						}
					}
				}
				if there[i] > 0 {
					tokens++
					pairs += there[i]
				}
				each, entry := int64(2*small.Hidden), int64(12)
				if sums {
					entry = 16
				}
				for r, n := range there {
					back := n
					if sums {
						back = 1
					}
					if home == i && r != i {
						sent += each + entry*n
						received += each * back
					}
					if home != i && r == i {
						received += each + entry*n
						sent += each * back
					}
				}
			}
			from += n
		}
		got := m.Traffic()
		require.Equal(t, []int64{tokens, pairs, sent, received}, []int64{got.Tokens, got.Pairs, got.SentBytes, got.ReceivedBytes}, "rank %d", i)
		require.InDelta(t, float64(pairs)*3/float64(24*small.TopK), got.Imbalance, 1e-12)
		require.Equal(t, small.NumExperts*(i+1)/3-first, count)
	}
}

// TestPart checks the addresses and shapes of a rank's part of the weights.
func TestPart(t *testing.T) {
	c := small
	c.SharedExperts = 1
	m := join(t, testCase{config: c, tokens: []int{1, 1, 1}}, Options{Layer: forwardOnly})[2]
	arena := moe.NewArena(m.dev)
	defer arena.Free()
	l, err := moe.New(context.Background(), m.dev, c, moe.WithoutCache(), moe.WithoutDecode(), moe.WithoutBackward())
	require.NoError(t, err)
	whole := arena.Weights(l)
	require.NoError(t, arena.Err())
	got := m.Part(whole)
	for id, shape := range m.WeightShapes() {
		require.Equal(t, shape, got.Weight(id).Shape, "%v", id)
	}
	require.Equal(t, whole.Router, got.Router)
	require.Equal(t, whole.SharedW1, got.SharedW1)
	require.EqualValues(t, 6*2*c.HWidth()*c.Hidden, got.W1.Ptr-whole.W1.Ptr) // the rank has experts 6 to 9
	require.EqualValues(t, 4, got.W2.Shape.Dims[0])
	require.Zero(t, got.B1)
}
