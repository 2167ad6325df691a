package parallel_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"sonicmoe/driver"
	"sonicmoe/driver/open"
	"sonicmoe/internal/drivertest"
	"sonicmoe/moe/parallel"
	"sonicmoe/moe/parallel/internal/transporttest"
)

// TestLocal checks Local for groups of several sizes, with a device for each rank and with one device
// for all ranks.
func TestLocal(t *testing.T) {
	for _, ranks := range []int{1, 2, 3, 8} {
		for _, together := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d ranks, together %v", ranks, together), func(t *testing.T) {
				var list []driver.Device
				for i := range ranks {
					if i > 0 && together {
						list = append(list, list[0])
						continue
					}
					dev, err := open.Device(t.Context(), drivertest.Name())
					require.NoError(t, err)
					defer dev.Close()
					list = append(list, dev)
				}
				transports, err := parallel.Local(list...)
				require.NoError(t, err)
				var g errgroup.Group
				for i, tr := range transports {
					g.Go(func() error { return transporttest.Conforms(t.Context(), tr, list[i]) })
				}
				require.NoError(t, g.Wait())
				for _, tr := range transports {
					require.NoError(t, tr.Close())
				}
			})
		}
	}
}
