package jit

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/driver/gpu"
)

// TestLowerCamel checks the names of parameters: the name of the field with its first word in lower
// case.
func TestLowerCamel(t *testing.T) {
	for name, want := range map[string]string{
		"X": "x", "T": "t", "TopK": "topK", "DScores": "dScores", "PerCTA": "perCTA", "W1": "w1", "SMs": "sMs", "x": "x", "": "",
	} {
		assert.Equal(t, want, lowerCamel(name), name)
	}
}

// TestPersistentGrid checks that the grid of a persistent kernel has whole clusters, at least one,
// and no more CTAs than SMs.
func TestPersistentGrid(t *testing.T) {
	type args struct{ N uint32 }
	for _, c := range []struct{ cluster, sms, want int }{{1, 132, 132}, {2, 131, 130}, {2, 1, 2}, {1, 1, 1}, {16, 132, 128}} {
		b := NewBuilder[args]("persistent", 32, 1)
		b.Persistent(c.cluster)
		require.NotNil(t, b.grid)
		assert.Equal(t, gpu.Dim3{X: c.want}, b.grid(&args{}, c.sms), "%+v", c)
	}
}

func TestOriginNames(t *testing.T) {
	for o, want := range map[Origin]string{Loaded: "loaded", Compiled: "compiled", 7: "Origin(7)"} {
		assert.Equal(t, want, o.String())
	}
}
