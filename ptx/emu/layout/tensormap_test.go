package layout

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestTensorMapRoundTrip(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for range 500 {
		m := TensorMap{Elem: ElemType(1 + r.IntN(7)), Rank: 1 + r.IntN(5), Address: r.Uint64() &^ 15, Swizzle: Swizzle(r.IntN(4))}
		for i := range m.Rank {
			m.Dims[i] = 1 + r.Uint64N(1<<32)
			m.Box[i] = 1 + r.Uint32N(256)
			if i > 0 {
				m.Strides[i-1] = r.Uint64N(1<<40) &^ 15
			}
		}
		m.Box[0] = m.Swizzle.Width() / uint32(m.Elem.Bytes())
		require.NoError(t, m.Check())
		b := m.Encode()
		got, err := DecodeTensorMap(b[:])
		require.NoError(t, err)
		require.Equal(t, m, got)
		b[r.IntN(len(b))] ^= 1 << r.IntN(8)
		_, err = DecodeTensorMap(b[:])
		require.Error(t, err, "one bit changed")
	}
}

func TestTensorMapErrors(t *testing.T) {
	good := TensorMap{Elem: ElemBF16, Rank: 2, Address: 0x1000, Dims: [5]uint64{64, 1 << 32}, Strides: [4]uint64{128}, Box: [5]uint32{64, 256}, Swizzle: Swizzle128}
	require.NoError(t, good.Check())
	tests := []struct {
		change func(m *TensorMap)
		want   string
	}{
		{func(m *TensorMap) { m.Elem = 0 }, "element type is 0"},
		{func(m *TensorMap) { m.Rank = 6 }, "rank is 6"},
		{func(m *TensorMap) { m.Address = 8 }, "address is 0x8"},
		{func(m *TensorMap) { m.Swizzle = 4 }, "swizzle is Swizzle(4)"},
		{func(m *TensorMap) { m.Dims[1] = 0 }, "dimension 1 is 0"},
		{func(m *TensorMap) { m.Dims[1]++ }, "dimension 1 is 4294967297"},
		{func(m *TensorMap) { m.Strides[0] = 24 }, "stride 1 is 24"},
		{func(m *TensorMap) { m.Strides[0] = 1 << 40 }, "stride 1 is 1099511627776"},
		{func(m *TensorMap) { m.Box[1] = 257 }, "box extent 1 is 257"},
		{func(m *TensorMap) { m.Box[0] = 4 }, "box row is 8 bytes"},
		{func(m *TensorMap) { m.Box[0] = 128 }, "at most 128 under 128B swizzle"},
		{func(m *TensorMap) { m.Box[0] = 32 }, "not emulated"},
	}
	for _, c := range tests {
		m := good
		c.change(&m)
		assert.ErrorContains(t, m.Check(), c.want)
	}
	_, err := DecodeTensorMap(make([]byte, 128))
	assert.ErrorContains(t, err, "are not a tensor map")
	_, err = DecodeTensorMap(make([]byte, 64))
	assert.ErrorContains(t, err, "64 bytes")
	assert.ErrorContains(t, good.CheckBox([]int32{0}, 0), "has 1 coordinates, want 2")
	assert.ErrorContains(t, good.CheckBox([]int32{0, 0}, 0x440), "shared address 0x440")
	assert.NoError(t, good.CheckBox([]int32{-5, 1 << 30}, 0x480))
	assert.Equal(t, uint32(64*256*2), good.BoxBytes())
}

// TestMeasuredRulesOfBoxes checks boxes that an H200 refuses, or with which it writes past the end
// of a row.
func TestMeasuredRulesOfBoxes(t *testing.T) {
	m := TensorMap{Elem: ElemBF16, Rank: 2, Dims: [5]uint64{100, 37}, Strides: [4]uint64{208}, Box: [5]uint32{64, 16}}
	for _, c := range []struct {
		at               []int32
		store            bool
		refused, outside bool
	}{
		{at: []int32{0, 0}, store: true}, {at: []int32{-16, -3}}, {at: []int32{80, 30}},
		{at: []int32{3, 5}, refused: true}, {at: []int32{3, 5}, store: true, refused: true},
		{at: []int32{-16, 0}, store: true, refused: true}, {at: []int32{0, -3}, store: true, refused: true},
		{at: []int32{80, 30}, store: true, refused: true, outside: true},
	} {
		outside, err := m.CheckChip(c.at, c.store)
		assert.Equal(t, c.outside, outside, "%+v: %v", c, err)
		assert.Equal(t, c.refused, err != nil, "%+v", c)
	}
}

// boxOracle computes the layout of a box element by element. It maps each shared address to the
// global address of its element, or to 0 if the element is outside the tensor.
func boxOracle(m TensorMap, c []int32, shared uint32) map[uint32]uint64 {
	out := map[uint32]uint64{}
	size := uint32(m.Elem.Bytes())
	for n := range m.BoxBytes() / size {
		address, inside, rest := m.Address, true, n
		for d := range m.Rank {
			at := int64(c[d]) + int64(rest%m.Box[d])
			rest /= m.Box[d]
			inside = inside && at >= 0 && at < int64(m.Dims[d])
			stride := uint64(size)
			if d > 0 {
				stride = m.Strides[d-1]
			}
			address += uint64(at) * stride
		}
		if !inside {
			address = 0
		}
		out[m.Swizzle.Apply(shared+n*size)] = address
	}
	return out
}

func TestRunsAgainstElements(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 2))
	inside, outside := 0, 0
	for range 300 {
		m := TensorMap{Elem: ElemType(1 + r.IntN(7)), Rank: 1 + r.IntN(5), Address: 1 << 20, Swizzle: Swizzle(r.IntN(4))}
		size := uint32(m.Elem.Bytes())
		m.Box[0] = m.Swizzle.Width() / size
		if m.Swizzle == SwizzleNone {
			m.Box[0] = 16 / size * (1 + r.Uint32N(5))
		}
		c := make([]int32, m.Rank)
		for i := range m.Rank {
			if i > 0 {
				m.Box[i] = 1 + r.Uint32N(4)
				m.Strides[i-1] = uint64(16 * (1 + r.IntN(1000)))
			}
			m.Dims[i] = uint64(1 + r.Uint32N(2*m.Box[i]))
			c[i] = r.Int32N(2*int32(m.Box[i])) - int32(m.Box[i])
		}
		require.NoError(t, m.Check())
		shared := 1024 + 128*uint32(r.IntN(16))
		require.NoError(t, m.CheckBox(c, shared))
		got := map[uint32]uint64{}
		for run := range m.Runs(c, shared) {
			require.NotZero(t, run.Bytes)
			for b := uint32(0); b < run.Bytes; b += size {
				if _, twice := got[run.Shared+b]; twice {
					require.Failf(t, "an element comes twice", "%+v at %v", m, c)
				}
				got[run.Shared+b] = 0
				if run.InBounds {
					got[run.Shared+b] = run.Global + uint64(b)
					inside++
				} else {
					outside++
				}
			}
		}
		require.True(t, maps.Equal(boxOracle(m, c, shared), got), "%+v at %v", m, c)
	}
	require.True(t, inside > 5000 && outside > 5000)
}

func TestRunsStopEarly(t *testing.T) {
	m := TensorMap{Elem: ElemBF16, Rank: 2, Dims: [5]uint64{64, 64}, Strides: [4]uint64{128}, Box: [5]uint32{64, 8}, Swizzle: Swizzle128}
	n := 0
	for range m.Runs([]int32{0, 0}, 0) {
		if n++; n == 13 {
			break
		}
	}
	assert.Equal(t, 13, n)
}

// wantRows returns the addresses of the rows that a tile may access. The tile has bm rows, starting
// with row r of an expert. The expert has t rows, starting with row off of the tensor at address y;
// s is the distance of two rows.
func wantRows(y, s uint64, off, t, r, bm int) (want []uint64) {
	for j := range bm {
		if r+j < t {
			want = append(want, y+uint64(off+r+j)*s)
		}
	}
	return want
}

func insideAddresses(m TensorMap, c []int32) (got []uint64) {
	for run := range m.Runs(c, 0) {
		if run.InBounds {
			got = append(got, run.Global)
		}
	}
	slices.Sort(got)
	return got
}

// TestRaggedMaps checks that one fixed map serves every expert: coordinates alone cut loads and stores
// off at the expert's last row. The second and the third dimension of the map have the same stride.
// The coordinate in the second is chosen so that this dimension ends at the expert's last row. The
// coordinate in the third moves the box back to the expert.
func TestRaggedMaps(t *testing.T) {
	const y, n = uint64(0x7f00_0000_0000), 64
	r := rand.New(rand.NewPCG(3, 3))
	for range 1000 {
		s := uint64(128 * (1 + r.IntN(128)))
		off, rows, bm := r.IntN(1<<20), 1+r.IntN(500), 1+r.IntN(64)
		first := r.IntN(rows)
		want := wantRows(y, s, off, rows, first, bm)
		base := TensorMap{Elem: ElemBF16, Box: [5]uint32{n, uint32(bm), 1, 1}}

		big := base
		const k = 1 << 30
		big.Rank, big.Address = 3, y-k*s
		big.Dims, big.Strides = [5]uint64{n, k, 1<<31 - 1}, [4]uint64{s, s}
		require.NoError(t, big.Check())
		require.Equal(t, want, insideAddresses(big, []int32{0, int32(k - rows + first), int32(off + rows)}))

		small := base
		v := min(bm, rows-first)
		small.Rank, small.Address = 3, y-uint64(bm)*s
		small.Dims, small.Strides = [5]uint64{n, uint64(bm), 1 << 30}, [4]uint64{s, s}
		require.Equal(t, want, insideAddresses(small, []int32{0, int32(bm - v), int32(off + first + v)}))

		wrap := base // the base moves by 2^30*s + 2^30*(2^34-s) bytes, which is 2^64 and so 0
		wrap.Rank, wrap.Address = 4, y
		wrap.Dims = [5]uint64{n, 1 << 30, 1<<31 - 1, 1<<31 - 1}
		wrap.Strides = [4]uint64{s, 1<<34 - s, s}
		require.NoError(t, wrap.Check())
		require.Equal(t, want, insideAddresses(wrap, []int32{0, int32(k - rows + first), 1 << 30, int32(off + rows)}))
	}
}

// TestRowGather checks that a swizzled box of one row has the same layout as this row in a box of a
// whole tile.
func TestRowGather(t *testing.T) {
	m := TensorMap{Elem: ElemBF16, Rank: 2, Dims: [5]uint64{64, 1000}, Strides: [4]uint64{128}, Box: [5]uint32{64, 1}, Swizzle: Swizzle128}
	for row := range uint32(16) {
		chunk := uint32(0)
		for run := range m.Runs([]int32{0, 7}, 0x400+row*128) {
			require.Equal(t, 0x400+row*128+(chunk^row&7)*16, run.Shared)
			require.Equal(t, uint64(7*128+chunk*16), run.Global)
			chunk++
		}
		require.Equal(t, uint32(8), chunk)
	}
}

// TestReplaceField checks that values that tensormap.replace does not accept are errors.
func TestReplaceField(t *testing.T) {
	whole := TensorMap{Elem: ElemU32, Rank: 1, Address: 64, Dims: [5]uint64{16}, Box: [5]uint32{8}}.Encode()
	damaged := whole
	damaged[0]++
	for name, c := range map[string]struct {
		bytes     [TensorMapBytes]byte
		field     string
		dimension int
		value     uint64
		want      string
	}{
		"no map":         {damaged, "rank", 0, 0, "the 128 bytes are not a tensor map, want zeros or a map"},
		"dimension":      {whole, "box_dim", 5, 1, "dimension is out of range, want 0 to 4, or 0 to 3 for a stride"},
		"stride":         {whole, "global_stride", 4, 16, "dimension is out of range, want 0 to 4, or 0 to 3 for a stride"},
		"element stride": {whole, "element_stride", 0, 2, "element strides other than 1 are not emulated"},
		"fill":           {whole, "fill_mode", 0, 1, "a fill_mode other than 0 is not emulated"},
	} {
		assert.Equal(t, c.want, ReplaceField(c.bytes[:], c.field, c.dimension, c.value), name)
	}
	assert.Empty(t, ReplaceField(whole[:], "global_address", 0, 128))
	m, err := DecodeTensorMap(whole[:])
	require.NoError(t, err)
	assert.Equal(t, uint64(128), m.Address)
}
