package trial_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"sonicmoe/internal/reference"
	"sonicmoe/internal/trial"
)

// TestSampleRows checks that samples use every expert (at most one row each if there are fewer
// samples than experts) and are spread over an expert's rows.
func TestSampleRows(t *testing.T) {
	for _, tt := range []struct{ experts, rows, want int }{{128, 512, 256}, {64, 4096, 256}, {512, 1024, 256}, {3, 1000, 256}, {1, 300, 256}, {2, 128, 256}} {
		list := trial.SampleRows(tt.experts, tt.rows, tt.want)
		assert.Len(t, list, tt.want)
		experts, seen, thirds := map[int]bool{}, map[reference.ExpertRow]bool{}, [3]int{}
		for _, r := range list {
			assert.True(t, r.Expert >= 0 && r.Expert < tt.experts && r.Row >= 0 && r.Row < tt.rows, "%v of %v", r, tt)
			experts[r.Expert], seen[r] = true, true
			thirds[3*r.Row/tt.rows]++
		}
		assert.Len(t, experts, min(tt.experts, tt.want), "%v", tt)
		assert.Len(t, seen, tt.want, "%v: rows twice", tt)
		for _, n := range thirds {
			assert.Greater(t, n, tt.want/4, "%v: %v", tt, thirds)
		}
	}
	assert.Len(t, trial.SampleRows(2, 100, 256), 200)
}
