package tiles

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"sonicmoe/driver"
	"sonicmoe/internal/spec"
	"sonicmoe/jit/gemm"
	"sonicmoe/jit/tile"
)

// Choice has the tiling of each product of a layer. A product with the zero tiling gets the cost
// model's choice. Results have the same bits with every tiling.
type Choice [len(spec.Products)]gemm.Tiling

// With returns c with another tiling of a product.
func (c Choice) With(id spec.ProductID, t gemm.Tiling) Choice {
	c[id] = t
	return c
}

// Text returns the tilings as text, such as "128x256 s4 p8 c1", by the names of the products.
func (c Choice) Text() map[string]string {
	text := map[string]string{}
	for id, tiling := range c {
		if tiling != (gemm.Tiling{}) {
			text[spec.ProductID(id).String()] = tiling.String()
		}
	}
	return text
}

// Parse reads tilings from their text. The error is a [*spec.ArgError].
func Parse(text map[string]string) (c Choice, err error) {
	for product, s := range text {
		id, err := spec.ParseProduct(product)
		if err != nil {
			return Choice{}, err
		}
		t, rows := &c[id], 0
		_, err = fmt.Sscanf(s, "%dx%d s%d p%d c%d", &rows, &t.TileN, &t.Stages, &t.GroupM, &t.ClusterM)
		if err != nil || t.String() != s || *t == (gemm.Tiling{}) {
			return Choice{}, &spec.ArgError{Field: "tiling of " + product, Got: strconv.Quote(s), Want: fmt.Sprintf("a tiling such as %q", gemm.Tiling{TileN: 256, Stages: 4, GroupM: 8, ClusterM: 1}.String())}
		}
	}
	return c, nil
}

// OrElse returns c, with the tilings of other for products that have none in c.
func (c Choice) OrElse(other Choice) Choice {
	for id, tiling := range c {
		if tiling != (gemm.Tiling{}) {
			other[id] = tiling
		}
	}
	return other
}

// The largest and smallest number of stages, and the largest group.
const (
	deepest, shallowest = 8, 3
	widestGroup         = 1024
)

// defaultGroup is the group of the tilings that the cost model chooses from. Larger groups gain
// little or lose much, depending on the layer, and only measuring tells.
const defaultGroup = 8

// Deepest lists tilings of these widths without clusters, each with the largest number of stages
// that fits in the target's shared memory. It leaves out a width if fewer than three stages fit.
func Deepest(t driver.Target, sharedBytes func(gemm.Tiling) int, widths ...int) []gemm.Tiling {
	var list []gemm.Tiling
	for _, n := range widths {
		p := gemm.Tiling{TileN: n, Stages: deepest, GroupM: defaultGroup, ClusterM: 1}
		for sharedBytes(p) > t.SharedBytesPerCTA {
			p.Stages--
		}
		if p.Stages >= shallowest {
			list = append(list, p)
		}
	}
	return list
}

// InClusters returns the tilings with clusters of two CTAs.
func InClusters(list []gemm.Tiling) []gemm.Tiling {
	list = slices.Clone(list)
	for i := range list {
		list[i].ClusterM = 2
	}
	return list
}

// OrClusters returns each tiling without clusters and with clusters of two CTAs.
func OrClusters(list []gemm.Tiling) []gemm.Tiling {
	var all []gemm.Tiling
	for _, p := range list {
		for _, p.ClusterM = range []int{1, 2} {
			all = append(all, p)
		}
	}
	return all
}

// WholeAtoms returns the tilings whose MN-major B tile consists of whole swizzle atoms of 64
// columns.
func WholeAtoms(list []gemm.Tiling) []gemm.Tiling {
	return slices.DeleteFunc(slices.Clone(list), func(p gemm.Tiling) bool { return p.TileN%(tile.Block*p.ClusterM) != 0 })
}

// Check returns an error if a tiling is not in the space. The tiling may have fewer stages than the
// space's tiling, and another group. The error is a [*spec.ArgError] that names the field.
func Check(field string, p gemm.Tiling, space []gemm.Tiling) error {
	bad := func(part string, got int, want string) error {
		return &spec.ArgError{Field: field + part, Got: strconv.Itoa(got), Want: want}
	}
	var widths []string
	var same []gemm.Tiling
	for _, q := range space {
		if q.TileN == p.TileN {
			same = append(same, q)
		} else {
			widths = append(widths, strconv.Itoa(q.TileN))
		}
	}
	if len(same) == 0 {
		return bad(".TileN", p.TileN, "one of "+strings.Join(slices.Compact(widths), ", "))
	}
	clusters := 1
	for _, q := range same {
		clusters = max(clusters, q.ClusterM)
	}
	switch most := same[0].Stages; {
	case p.Stages < shallowest || p.Stages > most:
		return bad(".Stages", p.Stages, fmt.Sprintf("%d to %d for %d columns", shallowest, most, p.TileN))
	case p.GroupM < 1 || p.GroupM > widestGroup:
		return bad(".GroupM", p.GroupM, fmt.Sprintf("1 to %d", widestGroup))
	case p.ClusterM < 1 || p.ClusterM > clusters:
		want := "1, or 2 for clusters of two"
		if clusters == 1 {
			want = fmt.Sprintf("1 for %d columns", p.TileN)
		}
		return bad(".ClusterM", p.ClusterM, want)
	}
	return nil
}
