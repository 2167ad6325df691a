package tiles

import (
	"fmt"
	"slices"
	"time"

	"sonicmoe/driver"
	"sonicmoe/jit/gemm"
)

// Alternative is a tiling that a search may try.
type Alternative struct {
	Tiling gemm.Tiling
	// Estimate is the time by the cost model.
	Estimate time.Duration
	// Rejected is the reason why the tiling should not be tried, or empty.
	Rejected string
}

// Search is the input of a search for the best tiling of a product.
type Search struct {
	// Product is the product's name, for errors.
	Product string
	// Space has the tilings that the cost model chooses from.
	Space []gemm.Tiling
	// SharedBytes returns the bytes of shared memory with a tiling. Estimate returns its time by
	// the cost model.
	SharedBytes func(gemm.Tiling) int
	Estimate    func(gemm.Tiling) time.Duration
	// NoGroups means that the product does not order its tiles in groups.
	NoGroups bool
}

// Alternatives lists all combinations of tile width, number of stages, group and cluster. It
// rejects a tiling, with the reason, if no kernel can have it or if it is not worth trying.
func (s Search) Alternatives(t driver.Target) []Alternative {
	groups := []int{4, 8, 16, 32}
	if s.NoGroups {
		groups = []int{1}
	}
	var list []Alternative
	for _, n := range []int{256, 192, 128} {
		for stages := deepest; stages >= shallowest; stages-- {
			for _, group := range groups {
				for cluster := 1; cluster <= 2; cluster++ {
					list = append(list, s.judge(gemm.Tiling{TileN: n, Stages: stages, GroupM: group, ClusterM: cluster}, t))
				}
			}
		}
	}
	return list
}

// judge estimates a tiling, or rejects it with the reason.
func (s Search) judge(p gemm.Tiling, t driver.Target) Alternative {
	a := Alternative{Tiling: p}
	most := 0 // the number of stages that fit
	for _, q := range s.Space {
		if q.TileN == p.TileN {
			most = max(most, q.Stages)
		}
	}
	shorter := 1
	if s.NoGroups {
		shorter = 2
	}
	err := Check(s.Product, p, s.Space)
	switch {
	case most == 0:
		a.Rejected = fmt.Sprintf("this product has no tile of %d columns", p.TileN)
	case s.SharedBytes(p) > t.SharedBytesPerCTA:
		a.Rejected = fmt.Sprintf("more than %d stages of %d columns do not fit in a CTA's %d bytes of shared memory", most, p.TileN, t.SharedBytesPerCTA)
	case err != nil:
		a.Rejected = err.Error()
	case p.Stages < most-shorter:
		a.Rejected = fmt.Sprintf("%d stages of %d columns fit, and only up to %d fewer are tried", most, p.TileN, shorter)
	case p.Stages < most && !slices.Contains([]int{1, 8}, p.GroupM):
		a.Rejected = "a shallower ring is only tried with groups of 8"
	default:
		a.Estimate = s.Estimate(p)
	}
	return a
}
