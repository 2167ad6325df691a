package decode

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestGrid checks that each SM has a CTA if there is a unit of work for it.
func TestGrid(t *testing.T) {
	for _, tt := range []struct{ rows, experts, units, sms, want int }{
		{1, 8, 4, 132, 4}, {3, 8, 4, 132, 12}, {100, 8, 4, 132, 32}, {100, 128, 4, 132, 132}, {1024, 2, 3, 132, 18}, {0, 8, 4, 132, 1}, {100, 8, 4, 10, 10},
	} {
		assert.Equal(t, tt.want, ctas(tt.rows, tt.experts, tt.units, tt.sms).X, "%+v", tt)
	}
}
