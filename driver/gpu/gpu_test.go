package gpu

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
)

func TestLaunchCheck(t *testing.T) {
	for _, good := range []Launch{
		{},
		{Grid: Dim3{X: 1<<31 - 1, Y: 65535, Z: 65535}, Block: Dim3{X: 16, Y: 1, Z: 64}},
		{Block: Dim3{X: 1024}, SharedBytes: 232448},
		{Block: Dim3{Y: 1024}},
		{Grid: Dim3{X: 132}, Cluster: Dim3{X: 2}},
		{Grid: Dim3{X: 16}, Cluster: Dim3{X: 16, Y: 1, Z: 1}},
		{Grid: Dim3{X: 6, Y: 4}, Cluster: Dim3{X: 3, Y: 2}},
	} {
		assert.NoError(t, good.Check(), "%+v", good)
	}
	for _, test := range []struct {
		launch Launch
		field  string
	}{
		{Launch{Grid: Dim3{X: -1}}, "Grid.X is -1"},
		{Launch{Grid: Dim3{X: 1 << 31}}, "Grid.X is 2147483648"},
		{Launch{Grid: Dim3{Y: 65536}}, "Grid.Y is 65536"},
		{Launch{Grid: Dim3{Z: -2}}, "Grid.Z is -2"},
		{Launch{Block: Dim3{X: 1025}}, "Block.X is 1025"},
		{Launch{Block: Dim3{Y: -1}}, "Block.Y is -1"},
		{Launch{Block: Dim3{Z: 65}}, "Block.Z is 65"},
		{Launch{Block: Dim3{X: 512, Y: 3}}, "Block is 1536"},
		{Launch{SharedBytes: -1}, "SharedBytes is -1"},
		{Launch{Grid: Dim3{X: 17}, Cluster: Dim3{X: 17}}, "Cluster is 17x0x0"},
		{Launch{Grid: Dim3{X: 8, Y: 4}, Cluster: Dim3{X: 8, Y: 4}}, "Cluster is 8x4x0"},
		{Launch{Cluster: Dim3{X: -1}}, "Cluster is -1x0x0"},
		{Launch{Grid: Dim3{X: 3}, Cluster: Dim3{X: 2}}, "Grid is 3x0x0, must be a multiple of the cluster 2x0x0"},
		{Launch{Cluster: Dim3{Y: 2}}, "Grid is 0x0x0"},
	} {
		err := test.launch.Check()
		require.ErrorIs(t, err, driver.ErrInvalid, "%+v", test.launch)
		assert.ErrorContains(t, err, test.field)
	}
}

func TestTensorMapCheck(t *testing.T) {
	good := TensorMap{Elem: F32, Rank: 3, Address: 64, Dims: [5]uint64{1 << 32, 1, 7}, Strides: [4]uint64{1<<40 - 16, 16},
		Box: [5]uint32{32, 256, 1}, Swizzle: Swizzle128, Promote: Promote256}
	require.NoError(t, good.Check())
	for text, spoil := range map[string]func(m *TensorMap){
		"Elem is ElemType(9)":           func(m *TensorMap) { m.Elem = 9 },
		"Rank is 6":                     func(m *TensorMap) { m.Rank = 6 },
		"Rank is 0":                     func(m *TensorMap) { m.Rank = 0 },
		"Address is 0x41":               func(m *TensorMap) { m.Address++ },
		"Swizzle is 4":                  func(m *TensorMap) { m.Swizzle++ },
		"Promote is 4":                  func(m *TensorMap) { m.Promote++ },
		"Dims[0] is 4294967297":         func(m *TensorMap) { m.Dims[0]++ },
		"Dims[1] is 0":                  func(m *TensorMap) { m.Dims[1]-- },
		"Strides[0] is 1099511627776":   func(m *TensorMap) { m.Strides[0] += 16 },
		"Strides[1] is 17":              func(m *TensorMap) { m.Strides[1]++ },
		"Box[1] is 257":                 func(m *TensorMap) { m.Box[1]++ },
		"Box[2] is 0":                   func(m *TensorMap) { m.Box[2]-- },
		"Box[0] is 31":                  func(m *TensorMap) { m.Box[0]-- },
		"Box[0] is 36, must be at most": func(m *TensorMap) { m.Box[0] += 4 },
	} {
		m := good
		spoil(&m)
		err := m.Check()
		require.ErrorIs(t, err, driver.ErrInvalid, text)
		assert.ErrorContains(t, err, text)
	}
	beyond := good // values beyond the rank are not used
	beyond.Dims[3], beyond.Box[4], beyond.Strides[2] = 1<<40, 999, 5
	require.NoError(t, beyond.Check())
}

func TestDim3Count(t *testing.T) {
	assert.Equal(t, 1, Dim3{}.Count())
	assert.Equal(t, 24, Dim3{2, 3, 4}.Count())
	assert.Equal(t, 3, Dim3{Y: 3}.Count())
}

func TestElemTypes(t *testing.T) {
	for e, bytes := range map[ElemType]int{BF16: 2, F16: 2, U16: 2, F32: 4, U32: 4, S32: 4, U8: 1, 0: 0, 8: 0} {
		assert.Equal(t, bytes, e.Bytes(), e.String())
	}
	assert.Equal(t, "bf16", BF16.String())
	assert.Equal(t, "s32", S32.String())
}

// TestOf checks that a device or a stream that cannot run kernels is refused, with an error that
// names its Go type.
func TestOf(t *testing.T) {
	type memoryOnly struct{ driver.Device }
	type copyOnly struct{ driver.Stream }
	_, err := Of(memoryOnly{})
	require.ErrorIs(t, err, driver.ErrUnsupported)
	assert.ErrorContains(t, err, "gpu.memoryOnly")
	assert.ErrorContains(t, err, "want a gpu.Device")
	err = Enqueue(copyOnly{}, nil, nil, nil)
	require.ErrorIs(t, err, driver.ErrUnsupported)
	assert.ErrorContains(t, err, "gpu.copyOnly")
	assert.ErrorContains(t, err, "want a gpu.Stream")

	type device struct{ Device }
	var dev driver.Device = device{}
	got, err := Of(dev)
	require.NoError(t, err)
	assert.Equal(t, dev, got)
}
