package schedule

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/jit/internal/probe"
	"sonicmoe/jit/pipeline"
	"sonicmoe/ptx"
)

var early = probe.Timings()[0]

// placed runs place for every tile.
func placed(t *testing.T, b Blocks, counts []int) map[int][]uint32 {
	k := ptx.NewKernel("k")
	out := k.ParamPtr("out")
	blocks := k.ParamU32("blocks")
	k.For(k.Special("%tid.x"), blocks.MulI(b.Columns), ptx.Uint(128), func(i ptx.U32) {
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

// Every tile has exactly one place, panels come one after another, and rows
// run fast in all panels but a last, lower one.
func TestPlace(t *testing.T) {
	counts := []int{0, 1, 2, 7, 8, 9, 15, 16, 17, 31, 33, 100}
	for _, columns := range []int{1, 2, 3, 5, 12, 32} {
		for _, panel := range []int{1, 2, 3, 8, 16} {
			b := Blocks{Columns: columns, Panel: panel}
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

// Readers of the test kernel: warps 0 to 2, the first of which publishes too.
const (
	readers    = 3
	maxEntries = 64 // tiles that a reader can note
)

// queueKernel runs a queue over blocks. Reader r of CTA c notes the numbers of
// its tiles, in order, at [c][r][maxEntries] and how many at [c][r] of count.
func queueKernel(columns, panel int) (*ptx.Kernel, int) {
	k := ptx.NewKernel("k")
	k.SetLaunchBounds(32*readers, 1)
	table, blocks, tickets := k.ParamPtr("table"), k.ParamPtr("blocks"), k.ParamPtr("tickets")
	out, count := k.ParamPtr("out"), k.ParamPtr("count")
	tid := k.Special("%tid.x")
	mem, set := pipeline.NewShared(k), pipeline.NewSetup(k)
	q := NewQueue(k, set, mem, Blocks{Table: table, Count: blocks, Tickets: tickets, Columns: columns, Panel: panel}, readers)
	set.Done(tid)
	reader := k.Special("%ctaid.x").MulI(readers).Add(tid.ShrI(5))
	out = out.Index(reader, 4*maxEntries)
	note := func(publish func()) func() {
		return func() {
			n := ptx.NewVar(k, ptx.Uint(0))
			leader := tid.AndI(31).EqI(0)
			q.Reader(leader).Each(func(t Tile) {
				publish()
				k.If(leader, func() {
					// The test's rows are 128 a block, its expert the block.
					number := t.Row.DivI(128).MulI(columns).Add(t.Column)
					ok := t.Expert.Eq(t.Row.DivI(128)).And(t.Rows.Eq(t.Expert.AddI(1)))
					ptx.StGlobal(out.Index(n.Get(), 4), ptx.Select(ok, number, ptx.Uint(1<<30)))
				})
				n.Set(n.Get().AddI(1))
			})
			k.If(leader, func() { ptx.StGlobal(count.Index(reader, 4), n.Get()) })
		}
	}
	k.IfElse(tid.ShrI(5).EqI(0), func() {
		var p *Publisher
		first := tid.EqI(0)
		k.If(first, func() { p = q.Publisher() })
		note(func() { k.If(first, p.Publish) })()
	}, note(func() {}))
	return k, mem.Bytes()
}

// Every tile is handed out exactly once, to one CTA, whose readers all see
// the same sequence; CTAs without a tile end.
func TestQueue(t *testing.T) {
	const columns, panel = 3, 4
	k, shared := queueKernel(columns, panel)
	p := probe.New(t, k, 32*readers, shared)
	for _, blocks := range []int{0, 1, 2, 5, 17} {
		for _, ctas := range []int{1, 3, 7, 60} {
			if blocks*columns/ctas > maxEntries {
				continue
			}
			for _, timing := range probe.Timings() {
				what := fmt.Sprintf("%d blocks, %d CTAs, %s", blocks, ctas, timing.Name)
				var table []uint32
				for b := range blocks {
					table = append(table, uint32(b), uint32(128*b), uint32(b+1), 0)
				}
				out, count := p.Room(ctas*readers*maxEntries), p.Room(ctas*readers)
				p.Run(timing, ctas, p.Words(table...), p.Words(uint32(blocks)), p.Words(0), out, count)
				checkQueue(t, p.Read(out, ctas*readers*maxEntries), p.Read(count, ctas*readers), blocks*columns, what)
			}
		}
	}
}

func checkQueue(t *testing.T, out, count []uint32, tiles int, what string) {
	var all []uint32
	for r, n := range count {
		seen := out[r*maxEntries:][:maxEntries]
		require.LessOrEqual(t, int(n), tiles, what)
		require.NotContains(t, seen[:n], uint32(probe.Poison), what)
		if first := r / readers * readers; r != first {
			require.Equal(t, out[first*maxEntries:][:maxEntries], seen, "readers of CTA %d, %s", r/readers, what)
			continue
		}
		all = append(all, seen[:n]...)
	}
	slices.Sort(all)
	want := make([]uint32, tiles)
	for i := range want {
		want[i] = uint32(i)
	}
	require.Equal(t, want, append([]uint32{}, all...), what)
}
