package choose

import (
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/jit/tile"
	"sonicmoe/ptx"
)

// onesThenZeros returns a sorted list of ones and zeros. A network that sorts every such
// list sorts every list of keys.
func onesThenZeros(ones, length int) []ptx.U32 {
	keys := make([]ptx.U32, length)
	for i := range keys {
		keys[i] = ptx.Uint(0)
		if i < ones {
			keys[i] = ptx.Uint(1)
		}
	}
	return keys
}

// TestSorted runs the network on constants, which the builder folds while it emits.
func TestSorted(t *testing.T) {
	key := shortKeys(ptx.NewKernel("k"), tile.BF16)
	for length := range 13 {
		for bits := range 1 << length {
			keys, ones := make([]ptx.U32, length), 0
			for i := range keys {
				keys[i] = ptx.Uint(bits >> i & 1)
				ones += bits >> i & 1
			}
			require.Equal(t, onesThenZeros(ones, length), sorted(key, keys), "%d keys %b", length, bits)
		}
	}
}

func TestLargest(t *testing.T) {
	key := shortKeys(ptx.NewKernel("k"), tile.BF16)
	lengths := []int{0, 1, 2, 3, 4, 5, 8, 10, 16}
	for _, a := range lengths {
		for _, b := range lengths {
			for n := 1; n <= 16; n++ {
				for i := range a + 1 {
					for j := range b + 1 {
						got := largest(key, onesThenZeros(i, a), onesThenZeros(j, b), n)
						require.Equal(t, onesThenZeros(i+j, min(n, a+b)), got, "%d ones of %d, %d ones of %d, the %d largest", i, a, j, b, n)
					}
				}
			}
		}
	}
}
