package devkit_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/driver/gpu"
	"sonicmoe/internal/devkit"
)

// TestPackParams checks that parameters are aligned by their addresses, which start at
// ParamBase: 16 bytes past a multiple of 128.
func TestPackParams(t *testing.T) {
	var m gpu.EncodedTensorMap
	m[0], m[127] = 1, 2
	for _, c := range []struct {
		name   string
		values []any
		bytes  int
		at     map[int]byte // bytes by their offset; all other bytes are zero
	}{
		{"nothing", nil, 0, nil},
		{"words", []any{uint32(0x01020304), int32(-2), float32(1)}, 12, map[int]byte{0: 4, 1: 3, 2: 2, 3: 1, 4: 0xfe, 5: 0xff, 6: 0xff, 7: 0xff, 10: 0x80, 11: 0x3f}},
		{"a pointer after a word", []any{uint32(5), driver.DevicePtr(0x0807060504030201)}, 16,
			map[int]byte{0: 5, 8: 1, 9: 2, 10: 3, 11: 4, 12: 5, 13: 6, 14: 7, 15: 8}},
		{"a long", []any{uint64(1) << 56}, 8, map[int]byte{7: 1}},
		{"a tensor map first", []any{m}, 240, map[int]byte{112: 1, 239: 2}},
		{"a tensor map later", []any{driver.DevicePtr(9), m, uint32(7)}, 244, map[int]byte{0: 9, 112: 1, 239: 2, 240: 7}},
	} {
		got, err := devkit.PackParams(c.values...)
		require.NoError(t, err, c.name)
		want := make([]byte, c.bytes)
		for i, b := range c.at {
			want[i] = b
		}
		assert.Equal(t, string(want), string(got), c.name)
	}
	for _, value := range []any{7, "text", nil, float64(1), uint16(1), gpu.TensorMap{}} {
		_, err := devkit.PackParams(uint32(1), value)
		require.ErrorIs(t, err, driver.ErrInvalid)
		assert.ErrorContains(t, err, "parameter 1")
	}
}

func TestAppendParamAllocatesNothing(t *testing.T) {
	buf, m := make([]byte, 300), gpu.EncodedTensorMap{3}
	assert.Zero(t, testing.AllocsPerRun(100, func() {
		b := devkit.AppendParam(buf[:0], driver.DevicePtr(1<<40))
		b = devkit.AppendParam(b, m)
		devkit.AppendParam(b, uint32(1<<20))
	}))
	assert.Equal(t, byte(3), buf[112])
}
