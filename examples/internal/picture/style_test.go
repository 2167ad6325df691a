package picture

import (
	"testing"

	"github.com/stretchr/testify/require"
	"gonum.org/v1/plot"
)

// labels returns the labels of the ticks that have one.
func labels(ticks []plot.Tick) (list []string) {
	for _, t := range ticks {
		if t.Label != "" {
			list = append(list, t.Label)
		}
	}
	return list
}

func TestTicks(t *testing.T) {
	for _, c := range []struct {
		least, most float64
		want        []string
	}{
		{0, 1.9, []string{"0", "0.2", "0.4", "0.6", "0.8", "1", "1.2", "1.4", "1.6", "1.8"}},
		{-0.5, 33, []string{"0", "5", "10", "15", "20", "25", "30"}},
		{0, 0.00097, []string{"0", "0.0002", "0.0004", "0.0006", "0.0008"}},
		{3, 3, nil},
	} {
		require.Equal(t, c.want, labels(ticks(c.least, c.most)), "%v to %v", c.least, c.most)
	}
}

func TestLogTicks(t *testing.T) {
	list := LogTicks.Ticks(3500, 40000)
	require.Equal(t, []string{"5000", "10000", "20000"}, labels(list))
	require.Equal(t, 4000., list[0].Value)
	require.Equal(t, 40000., list[len(list)-1].Value)
	require.Len(t, list, 10)
}
