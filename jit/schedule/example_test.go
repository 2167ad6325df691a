package schedule_test

import (
	"context"
	"encoding/binary"
	"fmt"

	"sonicmoe/jit/pipeline"
	"sonicmoe/jit/schedule"
	"sonicmoe/ptx"
	"sonicmoe/ptx/emu"
)

// ExampleQueue lets one CTA take all tiles of a schedule with two row pairs and two column tiles,
// in groups of two row tiles. The second pair has only one row tile. The kernel records expert,
// row, rows and column of each tile.
func ExampleQueue() {
	k := ptx.NewKernel("tiles")
	table, count, tickets := k.ParamPtr("table"), k.ParamPtr("blocks"), k.ParamPtr("tickets")
	out := k.ParamPtr("out")
	tid := k.TidX()
	cta := pipeline.NewCTA(k)
	tiles := schedule.Tiles{Table: table, RowPairs: count, Tickets: tickets, Columns: 2, GroupM: 2, ClusterM: 1}
	const readers, ctas = 1, 1
	queue := schedule.NewQueue[schedule.Tile](k, cta, schedule.TileWords, readers, ctas)
	cta.Ready(tid)
	// Here one thread publishes the tiles and also reads them. In a product, every role reads.
	k.If(tid.EqI(0), func() {
		publisher := tiles.Publisher(queue)
		at := ptx.NewVar(k, ptx.Uint(0))
		queue.Reader(ptx.True()).Each(func(t schedule.Tile) {
			publisher.Publish()
			ptx.StGlobal(out.Index(at.Get(), 16), t.Expert, t.Row, t.Rows, t.Column)
			at.Set(at.Get().AddI(1))
		})
	})

	// Expert 0 has 200 rows, expert 1 none, and expert 2 has 60.
	entries := []uint32{0, 0, 200, 0, 2, 200, 60, 0}
	handed, err := runTiles(k, k.SharedBytes(), entries, 6)
	for _, t := range handed {
		fmt.Printf("expert %d, rows %3d to %3d, column tile %d\n", t[0], t[1], t[1]+t[2]-1, t[3])
	}
	fmt.Println(err)
	// Output:
	// expert 0, rows   0 to 127, column tile 0
	// expert 0, rows 128 to 199, column tile 0
	// expert 0, rows   0 to 127, column tile 1
	// expert 0, rows 128 to 199, column tile 1
	// expert 2, rows 200 to 259, column tile 0
	// expert 2, rows 200 to 259, column tile 1
	// <nil>
}

// runTiles runs the kernel on the emulator, and returns the n tiles that it recorded.
func runTiles(k *ptx.Kernel, sharedBytes int, table []uint32, n int) (tiles [][4]uint32, err error) {
	m, err := k.Build()
	if err != nil {
		return nil, err
	}
	loaded, err := emu.Load(m.Print().PTX)
	if err != nil {
		return nil, err
	}
	kernel, err := loaded.Kernel("tiles")
	if err != nil {
		return nil, err
	}
	mem := emu.NewMemory(1 << 20)
	var params []byte
	for _, words := range [][]uint32{table, {uint32(len(table) / 4)}, {0}, make([]uint32, 4*n)} {
		at, err := mem.Alloc(int64(4 * len(words)))
		if err != nil {
			return nil, err
		}
		b, err := binary.Append(nil, binary.LittleEndian, words)
		if err != nil {
			return nil, err
		}
		if err := mem.Write(at, b); err != nil {
			return nil, err
		}
		params = binary.LittleEndian.AppendUint64(params, at)
	}
	launch := emu.Launch{Block: [3]int{32}, SharedBytes: sharedBytes, Params: params}
	if err := kernel.Launch(context.Background(), mem, launch); err != nil {
		return nil, err
	}
	out := make([]byte, 16*n)
	if err := mem.Read(out, binary.LittleEndian.Uint64(params[24:])); err != nil {
		return nil, err
	}
	tiles = make([][4]uint32, n)
	_, err = binary.Decode(out, binary.LittleEndian, tiles)
	return tiles, err
}
