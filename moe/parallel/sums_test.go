package parallel

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/internal/drivertest"
	"sonicmoe/internal/num"
	"sonicmoe/internal/spec"
	"sonicmoe/internal/trial"
	"sonicmoe/moe"
	routed "sonicmoe/moe/internal/route/order"
)

// pairRows reads the row of each pair of the rank's tokens, or nil for a pair without a row. The pass
// sent its rows unsummed. found is the offset of the places, and arrive the address of place 0.
func (m *member) pairRows(workspace moe.Buffer, found int64, arrive driver.DevicePtr, tokens int) ([][]float32, error) {
	raw := make([]byte, workspace.Bytes)
	if err := m.stream.CopyToHost(raw, workspace.Ptr); err != nil {
		return nil, err
	}
	rows := make([][]float32, tokens*m.Config.TopK)
	for i := range rows {
		place := binary.LittleEndian.Uint32(raw[found+4*int64(i):])
		if place == routed.NoRow {
			continue
		}
		at := int64(arrive-workspace.Ptr) + m.rowBytes(1)*int64(place)
		bits := make([]uint16, m.Config.Hidden)
		for j := range bits {
			bits[j] = binary.LittleEndian.Uint16(raw[at+2*int64(j):])
		}
		rows[i] = decoded(m.Config.Type, bits)
	}
	return rows, nil
}

func decoded(of moe.Type, bits []uint16) []float32 {
	list := make([]float32, len(bits))
	if of == spec.F16 {
		num.DecodeF16(list, bits)
	} else {
		num.DecodeBF16(list, bits)
	}
	return list
}

func encoded(of moe.Type, list []float32) []uint16 {
	bits := make([]uint16, len(list))
	if of == spec.F16 {
		num.EncodeF16(bits, list)
	} else {
		num.EncodeBF16(bits, list)
	}
	return bits
}

// sums returns the sums of the rows of a rank's tokens. A row is multiplied by its weight, or by 1 if
// weights is nil. The rows of each other rank are added first, and this sum is rounded. With one rank, all
// rows are its own.
func (m *member) sums(rows [][]float32, ids []int32, weights []float32, ranks, home int) (all []uint16) {
	c := m.Config
	owner := func(pair int) int { return ((int(ids[pair])+1)*ranks - 1) / c.NumExperts }
	add := func(sum []float32, pair int) {
		weight := float32(1)
		if weights != nil {
			weight = weights[pair]
		}
		for i, v := range rows[pair] {
			sum[i] = float32(math.FMA(float64(weight), float64(v), float64(sum[i])))
		}
	}
	for first := 0; first < len(rows); first += c.TopK {
		sum, done := make([]float32, c.Hidden), map[int]bool{}
		for pair := first; pair < first+c.TopK; pair++ {
			if rows[pair] == nil || done[owner(pair)] {
				continue
			}
			if owner(pair) == home {
				add(sum, pair)
				continue
			}
			done[owner(pair)] = true
			part := make([]float32, c.Hidden)
			for other := pair; other < first+c.TopK; other++ {
				if rows[other] != nil && owner(other) == owner(pair) {
					add(part, other)
				}
			}
			for i, v := range decoded(c.Type, encoded(c.Type, part)) {
				sum[i] += v
			}
		}
		all = append(all, encoded(c.Type, sum)...)
	}
	return all
}

// sumsCases lists layers whose O is the sum of rows, without terms of shared experts.
func sumsCases() (list []testCase) {
	inShort := []string{"ranks", "sentinels", "score on input"}
	for _, c := range forwardCases() {
		if c.config.SharedExperts == 0 && (!testing.Short() || slices.Contains(inShort, c.name)) {
			list = append(list, c)
		}
	}
	return append(list, randomCases(random, 1000, 2, 20)...)
}

// TestPartialSums checks O of groups that send partial sums. The host adds up the rows of a group that
// sends them unsummed. The bits are equal, in each of two passes, and O is close to one device's. Routing
// has one device's bits.
func TestPartialSums(t *testing.T) {
	other := 0 // number of layers that do not have one device's bits
	for i, c := range sumsCases() {
		t.Run(c.String(), func(t *testing.T) {
			devs, err := devices()
			require.NoError(t, err)
			tr := c.oneGPU(t, devs[0])
			want, err := tr.Results(false)
			require.NoError(t, err)
			members := join(t, c, Options{Chunks: c.chunks(i), Layer: forwardOnly})
			plain := forward(t, c, members, tr, want)
			require.Equal(t, want.O, plain.O)
			var sums []uint16
			first := 0
			for rank, m := range members {
				w, err := m.layout()
				require.NoError(t, err)
				rows, err := m.pairRows(m.args.Workspace, w.found, steps.Returned(m.call, m.args.home(&w)), c.tokens[rank])
				require.NoError(t, err)
				ids, weights := want.ExpertIDs[first*c.config.TopK:], want.Scores[first*c.config.TopK:]
				if c.config.ScoreOnInput {
					weights = nil
				}
				at := want.O[first*c.config.Hidden:][:c.tokens[rank]*c.config.Hidden]
				if c.tokens[rank] > 0 {
					require.Equal(t, at, m.sums(rows, ids, weights, 1, 0), "the host's sum of all rows")
				}
				sums = append(sums, m.sums(rows, ids, weights, len(members), rank)...)
				first += c.tokens[rank]
			}
			if drivertest.Name() == "emulated" && i%3 == 0 {
				c.devices = loose(c, devs[1], uint64(i))
			}
			members = join(t, c, Options{Chunks: c.chunks(i), PartialSums: true, Layer: forwardOnly})
			for range 2 { // the second pass finds what the first one has left in the workspace
				got := forward(t, c, members, tr, want)
				require.Equal(t, sums, got.O)
				require.Equal(t, want.ExpertIDs, got.ExpertIDs)
				require.Equal(t, want.Scores, got.Scores)
			}
			of := c.config.Normal().Type
			if len(members) == 1 {
				require.Equal(t, want.O, sums)
			} else if distance := distance(decoded(of, sums), decoded(of, want.O)); distance > 0 {
				require.Less(t, distance, 1.0/128)
				other++
			}
		})
	}
	require.NotZero(t, other, "no layer has other bits: the test compares nothing")
}

// distance returns the norm of a - b over the norm of b.
func distance(a, b []float32) float64 {
	difference, of := 0.0, 0.0
	for i, v := range b {
		difference += math.Pow(float64(a[i]-v), 2)
		of += float64(v) * float64(v)
	}
	return math.Sqrt(difference / max(of, math.SmallestNonzeroFloat64))
}

// TestPartialSumsBackward checks DX in the same way. All other gradients have one device's bits.
func TestPartialSumsBackward(t *testing.T) {
	input := small
	input.ScoreOnInput = true
	for i, c := range []testCase{
		{config: small, tokens: []int{20}}, {config: small, tokens: []int{13, 27}}, {config: small, tokens: []int{20, 0, 130}},
		{config: input, tokens: []int{40, 9, 1, 11}}, {config: small, tokens: []int{5, 0, 7, 3, 8, 0, 61, 66}},
	} {
		for turn, chunks := range []int{0, min(2, small.NumExperts/len(c.tokens))} {
			if testing.Short() && turn != (i+1)%2 {
				continue
			}
			t.Run(fmt.Sprintf("%s chunks %d", c, chunks), func(t *testing.T) {
				devs, err := devices()
				require.NoError(t, err)
				tr, modes := c.oneGPUBackward(t, false, false)
				want, err := tr.Results(false)
				require.NoError(t, err)
				members, plain := backwardOf(t, c, tr, Options{Chunks: chunks, Layer: modes})
				if drivertest.Name() == "emulated" && i > 2 {
					c.devices = loose(c, devs[1], uint64(i))
				}
				_, got := backwardOf(t, c, tr, Options{Chunks: chunks, PartialSums: true, Layer: modes})
				first := 0
				for rank, m := range members {
					w, err := m.backwardLayout()
					require.NoError(t, err)
					home := moe.BackwardArgs{X: m.back.X, Workspace: part(m.back.Workspace, w.home)}
					_, arrive := steps.GradientsReturned(m.call, home)
					rows, err := m.pairRows(m.back.Workspace, w.found, arrive, c.tokens[rank])
					require.NoError(t, err)
					ids := want.ExpertIDs[first*c.config.TopK:]
					if c.tokens[rank] > 0 {
						require.Equal(t, plain[rank].dx.Bits, m.sums(rows, ids, nil, 1, 0), "the host's sum of all rows")
						require.Equal(t, m.sums(rows, ids, nil, len(members), rank), got[rank].dx.Bits, "DX of rank %d", rank)
					}
					plain[rank].dx = got[rank].dx
					require.Equal(t, plain[rank], got[rank], "rank %d", rank)
					first += c.tokens[rank]
				}
			})
		}
	}
}

// backwardOf makes a group, and returns the results of a backward pass.
func backwardOf(t *testing.T, c testCase, tr *trial.Trial, o Options) ([]*member, []*gradients) {
	members, firsts := join(t, c, o), []int{0}
	for i, m := range members {
		require.NoError(t, m.fill(tr, firsts[i], c.tokens[i]))
		firsts = append(firsts, firsts[i]+c.tokens[i])
	}
	results := make([]*gradients, len(members))
	require.NoError(t, each(members, func(i int, m *member) (err error) {
		results[i], err = m.backward(tr, firsts[i], c.tokens[i], c.twice)
		return err
	}))
	return members, results
}
