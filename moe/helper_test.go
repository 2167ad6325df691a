package moe_test

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/driver/open"
	"sonicmoe/internal/drivertest"
	"sonicmoe/internal/trial"
	"sonicmoe/moe"
)

// device is the device of the tests, see drivertest.Name.
var device = sync.OnceValues(func() (driver.Device, error) {
	return open.Device(context.Background(), drivertest.Name())
})

func TestMain(m *testing.M) { os.Exit(drivertest.Main(m, open.Device)) }

func testDevice(t testing.TB) driver.Device {
	dev, err := device()
	require.NoError(t, err)
	return dev
}

func newTrial(t testing.TB, c moe.Config, tokens int, boost float64, opts ...moe.Option) *trial.Trial {
	dev := testDevice(t)
	tr, err := trial.New(dev, newLayer(t, dev, c, opts...), tokens, 1, boost)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, tr.Close()) })
	return tr
}

// newLayer creates a layer without a cache. With -short it has kernels for small
// batches only if opts ask for them: they are most of a layer's kernels, and few
// tests use them.
func newLayer(t testing.TB, dev driver.Device, c moe.Config, opts ...moe.Option) *moe.Layer {
	t.Helper()
	all := []moe.Option{moe.WithoutCache()}
	if testing.Short() {
		all = append(all, moe.WithoutDecode())
	}
	l, err := moe.New(context.Background(), dev, c, append(all, opts...)...)
	require.NoError(t, err)
	return l
}

func TestForwardSmall(t *testing.T) {
	for i, c := range []struct {
		tokens int
		config moe.Config
	}{
		{64, moe.Config{Hidden: 128, Intermediate: 64, NumExperts: 4, TopK: 2}},
		{200, moe.Config{Hidden: 192, Intermediate: 128, NumExperts: 8, TopK: 3}},
		{130, moe.Config{Hidden: 128, Intermediate: 192, NumExperts: 16, TopK: 8, GateUp: moe.Interleaved}},
		{1, moe.Config{Hidden: 256, Intermediate: 64, NumExperts: 60, TopK: 4}},
		{70, moe.Config{Hidden: 256, Intermediate: 64, NumExperts: 12, TopK: 5, Logits: moe.LogitsF32}},
		{65, moe.Config{Hidden: 128, Intermediate: 64, NumExperts: 300, TopK: 2, Logits: moe.LogitsF32}},
	} {
		if testing.Short() && i%3 != 2 {
			continue
		}
		t.Run(fmt.Sprintf("%d %v", c.tokens, c.config), func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			tr := newTrial(t, c.config, c.tokens, 6, moe.WithoutBackward())
			require.NoError(t, tr.Run(ctx, tr.Args))
			train, err := tr.Results(true)
			require.NoError(t, err)
			rep, err := tr.Check(train, 256)
			require.NoError(t, err)
			t.Logf("score %.2g\nO %v\nH %v", rep.Score, rep.O, rep.H)
			require.NoError(t, rep.Check())

			require.NoError(t, tr.Run(ctx, tr.Inference()))
			infer, err := tr.Results(false)
			require.NoError(t, err)
			require.Equal(t, train.O, infer.O, "inference gives the bits of training")
		})
	}
}
