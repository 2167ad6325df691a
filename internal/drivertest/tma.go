package drivertest

import (
	"encoding/binary"
	"fmt"

	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/driver/gpu"
)

// sheet is a matrix in global memory. The tests' tensor maps describe sheets.
type sheet struct {
	elem       gpu.ElemType
	cols, rows int
	pitch      int // the number of bytes from one row to the next
}

func (s sheet) tensorMap(at driver.DevicePtr, box [2]int, swizzle gpu.Swizzle) gpu.TensorMap {
	m := gpu.TensorMap{Elem: s.elem, Rank: 2, Address: at, Swizzle: swizzle}
	m.Dims[0], m.Dims[1], m.Strides[0] = uint64(s.cols), uint64(s.rows), uint64(s.pitch)
	m.Box[0], m.Box[1] = uint32(box[0]), uint32(box[1])
	return m
}

// bytes returns the content of the sheet, including the gaps between rows. No byte is zero.
func (s sheet) bytes() []byte {
	raw := make([]byte, s.rows*s.pitch)
	for i := range raw {
		raw[i] = byte(1 + (i*7+i/251)%125)
	}
	return raw
}

// place returns the offset in shared memory of byte i of row r of a TMA box. rowBytes is the
// length of a box row. A swizzle permutes 16-byte chunks.
func place(r, i, rowBytes int, swizzle gpu.Swizzle) int {
	at := r*rowBytes + i
	return at ^ (at>>7&(1<<swizzle-1))<<4
}

// tileCases are boxes inside a sheet, across each of its edges, and outside. All sheets have
// rows whose length is a multiple of 16 bytes, because a store across the end of dimension 0
// writes all of the last 16 bytes (observed on an H200 with rows of 200 bytes).
var tileCases = []struct {
	sheet   sheet
	box     [2]int
	swizzle gpu.Swizzle
}{
	{sheet{gpu.U16, 96, 37, 208}, [2]int{64, 16}, gpu.SwizzleNone},
	{sheet{gpu.BF16, 96, 37, 208}, [2]int{64, 16}, gpu.Swizzle128},
	{sheet{gpu.BF16, 96, 37, 208}, [2]int{32, 24}, gpu.Swizzle64},
	{sheet{gpu.F16, 96, 37, 208}, [2]int{16, 24}, gpu.Swizzle32},
	{sheet{gpu.F32, 48, 37, 208}, [2]int{32, 8}, gpu.Swizzle128},
	{sheet{gpu.U8, 192, 37, 208}, [2]int{48, 8}, gpu.SwizzleNone},
}

// tileCorners are the coordinates x, y at which boxes start. Each x is at a multiple of 16
// bytes, because an H200 reported an illegal instruction for a box of 16-bit elements at x = 3.
var tileCorners = [][2]int{{0, 0}, {16, 5}, {80, 30}, {-16, -3}, {32, -4}, {-16, 33}, {304, 300}}

// eachTile calls test for every tile case at every corner, with the encoded tensor map.
func (b *bench) eachTile(at driver.DevicePtr, test func(name string, m gpu.EncodedTensorMap, i int, x, y int)) {
	b.Helper()
	for i, c := range tileCases {
		m, err := b.dev.EncodeTensorMap(c.sheet.tensorMap(at, c.box, c.swizzle))
		require.NoError(b, err)
		for _, corner := range tileCorners {
			name := fmt.Sprintf("%v box %v swizzle %d at %v", c.sheet.elem, c.box, c.swizzle, corner)
			test(name, m, i, corner[0], corner[1])
		}
	}
}

func testLoadTile(b *bench) {
	f := b.function("tma.ptx", "load_tile")
	in, out := b.alloc(37*208), b.alloc(16384)
	b.eachTile(in, func(name string, m gpu.EncodedTensorMap, i, x, y int) {
		c := tileCases[i]
		data, size := c.sheet.bytes(), c.sheet.elem.Bytes()
		rowBytes := c.box[0] * size
		want := make([]byte, c.box[1]*rowBytes)
		for r := range c.box[1] {
			for col := range c.box[0] {
				if inside(x+col, c.sheet.cols) && inside(y+r, c.sheet.rows) {
					for k := range size {
						want[place(r, col*size+k, rowBytes, c.swizzle)] = data[(y+r)*c.sheet.pitch+(x+col)*size+k]
					}
				}
			}
		}
		require.NoError(b, b.stream.CopyToDevice(in, data))
		l := &gpu.Launch{Block: gpu.Dim3{X: 64}}
		require.NoError(b, gpu.Enqueue(b.stream, f, l, pack(m, out, int32(x), int32(y), uint32(len(want)/4))))
		got := make([]byte, len(want))
		require.NoError(b, b.stream.CopyToHost(got, out), name)
		require.Equal(b, want, got, name)
	})
}

func inside(i, n int) bool { return i >= 0 && i < n }

func testStoreTile(b *bench) {
	f := b.function("tma.ptx", "store_tile")
	in, out := b.alloc(16384), b.alloc(37*208)
	b.eachTile(out, func(name string, m gpu.EncodedTensorMap, i, x, y int) {
		if x < 0 || y < 0 {
			return // an H200 refuses stores that start before the tensor
		}
		c := tileCases[i]
		size := c.sheet.elem.Bytes()
		rowBytes := c.box[0] * size
		tile := sheet{rows: c.box[1], pitch: rowBytes}.bytes()
		want := c.sheet.bytes()
		require.NoError(b, b.stream.CopyToDevice(in, tile))
		require.NoError(b, b.stream.CopyToDevice(out, want))
		for r := range c.box[1] {
			for col := range c.box[0] {
				if inside(x+col, c.sheet.cols) && inside(y+r, c.sheet.rows) {
					for k := range size {
						want[(y+r)*c.sheet.pitch+(x+col)*size+k] = tile[place(r, col*size+k, rowBytes, c.swizzle)]
					}
				}
			}
		}
		l := &gpu.Launch{Block: gpu.Dim3{X: 64}}
		require.NoError(b, gpu.Enqueue(b.stream, f, l, pack(m, in, int32(x), int32(y), uint32(len(tile)/4))))
		got := make([]byte, len(want))
		require.NoError(b, b.stream.CopyToHost(got, out), name)
		require.Equal(b, want, got, name)
	})
}

// testRaggedStore checks stores that end at the end of a run of rows: rows [first, first+count)
// of out, for any first and count. The tensor map has its base before the matrix. Dimension 1
// of the map ends where the run ends, so that later rows are outside the map. Dimension 2 moves
// this end. Both dimensions have a stride of one row.
func testRaggedStore(b *bench) {
	const cols, rows, pitch, boxRows = 64, 96, 128, 16
	f := b.function("tma.ptx", "store_ragged")
	in, out := b.alloc(boxRows*pitch), b.alloc(rows*pitch)
	tile := make([]byte, 0, boxRows*pitch)
	for i := range boxRows * cols {
		tile = binary.LittleEndian.AppendUint16(tile, uint16(1+i))
	}
	require.NoError(b, b.stream.CopyToDevice(in, tile))
	for _, before := range []int{boxRows, 1 << 20} {
		back := driver.DevicePtr(before * pitch)
		if out < back {
			b.Logf("memory begins at %#x: a base %d rows before it does not exist", uint64(out), before)
			continue
		}
		m := gpu.TensorMap{Elem: gpu.BF16, Rank: 3, Address: out - back,
			Dims: [5]uint64{cols, uint64(before), 1<<31 - 1}, Strides: [4]uint64{pitch, pitch}, Box: [5]uint32{cols, boxRows, 1}}
		encoded, err := b.dev.EncodeTensorMap(m)
		require.NoError(b, err)
		for _, run := range []struct{ first, count, row int }{{13, 21, 16}, {13, 21, 0}, {0, 1, 0}, {0, 16, 0}, {80, 16, 0}, {95, 1, 0}} {
			require.NoError(b, b.stream.Fill32(out, poison, rows*pitch/4))
			left := min(boxRows, run.count-run.row)
			y, z := before-left, run.first+run.row+left
			l := &gpu.Launch{Block: gpu.Dim3{X: 64}}
			require.NoError(b, gpu.Enqueue(b.stream, f, l, pack(encoded, in, int32(0), int32(y), int32(z), uint32(len(tile)/4))))
			got := make([]byte, rows*pitch)
			require.NoError(b, b.stream.CopyToHost(got, out))
			for i := range got {
				want := byte(poison & 0xFF)
				if row := i/pitch - run.first - run.row; inside(row, left) {
					want = tile[row*pitch+i%pitch]
				}
				if got[i] != want {
					require.Equal(b, want, got[i], "%+v, %d rows before: byte %d of row %d", run, before, i%pitch, i/pitch)
				}
			}
		}
	}
}

func testTensorMapErrors(b *bench) {
	p := b.alloc(1 << 16)
	good := sheet{gpu.BF16, 128, 64, 256}.tensorMap(p, [2]int{64, 64}, gpu.Swizzle128)
	_, err := b.dev.EncodeTensorMap(good)
	require.NoError(b, err)
	for name, spoil := range map[string]func(m *gpu.TensorMap){
		"no element type":             func(m *gpu.TensorMap) { m.Elem = 0 },
		"unknown element type":        func(m *gpu.TensorMap) { m.Elem = 99 },
		"rank 0":                      func(m *gpu.TensorMap) { m.Rank = 0 },
		"rank 6":                      func(m *gpu.TensorMap) { m.Rank = 6 },
		"address not 16-aligned":      func(m *gpu.TensorMap) { m.Address += 8 },
		"extent 0":                    func(m *gpu.TensorMap) { m.Dims[1] = 0 },
		"extent above 2^32":           func(m *gpu.TensorMap) { m.Dims[0] = 1<<32 + 1 },
		"stride not a multiple of 16": func(m *gpu.TensorMap) { m.Strides[0] = 264 },
		"stride of 2^40":              func(m *gpu.TensorMap) { m.Strides[0] = 1 << 40 },
		"box 0":                       func(m *gpu.TensorMap) { m.Box[1] = 0 },
		"box 257":                     func(m *gpu.TensorMap) { m.Box[1] = 257 },
		"box row not 16 bytes":        func(m *gpu.TensorMap) { m.Box[0] = 12 },
		"box wider than its swizzle":  func(m *gpu.TensorMap) { m.Box[0] = 128 },
		"unknown swizzle":             func(m *gpu.TensorMap) { m.Swizzle = 4 },
		"unknown promotion":           func(m *gpu.TensorMap) { m.Promote = 4 },
	} {
		m := good
		spoil(&m)
		_, err := b.dev.EncodeTensorMap(m)
		require.ErrorIs(b, err, driver.ErrInvalid, name)
	}
}
