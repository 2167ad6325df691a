package reference_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"

	"sonicmoe/internal/num"
	"sonicmoe/internal/reference"
)

func TestNormalHasItsMoments(t *testing.T) {
	const n = 1 << 20
	values := reference.NewNormal(1, 0.5).Values(n)
	var sum, squares, fourth, neighbours, previous float64
	inside := 0
	for _, bits := range values {
		v := num.BF16ToFloat64(bits) / 0.5
		sum, squares, fourth = sum+v, squares+v*v, fourth+v*v*v*v
		neighbours += v * previous
		previous = v
		if math.Abs(v) < 1 {
			inside++
		}
	}
	// The standard errors of the mean, the variance, the fourth moment and the correlation of
	// neighbours are 1e-3, 1.4e-3, 1e-2 and 1e-3.
	assert.InDelta(t, 0, sum/n, 5e-3)
	assert.InDelta(t, 1, squares/n, 7e-3)
	assert.InDelta(t, 3, fourth/n, 5e-2)
	assert.InDelta(t, 0, neighbours/n, 5e-3)
	assert.InDelta(t, 0.6827, float64(inside)/n, 5e-3)
}

func TestNormalInPiecesIsTheSame(t *testing.T) {
	const n = 200_000
	r := reference.NewNormal(42, 1)
	whole := r.Values(n)
	for _, cut := range []int{1, 2, 3, 4, 65535, 65537, n - 1} {
		got := make([]uint16, n)
		r.Fill(got[:cut], 0)
		r.Fill(got[cut:], int64(cut))
		assert.Equal(t, whole, got, "cut at %d", cut)
	}
	far := make([]uint16, 7)
	r.Fill(far, 5_000_000_001)
	again := make([]uint16, 3)
	r.Fill(again, 5_000_000_005)
	assert.Equal(t, far[4:], again)
}

// TestNormalIsPinned checks that the values of a seed never change, because reported speeds and
// errors depend on them.
func TestNormalIsPinned(t *testing.T) {
	pinned := []uint16{0xbeae, 0xbe96, 0xbcc4, 0x3e33, 0x3efd, 0xbe39, 0x3f35, 0x3d78}
	assert.Equal(t, pinned, reference.NewNormal(1, 1).Values(8))
	assert.NotEqual(t, pinned, reference.NewNormal(2, 1).Values(8))
	assert.NotEqual(t, reference.NewNormal(0, 1).Values(8), reference.NewNormal(1, 1).Values(8))
}

func BenchmarkNormal(b *testing.B) {
	r, dst := reference.NewNormal(1, 1), make([]uint16, 1<<24)
	b.SetBytes(int64(2 * len(dst)))
	for b.Loop() {
		r.Fill(dst, 0)
	}
}
