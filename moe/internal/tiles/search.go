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
	// Estimate is the cost model's.
	Estimate time.Duration
	// Rejected, unless empty, says why it is not to be tried.
	Rejected string
}

// Search is what a search of a product's tilings goes by.
type Search struct {
	// Product is its name, for errors.
	Product string
	// Space are the tilings that the cost model chooses among.
	Space []gemm.Tiling
	// SharedBytes is the shared memory of a tiling, Estimate its time.
	SharedBytes func(gemm.Tiling) int
	Estimate    func(gemm.Tiling) time.Duration
	// NoGroups: the product's tiles have no groups.
	NoGroups bool
}

// Alternatives enumerates all widths, ring depths, groups and clusters, with
// the reason for each tiling that no kernel can have or that is not worth
// trying.
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

// judge estimates a tiling or says why it is not to be tried.
func (s Search) judge(p gemm.Tiling, t driver.Target) Alternative {
	a := Alternative{Tiling: p}
	most := 0 // stages that fit
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
		a.Rejected = fmt.Sprintf("%d columns are no tile of this product", p.TileN)
	case s.SharedBytes(p) > t.SharedBytesPerCTA:
		a.Rejected = fmt.Sprintf("more than %d stages of %d columns don't fit a CTA's %d bytes of shared memory", most, p.TileN, t.SharedBytesPerCTA)
	case err != nil:
		a.Rejected = err.Error()
	case p.Stages < most-shorter:
		a.Rejected = fmt.Sprintf("%d stages of %d columns fit, and at most %d less are tried", most, p.TileN, shorter)
	case p.Stages < most && !slices.Contains([]int{1, 8}, p.GroupM):
		a.Rejected = "a shallower ring is tried with groups of 8 only"
	default:
		a.Estimate = s.Estimate(p)
	}
	return a
}
