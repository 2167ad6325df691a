package gemm_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/driver/gpu"
	"sonicmoe/jit"
	"sonicmoe/jit/gemm"
	"sonicmoe/jit/pipeline"
	"sonicmoe/jit/schedule"
	"sonicmoe/jit/tile"
	"sonicmoe/ptx"
)

// grouped is the kernel C = A·B[expert]ᵀ for packed rows of A. It shows how much code a minimal
// kernel needs in addition to package gemm.
type grouped struct {
	depth, width, experts int
	tiling                gemm.Tiling
	// gathered states that packed row p of A is row gather[p] of the tensor.
	gathered bool
	// bMN selects a B with the shape [experts, depth, width] instead of [experts, width, depth].
	bMN bool
}

type groupedArgs struct {
	A, Gather, B, C driver.DevicePtr
	Rows            int
	gemm.TileArgs
}

func (g grouped) build() (*jit.Kernel[groupedArgs], error) {
	k := jit.NewBuilder[groupedArgs]("grouped", gemm.Threads, 1)
	k.Persistent(g.tiling.ClusterM)
	b, c := k.Map(&k.Args.B, g.bMap), k.Map(&k.Args.C, func(a *groupedArgs) gpu.TensorMap { return tile.RaggedMap(a.C, g.width, a.Rows) })
	cta := pipeline.NewCTA(k.Kernel)
	config := gemm.Config{
		Tiling: g.tiling, KTiles: g.depth / tile.K, Columns: g.tiling.Columns(g.width),
		Gathered: g.gathered, BMN: g.bMN,
	}
	at := func(t gemm.Tile, i int) []ptx.U32 {
		return t.Ragged(t.Column.MulI(g.tiling.TileN).AddI(gemm.SubTileColumns * i))
	}
	if g.gathered {
		store := gemm.NewStore(k.Kernel, tile.BF16, cta)
		x, rows := k.Ptr(&k.Args.A), k.Ptr(&k.Args.Gather)
		p := gemm.New(k.Kernel, cta, k, &k.Args.TileArgs, config)
		p.Run(gemm.Roles{
			Load: p.Gather(gemm.Rows{X: x, Gather: rows, RowBytes: g.depth * tile.ElementBytes},
				func(s pipeline.Stage, t schedule.Tile, kt ptx.U32) { g.loadB(p, b, s, t, kt) }),
			Math: gemm.StoreOnly{Store: store, Each: func(t gemm.Tile, acc []ptx.F32) {
				store.Tile(g.tiling.SubTiles(), func(i int) gemm.SubTile {
					return gemm.SubTile{Values: gemm.Registers(gemm.OfSubTile(acc, i)), To: c, At: func() []ptx.U32 { return at(t, i) }}
				})
			}},
		})
		return k.Build()
	}
	config.Outlet = gemm.NewOutlet(k.Kernel, tile.BF16, cta, g.tiling.SubTiles(), c, at)
	a := k.Map(&k.Args.A, func(a *groupedArgs) gpu.TensorMap { return tile.RowMap(a.A, g.depth, a.Rows, gemm.TileM) })
	p := gemm.New(k.Kernel, cta, k, &k.Args.TileArgs, config)
	p.Run(gemm.Roles{
		Load: p.TMA(func(t gemm.TileLoad) {
			k.Range(ptx.Uint(p.KTiles), func(kt ptx.U32) {
				s := t.Ring.Acquire()
				k.MbarrierArriveExpectTx(s.Full, ptx.Uint(p.StageBytes()))
				k.TMALoad(s.Data, a, s.Full, kt.MulI(tile.K), t.Row)
				g.loadB(p, b, s, t.Tile, kt)
				t.Ring.Advance()
			})
		}),
		Math: gemm.Sums{},
	})
	return k.Build()
}

// bMap returns the tensor map that loads a tile of B in two halves.
func (g grouped) bMap(a *groupedArgs) gpu.TensorMap {
	half, size := g.tiling.TileN/2, g.width*g.depth
	if g.bMN {
		return tile.LoadMap(a.B, []int{tile.Block, tile.K, half / tile.Block, 1}, tile.Dim{Extent: tile.Block, Stride: 1},
			tile.Dim{Extent: g.depth, Stride: g.width}, tile.Dim{Extent: g.width / tile.Block, Stride: tile.Block}, tile.Dim{Extent: g.experts, Stride: size})
	}
	return tile.LoadMap(a.B, []int{tile.K, half, 1},
		tile.Dim{Extent: g.depth, Stride: 1}, tile.Dim{Extent: g.width, Stride: g.depth}, tile.Dim{Extent: g.experts, Stride: size})
}

func (g grouped) loadB(p *gemm.Product, b ptx.TensorMap, s pipeline.Stage, t schedule.Tile, kt ptx.U32) {
	p.LoadB(s, t, func(half ptx.U32) []gemm.Box {
		column, depth := t.Column.MulI(2).Add(half).MulI(g.tiling.TileN/2), kt.MulI(tile.K)
		if g.bMN {
			return []gemm.Box{{Map: b, At: []ptx.U32{ptx.Uint(0), depth, column.DivI(tile.Block), t.Expert}}}
		}
		return []gemm.Box{{Map: b, At: []ptx.U32{depth, column, t.Expert}}}
	})
}

// b returns the element of an expert's B for the given column of C and the given k.
func (g grouped) b(values []uint16, expert, column, depth int) float64 {
	at := expert*g.width*g.depth + column*g.depth + depth
	if g.bMN {
		at = expert*g.width*g.depth + depth*g.width + column
	}
	return float(values[at])
}

// packed holds rows sorted by expert. After each expert's rows come some rows that belong to no
// expert.
type packed struct {
	expert []int // expert of each row; -1 for a row of no expert
	gather []uint32
	table  []uint32
}

func pack(rows ...int) (p packed) {
	for e, n := range rows {
		first := len(p.expert)
		for i := range n {
			if i%schedule.PairRows == 0 {
				p.table = append(p.table, uint32(e), uint32(first+i), uint32(min(schedule.PairRows, n-i)), 0)
			}
			p.expert, p.gather = append(p.expert, e), append(p.gather, uint32(7*first+5*i)%uint32(len(rows)))
		}
		for range e%3 + 1 {
			p.expert, p.gather = append(p.expert, -1), append(p.gather, poison32)
		}
	}
	return p
}

// run launches the kernel, compares C with sums in float64, and returns C. The values must be
// equal, because the operands are small integers whose sums are exact in bf16.
func (g grouped) run(t testing.TB, when timing, p packed) []uint16 {
	b, rng := newBed(t, when), rand.New(rand.NewPCG(1, 2))
	rows := len(p.expert)
	a, w := whole(rng, rows*g.depth), whole(rng, g.experts*g.width*g.depth)
	k, err := g.build()
	require.NoError(t, err)
	c := b.room(2 * rows * g.width)
	launch(b, k, 0, groupedArgs{A: upload(b, a), Gather: upload(b, p.gather), B: upload(b, w), C: c, Rows: rows, TileArgs: gemm.TileArgs{
		Table: upload(b, p.table), RowPairs: upload(b, []uint32{uint32(len(p.table) / 4)}), Tickets: upload(b, []uint32{0}),
	}})
	got := download[uint16](b, c, rows*g.width)
	for row, e := range p.expert {
		if e < 0 {
			for _, v := range got[row*g.width:][:g.width] {
				require.Equal(t, uint16(poison16), v, "row %d belongs to no expert and must not be written", row)
			}
			continue
		}
		from := row
		if g.gathered {
			from = int(p.gather[row])
		}
		for column := range g.width {
			var sum float64
			for i := range g.depth {
				sum += float(a[from*g.depth+i]) * g.b(w, e, column, i)
			}
			if v := float(got[row*g.width+column]); v != sum {
				t.Fatalf("row %d of expert %d, column %d is %v, must be %v", row, e, column, v, sum)
			}
		}
	}
	return got
}

// TestGrouped checks a grouped product with every load role, layout and tiling. Its bits must be
// the same under every timing of asynchronous work.
func TestGrouped(t *testing.T) {
	p := pack(1, 0, 70, 128, 129, 257)
	for i, g := range []grouped{
		{tiling: gemm.Tiling{TileN: 128, Stages: 3, GroupM: 2, ClusterM: 1}},
		{tiling: gemm.Tiling{TileN: 256, Stages: 2, GroupM: 1, ClusterM: 2}},
		{tiling: gemm.Tiling{TileN: 192, Stages: 2, GroupM: 4, ClusterM: 1}},
		{tiling: gemm.Tiling{TileN: 128, Stages: 2, GroupM: 8, ClusterM: 1}, gathered: true},
		{tiling: gemm.Tiling{TileN: 128, Stages: 3, GroupM: 4, ClusterM: 2}, gathered: true},
		{tiling: gemm.Tiling{TileN: 128, Stages: 3, GroupM: 2, ClusterM: 2}, bMN: true},
		{tiling: gemm.Tiling{TileN: 256, Stages: 3, GroupM: 2, ClusterM: 1}, bMN: true, gathered: true},
	} {
		g.depth, g.width, g.experts = 192, 192, 6
		t.Run(fmt.Sprintf("%v gathered=%v bMN=%v", g.tiling, g.gathered, g.bMN), func(t *testing.T) {
			first := g.run(t, timings[0], p)
			for j, when := range timings[1:] {
				if testing.Short() && j != i%len(timings[1:]) {
					continue // each tiling runs with one of the timings, in turn
				}
				require.Equal(t, first, g.run(t, when, p), when.name)
			}
		})
	}
}

// TestGroupedWithoutRows checks that a kernel stores nothing and ends if no expert has a row.
func TestGroupedWithoutRows(t *testing.T) {
	g := grouped{depth: 64, width: 128, experts: 1, tiling: gemm.Tiling{TileN: 128, Stages: 2, GroupM: 1, ClusterM: 2}}
	g.run(t, timings[0], pack(0))
}

// TestTiling checks that the error of CheckAtoms names the kernel and the tiling.
func TestTiling(t *testing.T) {
	require.Equal(t, "128x192 s4 p8 c2", gemm.Tiling{TileN: 192, Stages: 4, GroupM: 8, ClusterM: 2}.String())
	require.NoError(t, gemm.Tiling{TileN: 192, ClusterM: 1}.CheckAtoms("k"))
	require.EqualError(t, gemm.Tiling{TileN: 192, Stages: 4, GroupM: 8, ClusterM: 2}.CheckAtoms("k"),
		"k: tiling 128x192 s4 p8 c2: TileN must be a multiple of 64 for each CTA of the cluster")
}
