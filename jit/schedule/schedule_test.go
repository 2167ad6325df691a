package schedule

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/jit/internal/probe"
	"sonicmoe/jit/pipeline"
	"sonicmoe/ptx"
)

var early = probe.Timings()[0]

// placed returns what [Tiles.place] computes for the number of every tile.
func placed(t *testing.T, b Tiles, counts []int) map[int][]uint32 {
	k := ptx.NewKernel("k")
	out := k.ParamPtr("out")
	blocks := k.ParamU32("blocks")
	k.For(k.TidX(), blocks.MulI(b.Columns), ptx.Uint(128), func(i ptx.U32) {
		entry, column := b.place(i, blocks)
		ptx.StGlobal(out.Index(i, 8), entry, column)
	})
	p := probe.New(t, k, 128, 0)
	all := map[int][]uint32{}
	for _, n := range counts {
		at := p.Room(2 * n * b.Columns)
		p.Run(early, 1, at, n)
		all[n] = p.Read(at, 2*n*b.Columns)
	}
	return all
}

// TestPlace checks that each pair of row tile and column belongs to exactly one tile number, that
// groups follow one another, and that within a group rows vary fastest, except in a last group with
// fewer row tiles.
func TestPlace(t *testing.T) {
	counts := []int{0, 1, 2, 7, 8, 9, 15, 16, 17, 31, 33, 100}
	for _, columns := range []int{1, 2, 3, 5, 12, 32} {
		for _, panel := range []int{1, 2, 3, 8, 16} {
			b := Tiles{Columns: columns, GroupM: panel}
			inCluster := b
			inCluster.ClusterM, inCluster.GroupM = 2, 2*panel
			require.Equal(t, placed(t, b, []int{33}), placed(t, inCluster, []int{33}), "pairs of blocks")
			for n, places := range placed(t, b, counts) {
				what := fmt.Sprintf("%d blocks, %d columns, panels of %d", n, columns, panel)
				seen := make([]bool, n*columns)
				for i := 0; i < len(places); i += 2 {
					tile, entry, column := i/2, int(places[i]), int(places[i+1])
					require.Less(t, entry, n, "tile %d, %s", tile, what)
					require.Less(t, column, columns, "tile %d, %s", tile, what)
					require.False(t, seen[entry*columns+column], "tile %d comes again, %s", tile, what)
					seen[entry*columns+column] = true
					require.Equal(t, tile/(panel*columns), entry/panel, "panel of tile %d, %s", tile, what)
					if in := tile % (panel * columns); entry/panel < n/panel {
						require.Equal(t, []int{in % panel, in / panel}, []int{entry % panel, column}, "tile %d, %s", tile, what)
					}
				}
				require.NotContains(t, seen, false, what)
			}
		}
	}
}

// The readers of the test kernel are warps 0 to 2. Warp 0 also publishes.
const (
	readers   = 3
	maxTiles  = 160 // number of tiles that a reader can record
	tileWords = 4
)

// queueKernel returns a kernel that runs a queue over row tiles. Reader r of CTA c records its
// tiles, in order, at [c][r][maxTiles] of the output, and their number at [c][r] of count.
func queueKernel(columns, panel, ctas int) (*ptx.Kernel, int) {
	k := ptx.NewKernel("k")
	k.SetLaunchBounds(32*readers, 1)
	if ctas > 1 {
		k.SetCluster(ctas)
	}
	table, blocks, tickets := k.ParamPtr("table"), k.ParamPtr("blocks"), k.ParamPtr("tickets")
	out, count := k.ParamPtr("out"), k.ParamPtr("count")
	tid := k.TidX()
	cta := pipeline.NewCTA(k)
	tiles := Tiles{Table: table, RowPairs: blocks, Tickets: tickets, Columns: columns, GroupM: panel, ClusterM: ctas}
	q := NewQueue[Tile](k, cta, TileWords, readers, ctas)
	cta.Ready(tid)
	pipeline.ClusterSync(k)
	reader := k.CtaidX().MulI(readers).Add(tid.ShrI(5))
	out = out.Index(reader, 4*tileWords*maxTiles)
	note := func(publish func()) func() {
		return func() {
			n := ptx.NewVar(k, ptx.Uint(0))
			leader := tid.AndI(31).EqI(0)
			q.Reader(leader).Each(func(t Tile) {
				publish()
				k.If(leader, func() { ptx.StGlobal(out.Index(n.Get(), 4*tileWords), t.Words()...) })
				n.Set(n.Get().AddI(1))
			})
			k.If(leader, func() { ptx.StGlobal(count.Index(reader, 4), n.Get()) })
		}
	}
	k.IfElse(tid.ShrI(5).EqI(0), func() {
		var p *TilePublisher
		first := tid.EqI(0).And(q.Publishes())
		k.If(first, func() { p = tiles.Publisher(q) })
		note(func() { k.If(first, p.Publish) })()
	}, note(func() {}))
	pipeline.ClusterSync(k)
	return k, k.SharedBytes()
}

// rowsOfPair returns the number of rows of a pair in the test's table: full and partial tiles, one
// or two of them.
func rowsOfPair(pair int) int { return []int{256, 100, 129, 128, 1, 255, 200}[pair%7] }

// TestQueue checks that every tile goes to exactly one CTA, that all readers of a CTA see the same
// sequence, and that CTAs without a tile end.
func TestQueue(t *testing.T) {
	for _, c := range []struct{ columns, panel, ctas int }{{3, 4, 1}, {3, 4, 2}, {1, 2, 2}, {4, 1, 2}} {
		k, shared := queueKernel(c.columns, c.panel, c.ctas)
		p := probe.New(t, k, 32*readers, shared)
		p.Launch.Cluster = [3]int{c.ctas}
		for _, pairs := range []int{0, 1, 2, 5, 17} {
			for i, runners := range []int{1, 3, 7, 30} {
				if testing.Short() && (i+pairs)%2 == 0 {
					continue
				}
				for _, timing := range probe.Timings() {
					what := fmt.Sprintf("%+v, %d pairs, %d CTAs or clusters, %s", c, pairs, runners, timing.Name)
					var table []uint32
					for b := range pairs {
						table = append(table, uint32(b), uint32(schedulePitch*b), uint32(rowsOfPair(b)), ^uint32(0)) // kernels do not read the last word
					}
					all := runners * c.ctas
					out, count := p.Room(all*readers*maxTiles*tileWords), p.Room(all*readers)
					p.Run(timing, all, p.Words(table...), p.Words(uint32(pairs)), p.Words(0), out, count)
					checkQueue(t, p.Read(out, all*readers*maxTiles*tileWords), p.Read(count, all*readers), pairs, c.columns, c.ctas, what)
				}
			}
		}
	}
}

// schedulePitch is the distance in rows between the pairs of the test's table.
const schedulePitch = 1000

type handed struct{ expert, row, rows, column uint32 }

func checkQueue(t *testing.T, out, count []uint32, pairs, columns, ctas int, what string) {
	seen := map[handed]int{}
	const stride = maxTiles * tileWords
	for r, n := range count {
		cta, tiles := r/readers, out[r*stride:][:stride]
		require.LessOrEqual(t, int(n), maxTiles, what)
		require.Equal(t, out[cta*readers*stride:][:stride], tiles, "readers of CTA %d, %s", cta, what)
		if r%readers != 0 {
			continue
		}
		require.Equal(t, count[cta/ctas*ctas*readers], n, "CTAs of a cluster take the same number of tiles, %s", what)
		for i := range int(n) {
			v := tiles[tileWords*i:]
			rows, live, shared := v[2]&0xff, v[2]>>8&0xff, v[2]>>16
			whole := rowsOfPair(int(v[0]))
			require.Equal(t, ctas == 2 && whole > TileRows, shared == 1, "weights are shared where both blocks exist, %s", what)
			if live == 0 {
				require.True(t, shared == 0 && ctas == 2 && v[3] >= uint32(columns), "only a tile past the last column is not live, %s", what)
				continue
			}
			require.Equal(t, rows, live, what)
			seen[handed{v[0], v[1], rows, v[3]}]++
		}
	}
	for b := range pairs {
		for first := 0; first < rowsOfPair(b); first += TileRows {
			for column := range columns {
				h := handed{uint32(b), uint32(schedulePitch*b + first), uint32(min(TileRows, rowsOfPair(b)-first)), uint32(column)}
				require.Equal(t, 1, seen[h], "tile %+v, %s", h, what)
				delete(seen, h)
			}
		}
	}
	require.Empty(t, seen, what)
}
