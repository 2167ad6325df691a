package report

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTokenTicks(t *testing.T) {
	for _, c := range []struct {
		tokens []int
		want   string
	}{
		{[]int{1, 2, 4, 8}, "1 2 4 8"},
		{[]int{1, 2, 3, 4, 6, 8, 12, 16, 48, 64, 65, 96, 128}, "1 2 - 4 - 8 - 16 - 64 - - 128"},
		{[]int{256, 257, 320, 384, 385, 448, 512, 513, 640}, "256 - - - - - 512 - -"},
		{[]int{16, 48, 80, 65}, "16 48 80 -"},
		{[]int{65}, "65"},
	} {
		var labels []string
		for i, tick := range tokenTicks(c.tokens) {
			require.Equal(t, float64(c.tokens[i]), tick.Value)
			if tick.Label == "" {
				tick.Label = "-"
			}
			labels = append(labels, tick.Label)
		}
		require.Equal(t, c.want, strings.Join(labels, " "))
	}
}
