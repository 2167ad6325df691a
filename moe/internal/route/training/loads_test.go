package training

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	kt "sonicmoe/moe/internal/kernel/kerneltest"
	"sonicmoe/moe/internal/route/order"
)

// TestLoads compares the loads of two micro-batches with a plain count. Some ids are out of range.
func TestLoads(t *testing.T) {
	for _, when := range kt.Timings() {
		for _, c := range []struct{ experts, topK, tokens, perCTA int }{
			{1, 1, 1, 64}, {1, 1, 300, 64}, {2, 1, 0, 64}, {5, 3, 65, 64}, {33, 6, 200, 64}, {256, 8, 130, 32}, {257, 2, 64, 64}, {1024, 32, 40, 16},
		} {
			t.Run(fmt.Sprintf("%s %+v", when.Name, c), func(t *testing.T) {
				b, r := kt.New(t, when), rand.New(rand.NewPCG(uint64(c.experts), uint64(c.tokens)))
				want := make([]int32, c.experts)
				for e := range want {
					want[e] = r.Int32N(9)
				}
				loads := kt.Upload(b, want)
				for range 2 {
					ids := make([]int32, c.tokens*c.topK)
					for i := range ids {
						ids[i] = min(r.Int32N(int32(c.experts)+2), r.Int32N(int32(c.experts)+2)) - 1
						switch e := int(ids[i]); {
						case i%11 == 10:
							ids[i] = []int32{math.MinInt32, math.MaxInt32, int32(c.experts)}[i%3]
						case 0 <= e && e < c.experts:
							want[e]++
						}
					}
					kt.Run(b, Loads{c.experts, c.topK}, max(1, (c.tokens+c.perCTA-1)/c.perCTA), LoadsArgs{
						ExpertIDs: kt.Upload(b, ids), Loads: loads, TokenRanges: order.TokenRanges{Tokens: c.tokens, PerCTA: c.perCTA},
					})
				}
				kt.SameBits(t, want, kt.Download[int32](b, loads, c.experts), "loads")
			})
		}
	}
}

// TestBalanceBias checks that each bias moves up if its expert's load is below the mean,
// and down if it is above. The loads are so large that 32-bit sums or FP32 means would
// give the wrong side.
func TestBalanceBias(t *testing.T) {
	const most = math.MaxInt32
	spread := func(experts int, load func(e int) int32) []int32 {
		list := make([]int32, experts)
		for e := range list {
			list[e] = load(e)
		}
		return list
	}
	for _, when := range kt.Timings() {
		for name, loads := range map[string][]int32{
			"one":              {7},
			"none":             {0, 0, 0},
			"mean between two": {1, 2, 1},
			"at the mean":      {1, 2, 3},
			"large":            {most, most - 1, most - 2},
			"large, one less":  spread(1024, func(e int) int32 { return most - int32(e/1023) }),
			"large, alike":     spread(1024, func(int) int32 { return most }),
			"zeros but one":    spread(257, func(e int) int32 { return int32(e / 256) }),
			"random":           spread(100, func(e int) int32 { return int32(e * e % 37) }),
		} {
			t.Run(when.Name+" "+name, func(t *testing.T) {
				b, rate, e := kt.New(t, when), float32(1e-3), len(loads)
				var sum int64
				for _, n := range loads {
					sum += int64(n)
				}
				bias, want := make([]float32, e), make([]float32, e)
				for i, n := range loads {
					bias[i] = float32(i%5-2) / 3
					want[i] = bias[i]
					switch times := int64(n) * int64(e); {
					case times < sum:
						want[i] += rate
					case times > sum:
						want[i] -= rate
					}
				}
				args := BalanceBiasArgs{Loads: kt.Upload(b, loads), Bias: kt.Upload(b, bias), Rate: rate}
				kt.Run(b, BalanceBias{e}, 0, args)
				kt.SameBits(t, want, kt.Download[float32](b, args.Bias, e), "bias")
				kt.SameBits(t, make([]int32, e), kt.Download[int32](b, args.Loads, e), "loads")
			})
		}
	}
}
